// Engines and recorded graphs: who shares memory with whom, life cycle, programs and their reuse.
// Most run in the reference interpreter, which checks every access and compiles nothing.
#include <gtest/gtest.h>

#include "oa/engine/engine_core.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/movement.h"
#include "oa/matrix/reduce.h"
#include "tests/support/interpreter_device.h"

namespace oa {
namespace {

using Floats = std::vector<f32>;

Engine open(const EngineOptions& options = {}) {
  return Engine::open_on(std::make_unique<test::InterpreterDevice>(test::cpu_target()), options);
}
Matrix row(const Engine& e, const Floats& v) {
  return Matrix::from_f32(e, {static_cast<i64>(v.size())}, v);
}

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// --- Memory that values share ---

TEST(SharedMemory, EqualProgramsOverDistinctAndOverSharedStorageDiffer) {
  Engine e = open();
  const Matrix a = row(e, {1, 2, 3, 4}), b = row(e, {5, 6, 7, 8});
  a.assign(matrix::flip(b, 0));
  EXPECT_EQ(a.read_f32(), (Floats{8, 7, 6, 5}));
  // The same ops on two views of one storage must not be computed in place.
  const Matrix x = row(e, {1, 2, 3, 4});
  const Matrix view = x.reshape({2, 2}).reshape({4});
  x.assign(matrix::flip(view, 0));
  EXPECT_EQ(x.read_f32(), (Floats{4, 3, 2, 1}));
}

TEST(SharedMemory, ValuesThatAreEqualByComputationStayIndependent) {
  Engine e = open();
  const Matrix x = row(e, {1, 2, 3});
  const Matrix a = x + x, b = x + x, c = (x + x).reshape({3, 1});
  e.flush();
  a.assign(a * 0.0);
  EXPECT_EQ(a.read_f32(), (Floats{0, 0, 0}));
  EXPECT_EQ(b.read_f32(), (Floats{2, 4, 6}));
  EXPECT_EQ(c.read_f32(), (Floats{2, 4, 6}));
}

TEST(SharedMemory, APendingValueThatIsAssignedAnOperandGetsItsOwnMemory) {
  Engine e = open();
  const Matrix x = row(e, {1, 2, 3});
  const Matrix y = x + 1.0;
  y.assign(x);
  EXPECT_EQ(y.read_f32(), (Floats{1, 2, 3}));
  y.assign(y * 10.0);
  EXPECT_EQ(y.read_f32(), (Floats{10, 20, 30}));
  EXPECT_EQ(x.read_f32(), (Floats{1, 2, 3}));
}

TEST(SharedMemory, APendingValueThatIsAssignedAnotherPendingOneStaysIndependent) {
  Engine e = open();
  const Matrix x = row(e, {1, 2, 3});
  const Matrix y = x + 1.0, z = x * 2.0;
  y.assign(z);
  e.flush();
  z.write<f32>(Floats{0, 0, 0});
  EXPECT_EQ(y.read_f32(), (Floats{2, 4, 6}));
}

TEST(SharedMemory, TheLastAssignmentThroughAnyViewWins) {
  Engine e = open();
  const Matrix x = row(e, {1, 2, 3, 4}), view = x.reshape({2, 2});
  const Matrix before = matrix::sum(view, 0);  // makes the view the first leaf
  x.assign(x + 10.0);
  view.assign(view + 100.0);
  const Matrix after = x * 1.0;
  EXPECT_EQ(before.read_f32(), (Floats{4, 6}));
  EXPECT_EQ(after.read_f32(), (Floats{111, 112, 113, 114}));
  EXPECT_EQ(x.read_f32(), (Floats{111, 112, 113, 114}));
  EXPECT_EQ(view.read_f32(), (Floats{111, 112, 113, 114}));
}

// Whether a value was computed when it got another shape makes no difference.
TEST(SharedMemory, AReshapedValueIsTheSameElementsComputedOrNot) {
  for (const bool computed : {false, true}) {
    Engine e = open();
    const Matrix a = row(e, {1, 2, 3, 4});
    const Matrix x = a + 10.0;
    if (computed) e.flush();
    const Matrix view = x.reshape({2, 2}), again = view.reshape({4, 1});
    const Matrix before = view * 1.0;
    x.assign(a * 2.0);
    const Matrix between = matrix::sum(view, 0);
    view.assign(view + 100.0);
    EXPECT_EQ(before.read_f32(), (Floats{11, 12, 13, 14})) << computed;
    EXPECT_EQ(between.read_f32(), (Floats{8, 12})) << computed;
    for (const Matrix* m : {&x, &view, &again}) {
      EXPECT_EQ(m->read_f32(), (Floats{102, 104, 106, 108})) << computed;
    }
    again.assign(matrix::flip(again, 0));
    x.assign(x + 1.0);
    EXPECT_EQ(view.read_f32(), (Floats{109, 107, 105, 103})) << computed;
    view.write<f32>(Floats{1, 2, 3, 4});
    EXPECT_EQ(x.read_f32(), (Floats{1, 2, 3, 4})) << computed;
  }
}

TEST(SharedMemory, AViewKeepsAPendingValueThatNobodyElseHolds) {
  Engine e = open();
  Matrix x = row(e, {1, 2, 3, 4}) + 1.0;
  const Matrix view = x.reshape({2, 2});
  x = Matrix();
  view.assign(view * 2.0);
  EXPECT_EQ(view.read_f32(), (Floats{4, 6, 8, 10}));
}

TEST(SharedMemory, AReductionOfTheOldValueBesideItsReplacement) {
  Engine e = open();
  const Matrix x = row(e, {1, 2, 3, 4});
  const Matrix total = matrix::sum(x);
  x.assign(x - total);
  const Matrix later = matrix::sum(x);
  EXPECT_EQ(total.read_f32(), (Floats{10}));
  EXPECT_EQ(x.read_f32(), (Floats{-9, -8, -7, -6}));
  EXPECT_EQ(later.read_f32(), (Floats{-30}));
}

TEST(SharedMemory, Swaps) {
  Engine e = open();
  const Matrix x = row(e, {1, 2}), y = row(e, {3, 4});
  const Matrix old = matrix::copy(x);
  x.assign(y);
  y.assign(old);
  EXPECT_EQ(x.read_f32(), (Floats{3, 4}));
  EXPECT_EQ(y.read_f32(), (Floats{1, 2}));
}

TEST(SharedMemory, AValueHeldTwiceIsOne) {
  Engine e = open();
  const Matrix x = row(e, {1, 2});
  const Matrix y = x + 1.0;
  const Matrix same = y;
  same.assign(x * 5.0);
  EXPECT_EQ(y.read_f32(), (Floats{5, 10}));
}

// --- Life cycle ---

TEST(EngineLife, ValuesOutliveTheirEngine) {
  Matrix ready, pending;
  {
    Engine e = open();
    ready = row(e, {1, 2});
    pending = ready + 1.0;
  }
  const std::string closed = ": the engine of the operands is closed, expected an open one";
  EXPECT_EQ(error_of([&] { ready.read_f32(); }), "read" + closed);
  EXPECT_EQ(error_of([&] { pending.read_f32(); }), "read" + closed);
  EXPECT_EQ(error_of([&] { ready + ready; }), "add" + closed);
  EXPECT_EQ(error_of([&] { ready.assign(pending); }), "assign" + closed);
  EXPECT_EQ(error_of([&] { ready.write<f32>(Floats{1, 2}); }), "write" + closed);
}

TEST(EngineLife, AClosedEngineRefusesWork) {
  Engine e = open();
  const Matrix x = row(e, {1});
  const ExecutionPlan plan = e.capture([&] { return std::vector<Matrix>{x + 1.0}; });
  e.close();
  e.close();
  const std::string closed = ": the engine of the operands is closed, expected an open one";
  EXPECT_EQ(error_of([&] { e.flush(); }), "flush" + closed);
  EXPECT_EQ(error_of([&] { e.wait(); }), "wait" + closed);
  EXPECT_EQ(error_of([&] { e.submit(plan); }), "submit" + closed);
  EXPECT_EQ(error_of([&] { e.capture([] { return std::vector<Matrix>{}; }); }), "capture" + closed);
  EXPECT_EQ(error_of([&] { row(e, {1}); }), "from_slice" + closed);
}

TEST(EngineLife, OperandsOfTwoEnginesAreRefusedAndChangeNothing) {
  Engine e = open(), other = open();
  const Matrix x = row(e, {1, 2}), y = row(other, {3, 4});
  EXPECT_EQ(error_of([&] { x + y; }),
            "add: operand 1 belongs to another engine, expected operands of one engine");
  EXPECT_EQ(error_of([&] { x.assign(y); }),
            "assign: value belongs to another engine, expected operands of one engine");
  EXPECT_TRUE(e.core().graph().empty());
  EXPECT_TRUE(other.core().graph().empty());
  const ExecutionPlan plan = other.capture([&] { return std::vector<Matrix>{y + 1.0}; });
  EXPECT_EQ(error_of([&] { e.submit(plan); }),
            "submit: the plan belongs to another engine, expected one captured by this engine");
}

TEST(EngineLife, EmptyHandlesAreRefusedByName) {
  Engine e = open();
  const Matrix x = row(e, {1}), none;
  EXPECT_EQ(error_of([&] { none + x; }), "add: operand 0 is empty, expected a value");
  EXPECT_EQ(error_of([&] { x + none; }), "add: operand 1 is empty, expected a value");
  EXPECT_EQ(error_of([&] { none.assign(x); }), "assign: an operand is empty, expected values");
  EXPECT_EQ(error_of([&] { none.read_into(DType::F32, nullptr); }),
            "read: the value is empty, expected one with elements");
}

TEST(EngineLife, NothingPendingIsNothingToDo) {
  Engine e = open();
  e.flush();
  e.wait();
  EXPECT_EQ(e.counters().flushes, 0u);
  EXPECT_TRUE(e.checkpoint().is_complete());
  EXPECT_EQ(error_of([&] { e.checkpoint_timed(); }),
            "checkpoint_timed: nothing is pending, expected recorded work");
}

TEST(EngineLife, AFailedCallLeavesTheBatchAsItWas) {
  Engine e = open();
  const Matrix x = row(e, {1, 2, 3});
  const Matrix y = x + 1.0;
  EXPECT_NE(error_of([&] { x + row(e, {1, 2}); }), "no error");
  EXPECT_NE(error_of([&] { y.assign(row(e, {1, 2})); }), "no error");
  EXPECT_NE(error_of([&] { matrix::sum(x, 1); }), "no error");
  EXPECT_EQ(e.core().graph().nodes.size(), 1u);
  EXPECT_EQ(y.read_f32(), (Floats{2, 3, 4}));
}

TEST(EngineLife, ACaptureThatThrowsLeavesTheEngineAsItWas) {
  Engine e = open();
  const Matrix x = row(e, {1, 2});
  EXPECT_THROW(e.capture([&]() -> std::vector<Matrix> {
    x.assign(x * 7.0);
    throw std::runtime_error("stop");
  }),
               std::runtime_error);
  EXPECT_FALSE(e.core().capturing());
  EXPECT_EQ((x + 1.0).read_f32(), (Floats{2, 3}));
}

TEST(EngineLife, CapturesDoNotNestOrRead) {
  Engine e = open();
  const Matrix x = row(e, {1, 2});
  std::string nested, read;
  e.capture([&] {
    nested = error_of([&] { e.capture([] { return std::vector<Matrix>{}; }); });
    const Matrix y = x + 1.0;
    read = error_of([&] { y.read_f32(); });
    return std::vector<Matrix>{y};
  });
  EXPECT_EQ(nested, "capture: a capture is under way, expected no nested capture");
  EXPECT_EQ(read, "read: a value of a capture has no elements before submit()");
}

TEST(EngineLife, UnknownDevicesAreRefusedWithWhatExists) {
  for (const char* name : {"gpu", "cpu:1", "vulkan:-1", "vulkan:99", "CPU", " "}) {
    try {
      Engine::open({.device = name});
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::NoSuitableDevice) << name;
      EXPECT_NE(error.message().find("cpu"), std::string::npos) << error.what();
    }
  }
}

// --- Programs ---

TEST(Programs, ScalarsAreNoPartOfTheStructureAttributesAre) {
  Engine e = open();
  const Matrix x = row(e, {1, 2, 3, 4, 5, 6});
  const auto compiled = [&](auto&& f) {
    const u64 before = e.counters().programs_compiled;
    f().read_f32();
    return e.counters().programs_compiled - before;
  };
  EXPECT_EQ(compiled([&] { return x * 2.0 + 1.0; }), 1u);
  EXPECT_EQ(compiled([&] { return x * 3.0 + -0.5; }), 0u);
  EXPECT_EQ(compiled([&] { return (x * 3.0).reshape({2, 3}); }), 1u);
  EXPECT_EQ(compiled([&] { return (x * 3.0).reshape({3, 2}); }), 0u) << "the same elements";
  EXPECT_EQ(compiled([&] { return matrix::sum((x * 3.0).reshape({3, 2}), 0); }), 1u);
  EXPECT_EQ(compiled([&] { return matrix::sum((x * 3.0).reshape({2, 3}), 0); }), 1u);
  EXPECT_EQ(compiled([&] { return matrix::slice(x, 0, 1, 4); }), 1u);
  EXPECT_EQ(compiled([&] { return matrix::slice(x, 0, 2, 5); }), 1u);
  EXPECT_EQ(compiled([&] { return matrix::slice(x, 0, 2, 5); }), 0u);
  // Who holds what is structure too.
  const auto two = [&](bool hold) {
    const Matrix a = x + 1.0;
    Matrix b = a * 2.0;
    if (!hold) return b;
    e.flush();
    return b;
  };
  EXPECT_EQ(compiled([&] { return two(true); }), 1u);
  EXPECT_EQ(compiled([&] { return two(false); }), 1u);
}

TEST(Programs, EqualStepsAndReplaysAllocateNothing) {
  Engine e = open();
  const Matrix w = matrix::zeros(e, {16, 8}), x = matrix::ones(e, {4, 16});
  const auto step = [&](f64 rate) {
    const Matrix y = matrix::mat_mul(x, w);
    const Matrix loss = matrix::mean(matrix::square(y - 1.0));
    w.assign(w + matrix::mat_mul_tn(x, y - 1.0) * -rate);
    return loss;
  };
  step(0.01).item();
  step(0.02).item();
  const u64 eager = e.memory().device.allocations;
  for (int i = 0; i < 20; ++i) step(0.0005 * i).item();
  EXPECT_EQ(e.memory().device.allocations, eager);

  Matrix loss;
  const ExecutionPlan plan = e.capture([&] {
    loss = step(0.005);
    return std::vector<Matrix>{loss};
  });
  e.submit(plan);
  f32 last = loss.item();
  const u64 replayed = e.memory().device.allocations;
  for (int i = 0; i < 20; ++i) {
    e.submit(plan);
    EXPECT_LE(loss.item(), last);
    last = loss.item();
  }
  EXPECT_EQ(e.memory().device.allocations, replayed);
}

TEST(Programs, EveryStageLeavesItsRecord) {
  Engine e = open();
  const Matrix x = Matrix::from_f32(e, {4, 8}, Floats(32, 1));
  const ExecutionPlan plan =
      e.capture([&] { return std::vector<Matrix>{matrix::softmax(x * 2.0)}; });
  constexpr std::string_view names[] = {"semantic_validation", "replay_safety",
                                        "decomposition",       "fusion",
                                        "placement",           "precision",
                                        "kernel_selection",    "lowering_validation",
                                        "memory_planning",     "synchronization_planning",
                                        "command_recording"};
  const auto& stages = plan.stages();
  for (u32 i = 0; i < graph::kStageCount; ++i) {
    EXPECT_EQ(token(stages[i].stage), names[i]);
    EXPECT_NE(stages[i].state, graph::StageState::NotRun);
    EXPECT_NE(stages[i].state, graph::StageState::Failed);
    EXPECT_FALSE(stages[i].reason.empty()) << names[i];
  }
  const auto& decomposed = stages[static_cast<u32>(graph::Stage::Decomposition)];
  EXPECT_EQ(decomposed.state, graph::StageState::Applied);
  EXPECT_EQ(decomposed.input_count, 2u);
  EXPECT_GT(decomposed.output_count, 4u);
  const auto& fused = stages[static_cast<u32>(graph::Stage::Fusion)];
  EXPECT_EQ(fused.state, graph::StageState::Applied);
  EXPECT_EQ(fused.output_count, 1u);
  EXPECT_EQ(plan.dispatch_count(), 1u);
}

TEST(Programs, IndependentWorkSharesABarrierIntervalAndDependentWorkDoesNot) {
  Engine e = open({.fuse = false});
  const Matrix x = row(e, {1, 2, 3});
  const ExecutionPlan plan = e.capture([&] {
    const Matrix a = x + 1.0, b = x * 2.0;  // together
    return std::vector<Matrix>{a * b};      // after them
  });
  const auto& sync = plan.stages()[static_cast<u32>(graph::Stage::SynchronizationPlanning)];
  EXPECT_EQ(plan.dispatch_count(), 3u);
  EXPECT_EQ(sync.output_count, 1u);
}

// --- Batches that fail ---

// As if operations had run one by one: nothing is replaced after the one that failed.
// A device with little memory.
class SmallDevice final : public test::InterpreterDevice {
 public:
  explicit SmallDevice(u64 most) : InterpreterDevice(test::gpu_target()), most_(most) {}
  device::Memory allocate(u64 bytes) override {
    if (memory_report().allocated_bytes + bytes > most_) {
      fail(ErrorKind::ResourceExhausted, "SmallDevice", "out of memory, got {} bytes", bytes);
    }
    return InterpreterDevice::allocate(bytes);
  }

 private:
  u64 most_;
};

TEST(Memory, KeptBlocksMakeRoomForTheTemporariesOfAProgram) {
  constexpr i64 kN = 64;  // 16 KiB a matrix
  for (const bool capture : {false, true}) {
    Engine e = Engine::open_on(std::make_unique<SmallDevice>(150 << 10));
    const Matrix x = matrix::full(e, {kN, kN}, 1.0 / kN);
    x.read_f32();
    {
      std::vector<Matrix> many;
      for (int i = 0; i < 6; ++i) many.push_back(x + double(i));
      e.flush();
    }
    const auto chain = [&] {
      Matrix y = x;
      for (int i = 0; i < 4; ++i) y = matrix::mat_mul(y, x) + matrix::mat_mul(x, y);
      return y;
    };
    if (!capture) {
      EXPECT_EQ(chain().read_f32()[5], 16.0f / kN);
      continue;
    }
    ExecutionPlan plan = e.capture([&] { return std::vector<Matrix>{chain()}; });
    e.submit(plan);
    EXPECT_EQ(plan.results()[0].read_f32()[5], 16.0f / kN);
  }
}

TEST(FailedBatch, WhatDoesNotDependOnTheFailureIsComputed) {
  Engine e = Engine::open({.device = "cpu"});
  const Matrix a = row(e, {1, 2, 3}), state = row(e, {5, 6, 7}), late = row(e, {8, 9, 10});
  e.flush();
  const Matrix before = a + 1.0;
  state.assign(state * 2.0);
  const i64 large = i64{1} << 21;
  const Matrix huge = matrix::full(e, {large, large}, 2);  // 16 TiB
  const Matrix dependent = matrix::sum(huge, 0);
  const Matrix after = before * 3.0;
  const Matrix pending = a * 5.0;
  pending.assign(pending + matrix::slice(dependent, 0, 0, 3));
  late.assign(a);
  const Matrix of_late = late + 1.0;
  const std::string text = error_of([&] { (void)after.read_f32(); });
  EXPECT_NE(text, "no error");
  EXPECT_EQ(before.read_f32(), (Floats{2, 3, 4}));
  EXPECT_EQ(after.read_f32(), (Floats{6, 9, 12}));
  EXPECT_EQ(state.read_f32(), (Floats{10, 12, 14}));
  EXPECT_EQ(late.read_f32(), (Floats{8, 9, 10}));
  for (const Matrix* lost : {&huge, &dependent, &pending, &of_late}) {
    const std::string why = error_of([&] { (void)matrix::copy(*lost); });
    EXPECT_NE(why.find("never computed because its batch failed"), std::string::npos) << why;
  }
  EXPECT_NE(error_of([&] { (void)of_late.read_f32(); }).find("never computed"), std::string::npos);
  // The engine goes on, and with more than one failure in a batch.
  const Matrix again = late * 2.0, other = matrix::full(e, {large, large}, 3),
               third = matrix::full(e, {large, 2 * large}, 4), last = a * 2.0;
  EXPECT_EQ(error_of([&] { e.flush(); }), text);
  EXPECT_EQ(again.read_f32(), (Floats{16, 18, 20}));
  EXPECT_EQ(last.read_f32(), (Floats{2, 4, 6}));
  EXPECT_NE(error_of([&] { (void)other.reshape({-1}); }), "no error");
  EXPECT_NE(error_of([&] { late.assign(of_late); }).find("never computed"), std::string::npos);
  // A failing value that nobody holds, with more readers than failures are looked for.
  std::vector<Matrix> readers;
  {
    const Matrix middle =
        matrix::mat_mul(matrix::full(e, {large, 1}, 2), matrix::full(e, {1, large}, 2));
    for (int i = 0; i < 10; ++i) readers.push_back(matrix::sum(middle * double(i + 2), 0));
  }
  const Matrix unrelated = a * 7.0;
  EXPECT_NE(error_of([&] { e.flush(); }), "no error");
  EXPECT_EQ(unrelated.read_f32(), (Floats{7, 14, 21}));
  // Without anything else in it.
  const Matrix alone = matrix::full(e, {large, large}, 3);
  EXPECT_EQ(error_of([&] { e.flush(); }), text);
  EXPECT_EQ((a + 1.0).read_f32(), (Floats{2, 3, 4}));
}

}  // namespace
}  // namespace oa
