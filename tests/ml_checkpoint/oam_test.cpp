// .oam: files of an independent writer, round trips, the exact layout, and what the writer refuses.
#include "oa/ml/checkpoint/oam.h"

#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <limits>

#include "oa/ml/checkpoint/oam_layout.h"
#include "oa/ml/checkpoint/quantize.h"
#include "tests/ml_checkpoint/support.h"

namespace oa::ml {
namespace {

class OamFile : public InFolder {};

void expect_equal(const std::vector<TensorView>& a, const std::vector<TensorView>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].dtype, b[i].dtype);
    EXPECT_EQ(a[i].shape, b[i].shape);
    EXPECT_EQ(a[i].encoding, b[i].encoding);
    EXPECT_EQ(copy(a[i].bytes), copy(b[i].bytes));
  }
}

Oam sample() {
  Oam oam;
  oam.config = {.architecture = "Tränsformer",
                .version = 2,
                .flags = 3,
                .d_model = 64,
                .n_layers = 5,
                .d_vocab = 300,
                .weight_dtype = FileDType::BF16,
                .state_dtype = FileDType::F64,
                .compute_dtype = FileDType::F16,
                .extra = oam.own({9, 8, 7})};
  oam.add_weight("block_0.weight", FileDType::F32, {3, 5}, fixture_values(15, FileDType::F32));
  oam.add_weight("block_0.empty", FileDType::F32, {0, 5}, {});
  oam.add_weight("größe", FileDType::BF16, {7}, fixture_values(7, FileDType::BF16));
  oam.add_state("mean", FileDType::F64, {2, 1, 1, 1, 1, 1, 1, 2},
                fixture_values(4, FileDType::F64));
  oam.add_state("step", 77);
  oam.optimizer = {.kind = "Adam",
                   .learning_rate = 0.1f,
                   .beta1 = 0.9f,
                   .beta2 = 0.99f,
                   .epsilon = 1e-8f,
                   .weight_decay = 0.5f,
                   .step = 1234567890123,
                   .first = oam.own(fixture_values(22, FileDType::F32)),
                   .second = oam.own(fixture_values(22, FileDType::F32)),
                   .muon = {}};
  oam.progress = {.phase = 4,
                  .step = -3,
                  .bytes_seen = u64{1} << 63,
                  .environment_steps = 12,
                  .learning_rate = 0.25f,
                  .best_metric = -std::numeric_limits<f32>::infinity(),
                  .lower_is_better = false,
                  .metric_name = "accuracy"};
  return oam;
}

TEST_F(OamFile, RoundTripsEveryField) {
  const Oam before = sample();
  write_oam(dir_ / "new/folder/model.oam", before);
  const Oam after = read_oam(dir_ / "new/folder/model.oam");
  EXPECT_EQ(after.version, 3u);
  EXPECT_EQ(after.config.architecture, "Tränsformer");
  EXPECT_EQ(after.config.version, 2u);
  EXPECT_EQ(after.config.flags, 3u);
  EXPECT_EQ(after.config.d_model, 64u);
  EXPECT_EQ(after.config.n_layers, 5u);
  EXPECT_EQ(after.config.d_vocab, 300u);
  EXPECT_EQ(after.config.weight_dtype, FileDType::BF16);
  EXPECT_EQ(after.config.state_dtype, FileDType::F64);
  EXPECT_EQ(after.config.compute_dtype, FileDType::F16);
  EXPECT_EQ(copy(after.config.extra), (std::vector<u8>{9, 8, 7}));
  expect_equal(after.weights, before.weights);
  expect_equal(after.state, before.state);
  EXPECT_EQ(values_of<u32>(after.state[1].bytes), std::vector<u32>{77});
  EXPECT_EQ(after.state[1].shape.rank(), 0u);
  ASSERT_TRUE(after.optimizer);
  EXPECT_EQ(after.optimizer->kind, "Adam");
  EXPECT_EQ(after.optimizer->learning_rate, 0.1f);
  EXPECT_EQ(after.optimizer->beta1, 0.9f);
  EXPECT_EQ(after.optimizer->beta2, 0.99f);
  EXPECT_EQ(after.optimizer->epsilon, 1e-8f);
  EXPECT_EQ(after.optimizer->weight_decay, 0.5f);
  EXPECT_EQ(after.optimizer->step, 1234567890123);
  EXPECT_EQ(copy(after.optimizer->first), copy(before.optimizer->first));
  EXPECT_EQ(copy(after.optimizer->second), copy(before.optimizer->second));
  EXPECT_EQ(after.progress.phase, 4);
  EXPECT_EQ(after.progress.step, -3);
  EXPECT_EQ(after.progress.bytes_seen, u64{1} << 63);
  EXPECT_EQ(after.progress.environment_steps, 12u);
  EXPECT_EQ(after.progress.learning_rate, 0.25f);
  EXPECT_EQ(after.progress.best_metric, -std::numeric_limits<f32>::infinity());
  EXPECT_FALSE(after.progress.lower_is_better);
  EXPECT_EQ(after.progress.metric_name, "accuracy");
  // What was read can be written again, to the very same bytes.
  EXPECT_EQ(encode_oam(after), read_file(dir_ / "new/folder/model.oam"));
}

TEST_F(OamFile, ReadsTheIndependentWritersVersions) {
  for (u32 version : {1, 2, 3}) {
    const Oam oam = read_oam(fixture(fmt::format("version{}.oam", version)));
    EXPECT_EQ(oam.version, version);
    EXPECT_EQ(oam.config.architecture, "RustModule");
    EXPECT_EQ(oam.config.d_model, 64u);
    EXPECT_EQ(oam.config.n_layers, 2u);
    EXPECT_EQ(copy(oam.config.extra), (std::vector<u8>{'b', 'l', 'o', 'b'}));
    ASSERT_EQ(oam.weights.size(), 3u);
    EXPECT_EQ(oam.weights[0].name, "layer.weight");
    EXPECT_EQ(oam.weights[0].shape, (Shape{3, 4}));
    EXPECT_EQ(copy(oam.weights[0].bytes), fixture_values(12, FileDType::F32));
    EXPECT_EQ(oam.weights[2].shape, Shape{});
    ASSERT_EQ(oam.state.size(), 2u);
    EXPECT_EQ(oam.state[1].name, "dropout.step");
    EXPECT_EQ(oam.optimizer->kind, "AdamW");
    EXPECT_EQ(oam.optimizer->step, 17);
    EXPECT_EQ(copy(oam.optimizer->second), fixture_values(16, FileDType::F32));
    EXPECT_EQ(oam.progress.phase, 2);
    EXPECT_EQ(oam.progress.step, 17);
    EXPECT_EQ(oam.progress.bytes_seen, 123456u);
    EXPECT_EQ(oam.progress.best_metric, 2.5f);
    EXPECT_EQ(oam.progress.metric_name, "loss");
  }
}

TEST_F(OamFile, WritesWhatTheIndependentWriterWrites) {
  for (const char* name : {"version3.oam", "least.oam", "quantised.oam", "dtypes.oam"})
    EXPECT_EQ(encode_oam(read_oam(fixture(name))), read_file(fixture(name))) << name;
}

TEST_F(OamFile, ReadsEveryElementType) {
  const Oam oam = read_oam(fixture("dtypes.oam"));
  ASSERT_EQ(oam.weights.size(), kOamDTypes);
  std::vector<bool> seen(kOamDTypes);
  for (const TensorView& t : oam.weights) {
    seen[static_cast<size_t>(t.dtype)] = true;
    if (t.dtype == FileDType::BF16)
      EXPECT_EQ(copy(t.bytes), (std::vector<u8>{0x80, 0x3f, 0x00, 0x40}));
    else
      EXPECT_EQ(copy(t.bytes), fixture_values(3, t.dtype)) << t.name;
  }
  EXPECT_EQ(seen, std::vector<bool>(kOamDTypes, true));
}

TEST_F(OamFile, ReadsAnOldOptimizerOfTwoKindsAndIgnoresKernels) {
  const Oam oam = read_oam(fixture("muon_adamw.oam"));
  EXPECT_EQ(oam.version, 2u);
  EXPECT_EQ(oam.optimizer->kind, "MuonAdamW");
  EXPECT_EQ(copy(oam.optimizer->first), fixture_values(2, FileDType::F32));
  EXPECT_EQ(copy(oam.optimizer->second), fixture_values(2, FileDType::F32));
  EXPECT_EQ(copy(oam.optimizer->muon), fixture_values(3, FileDType::F32));
}

TEST_F(OamFile, LeavesOutWhatIsEmpty) {
  const Oam oam = read_oam(fixture("least.oam"));
  EXPECT_TRUE(oam.weights.empty());
  EXPECT_TRUE(oam.state.empty());
  EXPECT_FALSE(oam.optimizer);
  Oam empty;
  const std::vector<u8> bytes = encode_oam(empty);
  EXPECT_EQ(bytes.size(), 4096u + 108 + 104);
  EXPECT_EQ(parse_oam(bytes).config.architecture, "OaModule");
  EXPECT_EQ(parse_oam(bytes).progress.learning_rate, 3e-4f);
}

TEST_F(OamFile, EveryOptimizerKindKeepsItsArrays) {
  const std::vector<u8> a = fixture_values(5, FileDType::F32),
                        b = fixture_values(3, FileDType::F32);
  for (auto [kind, first, second, muon] :
       std::vector<std::tuple<const char*, bool, bool, bool>>{{"SGD", false, false, false},
                                                              {"SGD", true, false, false},
                                                              {"Adam", true, true, false},
                                                              {"AdamW", true, true, false},
                                                              {"AdamW", false, false, false},
                                                              {"Muon", true, false, false},
                                                              {"MuonAdamW", true, true, true}}) {
    Oam oam;
    oam.optimizer = OamOptimizer{.kind = kind};
    if (first) oam.optimizer->first = a;
    if (second) oam.optimizer->second = a;
    if (muon) oam.optimizer->muon = b;
    const std::vector<u8> bytes = encode_oam(oam);
    const OamOptimizer read = *parse_oam(bytes).optimizer;
    EXPECT_EQ(read.kind, kind);
    EXPECT_EQ(copy(read.first), first ? a : std::vector<u8>());
    EXPECT_EQ(copy(read.second), second ? a : std::vector<u8>());
    EXPECT_EQ(copy(read.muon), muon ? b : std::vector<u8>());
  }
}

TEST_F(OamFile, QuantisedWeightsOfTheIndependentWriter) {
  std::vector<f32> values = values_of<f32>(fixture_values(45, FileDType::F32));
  values[0] = std::nanf("");
  values[1] = std::numeric_limits<f32>::infinity();
  values[2] = -values[1];
  const Oam oam = read_oam(fixture("quantised.oam"));
  ASSERT_EQ(oam.weights.size(), 2u);
  for (const TensorView& t : oam.weights) {
    EXPECT_EQ(quantize(bytes_of(values), t.encoding), copy(t.bytes)) << t.name;
    const auto decoded = values_of<f32>(dequantize(t.bytes, 45, t.encoding));
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(decoded[i], 0);
    const f32 limit = t.encoding == Encoding::Q4 ? 7 : 127;
    for (size_t i = 3; i < 45; ++i) {
      const f32 largest = i < 32 ? values[31] : values[44];
      EXPECT_NEAR(decoded[i], values[i], largest / limit * 0.5001f) << i;
    }
  }
}

TEST_F(OamFile, QuantisesAwkwardBlocks) {
  const f32 least = std::numeric_limits<f32>::denorm_min(), most = std::numeric_limits<f32>::max();
  for (Encoding e : {Encoding::Q4, Encoding::Q8}) {
    // All zero, subnormal (the scale rounds to 0 and becomes 1, or a quotient is inexact), largest.
    for (f32 v : {0.0f, least, 3 * least, 1000 * least, -most / 2, 1.0f}) {
      for (u64 n : {1, 31, 32, 33, 65}) {
        const std::vector<f32> values(n, v);
        const auto stored = quantize(bytes_of(values), e);
        EXPECT_EQ(stored.size(), quantized_bytes(n, e));
        for (f32 d : values_of<f32>(dequantize(stored, n, e)))
          EXPECT_LE(std::fabs(d - v), std::fabs(v) / 13 + 4 * least) << v;
      }
    }
  }
  EXPECT_EQ(quantized_bytes(33, Encoding::Q4), 40u);
  EXPECT_EQ(quantized_bytes(33, Encoding::Q8), 72u);
  // Ties go to even: with a scale of 1, 0.5 becomes 0, 1.5 and 2.5 become 2.
  const auto stored = quantize(bytes_of<f32>({127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f}), Encoding::Q8);
  EXPECT_EQ(values_of<f32>(dequantize(stored, 6, Encoding::Q8)),
            (std::vector<f32>{127, 0, 2, 2, 0, -2}));
}

TEST_F(OamFile, QuantisedCopyKeepsVectorsAndDropsTheOptimizer) {
  const Oam before = sample();
  const std::vector<u8> bytes = encode_oam(quantized(before, Encoding::Q8));
  const Oam after = parse_oam(bytes);
  EXPECT_FALSE(after.optimizer);
  EXPECT_EQ(after.weights[0].encoding, Encoding::Q8);
  EXPECT_EQ(after.weights[1].encoding, Encoding::Dense);  // no element
  EXPECT_EQ(after.weights[2].encoding, Encoding::Dense);  // a vector
  expect_equal(after.state, before.state);
  EXPECT_EQ(before.weights[0].encoding, Encoding::Dense);
  EXPECT_ERROR(quantized(before, Encoding::Dense), InvalidArgument,
               "quantized: got dense, expected q4 or q8");
}

TEST_F(OamFile, LaysOutSectionsAsSpecified) {
  const std::vector<u8> bytes = encode_oam(sample());
  const std::span<const u8> b(bytes);
  EXPECT_EQ(std::string(b.begin(), b.begin() + 4), std::string("OAM\0", 4));
  EXPECT_EQ(oam::load<u32>(b, 4), 3u);
  EXPECT_EQ(oam::load<u32>(b, 8), 5u);
  EXPECT_EQ(oam::load<u64>(b, 16), bytes.size());
  u64 at = 4096;
  const u64 weights = 8 + 3 * 216 + 15 * 4 + 7 * 2, state = 8 + 2 * 216 + 4 * 8 + 4;
  const u64 sizes[] = {111, weights, state, 68 + 2 * 22 * 4, 104};
  const u64 extents[] = {111, 4096, 4096, sizes[3], 104};
  for (u32 i = 0; i < 5; ++i) {
    EXPECT_EQ(oam::load<u32>(b, 64 + 64 * i), i + 1);
    EXPECT_EQ(oam::load<u64>(b, 64 + 64 * i + 12), at);
    EXPECT_EQ(oam::load<u64>(b, 64 + 64 * i + 20), sizes[i]);
    at += extents[i];
  }
  EXPECT_EQ(bytes.size(), at);
}

TEST_F(OamFile, RefusesWhatTheFormatCannotHold) {
  const auto with = [](auto change) {
    Oam oam = sample();
    change(oam);
    return oam;
  };
  const auto error = [&](auto change) {
    const Oam oam = with(change);
    const auto [kind, text] = thrown([&] { write_oam(dir_ / "x.oam", oam); });
    EXPECT_EQ(kind, ErrorKind::InvalidArgument) << text;
    return text;
  };
  EXPECT_EQ(error([](Oam& o) { o.weights[1].name = "block_0.weight"; }),
            "write_oam: two tensors have the name 'block_0.weight'");
  EXPECT_EQ(error([](Oam& o) { o.weights[0].name = ""; }),
            "write_oam: wrong tensor name, got '', expected non-empty UTF-8 without NUL");
  EXPECT_EQ(error([](Oam& o) { o.state[0].name = "a\xff"; }),
            "write_oam: wrong tensor name, got 'a\\xff', expected non-empty UTF-8 without NUL");
  EXPECT_EQ(error([](Oam& o) { o.state[0].name = std::string("a\0b", 3); }),
            "write_oam: wrong tensor name, got 'a\\x00b', expected non-empty UTF-8 without NUL");
  EXPECT_EQ(error([](Oam& o) { o.weights[0].name = std::string(128, 'n'); }),
            "write_oam: name is too long, got 128 bytes for '" + std::string(80, 'n') +
                "...', expected at most 127");
  EXPECT_EQ(error([](Oam& o) { o.weights[0].shape = {1, 1, 1, 1, 1, 1, 1, 3, 5}; }),
            "write_oam: 'block_0.weight' has too many axes, got 9, expected at most 8");
  EXPECT_EQ(
      error([](Oam& o) { o.weights[0].shape = {3, 4}; }),
      "write_oam: 'block_0.weight' has a wrong number of bytes, got 60, expected 48 for dense "
      "f32 [3, 4]");
  EXPECT_EQ(
      error([](Oam& o) { o.weights[0].shape = {i64{1} << 40, i64{1} << 40}; }),
      "write_oam: 'block_0.weight' has a wrong number of bytes, got 60, expected an impossible "
      "number for dense f32 [1099511627776, 1099511627776]");
  EXPECT_EQ(
      error([](Oam& o) { o.weights[0].shape = {-3, -5}; }),
      "write_oam: 'block_0.weight' has a wrong number of bytes, got 60, expected an impossible "
      "number for dense f32 [-3, -5]");
  EXPECT_EQ(error([](Oam& o) {
              o.weights[2].dtype = FileDType::F8E4M3;
              o.weights[2].shape = {14};
            }),
            "write_oam: 'größe' has a dtype that .oam files cannot hold, got f8_e4m3");
  EXPECT_EQ(error([](Oam& o) { o.weights[2].encoding = Encoding::Q4; }),
            "write_oam: 'größe' cannot be stored as q4, got bf16 [7], expected f32 with elements");
  EXPECT_EQ(
      error([](Oam& o) { o.optimizer->kind = "Lion"; }),
      "write_oam: unknown optimizer, got 'Lion', expected SGD, Adam, AdamW, Muon or MuonAdamW");
  EXPECT_EQ(error([](Oam& o) { o.optimizer->second = o.optimizer->second.first(84); }),
            "write_oam: moments do not fit Adam, got 88, 84 and 0 bytes");
  EXPECT_EQ(error([](Oam& o) { o.optimizer->kind = "SGD"; }),
            "write_oam: moments do not fit SGD, got 88, 88 and 0 bytes");
  EXPECT_EQ(error([](Oam& o) { o.optimizer->muon = o.optimizer->first; }),
            "write_oam: moments do not fit Adam, got 88, 88 and 88 bytes");
  EXPECT_EQ(
      error([](Oam& o) { o.config.architecture = std::string(32, 'x'); }),
      "write_oam: wrong name of the architecture, got 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx', expected "
      "UTF-8 of at most 31 bytes without NUL");
  EXPECT_EQ(
      error([](Oam& o) { o.progress.metric_name = "\xc0\x80"; }),
      "write_oam: wrong name of the metric, got '\\xc0\\x80', expected UTF-8 of at most 31 bytes "
      "without NUL");
  EXPECT_EQ(entries(), 0u);  // nothing was touched
}

TEST_F(OamFile, QuantisedStateIsRefused) {
  Oam oam;
  const auto stored = quantize(fixture_values(32, FileDType::F32), Encoding::Q4);
  oam.state.push_back({"s", FileDType::F32, {32}, stored, Encoding::Q4});
  EXPECT_ERROR(encode_oam(oam), InvalidArgument,
               "write_oam: state 's' is quantised, got q4, expected dense");
}

TEST_F(OamFile, AFullDiskKeepsTheOldCheckpoint) {
  Oam oam = sample();
  write_oam(dir_ / "model.oam", oam);
  const std::vector<u8> before = read_file(dir_ / "model.oam");
  oam.add_weight("large", FileDType::U8, {1 << 20}, std::vector<u8>(1 << 20, 5));
  rlimit old;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  // The disk is full at the header, within the tensors, and near the end.
  for (rlim_t size : {100, 5000, 1 << 19, (1 << 20) + 4096}) {
    const rlimit small{size, old.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto [kind, text] = thrown([&] { write_oam(dir_ / "model.oam", oam); });
    ::setrlimit(RLIMIT_FSIZE, &old);
    EXPECT_EQ(kind, ErrorKind::Io);
    EXPECT_NE(text.find("File too large"), std::string::npos) << text;
    EXPECT_EQ(read_file(dir_ / "model.oam"), before);
    EXPECT_EQ(entries(), 1u);
  }
  std::signal(SIGXFSZ, old_handler);
  write_oam(dir_ / "model.oam", oam);
  EXPECT_EQ(read_oam(dir_ / "model.oam").weights.size(), 4u);
}

TEST_F(OamFile, ViewsOutliveTheFileAndTheFirstCopy) {
  Oam oam;
  oam.add_weight("w", FileDType::U8, {1 << 18}, std::vector<u8>(1 << 18, 6));
  write_oam(dir_ / "m.oam", oam);
  std::optional<Oam> first = read_oam(dir_ / "m.oam");
  const Oam second = *first;
  first.reset();
  std::filesystem::remove(dir_ / "m.oam");
  EXPECT_EQ(copy(second.weights[0].bytes), std::vector<u8>(1 << 18, 6));
}

}  // namespace
}  // namespace oa::ml
