// Lane shapes: what is uniform, what grows by a constant, and where control flow takes it away.
#include "oa/kernel/uniformity.h"

#include <gtest/gtest.h>

#include "oa/kernel/lang.h"

namespace oa::kernel {
namespace {

// Traces a body that hands out values by name, and looks at their shapes.
struct Shapes {
  explicit Shapes(const std::function<void(Shapes&)>& body, u32 width = 16)
      : kernel(trace("shapes", Target{}, width, [&] { body(*this); })), uniformity(kernel) {}

  void operator()(const Value& v) { ids.push_back(v.id); }
  // "u" uniform, "v" varying, a number: the stride.
  std::string text() const {
    std::string out;
    for (const ValueId id : ids) {
      const LaneShape& shape = uniformity.shape(id);
      if (!out.empty()) out += ' ';
      out += !shape.affine ? "v" : shape.stride == 0 ? "u" : std::to_string(shape.stride);
    }
    return out;
  }
  bool uniform_flow(Op op) const {
    for (ValueId id = 0; id < kernel.instrs.size(); ++id) {
      if (kernel[id].op == op) return uniformity.uniform_flow(id);
    }
    return false;
  }

  std::vector<ValueId> ids;
  Kernel kernel;
  Uniformity uniformity;
};

std::string shapes(const std::function<void(Shapes&)>& body, u32 width = 16) {
  return Shapes(body, width).text();
}

TEST(Uniformity, Sources) {
  EXPECT_EQ(shapes([](Shapes& s) {
              s(lane()), s(group()), s(group_count()), s(U32(7)), s(param_u64()), s(param_f32());
            }),
            "1 u u u u u");
}

TEST(Uniformity, OneLaneIsUniform) {
  EXPECT_EQ(shapes(
                [](Shapes& s) {
                  const Buffer x = param_buffer(Scalar::U32);
                  const Value old = x.atomic(AtomicOp::Add, lane(), U32(1));
                  const Var<U32> v(0u);
                  If(U32(old) == U32(0), [&] { v = lane(); });
                  s(lane()), s(old), s(*v), s(lane() * lane());
                },
                1),
            "u u u u");
}

TEST(Uniformity, AffineArithmetic) {
  EXPECT_EQ(shapes([](Shapes& s) {
              const U32 l = lane(), n = param_u32();
              s(l + n), s(l - n), s(n - l), s(l * 3u), s(U32(5) * l), s(l << U32(2)), s(l + l),
                  s(l - l);
              s(-l), s(l * 0xffffffffu);
            }),
            "1 1 -1 3 5 4 2 u -1 -1");
  EXPECT_EQ(shapes([](Shapes& s) {
              const U32 l = lane(), n = param_u32();
              s(l * n), s(l * l), s(l << n), s(U32(1) << l), s(l / 2u), s(l % 4u), s(l & 7u),
                  s(min(l, n));
              s(cast<F32>(l)), s(n / 2u), s(n * n), s(cast<F32>(n));
            }),
            "v v v v v v v v v u u u");
}

TEST(Uniformity, CastsAndSelects) {
  EXPECT_EQ(shapes([](Shapes& s) {
              const U32 l = lane(), n = param_u32();
              s(cast<U64>(l)), s(cast<I64>(l * 2u)), s(cast<I32>(l)), s(bitcast<I32>(l)),
                  s(cast<Bool>(l));
              const Bool c = n == U32(0);
              s(select(c, l, l + 4u)), s(select(c, l, l * 2u)), s(select(l == U32(0), n, n)),
                  s(select(c, n, U32(1)));
            }),
            "1 2 1 1 v 1 v v u");
}

TEST(Uniformity, Memory) {
  EXPECT_EQ(shapes([](Shapes& s) {
              const Buffer x = param_buffer(Scalar::U32);
              const Shared cells(Scalar::F32, 16);
              const U32 n = param_u32();
              s(x[n].load()), s(x[lane()].load()), s(x[U32(x[n])].load()),
                  s(x[U32(x[lane()])].load());
              s(cells[n].load()), s(cells[lane()].load());
              s(x.atomic(AtomicOp::Add, n, n)),
                  s(Buffer(Scalar::F32, cast<U64>(U32(x[lane()])))[n].load());
            }),
            "u v u v u v v v");
}

TEST(Uniformity, LaneExchange) {
  EXPECT_EQ(shapes([](Shapes& s) {
              const U32 n = param_u32();
              s(shuffle(lane() * lane(), n)), s(shuffle(n, lane())),
                  s(shuffle(lane(), lane() * lane()));
              s(shuffle_xor(lane(), 1)), s(shuffle_xor(n, 1)), s(subgroup_any(lane() == n)),
                  s(subgroup_all(n == n));
            }),
            "u u v v u u u");
}

TEST(Uniformity, Variables) {
  EXPECT_EQ(shapes([](Shapes& s) {
              const U32 n = param_u32();
              const Var<U32> uniform(0u), affine(lane()), mixed(0u), masked(0u), shaken(lane());
              For(U32(0), n, U32(1), [&](U32 i) {
                uniform = *uniform + i;
                affine = *affine + 16u;
                mixed = lane();
                shaken = *shaken * 2u;
              });
              If(lane() < n, [&] { masked = U32(1); });
              s(*uniform), s(*affine), s(*mixed), s(*masked), s(*shaken);
            }),
            "u 1 v v v");
}

TEST(Uniformity, AVariableMadeVaryingLateChangesWhatWasReadBefore) {
  EXPECT_EQ(shapes([](Shapes& s) {
              const Var<U32> a(0u), b(0u), c(0u);
              For(U32(0), param_u32(), U32(1), [&](U32) {
                s(*c);  // through two loop-carried steps
                c = *b;
                b = *a;
                a = *a + lane() * lane();
              });
            }),
            "v");
}

TEST(Uniformity, ValuesInVaryingFlow) {
  EXPECT_EQ(shapes([](Shapes& s) {
              const U32 n = param_u32();
              const Buffer x = param_buffer(Scalar::U32);
              If(lane() < n, [&] { s(n + 1u), s(lane() + n), s(x[n].load()); });
              For(U32(0), lane(), U32(1), [&](U32 i) { s(i); });
              For(lane() * 2u, n, U32(32), [&](U32 i) { s(i); });
              For(lane() * lane(), n, U32(32), [&](U32 i) { s(i); });
            }),
            "u 1 u u 2 v");
}

TEST(Uniformity, ControlFlow) {
  const auto flow = [](Op op, const std::function<void()>& body) {
    return Shapes([&](Shapes&) { body(); }).uniform_flow(op);
  };
  EXPECT_TRUE(flow(Op::If, [] { If(group() == U32(0), [] {}); }));
  EXPECT_FALSE(flow(Op::If, [] { If(lane() == U32(0), [] {}); }));
  EXPECT_TRUE(flow(Op::For, [] { For(U32(0), param_u32(), U32(1), [](U32) {}); }));
  EXPECT_FALSE(flow(Op::For, [] { For(U32(0), lane(), U32(1), [](U32) {}); }));
  EXPECT_FALSE(flow(Op::For, [] { For(lane(), param_u32(), U32(16), [](U32) {}); }));
  EXPECT_TRUE(flow(Op::While, [] {
    const Var<U32> n(0u);
    While([&] { return *n < param_u32(); }, [&] { n += U32(1); });
  }));
  EXPECT_FALSE(flow(Op::While, [] {
    const Var<U32> n(0u);
    While([&] { return *n < lane(); }, [&] { n += U32(1); });
  }));
}

// A loop over a gang with constant bounds: all lanes leave together only without a remainder.
TEST(Uniformity, ConstantTrips) {
  const auto same = [](u32 end, u32 step, u32 stride = 1, u32 begin = 0) {
    return Shapes([&](Shapes&) { For(lane() * stride + begin, U32(end), U32(step), [](U32) {}); })
        .uniform_flow(Op::For);
  };
  EXPECT_TRUE(same(64, 16));
  EXPECT_TRUE(same(16, 16));
  EXPECT_TRUE(same(0, 16));
  EXPECT_FALSE(same(63, 16));
  EXPECT_FALSE(same(65, 16));
  EXPECT_FALSE(same(15, 16));
  EXPECT_FALSE(same(1, 16));
  EXPECT_TRUE(same(128, 32, 2));
  EXPECT_TRUE(same(127, 32, 2));
  EXPECT_FALSE(same(126, 32, 2));
  EXPECT_TRUE(same(67, 16, 1, 3));
  EXPECT_FALSE(same(64, 16, 1, 3));
  EXPECT_FALSE(same(64, 8));
  EXPECT_TRUE(same(16, 64));
}

TEST(Uniformity, VariablesInLoopsWithoutRemainderStayUniform) {
  EXPECT_EQ(shapes([](Shapes& s) {
              const Var<U32> whole(0u), part(0u);
              For(lane(), U32(64), U32(16), [&](U32) { whole += U32(1); });
              For(lane(), U32(65), U32(16), [&](U32) { part += U32(1); });
              s(*whole), s(*part);
            }),
            "u v");
}

}  // namespace
}  // namespace oa::kernel
