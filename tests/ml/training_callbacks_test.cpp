// Callbacks that look at numbers or write for people: early stopping, validation, CSV, progress
// bar, summary; and what of them a resumed training keeps.
#include <pty.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <map>

#include "oa/ml/training/csv_logger.h"
#include "oa/ml/training/early_stopping.h"
#include "oa/ml/training/progress_bar.h"
#include "oa/ml/training/training_summary.h"
#include "oa/ml/training/validation.h"
#include "tests/ml/training_support.h"

namespace oa::test {
namespace {

TEST_F(TrainingTest, EarlyStoppingResumedAfterEveryEpochStopsAtTheSame) {
  const std::vector<f64> losses = {1.0, 0.9, 0.95, 0.96, 0.1};
  for (u64 cut = 0; cut <= 4; ++cut) {
    std::string state;
    u64 done = 0;
    {
      EarlyStopping stopping(2, 0);
      ItTraining training = ItTraining::create(engine(), optimizer, config(5, 1));
      training.add_callback(stopping);
      while (done < cut && step(training, losses[done])) ++done;
      state = training.save_state();
    }
    EarlyStopping stopping(2, 0);
    ItTraining training = ItTraining::create(engine(), optimizer, config(5, 1, cut));
    training.add_callback(stopping);
    training.load_state(state);
    if (cut == 4) {
      EXPECT_TRUE(stopping.should_stop());
      continue;
    }
    while (step(training, losses[done])) ++done;
    EXPECT_EQ(done, 4u) << "cut after " << cut;
    EXPECT_EQ(stopping.best_check(), 2u);
    EXPECT_FLOAT_EQ(static_cast<f32>(stopping.best()), 0.9f);
    EXPECT_EQ(stopping.bad_epochs(), 2u);
  }
}

u64 steps_until_stop(EarlyStopping& stopping, ItTraining& training,
                     const std::function<bool(f64)>& step, const std::vector<f64>& losses) {
  training.add_callback(stopping);
  u64 done = 0;
  while (done < losses.size() && step(losses[done])) ++done;
  return done;
}

TEST_F(TrainingTest, NaNIsWorseThanAnything) {
  const f64 nan = std::nan("");
  const auto run = [&](EarlyStopping& stopping, const std::vector<f64>& losses) {
    ItTraining training = ItTraining::create(engine(), optimizer, config(9, 1));
    return steps_until_stop(stopping, training, [&](f64 x) { return step(training, x); }, losses);
  };
  EarlyStopping counts(3, 0);
  EXPECT_EQ(run(counts, {0.5, nan, nan, nan, 0.1}), 4u);
  EXPECT_FLOAT_EQ(static_cast<f32>(counts.best()), 0.5f);
  EarlyStopping first(2, 0);
  EXPECT_EQ(run(first, {nan, 7, 6, HUGE_VAL, -HUGE_VAL, 5}), 5u) << "no infinity is an improvement";
  EarlyStopping maximum(2, 0, EarlyStopMode::Max);
  EXPECT_EQ(run(maximum, {1, 2, nan, HUGE_VAL, 3}), 4u);
  EarlyStopping stops(9, 0);
  stops.set_non_finite(NonFiniteMonitor::Stop);
  EXPECT_EQ(run(stops, {0.5, nan, 0.1}), 2u);
  EarlyStopping fails(9, 0);
  fails.set_non_finite(NonFiniteMonitor::Fail);
  EXPECT_EQ(error_of([&] { run(fails, {0.5, nan}); }, ErrorKind::CallbackFailure),
            "EarlyStopping: loss at check 2, got nan, expected a finite number");
}

TEST_F(TrainingTest, ImprovementsMustExceedTheDelta) {
  EarlyStopping stopping(1, 0.25);
  ItTraining training = ItTraining::create(engine(), optimizer, config(9, 1));
  training.add_callback(stopping);
  EXPECT_TRUE(step(training, 1));
  EXPECT_TRUE(step(training, 0.5));
  EXPECT_TRUE(step(training, 0.25));  // better by exactly the delta
  EXPECT_FALSE(step(training, 0));
  EXPECT_EQ(error_of([] { EarlyStopping(0); }, ErrorKind::InvalidArgument),
            "EarlyStopping: patience, got 0, expected 1 or more");
  EXPECT_EQ(error_of([] { EarlyStopping(1, -1); }, ErrorKind::InvalidArgument),
            "EarlyStopping: min_delta, got -1, expected a finite number of 0 or more");
}

TEST_F(TrainingTest, EarlyStoppingBySteps) {
  EarlyStopping stopping = EarlyStopping::with_monitor(
      1, 0, EarlyStopMode::Min, "last", [](const TrainingSnapshot& s) { return *s.last_loss; });
  stopping.set_check_every(2);
  ItTraining training = ItTraining::create(engine(), optimizer, config(0));
  training.add_callback(stopping);
  u64 done = 0;
  while (done < 9 && step(training, 1)) ++done;
  EXPECT_EQ(done, 4u);
}

TEST_F(TrainingTest, DamagedCallbackStateChangesNothing) {
  EarlyStopping stopping(2, 0);
  stopping.load_state(R"({"best":0.5,"best_check":3,"bad":1,"stop":false})");
  EXPECT_EQ(error_of([&] { stopping.load_state(R"({"best":0.1,"best_check":3,"bad":-1})"); },
                     ErrorKind::DataLoss),
            "EarlyStopping: state \"bad\", got -1, expected a number of 0 or more");
  EXPECT_EQ(stopping.best(), 0.5);
  EXPECT_EQ(stopping.bad_epochs(), 1u);
  // A damaged second state takes the first one back.
  EarlyStopping other(2, 0);
  ItTraining training = ItTraining::create(engine(), optimizer, config(9, 1));
  training.add_callback(stopping);
  training.add_callback(other);
  const std::string good = training.save_state();
  std::string bad = good;
  const size_t second = bad.find("early_stopping.loss#2");
  ASSERT_NE(second, std::string::npos);
  bad.replace(bad.find("\"best\"", second), 6, "\"bxst\"");
  bad.replace(bad.find("0.5"), 3, "0.7");
  EXPECT_EQ(error_of([&] { training.load_state(bad); }, ErrorKind::DataLoss),
            "EarlyStopping: state has no \"best\"");
  EXPECT_EQ(stopping.best(), 0.5);
}

TEST_F(TrainingTest, ValidationByEpochAndByStep) {
  std::vector<u64> at;
  ValidationResult next = {0.5, 1, 1};
  const auto evaluate = [&](const TrainingSnapshot& s) {
    at.push_back(s.step_count);
    return next;
  };
  {
    Validation v(evaluate, "val_loss", 1);
    ItTraining training = ItTraining::create(engine(), optimizer, config(4, 2));
    training.add_callback(v);
    while (step(training, 1)) {
    }
    training.finish();
    EXPECT_EQ(at, (std::vector<u64>{2, 4}));
  }
  at.clear();
  Validation v(evaluate, "val_loss", 2);
  const ValidationMetric metric = v.metric();
  EXPECT_TRUE(std::isnan(metric.result()));
  ItTraining training = ItTraining::create(engine(), optimizer, config(5));
  training.add_callback(v);
  step(training, 1);
  step(training, 1);
  EXPECT_EQ(metric.result(), 0.5);
  next = {std::nan(""), 1, 1};
  step(training, 1);
  step(training, 1);
  EXPECT_EQ(metric.result(), 0.5) << "a result that is not finite changes nothing";
  next = {0.1, 0, 0};
  step(training, 1);
  training.finish();
  EXPECT_EQ(metric.result(), 0.5) << "nor does one of no batches";
  EXPECT_EQ(at, (std::vector<u64>{2, 4, 5}));
  EXPECT_EQ(metric.revision(), 1u);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_F(TrainingTest, CsvHasARowPerStep) {
  const auto path = folder / "new" / "log.csv";
  ItTrainingConfig c = config(3, 2);
  c.batch_size = 4;
  c.sequence_unit = "a,\"b\"";
  CsvLogger csv(path);
  ItTraining training = ItTraining::create(engine(), optimizer, c);
  training.add_callback(csv);
  while (step(training, 0.5, 2)) {
  }
  training.finish();
  const auto lines = lines_of(text_of(path));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0],
            "epoch,step,batch_size,sequence_length,sequence_unit,source_unit,loss,gpu_ms,"
            "wall_ms_per_step,wall_samples_per_second,gpu_samples_per_second,"
            "wall_units_per_second,gpu_units_per_second,wall_source_units_per_second,"
            "gpu_source_units_per_second");
  EXPECT_EQ(lines[1], "1,1,4,0,\"a,\"\"b\"\"\",byte,0.5,NaN,2000,2,NaN,2,NaN,0,NaN");
  EXPECT_TRUE(lines[3].starts_with("2,3,4,"));
}

TEST_F(TrainingTest, CsvResumesWithOneHeader) {
  const auto path = folder / "log.csv";
  const auto run = [&](u64 from, u64 to, bool more) {
    CsvLogger csv(path);
    if (more) csv.add_column("extra", [](const TrainingCallbackContext&) { return 7.0; });
    ItTraining training = ItTraining::create(engine(), optimizer, config(9, 0, from));
    training.add_callback(csv);
    while (training.snapshot().step_count < to && step(training, 1)) {
    }
    training.finish();
    return csv.path();
  };
  run(0, 5, false);
  // A process that was killed leaves rows beyond the checkpoint and half a row.
  std::ofstream(path, std::ios::app) << "0,6,1,0,tok";
  EXPECT_EQ(run(3, 6, false), path);
  std::vector<std::string> lines = lines_of(text_of(path));
  ASSERT_EQ(lines.size(), 7u);
  for (size_t i = 1; i < 7; ++i) EXPECT_TRUE(lines[i].starts_with(fmt::format("0,{},", i)));
  // Another schema opens another file and leaves the old one alone.
  const std::string before = text_of(path);
  EXPECT_EQ(run(6, 8, true), folder / "log.2.csv");
  EXPECT_EQ(run(7, 9, true), folder / "log.2.csv");
  EXPECT_EQ(text_of(path), before);
  lines = lines_of(text_of(folder / "log.2.csv"));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].ends_with(",extra"));
  EXPECT_TRUE(lines[3].starts_with("0,9,") && lines[3].ends_with(",7")) << lines[3];
  run(0, 1, false);
  EXPECT_EQ(lines_of(text_of(path)).size(), 2u) << "a new training starts anew";
}

TEST_F(TrainingTest, CsvResumesOverQuotedLineEnds) {
  const auto path = folder / "log.csv";
  ItTrainingConfig c = config(9);
  c.sequence_unit = "two\nlines";
  for (const u64 from : {0, 2}) {
    c.initial_step = from;
    CsvLogger csv(path);
    ItTraining training = ItTraining::create(engine(), optimizer, c);
    training.add_callback(csv);
    for (int i = 0; i < 3; ++i) step(training, 1);
    training.finish();
  }
  EXPECT_EQ(lines_of(text_of(path)).size(), 1u + 2 * 5);
}

TEST_F(TrainingTest, CsvIsWrittenEverySecond) {
  const auto path = folder / "log.csv";
  CsvLogger csv(path);
  ItTraining training = ItTraining::create(engine(), optimizer, config(0));
  training.add_callback(csv);
  for (int i = 0; i < 3; ++i) step(training, 1, 0.25);
  EXPECT_EQ(lines_of(text_of(path)).size(), 1u);
  step(training, 1, 0.25);
  EXPECT_EQ(lines_of(text_of(path)).size(), 5u);
  step(training, 1, 0.25);
  EXPECT_EQ(lines_of(text_of(path)).size(), 5u);
  (void)training.save_state();
  EXPECT_EQ(lines_of(text_of(path)).size(), 6u) << "a saved training has its rows";
}

TEST_F(TrainingTest, CsvReportsAFullDisk) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  CsvLogger csv("/dev/full");
  ItTraining training = ItTraining::create(engine(), optimizer, config(0));
  training.add_callback(csv);
  EXPECT_EQ(error_of([&] { training.begin_step(); }, ErrorKind::Io),
            "CsvLogger: cannot write /dev/full: No space left on device");
}

struct Screen {
  std::string text;
  u32 width = 80;
  TextOutput output(bool terminal, bool utf8 = true) {
    TextOutput out;
    out.write = [this](std::string_view s) { text += s; };
    out.columns = [this] { return width; };
    out.is_terminal = terminal;
    out.is_utf8 = utf8;
    return out;
  }
};

TEST_F(TrainingTest, BarOnATerminalNeverWraps) {
  for (const u32 width : {1u, 2u, 5u, 20u, 30u, 40u, 80u, 200u}) {
    Screen screen;
    screen.width = width;
    ProgressBar bar(10, screen.output(true));
    ItTrainingConfig c = config(1000);
    c.batch_size = 32;
    c.sequence_length = 128;
    c.sequence_unit = "词";
    c.source_units_per_sample = 100;
    ItTraining training = ItTraining::create(engine(), optimizer, c);
    training.add_callback(bar);
    for (int i = 0; i < 5; ++i) step(training, 12.5, 0.1);
    training.finish();
    EXPECT_EQ(std::ranges::count(screen.text, '\n'), 1) << "one line for all";
    std::stringstream parts(screen.text);
    int drawn = 0;
    for (std::string part; std::getline(parts, part, '\r');) {
      if (part.empty()) continue;
      ++drawn;
      if (part.ends_with('\n')) part.pop_back();
      ASSERT_TRUE(part.ends_with("\x1b[K"));
      part.resize(part.size() - 3);
      EXPECT_LE(display_width(part), std::max(width - 1, 1u)) << part;
      if (width == 30) {
        EXPECT_NE(part.find("/1000 · loss"), std::string::npos) << part;
      }
      if (width == 200) {
        EXPECT_NE(part.find(" 词/s"), std::string::npos) << part;
      }
    }
    EXPECT_EQ(drawn, 6);
  }
}

TEST_F(TrainingTest, BarRedrawsAtMostEvery33Milliseconds) {
  Screen screen;
  ProgressBar bar(10, screen.output(true));
  ItTraining training = ItTraining::create(engine(), optimizer, config(1000));
  training.add_callback(bar);
  for (int i = 0; i < 100; ++i) step(training, 1, 0.01);
  EXPECT_EQ(std::ranges::count(screen.text, '\r'), 25) << "every fourth";
}

TEST_F(TrainingTest, BarLineHasEverything) {
  ItTrainingConfig c = config(200);
  c.sequence_length = 1;
  TrainingSnapshot s;
  s.step_count = 50;
  s.total_steps = 200;
  s.elapsed = 61.25;
  s.wall_ms_per_step = 1225;
  s.wall_samples_per_second = 1234;
  s.wall_units_per_second = 4.5e6;
  s.last_loss = 2.34567;
  Screen screen;
  EXPECT_EQ(ProgressBar(4, screen.output(true)).render_line(s, c),
            "  50/200 █    · 61.2 s · 1225.0 ms/step · 1.23K sample/s · 4.50M token/s · "
            "loss: 2.3457 · 3:04 left");
  EXPECT_EQ(ProgressBar(4, screen.output(true, false)).render_line(s, c, 60),
            "  50/200 [#...] - 1225.0 ms/step - loss: 2.3457 - 3:04 left");
  s.last_loss = std::nan("");
  s.total_steps.reset();
  EXPECT_EQ(ProgressBar(4, screen.output(false)).render_line(s, c),
            "  50 · 61.2 s · 1225.0 ms/step · 1.23K sample/s · 4.50M token/s · loss: nan");
}

TEST_F(TrainingTest, PlainLinesInAFile) {
  Screen screen;
  ProgressBar bar(10, screen.output(false));
  ItTrainingConfig c = config(60, 40);
  c.sequence_length = 2;
  c.sequence_unit = "a\rb\x1b[31m";
  ItTraining training = ItTraining::create(engine(), optimizer, c);
  training.add_callback(bar);
  while (step(training, 1, 0.5)) {
  }
  training.finish();
  const auto lines = lines_of(screen.text);
  // Step 1, then every 5 s = 10 steps, and the ends of epochs; the end of training is one of them.
  std::vector<std::string> steps;
  for (const std::string& line : lines) {
    steps.push_back(line.substr(0, line.find("/60")));
    EXPECT_TRUE(std::ranges::none_of(line, [](char ch) { return static_cast<u8>(ch) < 0x20; }));
  }
  EXPECT_EQ(steps,
            (std::vector<std::string>{"  epoch 1/2 · 1", "  epoch 1/2 · 11", "  epoch 1/2 · 21",
                                      "  epoch 1/2 · 31", "  epoch 1/2 · 40", "  epoch 2/2 · 50",
                                      "  epoch 2/2 · 60"}));
}

TEST_F(TrainingTest, MessagesGoAboveTheBar) {
  Screen screen;
  ProgressBar bar(10, screen.output(true));
  bar.print("before");
  ItTraining training = ItTraining::create(engine(), optimizer, config(9));
  training.add_callback(bar);
  step(training, 1);
  const std::string drawn = screen.text.substr(screen.text.find('\r') + 1);
  const std::string line = drawn.substr(0, drawn.find('\x1b'));
  screen.text.clear();
  bar.print("saved");
  EXPECT_EQ(screen.text, "\r\x1b[Ksaved\n" + line);
}

TEST(TextOutputTest, KnowsATerminalFromAFile) {
  int master = -1, slave = -1;
  winsize size = {.ws_row = 24, .ws_col = 33, .ws_xpixel = 0, .ws_ypixel = 0};
  if (openpty(&master, &slave, nullptr, nullptr, &size) != 0) GTEST_SKIP() << "no terminals here";
  const std::map<std::string, bool> kinds = {{"xterm", true}, {"dumb", false}, {"", false}};
  const char* before = std::getenv("TERM");
  const std::string restore = before == nullptr ? "" : before;
  for (const auto& [term, terminal] : kinds) {
    setenv("TERM", term.c_str(), 1);
    EXPECT_EQ(text_output(slave).is_terminal, terminal) << term;
  }
  setenv("TERM", "xterm", 1);
  const TextOutput out = text_output(slave);
  EXPECT_EQ(out.columns(), 33u);
  size.ws_col = 44;
  ioctl(slave, TIOCSWINSZ, &size);
  EXPECT_EQ(out.columns(), 44u) << "asked again after a change";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(text_output(ends[1]).is_terminal);
  text_output(ends[1]).write("abc");
  char got[4] = {};
  EXPECT_EQ(read(ends[0], got, 3), 3);
  EXPECT_STREQ(got, "abc");
  setenv("TERM", restore.c_str(), 1);
  for (const int fd : {master, slave, ends[0], ends[1]}) close(fd);
}

TEST(TextOutputTest, NumbersAndTimes) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(9.994), "9.99");
  EXPECT_EQ(short_number(99.94), "99.9");
  EXPECT_EQ(short_number(999.4), "999");
  EXPECT_EQ(short_number(999.6), "1.00K");
  EXPECT_EQ(short_number(1.5e15), "1500T");
  EXPECT_EQ(short_duration(99.94), "99.9 s");
  EXPECT_EQ(short_duration(99.96), "1:40");
  EXPECT_EQ(short_duration(3599.6), "1:00:00");
  EXPECT_EQ(short_duration(std::nan("")), "?");
  EXPECT_EQ(fit_width("a你b", 2), "a");
  EXPECT_EQ(fit_width("a你b", 3), "a你");
  EXPECT_EQ(display_width("\xff\xfe"), 2u);
}

TEST_F(TrainingTest, SummaryAtTheEnd) {
  std::string report;
  TrainingSummary summary(true, [&](const std::string& s) { report += s; });
  Validation validation([](const TrainingSnapshot&) { return ValidationResult{0.75, 1, 1}; });
  summary.set_validation_metric(validation.metric());
  ItTrainingConfig c = config(4, 2);
  c.batch_size = 5;
  {
    ItTraining training = ItTraining::create(engine(), optimizer, c);
    training.add_callback(validation);
    training.add_callback(summary);
    step(training, 4, 2);
    step(training, 2, 2);
    training.finish();
    EXPECT_EQ(report,
              "2 steps of 4, epoch 1 of 2, 4.0 s\n"
              "  loss    2.0000 from 4.0000, mean 3.0000\n"
              "  val_loss 0.7500\n"
              "  wall    2000.00 ms/step, 2.50 sample/s");
  }
  const std::string state = summary.save_state();
  TrainingSummary resumed(true, [&](const std::string& s) { report += s; });
  resumed.load_state(state);
  EXPECT_EQ(resumed.initial_loss(), 4.0);
  TrainingSnapshot s;
  s.wall_samples_per_second = 75;
  s.gpu_samples_per_second = 100;
  EXPECT_EQ(TrainingSummary::wall_gpu_gap_percent(s), 25.0);
  s.wall_samples_per_second = 120;
  EXPECT_EQ(TrainingSummary::wall_gpu_gap_percent(s), 0.0);
  EXPECT_FALSE(TrainingSummary::wall_gpu_gap_percent({}));
}

}  // namespace
}  // namespace oa::test
