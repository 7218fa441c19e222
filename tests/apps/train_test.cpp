// `oa train lm`, `oa generate` and `oa eval` as a user meets them: a run in two sessions has the
// bits of one in a single session, an interrupted run goes on, and mistakes get an answer.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "oa/ml/checkpoint/oam.h"

namespace oa {
namespace {

namespace fs = std::filesystem;

struct Output {
  int status = -1;
  std::string text;  // of both streams
};

// Runs the command, with its streams joined by default.
Output run(const std::string& arguments, const std::string& redirect = "2>&1") {
  const std::string line = std::string(OA_COMMAND_PATH) + " " + arguments + " " + redirect;
  std::FILE* pipe = popen(line.c_str(), "r");
  Output out;
  char buffer[4096];
  while (size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) out.text.append(buffer, n);
  out.status = WEXITSTATUS(pclose(pipe));
  return out;
}

class TrainCommand : public testing::Test {
 protected:
  void SetUp() override {
    setenv("OA_DEVICE", "cpu", 1);
    folder_ = fs::temp_directory_path() / ("oa_train_test_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream text(path("text.txt"));
    for (int i = 0; i < 400; ++i) {
      text << "line " << i << ": the quick brown fox jumps over the lazy dog " << i * i << "\n";
    }
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string small(const std::string& out, const std::string& more) const {
    return "train lm --data " + path("text.txt") + " --out " + path(out) +
           " --width 16 --layers 1 --context 16 --batch 4 --warmup 5 --sample 0 "
           "--validate-every 10 --validation-batches 2 " +
           more;
  }
  // Parameters, buffers, moments and step, without what differs between sessions (the time).
  std::string bits(const std::string& name) const {
    const ml::Oam file = ml::read_oam(path(name));
    std::ostringstream all;
    for (const auto* list : {&file.weights, &file.state}) {
      for (const ml::TensorView& t : *list) {
        all << t.name << ':'
            << std::string(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
      }
    }
    const ml::OamOptimizer& o = *file.optimizer;
    for (const auto& part : {o.first, o.second}) {
      all << std::string(reinterpret_cast<const char*>(part.data()), part.size());
    }
    all << o.step << ' ' << o.learning_rate << ' ' << file.progress.step;
    return all.str();
  }
  // Starts the command and does not wait for it.
  pid_t start(const std::string& arguments) const {
    std::vector<std::string> words{OA_COMMAND_PATH};
    std::istringstream stream(arguments);
    for (std::string word; stream >> word;) words.push_back(word);
    const pid_t child = fork();
    if (child != 0) return child;
    std::freopen(path("log").c_str(), "w", stdout);
    std::freopen("/dev/null", "w", stderr);
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  // The rows in the metrics of "run": one header, every step once, in order.
  i64 rows() const {
    std::ifstream metrics(path("run/metrics.csv"));
    std::string line;
    std::getline(metrics, line);
    EXPECT_EQ(line.substr(0, 10), "epoch,step");
    i64 expected = 0;
    while (std::getline(metrics, line)) {
      EXPECT_EQ(std::stoll(line.substr(line.find(',') + 1)), ++expected) << line;
    }
    return expected;
  }
  fs::path folder_;
};

TEST_F(TrainCommand, TwoSessionsHaveTheBitsOfOne) {
  // The loss scale of f16 belongs to what a session goes on from.
  for (const std::string optimizer : {"adamw", "adam", "sgd", "muon", "adamw --precision f16"}) {
    const std::string more = "--steps 40 --dropout 0.2 --lr 3e-3 --optimizer " + optimizer;
    const std::string name = optimizer.substr(0, 5) + optimizer.substr(optimizer.size() - 1);
    const std::string one = "one_" + name, two = "two_" + name;
    const Output whole = run(small(one, more));
    ASSERT_EQ(whole.status, 0) << whole.text;
    const Output first = run(small(two, more + " --stop-after 20"));
    ASSERT_EQ(first.status, 0) << first.text;
    EXPECT_NE(first.text.find("stopped at step 20; go on with: oa train lm --resume --out"),
              std::string::npos)
        << first.text;
    const Output second = run("train lm --device cpu --resume --sample 0 --out " + path(two));
    ASSERT_EQ(second.status, 0) << second.text;
    EXPECT_EQ(bits(one + "/last.oam"), bits(two + "/last.oam")) << optimizer;
    EXPECT_EQ(bits(one + "/best.oam"), bits(two + "/best.oam")) << optimizer;
  }
}

TEST_F(TrainCommand, AResumedRunTakesANewPlan) {
  ASSERT_EQ(run(small("run", "--steps 3")).status, 0);
  const auto step = [&] { return ml::read_oam(path("run/last.oam")).progress.step; };
  EXPECT_EQ(step(), 3);
  const std::string resume = "train lm --resume --sample 0 --out " + path("run");
  ASSERT_EQ(run(resume + " --steps 5").status, 0);
  EXPECT_EQ(step(), 5);
  const Output epochs = run(resume + " --epochs 0.05");
  ASSERT_EQ(epochs.status, 0) << epochs.text;
  EXPECT_GT(step(), 5);
}

TEST_F(TrainCommand, AResumedRunRefusesWhatItWouldIgnore) {
  ASSERT_EQ(run(small("run", "--steps 3")).status, 0);
  const auto before = ml::read_oam(path("run/last.oam")).progress.step;
  const std::string resume =
      "train lm --resume --device cpu --sample 0 --steps 5 --out " + path("run");
  for (const char* option : {"--data x",         "--arch gru",         "--tokenizer bpe",
                             "--vocab 300",      "--layers 2",         "--width 32",
                             "--heads 2",        "--hidden 8",         "--context 8",
                             "--dropout 0.1",    "--seed 2",           "--batch 8",
                             "--lr 0.1",         "--schedule wsd",     "--warmup 2",
                             "--optimizer sgd",  "--weight-decay 0",   "--clip 0",
                             "--validation 0.2", "--validate-every 3", "--validation-batches 1",
                             "--save-every 1",   "--precision bf16"}) {
    const Output out = run(resume + " " + option);
    EXPECT_EQ(out.status, 2) << option << out.text;
    const std::string name = std::string(option).substr(0, std::string(option).find(' '));
    EXPECT_NE(out.text.find(name + ": not with --resume, the run keeps its own; only --steps"),
              std::string::npos)
        << out.text;
  }
  EXPECT_EQ(ml::read_oam(path("run/last.oam")).progress.step, before);
}

TEST_F(TrainCommand, WhatKilledSavesLeftGoes) {
  ASSERT_EQ(run(small("run", "--steps 3")).status, 0);
  for (const char* name : {"last.oam.tmp.1.7", "loss.svg.tmp.99999999.0", "mine.tmp.txt"}) {
    std::ofstream(path(std::string("run/") + name)) << "x";
  }
  ASSERT_EQ(run("train lm --resume --sample 0 --steps 4 --out " + path("run")).status, 0);
  EXPECT_FALSE(fs::exists(path("run/last.oam.tmp.1.7")));
  EXPECT_FALSE(fs::exists(path("run/loss.svg.tmp.99999999.0")));
  EXPECT_TRUE(fs::exists(path("run/mine.tmp.txt")));
}

TEST_F(TrainCommand, EveryArchitectureTrainsAndWrites) {
  for (const char* more :
       {"--arch transformer", "--arch rnn", "--arch gru", "--tokenizer bpe --vocab 300"}) {
    const std::string out = fmt::format("a{}", std::hash<std::string>()(more));
    const Output train = run(small(out, std::string("--steps 12 ") + more));
    ASSERT_EQ(train.status, 0) << more << train.text;
    const std::string generate =
        "generate --device cpu --tokens 40 --seed 3 --prompt line --model " +
        path(out + "/last.oam");
    const Output a = run(generate, "2>/dev/null"), b = run(generate, "2>/dev/null");
    EXPECT_EQ(a.status, 0) << a.text;
    EXPECT_EQ(a.text.substr(0, 4), "line");
    EXPECT_EQ(a.text, b.text);
    const Output eval =
        run("eval --device cpu --data " + path("text.txt") + " --model " + path(out + "/best.oam"));
    EXPECT_EQ(eval.status, 0);
    EXPECT_NE(eval.text.find("bits per byte"), std::string::npos) << eval.text;
  }
}

TEST_F(TrainCommand, AnInterruptSavesAndTheRunGoesOn) {
  const pid_t child = start(small("run", "--steps 100000 --save-every 0"));
  // A row in the metrics shows that training is under way.
  for (int i = 0; i < 600; ++i) {
    std::ifstream metrics(path("run/metrics.csv"));
    std::string line;
    int rows = 0;
    while (std::getline(metrics, line)) ++rows;
    if (rows > 2) break;
    usleep(50'000);
  }
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const i64 step = ml::read_oam(path("run/last.oam")).progress.step;
  EXPECT_GT(step, 0);
  const Output more =
      run("train lm --device cpu --resume --sample 0 --stop-after 3 --out " + path("run"));
  EXPECT_EQ(more.status, 0) << more.text;
  EXPECT_EQ(ml::read_oam(path("run/last.oam")).progress.step, step + 3);
  EXPECT_EQ(rows(), step + 3);
}

// Killed again and again at any moment, then resumed: in the end the run has the bits of one that
// nobody disturbed, and each step has one row.
TEST_F(TrainCommand, AKilledRunLosesNothingThatWasSaved) {
  const std::string plan = "--steps 120 --dropout 0.1 --save-every 2";
  ASSERT_EQ(run(small("whole", plan)).status, 0);
  std::mt19937 random(5);
  int kills = 0;
  for (int round = 0; round < 25; ++round) {
    const bool begun = fs::exists(path("run/last.oam"));
    const pid_t child =
        start(begun ? "train lm --resume --device cpu --sample 0 --out " + path("run")
                    : small("run", plan));
    // Some die while they start, some later.
    usleep(30'000 + random() % 120'000);
    kills += kill(child, SIGKILL) == 0;
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) break;
  }
  EXPECT_GT(kills, 1);
  const Output last = run(fs::exists(path("run/last.oam"))
                              ? "train lm --resume --device cpu --sample 0 --out " + path("run")
                              : small("run", plan));
  ASSERT_EQ(last.status, 0) << last.text;
  EXPECT_EQ(bits("whole/last.oam"), bits("run/last.oam"));
  EXPECT_EQ(bits("whole/best.oam"), bits("run/best.oam"));
  EXPECT_EQ(rows(), 120);
  for (const auto& entry : fs::directory_iterator(path("run"))) {
    EXPECT_EQ(entry.path().string().find(".tmp."), std::string::npos) << entry.path();
  }
}

TEST_F(TrainCommand, MistakesGetAnAnswer) {
  const auto says = [&](const std::string& arguments, int status, const std::string& text) {
    const Output out = run(arguments);
    EXPECT_EQ(out.status, status) << arguments << "\n" << out.text;
    EXPECT_NE(out.text.find(text), std::string::npos) << arguments << "\n" << out.text;
  };
  says("train lm --steps 3", 2, "--data is required");
  says("train lm --data " + path("text.txt"), 2, "--steps, --minutes or --epochs is required");
  says(small("x", "--steps 3 --minutes 2"), 2, "excludes");
  says(small("x", "--steps 3 --arch lstm"), 1,
       "oa: train: bad --arch, got \"lstm\", expected one of transformer, rnn, gru");
  says(small("x", "--steps 3 --heads 3"), 1,
       "oa: train: --heads does not divide --width, got 3 and 16, expected a divisor");
  says(small("x", "--steps 3 --lr nan"), 1, "bad --lr");
  says(small("x", "--steps 3 --device nothing"), 1, "nothing");
  says("train lm --resume --out " + path("nowhere"), 1, "holds no run to resume");
  says("train lm --steps 3 --data " + path("missing") + " --out " + path("x"), 1, "missing");
  std::ofstream(path("empty.txt"));
  says("train lm --steps 3 --data " + path("empty.txt") + " --out " + path("x"), 1, "empty.txt");
  std::ofstream(path("short.txt")) << "short";
  says("train lm --steps 3 --data " + path("short.txt") + " --out " + path("x"), 1,
       "too little data");
  says("generate --model " + path("text.txt"), 1, "corrupt .oam");
  EXPECT_FALSE(fs::exists(path("x/last.oam")));
  // A rate that breaks the numbers ends the run and keeps what was saved.
  const Output blown = run(small("blown", "--steps 200 --lr 1e30 --clip 0 --save-every 1"));
  EXPECT_EQ(blown.status, 1) << blown.text;
  EXPECT_NE(blown.text.find("with --resume"), std::string::npos) << blown.text;
  EXPECT_EQ(run(small("run", "--steps 2")).status, 0);
  says(small("run", "--steps 2"), 1, "holds a run already");
}

}  // namespace
}  // namespace oa
