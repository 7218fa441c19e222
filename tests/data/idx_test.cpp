// IDX files: every type, packed and not, every lie, and a real data set.
#include "oa/ml/data/idx.h"

#include <zlib.h>

#include <cstring>
#include <numeric>

#include "tests/data/folder.h"

namespace oa::ml::data {
namespace {

using test::error_of;

std::vector<u8> idx(u8 type, const std::vector<u32>& extents, const std::vector<u8>& data) {
  std::vector<u8> file{0, 0, type, static_cast<u8>(extents.size())};
  for (const u32 e : extents)
    for (const int shift : {24, 16, 8, 0}) file.push_back(static_cast<u8>(e >> shift));
  file.insert(file.end(), data.begin(), data.end());
  return file;
}

std::vector<u8> gzip(const std::vector<u8>& bytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::vector<u8> packed(bytes.size() + 1000);
  stream.next_in = const_cast<u8*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

template <class T>
std::vector<T> values(const IdxArray& array) {
  std::vector<T> result(array.data.size() / sizeof(T));
  std::memcpy(result.data(), array.data.data(), array.data.size());
  return result;
}

TEST(Idx, EveryType) {
  const IdxArray bytes = parse_idx(idx(0x08, {2, 3}, {0, 1, 2, 253, 254, 255}));
  EXPECT_EQ(bytes.dtype, DType::U8);
  EXPECT_EQ(bytes.extents, (std::vector<u64>{2, 3}));
  EXPECT_EQ(bytes.elements(), 6u);
  EXPECT_EQ(bytes.data, (std::vector<u8>{0, 1, 2, 253, 254, 255}));
  EXPECT_EQ(values<i32>(parse_idx(idx(0x09, {3}, {0, 127, 128}))),
            (std::vector<i32>{0, 127, -128}));
  EXPECT_EQ(values<i32>(parse_idx(idx(0x0b, {2}, {0x01, 0x02, 0xff, 0xfe}))),
            (std::vector<i32>{258, -2}));
  EXPECT_EQ(values<i32>(parse_idx(idx(0x0c, {2}, {0, 0, 1, 2, 0xff, 0xff, 0xff, 0xff}))),
            (std::vector<i32>{258, -1}));
  EXPECT_EQ(values<f32>(parse_idx(idx(0x0d, {1}, {0x3f, 0xc0, 0, 0}))), (std::vector<f32>{1.5f}));
  EXPECT_EQ(values<f64>(parse_idx(idx(0x0e, {1}, {0xbf, 0xf8, 0, 0, 0, 0, 0, 0}))),
            (std::vector<f64>{-1.5}));
}

TEST(Idx, EmptyArrays) {
  for (const auto& extents : std::vector<std::vector<u32>>{{0}, {0, 5}, {7, 0, 3}}) {
    const IdxArray array = parse_idx(idx(0x08, extents, {}));
    EXPECT_EQ(array.elements(), 0u);
    EXPECT_EQ(array.extents.size(), extents.size());
  }
}

TEST(Idx, PackedIsTheSame) {
  std::vector<u8> data(3'000'000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<u8>(i * i >> 7);
  const auto plain = idx(0x08, {3, 1000, 1000}, data);
  EXPECT_EQ(parse_idx(gzip(plain)).data, data);
  // In two packed parts, as `cat a.gz b.gz` gives.
  auto parts = gzip({plain.begin(), plain.begin() + 10});
  const auto second = gzip({plain.begin() + 10, plain.end()});
  parts.insert(parts.end(), second.begin(), second.end());
  EXPECT_EQ(parse_idx(parts).data, data);
}

TEST(Idx, LiesAndDamage) {
  const auto message = [](const std::vector<u8>& file) {
    const auto [kind, text] = error_of([&] { parse_idx(file); });
    EXPECT_EQ(kind, ErrorKind::DataLoss);
    return text;
  };
  const std::string begin =
      "IDX: it does not begin like an IDX file, expected two zero bytes, type and axes";
  EXPECT_EQ(message({}), begin);
  EXPECT_EQ(message({0, 0, 8}), begin);
  EXPECT_EQ(message({'P', 'K', 3, 4, 0, 0}), begin);
  EXPECT_EQ(message(idx(0x0a, {1}, {0})),
            "IDX: unknown type of elements, got 0x0a, expected 0x08 to 0x0e");
  EXPECT_EQ(message({0, 0, 8, 0}), "IDX: got 0 axes, expected 1 to 8");
  EXPECT_EQ(message({0, 0, 8, 255, 0, 0}), "IDX: got 255 axes, expected 1 to 8");
  EXPECT_EQ(message({0, 0, 8, 2, 0, 0, 0, 1}), "IDX: it ends within the extents of its 2 axes");
  EXPECT_EQ(message(idx(0x08, {4}, {1, 2, 3})),
            "IDX: it is cut off, got 3 bytes of elements, expected 4");
  EXPECT_EQ(message(idx(0x08, {2}, {1, 2, 3})),
            "IDX: it is longer than its header says, expected 2 bytes of elements");
  EXPECT_EQ(message(idx(0x08, {0}, {1})),
            "IDX: it is longer than its header says, expected 0 bytes of elements");
  // Nothing of what these claim may be allocated.
  EXPECT_EQ(message(idx(0x08, {~0u, ~0u}, {1})),
            "IDX: it is cut off, got 1 bytes of elements, expected 18446744065119617025");
  EXPECT_EQ(message(idx(0x0e, {~0u, ~0u, ~0u}, {1})),
            "IDX: its extents are no size of an array, got more than 2^64 bytes");
  EXPECT_EQ(message(idx(0x0e, {~0u, ~0u, 0, ~0u}, {})),
            "IDX: its extents are no size of an array, got more than 2^64 bytes");

  const auto packed = gzip(idx(0x08, {3}, {1, 2, 3}));
  for (size_t cut = 2; cut < packed.size(); ++cut)
    EXPECT_EQ(message({packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(cut)}),
              "IDX: the gzip data end in the middle");
  EXPECT_EQ(message(gzip(idx(0x08, {4}, {1, 2, 3}))),
            "IDX: it is cut off, got 3 bytes of elements, expected 4");
  auto more = packed;
  more.push_back(7);
  EXPECT_NE(message(more), "no error");
  for (size_t at = 0; at < packed.size(); ++at) {  // anything but a crash
    auto damaged = packed;
    damaged[at] ^= 0x55;
    error_of([&] { parse_idx(damaged); });
  }
}

class IdxFiles : public test::InFolder {};

TEST_F(IdxFiles, ImagesNeedTheirLabels) {
  const auto put_idx = [&](const char* name, const std::vector<u8>& file) {
    write_file(dir_ / name, file);
    return dir_ / name;
  };
  const auto images = put_idx("images", idx(0x08, {2, 1, 3}, {1, 2, 3, 4, 5, 6}));
  const auto labels = put_idx("labels", gzip(idx(0x08, {2}, {7, 8})));
  const LabeledImages loaded = load_idx_images(images, labels);
  EXPECT_EQ(loaded.count, 2u);
  EXPECT_EQ(loaded.rows, 1u);
  EXPECT_EQ(loaded.columns, 3u);
  EXPECT_EQ(loaded.pixels, (std::vector<u8>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(loaded.labels, (std::vector<u8>{7, 8}));
  const auto message = [&](const auto& a, const auto& b) {
    return shown(error_of([&] { load_idx_images(a, b); }).second);
  };
  EXPECT_EQ(message(labels, labels),
            "IDX: 'DIR/labels' holds no images, got 1 axes of u8, expected 3 of u8");
  EXPECT_EQ(message(images, images),
            "IDX: 'DIR/images' holds no labels, got 3 axes of u8, expected 1 of u8");
  EXPECT_EQ(message(images, put_idx("three", idx(0x08, {3}, {1, 2, 3}))),
            "IDX: 'DIR/images' has 2 images, but 'DIR/three' has 3 labels");
  EXPECT_EQ(
      message(put_idx("bad", {1}), labels),
      "IDX: 'DIR/bad': it does not begin like an IDX file, expected two zero bytes, type and axes");
  EXPECT_EQ(message(dir_ / "absent", labels),
            "MappedFile: cannot open 'DIR/absent': No such file or directory");
}

TEST(Idx, FashionMnistLoads) {
  const std::filesystem::path folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder / "train-images-idx3-ubyte.gz"))
    GTEST_SKIP()
        << "Debian's package dataset-fashion-mnist is not installed; scripts/setup installs it";
  for (const auto& [name, count] : {std::pair("train", 60000u), std::pair("t10k", 10000u)}) {
    const LabeledImages images =
        load_idx_images(folder / fmt::format("{}-images-idx3-ubyte.gz", name),
                        folder / fmt::format("{}-labels-idx1-ubyte.gz", name));
    EXPECT_EQ(images.count, count);
    EXPECT_EQ(images.rows, 28u);
    EXPECT_EQ(images.columns, 28u);
    EXPECT_EQ(images.pixels.size(), size_t{count} * 784);
    // All ten kinds of clothing are equally frequent.
    std::vector<u32> frequency(256);
    for (const u8 label : images.labels) ++frequency[label];
    for (u32 label = 0; label < 256; ++label)
      EXPECT_EQ(frequency[label], label < 10 ? count / 10 : 0);
    const u64 sum = std::accumulate(images.pixels.begin(), images.pixels.end(), u64{0});
    EXPECT_NEAR(static_cast<f64>(sum) / static_cast<f64>(images.pixels.size()) / 255, 0.286, 0.002);
  }
}

}  // namespace
}  // namespace oa::ml::data
