// The common reader and writer: kinds told by content and by ending, lazy values, conversions.
#include "oa/ml/checkpoint/tensor_file.h"

#include "tests/ml_checkpoint/support.h"

namespace oa::ml {
namespace {

class CommonFile : public InFolder {};

TEST_F(CommonFile, TellsKindsByContent) {
  for (auto [name, kind] : {std::pair("version1.oam", FileKind::Oam),
                            {"numpy.safetensors", FileKind::Safetensors},
                            {"nothing.safetensors", FileKind::Safetensors},
                            {"f4.npy", FileKind::Npy},
                            {"stored.npz", FileKind::Npz}}) {
    std::filesystem::copy_file(fixture(name), dir_ / "unnamed");
    EXPECT_EQ(read_tensors(dir_ / "unnamed").kind(), kind) << name;
    std::filesystem::remove(dir_ / "unnamed");
  }
  for (std::string_view text : {"", "x", "{\"a\": 1}", "a longer text file"}) {
    write_file(dir_ / "unnamed", {reinterpret_cast<const u8*>(text.data()), text.size()});
    EXPECT_ERROR(
        read_tensors(dir_ / "unnamed"), InvalidArgument,
        "read_tensors: unknown kind of file, expected .oam, safetensors, .npy or .npz, in '" +
            (dir_ / "unnamed").string() + "'");
  }
}

TEST_F(CommonFile, ListsACheckpoint) {
  const TensorFile file = read_tensors(fixture("version3.oam"));
  ASSERT_NE(file.oam(), nullptr);
  EXPECT_EQ(file.oam()->progress.step, 17);
  ASSERT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.tensors()[0].name, "layer.weight");
  EXPECT_FALSE(file.tensors()[2].state);
  EXPECT_TRUE(file.tensors()[3].state);
  EXPECT_EQ(copy(file.values("norm.mean").bytes()), fixture_values(3, FileDType::F32));
  EXPECT_EQ(file.find("nothing"), std::nullopt);
  EXPECT_ERROR(file.values("nothing"), NotFound, "values: no tensor named 'nothing'");
  EXPECT_ERROR(file.values(5), OutOfRange, "values: no such tensor, got index 5, expected below 5");
}

TEST_F(CommonFile, DequantisesOnDemand) {
  const TensorFile file = read_tensors(fixture("quantised.oam"));
  EXPECT_EQ(file.tensors()[0].storage, "q4");
  EXPECT_EQ(file.tensors()[0].stored_bytes, 40u);
  EXPECT_EQ(file.values(0).bytes().size(), 45u * 4);
  const auto values = values_of<f32>(file.values(1).bytes());
  EXPECT_EQ(values[31], 88.0f);  // the largest of its block is exact
}

TEST_F(CommonFile, EveryKindHoldsTheSame) {
  const std::vector<u8> a = fixture_values(12, FileDType::F32),
                        b = fixture_values(3, FileDType::I64);
  const std::vector<TensorView> tensors = {{"a.weight", FileDType::F32, {3, 4}, a},
                                           {"b", FileDType::I64, {3}, b}};
  for (const char* name : {"x.oam", "x.safetensors", "x.npz"}) {
    write_tensors(dir_ / name, tensors);
    const TensorFile file = read_tensors(dir_ / name);
    ASSERT_EQ(file.tensors().size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(file.tensors()[i].name, tensors[i].name);
      EXPECT_EQ(file.tensors()[i].dtype, tensors[i].dtype);
      EXPECT_EQ(file.tensors()[i].shape, tensors[i].shape);
      EXPECT_EQ(copy(file.values(i).bytes()), copy(tensors[i].bytes));
    }
  }
  write_tensors(dir_ / "x.npy", std::span(tensors).first(1));
  EXPECT_EQ(copy(read_tensors(dir_ / "x.npy").values(0).bytes()), a);
  EXPECT_ERROR(write_tensors(dir_ / "x.npy", tensors), InvalidArgument,
               "write_tensors: an .npy holds one tensor, got 2");
  EXPECT_ERROR(
      write_tensors("x.bin", tensors), InvalidArgument,
      "write_tensors: unknown kind of file, got 'x.bin', expected .oam, .safetensors, .npy or "
      ".npz");
  EXPECT_ERROR(write_tensors("x.npz", tensors, {{"a", "b"}}), InvalidArgument,
               "write_tensors: only safetensors files hold metadata, got 'x.npz'");
}

TEST_F(CommonFile, LargeFilesAreMapped) {
  const std::vector<u8> values(1 << 20, 3);
  const TensorView t{"t", FileDType::U8, {1 << 20}, values};
  for (const char* name : {"x.oam", "x.safetensors", "x.npz", "x.npy"}) {
    write_tensors(dir_ / name, {&t, 1});
    TensorBytes first, second;
    {
      const TensorFile file = read_tensors(dir_ / name);
      first = file.values(0);
      second = file.values(0);
    }
    EXPECT_EQ(first.bytes().data(), second.bytes().data()) << name;  // no copy
    EXPECT_EQ(copy(first.bytes()), values);
  }
}

TEST_F(CommonFile, DTypesMapToTheLibrarys) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto t = static_cast<DType>(i);
    EXPECT_EQ(to_dtype(to_file(t)), t);
    EXPECT_EQ(size_bytes(to_file(t)), size_bytes(t));
    EXPECT_EQ(token(to_file(t)), token(t));
    EXPECT_EQ(is_float(to_file(t)), is_float(t));
  }
  EXPECT_EQ(to_dtype(FileDType::I64), std::nullopt);
  EXPECT_EQ(size_bytes(FileDType::C128), 16u);
}

}  // namespace
}  // namespace oa::ml
