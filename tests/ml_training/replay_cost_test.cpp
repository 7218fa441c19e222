// What a replay on the CPU costs besides its kernels: no allocation. Sanitizers have allocators of
// their own, so this test is not there under them.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <atomic>
#include <cstdlib>
#include <new>

#include "support.h"

namespace {

std::atomic<bool> counting = false;
std::atomic<unsigned> allocations = 0;

void* counted(std::size_t bytes) {
  if (counting) ++allocations;
  void* block = std::malloc(bytes == 0 ? 1 : bytes);
  if (!block) throw std::bad_alloc();
  return block;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }

namespace oa::test {
namespace {

TEST(ReplayCost, AReplayAllocatesNothing) {
  Engine e = Engine::open({.device = "cpu"});
  Net net(e);
  ml::AdamW o(net.all_parameters(), 0.1);
  o.follow_schedule(std::make_shared<ml::CosineScheduler>(0.1, 0, 200), 0);
  const Matrix x = Matrix::from_f32(e, {4, 6}, inputs_of(0));
  const Matrix y = Matrix::from_slice<u32>(e, {4}, targets_of(0));
  auto program = ml::TrainingProgram::capture(e, o, [&] {
    ml::GradientTape tape;
    const Matrix loss = ml::loss::cross_entropy(net.forward(x), y);
    tape.backward(loss);
    return loss;
  });
  const std::vector<f32> in = inputs_of(1);
  program.replay();
  counting = true;
  for (u32 t = 0; t < 50; ++t) {
    program.upload_input(x, in);
    program.replay();
  }
  counting = false;
  EXPECT_EQ(allocations, 0u);
  EXPECT_GT(program.loss().item(), 0);
  // The counter counts.
  counting = true;
  program.loss().item();
  counting = false;
  EXPECT_GT(allocations, 0u);
}

}  // namespace
}  // namespace oa::test

#endif
