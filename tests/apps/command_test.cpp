// The `oa` command as a user runs it: output, exit status, messages.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

struct Outcome {
  int status = -1;
  std::string output;
};

// Runs the command through the shell; `redirect` says what happens to its two streams.
Outcome run(const std::string& arguments, const std::string& redirect = "2>&1",
            const std::string& environment = "") {
  const std::string line =
      environment + " '" OA_COMMAND_PATH "' " + arguments + " " + redirect + " </dev/null";
  Outcome outcome;
  FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

TEST(Command, VersionAndHelp) {
  const Outcome version = run("--version");
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(version.output, "oa 0.1.0\n");
  const Outcome help = run("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.output.find("info"), std::string::npos) << help.output;
  EXPECT_EQ(run("info --help").status, 0);
}

TEST(Command, WrongUsageExitsWithTwoAndPrintsNothingOnStandardOutput) {
  for (const char* arguments : {"", "nonsense", "--nonsense", "info --nonsense", "info extra"}) {
    const Outcome all = run(arguments);
    EXPECT_EQ(all.status, 2) << arguments << "\n" << all.output;
    EXPECT_FALSE(all.output.empty()) << arguments;
    EXPECT_EQ(run(arguments, "2>/dev/null").output, "") << arguments;
  }
}

TEST(Command, InfoNamesCpuAndCache) {
  const std::string cache = std::filesystem::temp_directory_path() / "oa command test";
  const Outcome info = run("info", "", "OA_CACHE_DIR='" + cache + "'");
  std::filesystem::remove_all(cache);
  EXPECT_EQ(info.status, 0);
  EXPECT_NE(info.output.find("\ncpu: "), std::string::npos) << info.output;
  EXPECT_NE(info.output.find("cache: " + cache + "\n"), std::string::npos) << info.output;
}

TEST(Command, InfoAsJson) {
  const Outcome info = run("info --json", "", "OA_CACHE_DIR=-");
  ASSERT_EQ(info.status, 0);
  const nlohmann::json json = nlohmann::json::parse(info.output);
  EXPECT_EQ(json.at("version"), "0.1.0");
  const nlohmann::json& cpu = json.at("devices").front();
  EXPECT_EQ(cpu.at("id"), "cpu");
  EXPECT_EQ(cpu.at("kind"), "cpu");
  EXPECT_GT(cpu.at("memory_bytes").get<std::uint64_t>(), 0u);
  EXPECT_EQ(json.at("cache").at("files"), 0);
}

TEST(Command, InfoNamesTheDefaultDevice) {
  const Outcome info = run("info --json", "", "OA_DEVICE=cpu");
  ASSERT_EQ(info.status, 0);
  EXPECT_EQ(nlohmann::json::parse(info.output).at("default"), "cpu");
  const Outcome wrong = run("info", "2>&1", "OA_DEVICE=toaster");
  EXPECT_EQ(wrong.status, 1);
  EXPECT_TRUE(wrong.output.starts_with(
      "oa: open: no device of that name, got \"toaster\", expected one of: cpu ("))
      << wrong.output;
  EXPECT_EQ(std::count(wrong.output.begin(), wrong.output.end(), '\n'), 1) << wrong.output;
}

TEST(Command, InfoSurvivesWithoutVulkanDrivers) {
  const Outcome info = run("info --json", "", "VK_DRIVER_FILES=/none VK_ICD_FILENAMES=/none");
  ASSERT_EQ(info.status, 0);
  const nlohmann::json json = nlohmann::json::parse(info.output);
  EXPECT_EQ(json.at("devices").size(), 1u);
  EXPECT_NE(json.at("no_vulkan"), "");
}

TEST(Command, InfoSurvivesAnUnusableCacheFolder) {
  const Outcome info = run("info", "", "OA_CACHE_DIR=/dev/null/oa");
  EXPECT_EQ(info.status, 0);
  EXPECT_NE(info.output.find("/dev/null/oa"), std::string::npos) << info.output;
}

TEST(Command, SelftestPassesOnTheCpu) {
  const Outcome test = run("selftest --device cpu --verbose");
  EXPECT_EQ(test.status, 0) << test.output;
  EXPECT_EQ(test.output.find("FAILED"), std::string::npos) << test.output;
  EXPECT_NE(test.output.find("  products        ok\n"), std::string::npos) << test.output;
}

TEST(Command, SelftestOfASoftwareDriver) {
  const Outcome test = run("selftest --device lavapipe");
  if (test.output.find("no device of that name") != std::string::npos) GTEST_SKIP() << test.output;
  EXPECT_EQ(test.status, 0) << test.output;
  EXPECT_NE(test.output.find("vulkan:"), std::string::npos) << test.output;
}

TEST(Command, SelftestRefusesAnUnknownDevice) {
  const Outcome test = run("selftest --device toaster");
  EXPECT_EQ(test.status, 1);
  EXPECT_TRUE(test.output.starts_with("oa: open: no device of that name, got \"toaster\""))
      << test.output;
}

TEST(Command, UnwritableOutputIsAnErrorInOneLine) {
  const Outcome full = run("info", "2>&1 >/dev/full");
  EXPECT_EQ(full.status, 1);
  EXPECT_EQ(full.output, "oa: output: cannot write, No space left on device\n");
}

// --- explain ---

const std::string kTinyModel =
    " --layers 1 --width 16 --heads 2 --context 8 --batch 2 --device cpu ";

TEST(Explain, TellsAboutATrainingStep) {
  for (const char* model : {"--arch transformer", "--arch gru --optimizer sgd --clip 0",
                            "--arch rnn --dropout 0.1 --optimizer muon"}) {
    const Outcome o = run("explain lm " + std::string(model) + kTinyModel + "--runs 1");
    ASSERT_EQ(o.status, 0) << model << "\n" << o.output;
    for (const char* part :
         {" operations -> ", "predicted from the limits", "\nlimits: ", "\nstages\n",
          "semantic_validation       analyzed", "command_recording         applied", "\ndispatches",
          "\nkernels, and why these", "not with ", "\nmemory\n", "saved by reuse",
          "\nbarriers\n"}) {
      EXPECT_NE(o.output.find(part), std::string::npos) << model << ": " << part;
    }
  }
}

TEST(Explain, WritesReportsTraceAndJson) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / "oa explain command test";
  fs::create_directories(folder);
  const Outcome o =
      run("explain lm --json" + kTinyModel + "--runs 2 --report '" + (folder / "step").string() +
          "' --profile '" + (folder / "trace.json").string() + "'");
  ASSERT_EQ(o.status, 0) << o.output;
  const auto json = nlohmann::json::parse(o.output);
  EXPECT_EQ(json["schema"], "oa.explain.v1");
  EXPECT_GT(json["dispatches"].size(), 5u);
  EXPECT_GT(json["wall_seconds"].get<double>(), 0);
  for (const auto& [name, schema] :
       {std::pair("step.semantic.json", "oa.semantic_graph.v2"),
        std::pair("step.execution.json", "oa.execution_graph.v3"),
        std::pair("step.compilation.json", "oa.training_compilation.v2")}) {
    std::ifstream file(folder / name);
    EXPECT_EQ(nlohmann::json::parse(file)["schema"], schema);
  }
  std::ifstream trace(folder / "trace.json");
  EXPECT_GT(nlohmann::json::parse(trace)["traceEvents"].size(), json["dispatches"].size());
  fs::remove_all(folder);
}

TEST(Explain, CompilesWithoutRunningAndRefusesNonsense) {
  const Outcome o = run("explain lm --forward --runs 0 --arch rnn" + kTinyModel);
  ASSERT_EQ(o.status, 0) << o.output;
  EXPECT_EQ(o.output.find("measured,"), std::string::npos) << o.output;
  EXPECT_EQ(run("explain").status, 2);
  EXPECT_EQ(run("explain lm --layers x").status, 2);
  const Outcome bad = run("explain lm --arch lstm --runs 0 --device cpu");
  EXPECT_EQ(bad.status, 1);
  EXPECT_EQ(bad.output,
            "oa: train: bad --arch, got \"lstm\", expected one of transformer, rnn, gru\n");
  EXPECT_EQ(run("explain lm --file /nonexistent.oam --device cpu").status, 1);
}

}  // namespace
