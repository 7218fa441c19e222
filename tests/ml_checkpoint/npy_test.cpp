// .npy and .npz: NumPy's own files of every kind, round trips, damaged and hostile ones.
#include "oa/ml/checkpoint/npy.h"

#include <algorithm>
#include <map>
#include <random>

#include "oa/ml/checkpoint/npz.h"
#include "oa/ml/checkpoint/tensor_file.h"
#include "tests/ml_checkpoint/support.h"

namespace oa::ml {
namespace {

class NumpyFile : public InFolder {};

// A version 1 file with this header text.
std::vector<u8> npy(std::string_view header, size_t values = 0, u8 version = 1) {
  std::vector<u8> bytes = {0x93,
                           'N',
                           'U',
                           'M',
                           'P',
                           'Y',
                           version,
                           0,
                           static_cast<u8>(header.size()),
                           static_cast<u8>(header.size() >> 8)};
  if (version > 1) bytes.resize(12);
  for (char c : header) bytes.push_back(static_cast<u8>(c));
  bytes.resize(bytes.size() + values);
  return bytes;
}

std::string error(const std::vector<u8>& bytes, ErrorKind expected = ErrorKind::DataLoss) {
  const auto [kind, text] = thrown([&] { TensorFile::parse(bytes); });
  EXPECT_EQ(kind, expected) << text;
  const std::string prefix = "read_npy: ";
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

TEST_F(NumpyFile, ReadsEveryKindOfArray) {
  const Shape cube{2, 3, 4};
  const std::map<std::string, std::tuple<FileDType, Shape, std::string>> files = {
      {"f4", {FileDType::F32, cube, "dense"}},
      {"f8", {FileDType::F64, {5}, "dense"}},
      {"f2", {FileDType::F16, {2, 2}, "dense"}},
      {"i1", {FileDType::I8, {4}, "dense"}},
      {"u1", {FileDType::U8, {4}, "dense"}},
      {"b1", {FileDType::Bool, {7}, "dense"}},
      {"c8", {FileDType::C64, {3}, "dense"}},
      {"c16", {FileDType::C128, {2}, "dense"}},
      {"scalar", {FileDType::F32, Shape(), "dense"}},
      {"empty", {FileDType::I64, {3, 0}, "dense"}},
      {"version2", {FileDType::F32, cube, "dense"}},
      {"version3", {FileDType::F32, cube, "dense"}},
      {"fortran", {FileDType::F32, cube, "column-major"}},
      {"big", {FileDType::F32, cube, "big-endian"}},
      {"big_fortran", {FileDType::I16, cube, "big-endian, column-major"}},
      {"big_complex", {FileDType::C64, {3}, "big-endian"}}};
  for (const auto& [name, expected] : files) {
    const auto& [dtype, shape, storage] = expected;
    const TensorFile file = read_tensors(fixture(name + ".npy"));
    EXPECT_EQ(file.kind(), FileKind::Npy);
    ASSERT_EQ(file.tensors().size(), 1u);
    const TensorInfo& t = file.tensors()[0];
    EXPECT_EQ(t.dtype, dtype) << name;
    EXPECT_EQ(t.shape, shape) << name;
    EXPECT_EQ(t.storage, storage) << name;
    EXPECT_EQ(copy(file.values(0).bytes()),
              fixture_values(static_cast<u64>(shape.elements()), dtype))
        << name;
  }
}

TEST_F(NumpyFile, RefusesOtherArraysByName) {
  const auto refused = [](const std::string& name) {
    const std::string path = fixture("refused_" + name + ".npy").string();
    const auto [kind, text] = thrown([&] { read_tensors(path); });
    EXPECT_EQ(kind, ErrorKind::InvalidArgument);
    EXPECT_TRUE(text.ends_with(", in '" + path + "'")) << text;
    return text.substr(0, text.size() - path.size() - 7);
  };
  const std::string expected = ", expected numbers or truth values";
  EXPECT_EQ(refused("object"), "read_npy: unsupported element type, got '|O'" + expected);
  EXPECT_EQ(refused("text"), "read_npy: unsupported element type, got '<U2'" + expected);
  EXPECT_EQ(refused("date"), "read_npy: unsupported element type, got '<M8[D]'" + expected);
  EXPECT_EQ(refused("long_double"), "read_npy: unsupported element type, got '<f16'" + expected);
  EXPECT_EQ(refused("record"), "read_npy: arrays of records are not supported");
}

TEST_F(NumpyFile, RoundTripsEveryType) {
  for (FileDType t : {FileDType::F32, FileDType::F16, FileDType::F64, FileDType::I8, FileDType::I16,
                      FileDType::I32, FileDType::I64, FileDType::U8, FileDType::U16, FileDType::U32,
                      FileDType::U64, FileDType::Bool, FileDType::C64, FileDType::C128}) {
    for (const Shape& shape : {Shape(), Shape{1}, Shape{0}, Shape{7}, Shape{3, 5}, Shape{2, 0, 4},
                               Shape{2, 1, 2, 1, 1, 1, 1, 1, 1, 3}}) {
      const std::vector<u8> values = fixture_values(static_cast<u64>(shape.elements()), t);
      write_npy(dir_ / "x.npy", {"", t, shape, values});
      const TensorFile file = read_tensors(dir_ / "x.npy");
      EXPECT_EQ(file.tensors()[0].dtype, t);
      EXPECT_EQ(file.tensors()[0].shape, shape);
      EXPECT_EQ(copy(file.values("array").bytes()), values);
      EXPECT_EQ((file.file_bytes() - values.size()) % 64, 0u);
    }
  }
}

TEST_F(NumpyFile, RefusesWhatNumPyHasNot) {
  const std::vector<u8> raw(4);
  EXPECT_ERROR(write_npy(dir_ / "x.npy", {"t", FileDType::BF16, {2}, raw}), InvalidArgument,
               "write_npy: 't' has a dtype that NumPy has not, got bf16");
  EXPECT_ERROR(write_npy(dir_ / "x.npy", {"t", FileDType::F16, {3}, raw}), InvalidArgument,
               "write_npy: 't' has a wrong number of bytes, got 4, expected 6 for dense f16 [3]");
  EXPECT_EQ(entries(), 0u);
}

TEST_F(NumpyFile, HeadersThatOtherWritersMake) {
  const auto reads = [](std::string_view header, size_t values, u8 version = 1) {
    const std::vector<u8> bytes = npy(header, values, version);
    return TensorFile::parse(bytes).tensors()[0];
  };
  EXPECT_EQ(reads("{'descr':'<f4','fortran_order':False,'shape':(2,3)}", 24).shape, (Shape{2, 3}));
  EXPECT_EQ(
      reads("{\"shape\": (2L, 3L), \"fortran_order\": True, \"descr\": \"=f4\"}\n", 24).storage,
      "column-major");
  EXPECT_EQ(reads("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }   \n", 8).shape,
            Shape{2});
  EXPECT_EQ(reads("{'descr': '>u1', 'fortran_order': False, 'shape': (), }", 1, 3).storage,
            "dense");
  EXPECT_EQ(reads("{'descr': '|b1', 'fortran_order': False, 'shape': (3)}", 3, 2).dtype,
            FileDType::Bool);
}

TEST_F(NumpyFile, DamagedHeaders) {
  const auto of = [](std::string_view header) { return error(npy(header)); };
  EXPECT_EQ(error({0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0}),
            "too short, got 8 bytes, expected at least 10");
  EXPECT_EQ(error(npy("{}", 0, 4)), "unknown version, got 4.0, expected 1.0, 2.0 or 3.0");
  std::vector<u8> bytes = npy("{}");
  bytes[7] = 1;
  EXPECT_EQ(error(bytes), "unknown version, got 1.1, expected 1.0, 2.0 or 3.0");
  bytes = npy("{}");
  bytes[8] = 3;
  EXPECT_EQ(error(bytes), "the header does not fit, got 12 bytes, expected 13");
  bytes = npy("{}", 0, 2);
  bytes[10] = bytes[11] = 255;
  EXPECT_EQ(error(bytes), "the header is too long, got 4294901762 bytes, expected at most 65536");
  EXPECT_EQ(of("{}"), "the header lacks one of descr, fortran_order and shape");
  EXPECT_EQ(of(""), "the header is malformed, got '' at byte 0, expected '{'");
  EXPECT_EQ(of("{'descr'"), "the header is malformed, got '' at byte 8, expected ':'");
  EXPECT_EQ(of("{'descr': '<f4"), "the header has text without an end");
  EXPECT_EQ(of("{'descr': '<f4' 'shape': ()}"),
            "the header is malformed, got ''' at byte 16, expected '}'");
  EXPECT_EQ(of("{'descr': '<f4', 'descr': '<f4'}"), "the header has the key 'descr' twice");
  EXPECT_EQ(of("{'descr': '<f4', 'more': 1}"), "the header has an unknown key, got 'more'");
  EXPECT_EQ(of("{'fortran_order': true}"), "wrong fortran_order, expected True or False");
  EXPECT_EQ(of("{'shape': (-1,)}"), "the shape is malformed at byte 11 of the header");
  EXPECT_EQ(of("{'shape': (1,,)}"), "the shape is malformed at byte 13 of the header");
  EXPECT_EQ(of("{'shape': [1]}"), "the header is malformed, got '[' at byte 10, expected '('");
  EXPECT_EQ(of("{'shape': (99999999999999999999,)}"),
            "impossible extent, got more than 288230376151711744");
  EXPECT_EQ(of("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x"),
            "the header goes on after its dictionary");
  EXPECT_EQ(of("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}"),
            "wrong number of bytes, got 0, expected 4 for f32 [1]");
  EXPECT_EQ(error(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", 5)),
            "wrong number of bytes, got 5, expected 4 for f32 [1]");
  EXPECT_EQ(of("{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000, 100000000000)}"),
            "impossible shape, got f32 of [100000000000, 100000000000]");
  EXPECT_EQ(error(npy("{'descr': '|f4'}"), ErrorKind::InvalidArgument),
            "unsupported element type, got '|f4', expected numbers or truth values");
  EXPECT_EQ(error(npy("{'descr': ''}"), ErrorKind::InvalidArgument),
            "unsupported element type, got '', expected numbers or truth values");
}

// ---- npz

void expect_fixture(const TensorFile& file) {
  const Shape cube{2, 3, 4};
  const std::vector<std::tuple<std::string, FileDType, Shape>> expected = {
      {"layer.weight", FileDType::F32, cube}, {"layer.bias", FileDType::F64, {4}},
      {"counts", FileDType::I32, {300}},      {"scalar", FileDType::F32, Shape()},
      {"empty", FileDType::U8, {0}},          {"größe", FileDType::F16, {2}},
      {"fortran", FileDType::F32, cube},      {"big", FileDType::F32, cube}};
  EXPECT_EQ(file.kind(), FileKind::Npz);
  ASSERT_EQ(file.tensors().size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, dtype, shape] = expected[i];
    EXPECT_EQ(file.tensors()[i].name, name);
    EXPECT_EQ(file.tensors()[i].dtype, dtype);
    EXPECT_EQ(file.tensors()[i].shape, shape);
    const auto values = fixture_values(static_cast<u64>(shape.elements()), dtype);
    EXPECT_EQ(copy(file.values(i).bytes()), values) << name;
    EXPECT_EQ(copy(file.values(name).bytes()), values) << name;  // a second time
  }
}

TEST_F(NumpyFile, ReadsArchives) {
  expect_fixture(read_tensors(fixture("stored.npz")));
  const TensorFile deflated = read_tensors(fixture("deflated.npz"));
  expect_fixture(deflated);
  EXPECT_EQ(deflated.tensors()[2].storage, "deflate");
  EXPECT_EQ(deflated.tensors()[7].storage, "deflate, big-endian");
  EXPECT_LT(deflated.tensors()[2].stored_bytes, 1200u);
  for (const char* name : {"savez.npz", "savez_compressed.npz"}) {
    const TensorFile file = read_tensors(fixture(name));
    ASSERT_EQ(file.tensors().size(), 2u);
    EXPECT_EQ(copy(file.values("first").bytes()), fixture_values(24, FileDType::F32));
    EXPECT_EQ(copy(file.values("second").bytes()), fixture_values(2, FileDType::I64));
  }
}

TEST_F(NumpyFile, ArchivesRoundTrip) {
  std::vector<TensorView> tensors;
  std::vector<std::vector<u8>> keep;
  for (u64 n : {0, 1, 100, 100000}) {
    keep.push_back(fixture_values(n, FileDType::F32));
    tensors.push_back(
        {fmt::format("größe/{}", n), FileDType::F32, {static_cast<i64>(n)}, keep.back()});
  }
  for (Compression c : {Compression::Store, Compression::Deflate}) {
    write_npz(dir_ / "x.npz", tensors, c);
    const TensorFile file = read_tensors(dir_ / "x.npz");
    ASSERT_EQ(file.tensors().size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(file.tensors()[i].name, tensors[i].name);
      EXPECT_EQ(copy(file.values(i).bytes()), keep[i]);
    }
    EXPECT_EQ(file.file_bytes() < 400000, c == Compression::Deflate);
    // Equal content makes equal files.
    const std::vector<u8> first = read_file(dir_ / "x.npz");
    write_npz(dir_ / "x.npz", tensors, c);
    EXPECT_EQ(read_file(dir_ / "x.npz"), first);
  }
  write_npz(dir_ / "none.npz", {});
  EXPECT_TRUE(read_tensors(dir_ / "none.npz").tensors().empty());
}

TEST_F(NumpyFile, ArchivesRefuseWhatTheyCannotHold) {
  const std::vector<u8> raw(4);
  const TensorView bad{"t", FileDType::BF16, {2}, raw};
  EXPECT_ERROR(write_npz(dir_ / "x.npz", {&bad, 1}), InvalidArgument,
               "write_npy: 't' has a dtype that NumPy has not, got bf16");
  const TensorView two[] = {{"t", FileDType::U8, {4}, raw}, {"t", FileDType::U8, {4}, raw}};
  EXPECT_ERROR(write_npz(dir_ / "x.npz", two), InvalidArgument,
               "write_npz: two tensors have the name 't'");
  EXPECT_EQ(entries(), 0u);
}

TEST_F(NumpyFile, ViewsOfArchivesOutliveThem) {
  std::optional<TensorFile> file = read_tensors(fixture("stored.npz"));
  const TensorBytes mapped = file->values("layer.weight"), own = file->values("big");
  file.reset();
  EXPECT_EQ(copy(mapped.bytes()), fixture_values(24, FileDType::F32));
  EXPECT_EQ(copy(own.bytes()), fixture_values(24, FileDType::F32));
}

// Reading everything of a damaged archive: an error of the right kind, or (for bits that carry no
// meaning, such as dates) all values as they were.
TEST_F(NumpyFile, EveryFlippedBitOfAnArchiveIsFoundOrHarmless) {
  std::mt19937 random(3);
  for (const char* name : {"stored.npz", "deflated.npz", "savez.npz"}) {
    const std::vector<u8> good = read_file(fixture(name));
    std::vector<std::vector<u8>> expected;
    {
      const TensorFile file = TensorFile::parse(good);
      for (size_t i = 0; i < file.tensors().size(); ++i)
        expected.push_back(copy(file.values(i).bytes()));
    }
    int found = 0;
    for (int i = 0; i < 2000; ++i) {
      std::vector<u8> bytes = good;
      const u64 bit = random() % (8 * bytes.size());
      bytes[bit / 8] ^= static_cast<u8>(1u << (bit % 8));
      try {
        const TensorFile file = TensorFile::parse(bytes);
        ASSERT_EQ(file.tensors().size(), expected.size()) << bit;
        for (size_t k = 0; k < expected.size(); ++k)
          ASSERT_EQ(copy(file.values(k).bytes()), expected[k]) << name << " bit " << bit;
      } catch (const Error& e) {
        EXPECT_TRUE(e.kind() == ErrorKind::DataLoss || e.kind() == ErrorKind::InvalidArgument)
            << e.what();
        ++found;
      }
    }
    EXPECT_GT(found, 1000);
  }
}

TEST_F(NumpyFile, DamagedArchives) {
  const std::vector<u8> good = read_file(fixture("stored.npz"));
  std::vector<u8> bytes(good.begin(), good.begin() + 1000);
  EXPECT_EQ(error(bytes), "read_npz: not a zip archive, or its directory is damaged");
  // A bit within the first member's values: opening works, reading tells.
  bytes = good;
  bytes[30 + 16 + 128 + 5] ^= 1;
  const TensorFile file = TensorFile::parse(bytes);
  EXPECT_ERROR(file.values(0), DataLoss, "read_npz: checksum of member 'layer.weight'");
  EXPECT_NO_THROW(file.values(1));
}

TEST_F(NumpyFile, ArchivesOfOtherThingsAreRefused) {
  // A member renamed in both of its places.
  std::vector<u8> bytes = read_file(fixture("stored.npz"));
  const std::string from = "layer.bias.npy", to = "layer.bias.txt";
  for (auto at = bytes.begin();
       (at = std::search(at, bytes.end(), from.begin(), from.end())) != bytes.end();)
    std::copy(to.begin(), to.end(), at);
  EXPECT_EQ(error(bytes, ErrorKind::InvalidArgument),
            "read_npz: member 'layer.bias.txt' is no array, expected NAME.npy");
}

}  // namespace
}  // namespace oa::ml
