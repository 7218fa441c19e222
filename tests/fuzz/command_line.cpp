// The command lines of `oa train lm` and `oa generate` as a fuzz target: words, each ended by a
// NUL.
#include "tests/fuzz/command_line.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/oa/lm/options.h"
#include "oa/core/error.h"

namespace oa::fuzz {
namespace {

using namespace command;  // NOLINT(google-build-using-namespace)

void require(bool condition, const char* what) {
  if (condition) return;
  fmt::print(stderr, "fuzz: {}\n", what);
  std::abort();
}

// What was accepted can be built and kept: bounded sizes, and the same after it was written.
void inspect(const TrainOptions& o) {
  check(o);
  require(parameter_count(o.model) <= static_cast<f64>(kMostParameters), "a model too large");
  require(o.train.batch * o.model.context <= kMostBatchTokens, "a batch too large");
  require(o.stop_after >= 0 && o.sample >= 0 && o.train.steps >= 0, "a negative count");
  require(o.train.learning_rate >= 0 && o.train.clip >= 0, "a rate that is none");
  const auto keep = [](const auto& config) {
    const std::string text = nlohmann::json(config).dump();
    std::remove_cvref_t<decltype(config)> again;
    nlohmann::json::parse(text).get_to(again);
    require(nlohmann::json(again).dump() == text, "a configuration changes when it is read back");
  };
  keep(o.model);
  keep(o.train);
}

void inspect(const GenerateCommand& c) {
  check(c.options);
  require(c.options.tokens >= 0 && c.options.top_k >= 0, "a negative count");
  require(c.options.temperature >= 0 && c.options.top_p >= 0, "a share that is none");
}

}  // namespace

bool command_line(std::span<const u8> input) {
  std::vector<std::string> words{"oa"};
  std::string word;
  for (const u8 byte : input) {
    if (byte != 0) {
      word += static_cast<char>(byte);
    } else {
      words.push_back(std::exchange(word, {}));
    }
  }
  words.push_back(word);
  std::vector<const char*> argv;
  for (const std::string& w : words) argv.push_back(w.c_str());

  CLI::App app{"", "oa"};
  app.require_subcommand(1);
  TrainOptions train;
  GenerateCommand generate;
  CLI::App* training = app.add_subcommand("train")->require_subcommand(1);
  CLI::App* lm = training->add_subcommand("lm");
  declare(*lm, train);
  CLI::App* writing = app.add_subcommand("generate");
  declare(*writing, generate);
  try {
    app.parse(static_cast<int>(argv.size()), argv.data());
    if (writing->parsed()) {
      inspect(generate);
    } else {
      check_usage(*lm, train);
      inspect(train);
    }
    return true;
  } catch (const CLI::ParseError&) {
    return false;
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::InvalidArgument, e.what());
    return false;
  }
}

}  // namespace oa::fuzz
