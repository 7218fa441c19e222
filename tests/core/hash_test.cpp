// Hashes: known bits, independence of how data is cut, and no collisions of shifted texts.
#include "oa/core/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace oa {
namespace {

TEST(Hash, EmptyInputHasTheReferenceValueOfXxh3) {
  EXPECT_EQ(to_string(Hasher().finish()), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_bytes(nullptr, 0), Hasher().finish());
}

TEST(Hash, DoesNotDependOnHowTheBytesAreCut) {
  std::vector<u8> data(5000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<u8>(i * 37 + (i >> 8));
  const Hash128 whole = hash_bytes(data.data(), data.size());
  for (size_t piece : {1u, 3u, 64u, 255u, 256u, 257u, 1024u, 4999u}) {
    Hasher h;
    for (size_t at = 0; at < data.size(); at += piece) {
      h.bytes(data.data() + at, std::min(piece, data.size() - at));
    }
    EXPECT_EQ(h.finish(), whole) << piece;
  }
}

TEST(Hash, EveryBitCounts) {
  std::set<Hash128> seen;
  std::vector<u8> data(300, 0);
  seen.insert(hash_bytes(data.data(), data.size()));
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] ^= static_cast<u8>(1u << (bit % 8));
    EXPECT_TRUE(seen.insert(hash_bytes(data.data(), data.size())).second) << bit;
    data[bit / 8] ^= static_cast<u8>(1u << (bit % 8));
  }
}

TEST(Hash, TextsKeepTheirBoundaries) {
  Hasher a, b;
  a.text("ab"), a.text("c");
  b.text("a"), b.text("bc");
  EXPECT_NE(a.finish(), b.finish());
}

TEST(Hash, FinishLeavesTheHasherUsable) {
  Hasher a, b;
  a.add(u32{7});
  const Hash128 first = a.finish();
  EXPECT_EQ(a.finish(), first);
  a.add(0.5f);
  b.add(u32{7}), b.add(0.5f);
  EXPECT_EQ(a.finish(), b.finish());
  EXPECT_NE(a.finish(), first);
}

TEST(Hash, CopiesGoOnByThemselves) {
  Hasher a;
  a.text("prefix");
  Hasher b = a;
  a.add(u8{1}), b.add(u8{2});
  EXPECT_NE(a.finish(), b.finish());
}

}  // namespace
}  // namespace oa
