// Random kernels of nested control flow, variables, memory and lane exchange: the CPU lowering on
// all targets against the reference interpreter, byte for byte.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/codegen/gang.h"

namespace oa::codegen {
namespace {

using namespace oa::kernel;

constexpr u32 kCells = 4;   // output cells of each lane, for each type
constexpr u32 kInput = 64;  // elements of each input

class Generator {
 public:
  explicit Generator(u64 seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}

  void body() {
    const Buffer in_f = param_buffer(Scalar::F32), in_i = param_buffer(Scalar::I32);
    const Buffer out_f = param_buffer(Scalar::F32), out_i = param_buffer(Scalar::I32);
    in_f_ = &in_f, in_i_ = &in_i, out_f_ = &out_f, out_i_ = &out_i;
    const Shared cells(Scalar::I32, width());
    shared_ = &cells;
    i_.push_back(cast<I32>(lane()));
    i_.push_back(I32(3));
    i_.push_back(cast<I32>(group()));
    i_.push_back(cast<I32>(param_u32()));
    f_.push_back(F32(1.5f));
    f_.push_back(cast<F32>(lane()));
    b_.push_back(lane() % 3u == U32(1));
    b_.push_back(group() == U32(0));
    for (u32 n = 0; n < 3; ++n) {
      fvars_.emplace_back(pick(f_));
      ivars_.emplace_back(pick(i_));
    }
    statements(8, 0, true);
    for (u32 n = 0; n < 3; ++n) {
      out_f.store(own(n), *fvars_[n]);
      out_i.store(own(n), *ivars_[n]);
    }
  }

 private:
  u32 next(u32 n) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<u32>(state_ >> 33) % n;
  }
  template <class T>
  T pick(const std::vector<T>& from) {
    // Recent values more often: longer chains.
    const u32 n = static_cast<u32>(from.size());
    return next(2) ? from[n - 1 - next(std::min(n, 4u))] : from[next(n)];
  }

  U32 own(u32 cell) { return (group() * kCells + cell) * width() + lane(); }

  F32 float_value() {
    const F32 a = pick(f_), b = pick(f_);
    switch (next(14)) {
      case 0: return a + b;
      case 1: return a - b;
      case 2: return a * b;
      case 3: return fma(a, b, pick(f_));
      case 4: return min(a, b) + 0.0f;  // the sign of a zero is unspecified
      case 5: return max(a, b) + 0.0f;
      case 6: return floor(a);
      case 7: return select(pick(b_), a, b);
      case 8: return cast<F32>(pick(i_));
      case 9: return *fvars_[next(3)];
      case 10: return F32((*in_f_)[cast<U32>(pick(i_)) & (kInput - 1)]);
      case 11: return abs(a) + F32(static_cast<f32>(next(9)));
      case 12: return sqrt(abs(a));
      default: return -a;
    }
  }

  I32 int_value() {
    const I32 a = pick(i_), b = pick(i_);
    switch (next(18)) {
      case 0: return a + b;
      case 1: return a - b;
      case 2: return a * b;
      case 3: return a / ((b & 15) + 1);
      case 4: return a % ((b & 7) + 1);
      case 5: return min(a, b);
      case 6: return max(a, b);
      case 7: return a & b;
      case 8: return a ^ b;
      case 9: return a << (b & 31);
      case 10: return a >> (b & 31);
      case 11: return select(pick(b_), a, b);
      case 12: return cast<I32>(pick(f_));
      case 13: return *ivars_[next(3)];
      case 14: return I32((*in_i_)[cast<U32>(a) & (kInput - 1)]);
      case 15: return I32((*in_i_)[(cast<U32>(a) & 15u) + (lane() & 31u)]);
      case 16: return cast<I32>(cast<U32>(a) / (cast<U32>(b) | 1u));
      default: return a + I32(static_cast<i32>(next(100)) - 50);
    }
  }

  Bool bool_value() {
    const Bool a = pick(b_), b = pick(b_);
    switch (next(8)) {
      case 0: return a & b;
      case 1: return a | b;
      case 2: return !a;
      case 3: return pick(f_) < pick(f_);
      case 4: return pick(i_) >= pick(i_);
      case 5: return (pick(i_) & 3) == I32(static_cast<i32>(next(4)));
      case 6: return is_nan(pick(f_));
      default: return cast<U32>(pick(i_)) > cast<U32>(pick(i_));
    }
  }

  void exchange() {
    switch (next(5)) {
      case 0: i_.push_back(I32(shuffle_xor(pick(i_), next(width())))); break;
      case 1: f_.push_back(F32(shuffle(pick(f_), cast<U32>(pick(i_)) & (width() - 1)))); break;
      case 2: b_.push_back(subgroup_any(pick(b_))); break;
      case 3: b_.push_back(subgroup_all(pick(b_))); break;
      default:
        barrier();
        (*shared_)[lane()] = pick(i_);
        barrier();
        i_.push_back(I32((*shared_)[(lane() * 3u + next(8)) & (width() - 1)]));
    }
  }

  // A region: values made inside are forgotten behind it.
  void nested(u32 count, u32 depth) {
    const size_t f = f_.size(), i = i_.size(), b = b_.size();
    statements(count, depth, false);
    f_.resize(f, f_[0]), i_.resize(i, i_[0]), b_.resize(b, b_[0]);
  }

  void loop(u32 depth) {
    const u32 count = 1 + next(5);
    const auto body = [&](const Value& index) {
      i_.push_back(I32(cast(index, Scalar::I32)));
      nested(count, depth + 1);
      i_.pop_back();
    };
    const U32 w(width());
    switch (next(7)) {
      case 0: For(U32(0), U32(1 + next(4)), U32(1), body); break;
      case 1: For(lane(), cast<U32>(pick(i_)) & 63u, w, body); break;
      case 2: For(lane(), U32(width() * 2), w, body); break;
      case 3: For(lane() * 2u, U32(1 + next(60)), w * 2u, body); break;
      case 4: For(pick(i_) & 3, pick(i_) & 7, I32(2), body); break;
      case 5: For(I32(0), pick(i_) & 7, I32(1), body); break;
      default: {
        const I32 limit = pick(i_) & 7;
        const Var<I32> n(0);
        While([&] { return *n < limit; },
              [&] {
                n += I32(1);
                nested(count, depth + 1);
              });
      }
    }
  }

  void statements(u32 count, u32 depth, bool top) {
    for (u32 n = 0; n < count; ++n) {
      switch (next(12)) {
        case 0:
        case 1: f_.push_back(float_value()); break;
        case 2:
        case 3: i_.push_back(int_value()); break;
        case 4: b_.push_back(bool_value()); break;
        case 5: fvars_[next(3)] = pick(f_); break;
        case 6: ivars_[next(3)] = pick(i_); break;
        case 7: out_f_->store(own(3), pick(f_)); break;
        case 8: out_i_->store(own(3), pick(i_)); break;
        case 9:
          if (depth < 3) {
            const u32 then = 1 + next(5), otherwise = next(4);
            const Bool cond = next(4) ? pick(b_) : bool_value();
            If(cond, [&] { nested(then, depth + 1); }, [&] { nested(otherwise, depth + 1); });
          }
          break;
        case 10:
          if (depth < 2) loop(depth);
          break;
        default:
          if (top) exchange();
          break;
      }
    }
  }

  u64 state_;
  const Buffer *in_f_ = nullptr, *in_i_ = nullptr, *out_f_ = nullptr, *out_i_ = nullptr;
  const Shared* shared_ = nullptr;
  std::vector<F32> f_;
  std::vector<I32> i_;
  std::vector<Bool> b_;
  std::vector<Var<F32>> fvars_;
  std::vector<Var<I32>> ivars_;
};

class Random : public testing::TestWithParam<u32> {};

TEST_P(Random, KernelsAgreeWithTheInterpreter) {
  constexpr u32 kGroups = 2;
  const u32 width = 1u << GetParam();
  std::vector<f32> in_f(kInput);
  std::vector<i32> in_i(kInput);
  for (u32 n = 0; n < kInput; ++n) {
    in_f[n] =
        n % 11 == 3 ? std::numeric_limits<f32>::quiet_NaN() : static_cast<f32>(n) * 0.75f - 9.0f;
    in_i[n] = static_cast<i32>(n * 37 % 101) - 50;
  }
  const u32 count = kGroups * kCells * width;
  const char* more = std::getenv("OA_RANDOM_KERNELS");
  const u32 kernels = more ? static_cast<u32>(std::atoi(more)) : 10;
  for (u32 seed = 0; seed < kernels && !HasFailure(); ++seed) {
    Generator generator(seed * 100 + width);
    Kernel k = traced(width, [&] { generator.body(); });
    k.name = fmt::format("random {}", seed);
    same_everywhere(k, kGroups,
                    {TestBuffer::of(Scalar::F32, in_f), TestBuffer::of(Scalar::I32, in_i),
                     TestBuffer::of(Scalar::F32, std::vector<f32>(count, -7.0f)),
                     TestBuffer::of(Scalar::I32, std::vector<i32>(count, -7))},
                    {5});
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, Random, testing::Values(0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u));

}  // namespace
}  // namespace oa::codegen
