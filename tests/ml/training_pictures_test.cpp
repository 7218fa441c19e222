// Event files byte by byte, and through the tensorboard package where that is installed; curves and
// charts.
#include <array>
#include <cstdlib>

#include "oa/ml/training/chart.h"
#include "oa/ml/training/event_file.h"
#include "oa/ml/training/learning_rate_scheduler.h"
#include "oa/ml/training/loss_curve.h"
#include "oa/ml/training/tensorboard_logger.h"
#include "oa/ml/training/validation.h"
#include "tests/ml/training_support.h"

namespace oa::test {
namespace {

std::span<const u8> bytes_of(std::string_view s) {
  return {reinterpret_cast<const u8*>(s.data()), s.size()};
}

TEST(EventFileTest, Checksums) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c(std::vector<u8>(32, 0)), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::vector<u8>(32, 0xFF)), 0x62A8AB43u);
  // 0xE3069283 rotated right by 15 is 0x2507C60D; plus 0xA282EAD8.
  EXPECT_EQ(masked_crc32c(bytes_of("123456789")), 0xC78AB0E5u);
}

TEST_F(TrainingTest, EventFileBytes) {
  EventFile file(folder, 1.5);
  file.add_scalar("a/b", 300, 2.0f, 2.5);
  file.add_start(7, 3.5);
  file.flush();
  EXPECT_TRUE(file.path().filename().string().starts_with("events.out.tfevents.0000000001."));
  const auto record = [](std::initializer_list<int> bytes) {
    std::string data;
    for (const int b : bytes) data += static_cast<char>(b);
    return event_record(data);
  };
  const std::string version =
      record({0x09, 0,  0,   0,   0,   0,   0,   0xF8, 0x3F,  // 1: 1.5
              0x10, 0,                                        // 2: 0
              0x1A, 13, 'b', 'r', 'a', 'i', 'n', '.',  'E',  'v', 'e', 'n', 't', ':', '2'});
  const std::string scalar = record({0x09, 0,    0,    0, 0,   0,   0,   0x04, 0x40,  // 1: 2.5
                                     0x10, 0xAC, 0x02,                                // 2: 300
                                     0x2A, 12,                                        // 5: summary
                                     0x0A, 10,   0x0A, 3, 'a', '/', 'b', 0x15, 0,    0, 0, 0x40});
  const std::string start = record({0x09, 0, 0, 0, 0, 0, 0, 0x0C, 0x40, 0x10, 7,  //
                                    0x3A, 2, 0x08, 1});
  EXPECT_EQ(text_of(file.path()), version + scalar + start);
  EXPECT_EQ(version.size(), 8 + 4 + 26 + 4u);
  EXPECT_EQ(version.substr(0, 8), std::string("\x1a\0\0\0\0\0\0\0", 8));
}

TEST_F(TrainingTest, EventFilesReportAFolderThatCannotBe) {
  std::ofstream(folder / "file") << "x";
  error_of([&] { EventFile(folder / "file" / "x", 1); }, ErrorKind::Io);
}

struct Half final : ml::LrScheduler {
  f64 rate(u64 step) const override { return step == 0 ? 0.5 : 0.25; }
};

// Two files of one run: the first was cut after step 3, the second goes on after step 2.
void write_run(const std::filesystem::path& folder, Engine& engine, CountingOptimizer& optimizer,
               const std::function<ItTrainingConfig(u64)>& config) {
  for (const u64 from : {0, 2}) {
    f64 wall = 1e9 + static_cast<f64>(from);
    Validation validation([&](const TrainingSnapshot& s) {
      return ValidationResult{static_cast<f64>(s.step_count) / 4, 1, 1};
    });
    TensorBoardLogger logger(folder, [&] { return wall += 0.5; });
    logger.add_metric(validation.metric());
    LearningRateScheduler scheduler(std::make_shared<Half>());
    ItTraining training = ItTraining::create(engine, optimizer, config(from));
    training.add_callback(validation);
    training.add_callback(logger);
    training.add_callback(scheduler);
    for (int i = 0; i < 3 && training.begin_step(); ++i) {
      training.complete_step(
          Matrix::from_f32(engine, {}, std::array{static_cast<f32>(from * 10) + 1}));
    }
    training.finish();
  }
}

TEST_F(TrainingTest, TensorBoardReadsWhatWasWritten) {
  write_run(folder / "run", engine(), optimizer, [&](u64 from) { return config(4, 2, from); });
  int files = 0;
  for (const auto& e : std::filesystem::directory_iterator(folder / "run")) {
    files += e.path().filename().string().find("tfevents") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(files, 2);
  const char* python = std::getenv("OA_TENSORBOARD_PYTHON");
  const std::string command = python != nullptr ? python : "python3";
  if (std::system((command + " -c 'import tensorboard' > /dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << "no tensorboard package (OA_TENSORBOARD_PYTHON may name a Python with it)";
  }
  std::ofstream(folder / "read.py") << R"(
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in sorted(events.Tags()["scalars"]):
    if tag != "train/samples_per_second":
        print(tag, [(e.step, e.value) for e in events.Scalars(tag)])
)";
  const std::string run =
      fmt::format("{} {} {} > {} 2> {}", command, (folder / "read.py").string(),
                  (folder / "run").string(), (folder / "out").string(), (folder / "err").string());
  ASSERT_EQ(std::system(run.c_str()), 0) << text_of(folder / "err");
  // Step 3 of the first run is gone.
  EXPECT_EQ(text_of(folder / "out"),
            "train/learning_rate [(1, 0.5), (2, 0.25), (3, 0.25), (4, 0.25)]\n"
            "train/loss [(1, 1.0), (2, 1.0), (3, 21.0), (4, 21.0)]\n"
            "val_loss [(2, 0.5), (4, 1.0)]\n");
}

TEST(ChartTest, RoundTicks) {
  EXPECT_EQ(chart_ticks(0, 10, 5), (std::vector<f64>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(chart_ticks(-1, 1, 4), (std::vector<f64>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(chart_ticks(990, 2010, 5), (std::vector<f64>{1000, 1500, 2000}));
  EXPECT_TRUE(chart_ticks(1, 1, 5).empty());
  EXPECT_TRUE(chart_ticks(0, HUGE_VAL, 5).empty());
  EXPECT_LE(chart_ticks(1e16, 1e16 + 4, 100).size(), 404u);
}

size_t count_of(const std::string& text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(ChartTest, SvgHasEverySeries) {
  Chart chart = {"a < b & c", "step", "loss", {}};
  chart.series.push_back({"train", {{1, 4}, {2, 3}, {3, std::nan("")}, {4, 2}, {5, 1}}, false});
  chart.series.push_back({"val", {{2, 3.5}, {5, 1.5}}, true});
  const std::string svg = render_svg(chart);
  EXPECT_EQ(count_of(svg, "a &lt; b &amp; c"), 2u) << "title and heading";
  EXPECT_EQ(count_of(svg, ">train</text>"), 1u);
  EXPECT_EQ(count_of(svg, ">val</text>"), 1u);
  EXPECT_EQ(count_of(svg, "stroke=\"#0072b2\""), 2u + 1)
      << "two runs around the gap, and the legend";
  EXPECT_EQ(count_of(svg, "<circle"), 2u + 1);
  EXPECT_EQ(count_of(svg, "nan"), 0u);
}

TEST(ChartTest, OddDataGivesAPicture) {
  const f64 nan = std::nan("");
  const std::vector<std::vector<ChartPoint>> cases = {{},
                                                      {{1, 1}},
                                                      {{1, 5}, {2, 5}},
                                                      {{1, nan}},
                                                      {{1, HUGE_VAL}, {2, 1}},
                                                      {{0, 0}, {1, 1e-30}},
                                                      {{0, -1e300}, {1, 1e300}}};
  for (const auto& points : cases) {
    Chart chart = {"", "", "", {{"é", points, true}, {"x", points, false}}};
    const std::string svg = render_svg(chart);
    EXPECT_EQ(count_of(svg, "nan"), 0u) << svg;
    EXPECT_EQ(count_of(svg, "inf"), 0u) << svg;
    const std::vector<u8> png = render_png(chart);
    ASSERT_GT(png.size(), 100u);
    EXPECT_EQ(std::string(png.begin() + 1, png.begin() + 4), "PNG");
  }
}

TEST(CurveTest, MeansInBoundedMemory) {
  Curve curve;
  const u64 n = 100'000;
  for (u64 i = 1; i <= n; ++i) curve.add(i, static_cast<f64>(i % 2));
  const auto points = curve.points();
  EXPECT_LE(points.size(), 1000u);
  EXPECT_GT(points.size(), 400u);
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    EXPECT_DOUBLE_EQ(points[i].y, 0.5);
    EXPECT_LT(points[i].x, points[i + 1].x);
  }
}

TEST_F(TrainingTest, CurveOfAResumedTrainingIsTheSame) {
  const auto run = [&](u64 from, u64 to, const std::string& state, const std::string& name) {
    Validation validation([&](const TrainingSnapshot& s) {
      return ValidationResult{4.0 / static_cast<f64>(s.step_count), 1, 1};
    });
    LossCurve curve(folder / name);
    curve.add_metric(validation.metric()).set_title("run");
    ItTraining training = ItTraining::create(engine(), optimizer, config(3000, 600, from));
    training.add_callback(validation);
    training.add_callback(curve);
    if (!state.empty()) training.load_state(state);
    for (u64 i = from; i < to; ++i) step(training, 5.0 / std::sqrt(static_cast<f64>(i + 1)), 0.001);
    return training.save_state();
  };
  const std::string straight = run(0, 3000, "", "a");
  const std::string parts = run(1700, 3000, run(0, 1700, "", "b"), "b");
  EXPECT_EQ(straight, parts);
  EXPECT_EQ(text_of(folder / "a.svg"), text_of(folder / "b.svg"));
  EXPECT_EQ(text_of(folder / "a.png"), text_of(folder / "b.png"));
  EXPECT_EQ(count_of(text_of(folder / "a.svg"), "<circle"), 5u + 1);
}

}  // namespace
}  // namespace oa::test
