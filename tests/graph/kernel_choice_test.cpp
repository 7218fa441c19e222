// On a graphics card: a product's bits are the same whichever of its kernels is chosen.
#include <gtest/gtest.h>

#include <set>

#include "oa/core/hash.h"
#include "oa/device/select.h"
#include "oa/matrix/matmul.h"
#include "oa/matrix/transcendental.h"
#include "tests/support/vulkan_name.h"

namespace oa {
namespace {

// A device that remembers one answer to every question about kernels.
class Decided final : public device::Device {
 public:
  Decided(std::unique_ptr<device::Device> inner, u8 choice)
      : inner_(std::move(inner)), choice_(choice) {}
  const device::DeviceInfo& info() const override { return inner_->info(); }
  const kernel::Target& target() const override { return inner_->target(); }
  device::Memory allocate(u64 bytes) override { return inner_->allocate(bytes); }
  void release(const device::Memory& memory) override { inner_->release(memory); }
  device::MemoryReport memory_report() const override { return inner_->memory_report(); }
  void write(const device::Memory& to, u64 offset, const void* from, u64 bytes) override {
    inner_->write(to, offset, from, bytes);
  }
  void read(const device::Memory& from, u64 offset, void* to, u64 bytes) override {
    inner_->read(from, offset, to, bytes);
  }
  std::vector<std::shared_ptr<device::Executable>> compile(
      std::span<const kernel::Kernel* const> kernels) override {
    return inner_->compile(kernels);
  }
  device::Ticket submit(const device::CommandList& list, bool timed) override {
    return inner_->submit(list, timed);
  }
  std::unique_ptr<device::Recorded> record(const device::CommandList& list) override {
    return inner_->record(list);
  }
  device::Ticket submit(device::Recorded& list) override { return inner_->submit(list); }
  bool is_complete(device::Ticket ticket) override { return inner_->is_complete(ticket); }
  void wait(device::Ticket ticket) override { inner_->wait(ticket); }
  std::vector<f64> durations(device::Ticket ticket) override { return inner_->durations(ticket); }
  std::optional<std::vector<u8>> recall(const Hash128&) override { return std::vector{choice_}; }

 private:
  std::unique_ptr<device::Device> inner_;
  u8 choice_;
};

TEST(KernelChoice, ChangesNoBit) {
  const i64 m = 520, k = 768, n = 512;
  std::vector<f32> a(static_cast<size_t>(m * k)), b(static_cast<size_t>(k * n));
  u32 state = 1;
  for (std::vector<f32>* v : {&a, &b}) {
    for (f32& x : *v) {
      state = state * 1664525u + 1013904223u;
      x = static_cast<f32>(static_cast<i32>(state)) * 0x1p-30f;
    }
  }
  struct Case {
    DType dtype;
    Precision precision;
    std::vector<f32> first;
  };
  Case cases[] = {{DType::F32, Precision::F32, {}},
                  {DType::F32, Precision::F32x3, {}},
                  {DType::F32, Precision::F32x6, {}},
                  {DType::F16, Precision::F32, {}},
                  {DType::BF16, Precision::F32, {}}};
  for (u8 choice = 0; choice < 10; ++choice) {
    std::optional<Engine> engine;
    try {
      engine.emplace(Engine::open_on(std::make_unique<Decided>(
          device::open(test::device_under_test("lavapipe"), {}), choice)));
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    if (engine->device_info().kind == device::DeviceKind::SoftwareGpu) {
      GTEST_SKIP() << "a software driver has one kernel for each product";
    }
    const Matrix x = Matrix::from_f32(*engine, {m, k}, a), y = Matrix::from_f32(*engine, {k, n}, b);
    for (Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} {}, choice {}", token(c.dtype), token(c.precision), choice));
      const Matrix p = x.to(c.dtype), q = y.to(c.dtype);
      engine->wait();
      const std::vector<f32> got = matrix::mat_mul(p, q, c.precision).to(DType::F32).read_f32();
      if (choice == 0) c.first = got;
      ASSERT_EQ(got, c.first);
    }
  }
}

}  // namespace
}  // namespace oa
