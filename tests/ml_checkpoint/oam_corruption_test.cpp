// .oam: every damage is reported as such, by its own message, and in the documented order.
#include <array>
#include <random>

#include "oa/ml/checkpoint/oam.h"
#include "oa/ml/checkpoint/oam_layout.h"
#include "tests/ml_checkpoint/support.h"

namespace oa::ml {
namespace {

using namespace oam;

// A file image with its checksums put right after a change, so that deeper checks are reached.
struct Image {
  std::vector<u8> bytes;

  explicit Image(const std::string& name) : bytes(read_file(fixture(name))) {}

  u32 sections() const { return load<u32>(bytes, 8); }
  u64 row(u32 type) const {
    for (u32 i = 0; i < sections(); ++i)
      if (load<u32>(bytes, 64 + 64 * i) == type) return 64 + 64 * i;
    return 0;
  }
  u64 payload(u32 type) const { return load<u64>(bytes, row(type) + kSectionOffsetAt); }
  // Of a tensor entry.
  u64 entry(u32 type, u32 index) const { return payload(type) + 8 + 216 * index; }

  template <class T>
  Image& put(u64 at, T value) {
    store(std::span(bytes), at, value);
    return *this;
  }
  Image& seal() {
    const std::span<const u8> b(bytes);
    const u64 table_end = 64 + 64 * sections();
    u64 all = 0;
    for (u32 i = 0; i < sections(); ++i) {
      const u64 at = load<u64>(b, 64 + 64 * i + 12), size = load<u64>(b, 64 + 64 * i + 20);
      if (at > b.size() || size > b.size() - at) continue;
      const u64 hash = fnv1a(b.subspan(at, size));
      put(64 + 64 * i + 36, hash);
      all ^= hash;
    }
    put(24, u64{0});
    put(24, load<u32>(b, 4) == 1 ? all : fnv1a(b.first(table_end)));
    return *this;
  }
  std::string error() const {
    const auto [kind, text] = thrown([&] { parse_oam(bytes); });
    EXPECT_EQ(kind, text == "no error" ? ErrorKind::Internal : ErrorKind::CheckpointCorrupt)
        << text;
    const std::string prefix = "read_oam: corrupt .oam: ";
    if (!text.starts_with(prefix)) return text;
    return text.substr(prefix.size());
  }
};

TEST(OamCorruption, Header) {
  Image file("version3.oam");
  const Image good = file;
  EXPECT_EQ(good.error(), "no error");
  file.bytes.clear();
  EXPECT_EQ(file.error(), "too short, got 0 bytes, expected at least 64");
  file.bytes.assign(good.bytes.begin(), good.bytes.begin() + 63);
  EXPECT_EQ(file.error(), "too short, got 63 bytes, expected at least 64");
  EXPECT_EQ(Image(good).put<u8>(3, 1).error(),
            "wrong magic number, got 014d414f, expected 004d414f");
  EXPECT_EQ(Image(good).put<u32>(4, 0).error(), "unknown version, got 0, expected 1 to 3");
  EXPECT_EQ(Image(good).put<u32>(4, 4).error(), "unknown version, got 4, expected 1 to 3");
  EXPECT_EQ(Image(good).put<u32>(8, 0).error(),
            "wrong number of sections, got 0, expected 1 to 32");
  EXPECT_EQ(Image(good).put<u32>(8, 33).error(),
            "wrong number of sections, got 33, expected 1 to 32");
  EXPECT_EQ(Image(good).put<u64>(16, 5).error(), "wrong size, got 12700 bytes, expected 5");
  file = good;
  file.bytes.push_back(0);
  EXPECT_EQ(file.error(), "wrong size, got 12701 bytes, expected 12700");
  file.bytes.resize(100);
  EXPECT_EQ(file.put<u64>(16, 100).error(),
            "too short for its table, got 100 bytes, expected at least 384");
  EXPECT_TRUE(
      Image(good).put<u32>(12, 1).error().starts_with("checksum of header and table, got "));
  EXPECT_EQ(Image(good).put<u32>(12, 1).seal().error(), "no error");  // flags mean nothing
}

TEST(OamCorruption, Table) {
  const Image good("version3.oam");
  const auto broken = [&](auto change) {
    Image file = good;
    change(file);
    // Sections keep the checksums they had unless the change is meant to reach behind them.
    const std::span<u8> b(file.bytes);
    store(b, 24, u64{0});
    store(b, 24, fnv1a(std::span<const u8>(file.bytes).first(64 + 64 * file.sections())));
    return file.error();
  };
  EXPECT_EQ(broken([](Image& f) { f.put<u32>(f.row(State), 7); }),
            "section 2 has an unknown type, got 7, expected 1 to 6");
  EXPECT_EQ(broken([](Image& f) { f.put<u32>(f.row(State), 0); }),
            "section 2 has an unknown type, got 0, expected 1 to 6");
  EXPECT_EQ(broken([](Image& f) { f.put<u32>(f.row(State), Weights); }), "section 2 comes twice");
  EXPECT_EQ(broken([](Image& f) { f.put<u8>(f.row(State) + 4, 1); }),
            "state section is compressed, got method 1, expected 0");
  EXPECT_EQ(broken([](Image& f) { f.put<u64>(f.row(State) + 28, 1); }),
            "state section has a compressed size, got 1, expected 0");
  EXPECT_EQ(broken([](Image& f) { f.put<u64>(f.row(Config) + 12, 4095); }),
            "config section lies outside, got 112 bytes at 4095, expected from 4096 to 12700");
  EXPECT_EQ(broken([](Image& f) { f.put<u64>(f.row(Progress) + 12, 12597); }),
            "progress section lies outside, got 104 bytes at 12597, expected from 4096 to 12700");
  EXPECT_EQ(broken([](Image& f) { f.put<u64>(f.row(Progress) + 20, ~u64{0}); }),
            "progress section lies outside, got 18446744073709551615 bytes at 12596, expected from "
            "4096 to 12700");
  EXPECT_EQ(broken([](Image& f) { f.put<u64>(f.row(Progress) + 12, ~u64{0}); }),
            "progress section lies outside, got 104 bytes at 18446744073709551615, expected from "
            "4096 to 12700");
  EXPECT_TRUE(broken([](Image& f) {
                f.put<u64>(f.row(Progress) + 36, 1);
              }).starts_with("checksum of the progress section, got "));
}

TEST(OamCorruption, Layout) {
  const Image good("version3.oam");
  // The state section moved onto the end of the weights.
  Image file = good;
  file.put(file.row(State) + 12, file.payload(State) - 4096).seal();
  EXPECT_TRUE(file.error().starts_with("sections overlap at ")) << file.error();
  // Bytes between sections belong to nobody and are still checked.
  for (u64 at : {u64{400}, u64{4095}, good.payload(State) - 1, good.payload(Optimizer) - 1}) {
    file = good;
    EXPECT_EQ(file.put<u8>(at, 64).error(), fmt::format("padding at {} is not zero, got 64", at));
  }
  // A section less: it is replaced by the sixth kind, which may come and means nothing.
  file = good;
  EXPECT_EQ(file.put<u32>(file.row(Progress), KernelCache).seal().error(),
            "progress section is missing");
  file = good;
  EXPECT_EQ(file.put<u32>(file.row(Config), KernelCache).seal().error(),
            "config section is missing");
  file = good;
  EXPECT_EQ(file.put<u32>(file.row(Weights), KernelCache).seal().error(), "no error");
  // Version 1 sums up the sections, and only them.
  file = Image("version1.oam");
  EXPECT_TRUE(file.put<u8>(24, static_cast<u8>(file.bytes[24] + 1))
                  .error()
                  .starts_with("checksum of all sections, got "));
}

TEST(OamCorruption, ConfigAndProgress) {
  const Image good("version3.oam");
  const u64 config = good.payload(Config), progress = good.payload(Progress);
  Image file = good;
  for (u32 i = 0; i < 32; ++i) file.put<u8>(config + i, 'x');
  EXPECT_EQ(file.seal().error(), "name of the architecture has no end, expected a NUL in 32 bytes");
  EXPECT_EQ(Image(good).put<u8>(config, 0xff).seal().error(),
            "name of the architecture is not UTF-8, got '\\xffustModule'");
  EXPECT_EQ(Image(good).put<u8>(config + 57, 15).seal().error(),
            "config has an unknown dtype, got 15, expected 0 to 14");
  EXPECT_EQ(Image(good).put<u32>(config + 52, 5).seal().error(),
            "config section has a wrong size, got 112, expected 113");
  EXPECT_EQ(Image(good).put<u32>(config + 52, 0xffffffff).seal().error(),
            "config section has a wrong size, got 112, expected 4294967403");
  file = good;
  file.put(file.row(Progress) + 20, u64{103}).put<u8>(12699, 0).seal();
  EXPECT_EQ(file.error(), "progress section has a wrong size, got 103, expected 104");
  EXPECT_EQ(Image(good).put<u8>(progress + 40, 0x80).seal().error(),
            "name of the metric is not UTF-8, got '\\x80oss'");
}

TEST(OamCorruption, TensorEntries) {
  const Image good("version3.oam");
  const u64 weights = good.payload(Weights), e = good.entry(Weights, 1);
  const auto with = [&](u64 at, auto value) { return Image(good).put(at, value).seal().error(); };
  EXPECT_EQ(with(weights, u32{4}), "weights section is too short, got 720 bytes for 4 entries");
  EXPECT_EQ(with(weights, ~u32{0}),
            "weights section is too short, got 720 bytes for 4294967295 entries");
  EXPECT_EQ(with(weights + 4, u32{1}), "weights section has reserved bytes that are not zero");
  EXPECT_EQ(with(e, u8{0}), "weights entry 1 has an empty name");
  EXPECT_EQ(with(e, u8{0xc1}), "name of weights entry 1 is not UTF-8, got '\\xc1ayer.bias'");
  Image file = good;
  for (u32 i = 0; i < 128; ++i) file.put<u8>(e + i, 'x');
  EXPECT_EQ(file.seal().error(), "name of weights entry 1 has no end, expected a NUL in 128 bytes");
  file = good;
  std::memcpy(file.bytes.data() + e, file.bytes.data() + good.entry(Weights, 0), 128);
  EXPECT_EQ(file.seal().error(), "weights has two entries named 'layer.weight'");
  EXPECT_EQ(with(e + 144, u8{15}),
            "weights entry 1 has an unknown dtype, got 15, expected 0 to 14");
  EXPECT_EQ(with(e + 145, u8{9}), "weights entry 1 has a wrong rank, got 9, expected 0 to 8");
  EXPECT_EQ(with(e + 146, u8{3}),
            "weights entry 1 has an unknown encoding, got 3, expected 0 to 2");
  EXPECT_EQ(with(e + 146, u8{1}), "weights entry 1 has a wrong block size, got 0, expected 32");
  EXPECT_EQ(with(e + 147, u8{32}), "weights entry 1 has a wrong block size, got 32, expected 0");
  EXPECT_EQ(with(e + 150, u8{1}), "weights entry 1 has reserved bytes that are not zero");
  EXPECT_EQ(with(e + 152, u64{1} << 63),
            "weights entry 1 has an impossible extent, got 9223372036854775808");
  EXPECT_EQ(with(e + 128, u64{53}),
            "'layer.bias' lies outside, got 12 bytes at 53, expected up to 64");
  EXPECT_EQ(with(e + 128, ~u64{0}),
            "'layer.bias' lies outside, got 12 bytes at 18446744073709551615, expected up to 64");
  EXPECT_EQ(with(e + 136, ~u64{0}),
            "'layer.bias' lies outside, got 18446744073709551615 bytes at 48, expected up to 64");
  EXPECT_EQ(with(e + 136, u64{11}),
            "'layer.bias' has a wrong number of bytes, got 11, expected 12 for dense f32 [3]");
  EXPECT_EQ(
      with(e + 152, u64{1} << 62),
      "'layer.bias' has a wrong number of bytes, got 12, expected an impossible number for dense "
      "f32 [4611686018427387904]");
  EXPECT_EQ(with(e + 128, u64{47}), "tensors of the weights section overlap at 47");
  EXPECT_EQ(with(good.entry(State, 0) + 146, u8{1}),
            "state entry 0 has an unknown encoding, got 1, expected 0");
  // Extents behind the rank are not looked at.
  EXPECT_EQ(with(e + 160, u64{99}), "no error");
}

TEST(OamCorruption, QuantisedEntries) {
  const Image good("quantised.oam");
  const u64 e = good.entry(Weights, 0);
  const auto with = [&](u64 at, auto value) { return Image(good).put(at, value).seal().error(); };
  EXPECT_EQ(with(e + 144, u8{10}), "weights entry 0 is quantised, got u32, expected f32");
  EXPECT_EQ(with(e + 147, u8{16}), "weights entry 0 has a wrong block size, got 16, expected 32");
  EXPECT_EQ(
      with(e + 152, u64{0}),
      "'q4' has a wrong number of bytes, got 40, expected an impossible number for q4 f32 [0, 9]");
  EXPECT_EQ(with(e + 152, u64{8}),
            "'q4' has a wrong number of bytes, got 40, expected 60 for q4 f32 [8, 9]");
  // Old versions know no encodings.
  EXPECT_EQ(Image(good).put<u32>(4, 2).seal().error(),
            "weights entry 0 has an unknown encoding, got 1, expected 0");
}

TEST(OamCorruption, Optimizer) {
  const Image good("version3.oam");
  const u64 o = good.payload(Optimizer);
  const auto with = [&](u64 at, auto value) { return Image(good).put(at, value).seal().error(); };
  EXPECT_EQ(with(o, u8{'B'}),
            "unknown optimizer, got 'BdamW', expected SGD, Adam, AdamW, Muon or MuonAdamW");
  EXPECT_EQ(
      with(o + 44, u64{15}),
      "optimizer section has a wrong size, got 128 bytes of moments for 15 values in 2 arrays");
  for (u64 n : {u64{1} << 61, u64{1} << 62, ~u64{0}, (u64{1} << 63) + 16})
    EXPECT_EQ(
        with(o + 44, n),
        fmt::format("optimizer section has a wrong size, got 128 bytes of moments for {} values "
                    "in 2 arrays",
                    n));
  Image file = good;
  file.put(o, std::array<char, 16>{"SGD"}).seal();
  EXPECT_EQ(
      file.error(),
      "optimizer section has a wrong size, got 128 bytes of moments for 16 values in 1 arrays");
  file.put(o, std::array<char, 16>{"Muon"}).seal();
  EXPECT_EQ(
      file.error(),
      "optimizer section has a wrong size, got 128 bytes of moments for 16 values in 1 arrays");
  EXPECT_EQ(file.put(o + 44, u64{32}).seal().error(), "no error");
}

TEST(OamCorruption, EveryFlippedBitIsFound) {
  std::mt19937 random(1);
  for (const char* name : {"version2.oam", "version3.oam", "quantised.oam"}) {
    const Image good(name);
    Image file = good;
    for (int i = 0; i < 1000; ++i) {
      const u64 bit = random() % (8 * good.bytes.size());
      const u8 mask = static_cast<u8>(1u << (bit % 8));
      file.bytes[bit / 8] ^= mask;
      EXPECT_NE(file.error(), "no error") << name << " bit " << bit;
      file.bytes[bit / 8] ^= mask;
    }
    EXPECT_EQ(file.error(), "no error");
  }
}

TEST(OamCorruption, EveryShorterFileIsFound) {
  const Image good("version3.oam");
  for (size_t size = 0; size < good.bytes.size(); size += size < 512 ? 1 : 97) {
    Image file = good;
    file.bytes.resize(size);
    EXPECT_NE(file.error(), "no error") << size;
  }
}

TEST(OamCorruption, MessagesOfFilesNameThePath) {
  const std::string path = fixture("f4.npy").string();
  EXPECT_ERROR(read_oam(path), CheckpointCorrupt,
               "read_oam: corrupt .oam: wrong magic number, got 4d554e93, expected 004d414f, in '" +
                   path + "'");
  EXPECT_ERROR(read_oam("/nonexistent/x.oam"), Io,
               "read_file: cannot open '/nonexistent/x.oam': No such file or directory");
}

}  // namespace
}  // namespace oa::ml
