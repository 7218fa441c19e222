// Byte helpers on every device.
#include "oa/ml/byte/byte.h"

#include <limits>

#include "tests/matrix/devices.h"

namespace oa::ml::byte {
namespace {

using test::error_of;

class Byte : public test::OnDevice {
 protected:
  // Rows whose greatest logits are at these places.
  Matrix peaks(const std::vector<u8>& places) {
    std::vector<f32> logits(256 * places.size(), -1);
    for (size_t row = 0; row < places.size(); ++row) logits[256 * row + places[row]] = 2;
    return from<f32>({static_cast<i64>(places.size()), 256}, logits);
  }
};

TEST_P(Byte, EncodeIsTheBytes) {
  const std::vector<u8> bytes{0, 255, 'a', 128, '\n'};
  const Matrix one = encode(engine(), bytes), batch = encode_batched(engine(), bytes);
  EXPECT_EQ(one.dtype(), DType::U8);
  EXPECT_EQ(one.shape(), Shape({5}));
  EXPECT_EQ(batch.shape(), Shape({1, 5}));
  EXPECT_EQ(one.read<u8>(), bytes);
  EXPECT_EQ(batch.read<u8>(), bytes);
  EXPECT_EQ(encode_text(engine(), "caf\u00e9").read<u8>(),
            (std::vector<u8>{'c', 'a', 'f', 0xc3, 0xa9}));
  EXPECT_EQ(encode(engine(), {}).shape(), Shape({0}));
  EXPECT_EQ(encode_batched(engine(), {}).shape(), Shape({1, 0}));
}

TEST_P(Byte, DecodeTakesTheFirstMaximum) {
  const std::vector<u8> text{'o', 'k', 0, 255};
  EXPECT_EQ(decode(peaks(text)), text);
  EXPECT_EQ(decode(from<f32>({256}, std::vector<f32>(256, 3))), std::vector<u8>{0});
  std::vector<f32> logits(256, -std::numeric_limits<f32>::infinity());
  logits[70] = logits[71] = 1;
  EXPECT_EQ(decode(from<f32>({256}, logits)), std::vector<u8>{70});
}

TEST_P(Byte, DecodedTextMustBeUtf8) {
  EXPECT_EQ(decode_text(peaks({'h', 0xc3, 0xa9})), "h\u00e9");
  try {
    decode_text(peaks({'h', 0xc3}));
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::DataLoss);
  }
}

TEST_P(Byte, SamplesDependOnTheSeedOnly) {
  const i64 rows = 64;
  const Matrix flat = from<f32>({rows, 256}, std::vector<f32>(static_cast<size_t>(rows) * 256, 0));
  const auto a = sample(flat, 1, 0, 1, 5), b = sample(flat, 1, 0, 1, 6);
  EXPECT_EQ(sample(flat, 1, 0, 1, 5), a);
  EXPECT_NE(a, b);
  EXPECT_EQ(a.size(), 64u);
  for (const u8 byte : sample(flat, 1, 3, 1, 5)) EXPECT_LT(byte, 3);
}

TEST_P(Byte, WrongLogits) {
  EXPECT_EQ(error_of([&] { decode(from<f32>({255}, std::vector<f32>(255))); }),
            "byte::sample: bad logits, got f32 [255], expected f32 [256] or [N, 256]");
  EXPECT_NE(error_of([&] { decode(from<f32>({1, 1, 256}, std::vector<f32>(256))); }), "");
  EXPECT_NE(error_of([&] { decode(from<f32>({}, {1.0f})); }), "");
  EXPECT_NE(error_of([&] { decode(from<f32>({0, 256}, {})); }), "");
  EXPECT_NE(error_of([&] { decode(from<i32>({256}, std::vector<i32>(256))); }), "");
  EXPECT_NE(error_of([&] { decode(Matrix()); }), "");
  EXPECT_NE(
      error_of([&] { sample(from<f32>({256}, std::vector<f32>(256)), std::nanf(""), 0, 1, 0); }),
      "");
}

OA_ON_DEVICES(Byte);

}  // namespace
}  // namespace oa::ml::byte
