// Safetensors: files of the real package, round trips to the same bytes, hostile headers.
#include "oa/ml/checkpoint/safetensors.h"

#include <map>

#include "tests/ml_checkpoint/support.h"

namespace oa::ml {
namespace {

class SafetensorsFile : public InFolder {};

// A file image of a header text and a buffer.
std::vector<u8> image(std::string_view header, size_t buffer) {
  std::vector<u8> bytes(8 + header.size() + buffer);
  const u64 length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

std::string error(std::string_view header, size_t buffer,
                  ErrorKind expected = ErrorKind::DataLoss) {
  const std::vector<u8> bytes = image(header, buffer);
  const auto [kind, text] = thrown([&] { parse_safetensors(bytes); });
  EXPECT_EQ(kind, expected) << text;
  const std::string prefix = "read_safetensors: ";
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

TEST_F(SafetensorsFile, ReadsThePackagesFile) {
  const std::vector<u8> bytes = read_file(fixture("numpy.safetensors"));
  const Safetensors file = parse_safetensors(bytes);
  EXPECT_EQ(file.metadata, (Metadata{{"format", "np"}}));
  std::map<std::string, std::pair<FileDType, Shape>> expected = {
      {"f64", {FileDType::F64, {2, 3}}},
      {"f32", {FileDType::F32, {3, 1, 5}}},
      {"f16", {FileDType::F16, {7}}},
      {"i64", {FileDType::I64, {4}}},
      {"i32", {FileDType::I32, {2, 2}}},
      {"i16", {FileDType::I16, {3}}},
      {"i8", {FileDType::I8, {9}}},
      {"u64", {FileDType::U64, {2}}},
      {"u32", {FileDType::U32, {3}}},
      {"u16", {FileDType::U16, {5}}},
      {"u8", {FileDType::U8, {3, 3}}},
      {"bool", {FileDType::Bool, {6}}},
      {"c64", {FileDType::C64, {2}}},
      {"empty", {FileDType::F32, {0, 4}}},
      {"scalar", {FileDType::F32, Shape()}},
      {"schicht.größe 層", {FileDType::F32, {2}}},
      {"quote\"back\\slash\n", {FileDType::U8, {1}}}};
  ASSERT_EQ(file.tensors.size(), expected.size());
  for (const TensorView& t : file.tensors) {
    ASSERT_TRUE(expected.contains(t.name)) << t.name;
    EXPECT_EQ(t.dtype, expected[t.name].first) << t.name;
    EXPECT_EQ(t.shape, expected[t.name].second) << t.name;
    EXPECT_EQ(copy(t.bytes), fixture_values(static_cast<u64>(t.shape.elements()), t.dtype))
        << t.name;
  }
}

TEST_F(SafetensorsFile, ReadsNarrowTypes) {
  const std::vector<u8> bytes = read_file(fixture("narrow.safetensors"));
  const Safetensors file = parse_safetensors(bytes);
  ASSERT_EQ(file.tensors.size(), 3u);
  EXPECT_EQ(file.tensors[0].dtype, FileDType::BF16);
  EXPECT_EQ(copy(file.tensors[0].bytes), (std::vector<u8>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(file.tensors[1].dtype == FileDType::F8E5M2, file.tensors[1].name == "f8a");
  EXPECT_EQ(file.tensors[2].dtype == FileDType::F8E4M3, file.tensors[2].name == "f8b");
}

TEST_F(SafetensorsFile, WritesTheSameBytesAsThePackage) {
  for (const char* name : {"numpy.safetensors", "narrow.safetensors", "nothing.safetensors"}) {
    const std::vector<u8> bytes = read_file(fixture(name));
    const Safetensors file = parse_safetensors(bytes);
    EXPECT_EQ(encode_safetensors(file.tensors, file.metadata), bytes) << name;
    write_safetensors(dir_ / "out.safetensors", file.tensors, file.metadata);
    EXPECT_EQ(read_file(dir_ / "out.safetensors"), bytes) << name;
  }
}

TEST_F(SafetensorsFile, KeepsTheOrderAndAlignsValues) {
  const std::vector<u8> raw(64, 7);
  const std::span<const u8> b(raw);
  const std::vector<TensorView> tensors = {{"z", FileDType::U8, {3}, b.first(3)},
                                           {"y", FileDType::F64, {1}, b.first(8)},
                                           {"x", FileDType::U8, {1}, b.first(1)},
                                           {"w", FileDType::F32, {2}, b.first(8)}};
  const std::vector<u8> bytes = encode_safetensors(tensors);
  const Safetensors file = parse_safetensors(bytes);
  ASSERT_EQ(file.tensors.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(file.tensors[i].name, tensors[i].name);
    EXPECT_EQ((file.tensors[i].bytes.data() - bytes.data()) % size_bytes(tensors[i].dtype), 0);
  }
}

TEST_F(SafetensorsFile, LegalEdgeCases) {
  const auto parse = [](std::string_view header, size_t buffer) {
    const std::vector<u8> bytes = image(header, buffer);
    return parse_safetensors(bytes).tensors.size();
  };
  EXPECT_EQ(parse("{}", 0), 0u);
  EXPECT_EQ(parse("{}      ", 0), 0u);
  EXPECT_EQ(parse(R"({"__metadata__":{}})", 0), 0u);
  EXPECT_EQ(parse(R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4), 1u);
  EXPECT_EQ(
      parse(R"({"t":{"dtype":"F32","shape":[4294967296,0,4294967296],"data_offsets":[0,0]}})", 0),
      1u);
  // Empty tensors may share a place, and fields that we do not know are read over.
  EXPECT_EQ(
      parse(
          R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
          R"("b":{"new":[[{"x":1.5}],null,true,-1],"other":{"dtype":[]},"shape":[1],"dtype":"U8","data_offsets":[0,1]},)"
          R"("c":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":"text"}})",
          1),
      3u);
}

TEST_F(SafetensorsFile, HostileLengths) {
  std::vector<u8> bytes;
  EXPECT_ERROR(parse_safetensors(bytes), DataLoss,
               "read_safetensors: too short, got 0 bytes, expected at least 8");
  bytes.assign(16, 0xff);
  EXPECT_ERROR(
      parse_safetensors(bytes), DataLoss,
      "read_safetensors: the header is too long, got 18446744073709551615 bytes, expected at "
      "most 100000000");
  bytes = image("{}", 0);
  bytes[0] = 3;
  EXPECT_ERROR(parse_safetensors(bytes), DataLoss,
               "read_safetensors: the header does not fit, got a length of 3, expected at most 2");
  EXPECT_EQ(error("", 0), "the header does not start with '{'");
  EXPECT_EQ(error(" {}", 0), "the header does not start with '{'");
  EXPECT_EQ(error("[]", 0), "the header does not start with '{'");
  EXPECT_EQ(error("{\"\xff\":1}", 0), "the header is not UTF-8");
}

TEST_F(SafetensorsFile, HostileOffsets) {
  const auto with = [](std::string_view offsets, size_t buffer) {
    return error(fmt::format(R"({{"t":{{"dtype":"F32","shape":[2],"data_offsets":{}}}}})", offsets),
                 buffer);
  };
  EXPECT_EQ(error(R"({"t":{"dtype":"F32","shape":[32,8],"data_offsets":[0,65536]}})", 65536),
            "size mismatch for \"t\", got 65536 bytes, expected 1024 for f32 [32, 8]");
  EXPECT_EQ(with("[]", 8), "'t' has wrong data_offsets, got 0 numbers, expected 2");
  EXPECT_EQ(with("[5]", 8), "'t' has wrong data_offsets, got 1 numbers, expected 2");
  EXPECT_EQ(with("[0,8,8]", 8), "'t' has wrong data_offsets, got 3 numbers, expected 2");
  EXPECT_EQ(with("[8,4]", 8),
            "'t' has wrong data_offsets, got [8, 4], expected a range of 8 bytes");
  EXPECT_EQ(with("[0,9]", 8),
            "'t' has wrong data_offsets, got [0, 9], expected a range of 8 bytes");
  EXPECT_EQ(
      with("[18446744073709551608,18446744073709551615]", 8),
      "'t' has wrong data_offsets, got [18446744073709551608, 18446744073709551615], expected a "
      "range of 8 bytes");
  EXPECT_EQ(with("[-1,8]", 8), "'t' has a negative number in its data_offsets");
  EXPECT_EQ(with("[0,8.0]", 8), "'t' has a fraction in its data_offsets");
  EXPECT_EQ(with("[0,18446744073709551616]", 8), "'t' has a fraction in its data_offsets");
  EXPECT_EQ(with("8", 8), "'t' has a number in its data_offsets");
  EXPECT_EQ(with("[[0],8]", 8), "'t' has an array in its data_offsets");
  EXPECT_EQ(with("[4,12]", 12), "hole before 't', got offset 4, expected 0");
  EXPECT_EQ(with("[0,8]", 9), "tensors do not fill the file, got 9 bytes of values, expected 8");
  EXPECT_EQ(error("{}", 1), "tensors do not fill the file, got 1 bytes of values, expected 0");
  EXPECT_EQ(error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
                  7),
            "overlap before 'b', got offset 3, expected 4");
  EXPECT_EQ(error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
                  9),
            "hole before 'b', got offset 5, expected 4");
}

TEST_F(SafetensorsFile, HostileEntries) {
  const auto entry = [](std::string_view fields, size_t buffer = 0,
                        ErrorKind kind = ErrorKind::DataLoss) {
    return error(fmt::format(R"({{"t":{{{}}}}})", fields), buffer, kind);
  };
  EXPECT_EQ(
      entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
      "size mismatch for \"t\", got 0 bytes, expected an impossible number for f32 [4294967296, "
      "4294967296]");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,0])"),
            "'t' has an impossible extent, got 9223372036854775808");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[1,-1],"data_offsets":[0,0])"),
            "'t' has a negative number in its shape");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[1],)"
                  R"("data_offsets":[0,4],"shape":[1])",
                  4),
            "the header has the key 'shape' twice");
  EXPECT_EQ(entry(R"("dtype":"F32","data_offsets":[0,4])", 4),
            "'t' lacks one of dtype, shape and data_offsets");
  EXPECT_EQ(
      entry(R"("dtype":"F4","shape":[0],"data_offsets":[0,0])", 0, ErrorKind::InvalidArgument),
      "'t' has an unsupported dtype, got F4");
  EXPECT_EQ(entry(R"("dtype":32,"shape":[0],"data_offsets":[0,0])"),
            "'t' has a number in its dtype");
  EXPECT_EQ(entry(R"("dtype":{"shape":[]},"shape":[0],"data_offsets":[0,0])"),
            "'t' has an object in its dtype");
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ",1";
  EXPECT_EQ(entry(fmt::format(R"("dtype":"U8","shape":[{}],"data_offsets":[0,1])", many), 1),
            "'t' has too many axes, expected at most 64");
  EXPECT_EQ(error(R"({"t":5})", 0), "'t' is a number, expected an object");
  EXPECT_EQ(error(R"({"t":[]})", 0), "'t' is an array, expected an object");
  EXPECT_EQ(error(R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
            "wrong tensor name, got ''");
  EXPECT_EQ(error(R"({"a\u0000":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
            "wrong tensor name, got 'a\\x00'");
  EXPECT_EQ(error(R"({"__metadata__":{"a":1}})", 0),
            "'a' of the metadata is a number, expected text");
  EXPECT_EQ(error(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "the header has the key 'a' twice");
  EXPECT_EQ(error(R"({"__metadata__":{"a":{}}})", 0),
            "'a' of the metadata is an object, expected text");
  EXPECT_EQ(error(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                  R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                  0),
            "the header has the key 't' twice");
  EXPECT_EQ(error("{}{}", 0), "the header is no valid JSON, at byte 3 of it");
  EXPECT_EQ(error("{", 0), "the header is no valid JSON, at byte 2 of it");
  EXPECT_EQ(error("{}\n\t !", 0), "the header is no valid JSON, at byte 6 of it");
}

TEST_F(SafetensorsFile, DeepNestingCostsNothing) {
  const std::string deep(1'000'000, '[');
  EXPECT_EQ(error(R"({"t":{"x":)" + deep, 0), "the header is no valid JSON, at byte 1000011 of it");
}

TEST_F(SafetensorsFile, RefusesWhatTheFormatCannotHold) {
  const std::vector<u8> raw(64);
  const std::span<const u8> b(raw);
  const auto refused = [&](const TensorView& t, const Metadata& metadata = {}) {
    const auto [kind, text] =
        thrown([&] { write_safetensors(dir_ / "x.safetensors", {&t, 1}, metadata); });
    EXPECT_EQ(kind, ErrorKind::InvalidArgument);
    return text;
  };
  EXPECT_EQ(refused({"c", FileDType::C128, {1}, b.first(16)}),
            "write_safetensors: 'c' has a dtype that safetensors cannot hold, got c128");
  EXPECT_EQ(
      refused({"__metadata__", FileDType::U8, {1}, b.first(1)}),
      "write_safetensors: a tensor cannot have the name '__metadata__', which the format reserves");
  EXPECT_EQ(refused({"q", FileDType::F32, {32}, b.first(20), Encoding::Q4}),
            "write_safetensors: 'q' is quantised, got q4, expected dense");
  EXPECT_EQ(
      refused({"t", FileDType::F32, {2}, b.first(4)}),
      "write_safetensors: 't' has a wrong number of bytes, got 4, expected 8 for dense f32 [2]");
  const TensorView good{"t", FileDType::U8, {1}, b.first(1)};
  EXPECT_EQ(refused(good, {{"k", "\xff"}}), "write_safetensors: metadata 'k' is not UTF-8");
  EXPECT_EQ(refused(good, {{"k", "1"}, {"k", "2"}}),
            "write_safetensors: metadata has the key 'k' twice");
  EXPECT_EQ(entries(), 0u);
}

}  // namespace
}  // namespace oa::ml
