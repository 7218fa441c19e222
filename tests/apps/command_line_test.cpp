// The options of `oa train lm` and `oa generate`: the fuzz target over its corpus, without
// libFuzzer, the bounds, and that a model has as many parameters as its options say.
#include "tests/fuzz/command_line.h"

#include <gtest/gtest.h>

#include <random>

#include "apps/oa/lm/model.h"
#include "apps/oa/lm/options.h"
#include "oa/core/error.h"
#include "oa/core/file.h"

namespace oa {
namespace {

using namespace command;  // NOLINT(google-build-using-namespace)

TEST(CommandLine, Corpus) {
  std::map<std::string, bool> accepted;
  std::mt19937 random(1);
  for (const auto& entry : std::filesystem::directory_iterator(OA_CORPUS "/command_line")) {
    std::vector<u8> bytes = read_file(entry.path());
    accepted[entry.path().filename().string()] = fuzz::command_line(bytes);
    for (size_t size = 0; size < bytes.size(); size += 3) {
      fuzz::command_line(std::span(bytes).first(size));
    }
    for (int i = 0; i < 40 && !bytes.empty(); ++i) {
      u8& byte = bytes[random() % bytes.size()];
      const u8 old = std::exchange(byte, static_cast<u8>(random()));
      fuzz::command_line(bytes);
      byte = old;
    }
  }
  for (const auto& [name, yes] : accepted) {
    const bool expected = name == "train" || name == "train_all" || name == "resume" ||
                          name == "generate" || name == "huge_seed";
    EXPECT_EQ(yes, expected) << name;
  }
  EXPECT_GE(accepted.size(), 20u);
}

template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::InvalidArgument);
    return e.what();
  }
  return "no error";
}

TEST(CommandLine, AbsurdSizesAreRefused) {
  const auto text = [](auto&& change) {
    TrainOptions o;
    change(o);
    return error_of([&] { check(o); });
  };
  EXPECT_EQ(text([](auto&) {}), "no error");
  EXPECT_EQ(text([](auto& o) { o.model.width = i64{1} << 40; }),
            "train: bad --width, got 1099511627776, expected 1 to 16777216");
  EXPECT_EQ(text([](auto& o) { o.model.layers = 0; }),
            "train: bad --layers, got 0, expected 1 to 100000");
  EXPECT_EQ(
      text([](auto& o) { o.model.width = o.model.hidden = 1 << 20; }),
      "train: the model is too large, got 2.639e+13 parameters, expected at most 17179869184");
  EXPECT_EQ(text([](auto& o) { o.model.context = o.train.batch = 1 << 20; }),
            "train: --batch times --context is too large, got 1099511627776, expected at most "
            "268435456");
  EXPECT_EQ(text([](auto& o) { o.stop_after = -1; }),
            "train: bad --stop-after, got -1, expected 0 to 281474976710656");
  EXPECT_EQ(text([](auto& o) { o.train.data = "\xff"; }),
            "train: bad --data, expected UTF-8, got \"\\xff\"");
  EXPECT_EQ(text([](auto& o) { o.train.epochs = 1e7; }),
            "train: bad --epochs, got 10000000, expected 0 to 1000000");
  const auto generate = [](auto&& change) {
    GenerateOptions o;
    change(o);
    return error_of([&] { check(o); });
  };
  EXPECT_EQ(generate([](auto& o) { o.temperature = NAN; }),
            "generate: bad --temperature, got nan, expected a finite number of 0 or more");
  EXPECT_EQ(generate([](auto& o) { o.top_p = 1.5; }),
            "generate: bad --top-p, got 1.5, expected 0 to 1");
  EXPECT_EQ(generate([](auto& o) { o.tokens = -3; }),
            "generate: bad --tokens, got -3, expected 0 to 2147483648");
}

TEST(CommandLine, ModelsHaveTheParametersThatTheOptionsSay) {
  Engine e = Engine::open({.device = "cpu"});
  for (const char* architecture : {"transformer", "rnn", "gru"}) {
    for (const i64 layers : {1, 3}) {
      for (const i64 hidden : {0, 5}) {
        LmModelConfig c;
        c.architecture = architecture;
        c.layers = layers;
        c.hidden = hidden;
        c.width = 12;
        c.heads = 3;
        c.context = 7;
        c.vocab = 261;
        EXPECT_EQ(static_cast<f64>(LanguageModel::create(e, c).module->num_parameters()),
                  parameter_count(c))
            << architecture << layers << hidden;
      }
    }
  }
}

}  // namespace
}  // namespace oa
