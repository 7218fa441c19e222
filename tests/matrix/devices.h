// Tests of ops run on the native CPU device and on the software Vulkan device, where it is
// installed. Engines stay open from test to test and guard every value against writes beside it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "oa/core/error.h"
#include "oa/matrix/create.h"
#include "oa/matrix/elementwise.h"
#include "oa/matrix/matrix.h"
#include "tests/support/vulkan_name.h"

namespace oa::test {

struct Opened {
  std::optional<Engine> engine;
  std::string failure;
};

inline std::map<std::string, Opened>& opened_devices() {
  static std::map<std::string, Opened> opened;
  return opened;
}

// Closes the engines while the drivers are still whole: those end with the process before our
// static objects do.
class CloseDevices : public testing::Environment {
  void TearDown() override { opened_devices().clear(); }
};
inline testing::Environment* const close_devices =
    testing::AddGlobalTestEnvironment(new CloseDevices);

inline Opened& open_device(const std::string& name) {
  Opened& o = opened_devices()[name];
  if (!o.engine && o.failure.empty()) {
    try {
      o.engine.emplace(Engine::open({.device = device_under_test(name), .guard_bands = true}));
    } catch (const Error& e) {
      o.failure = e.what();
    }
  }
  return o;
}

class OnDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Opened& o = open_device(GetParam());
    if (!o.engine) GTEST_SKIP() << o.failure;
    engine_ = &*o.engine;
  }
  void TearDown() override {
    if (engine_) engine_->check_guards();
  }
  Engine& engine() { return *engine_; }
  // A software driver takes long to compile a kernel: sweeps over extents take every step there
  // only on the CPU.
  i64 stride(i64 on_lavapipe) const {
    return std::string_view(GetParam()) == "cpu" ? 1 : on_lavapipe;
  }

  // The checking devices interpret kernels, a thousand times slower than they run.
  bool interpreted() const { return std::string_view(GetParam()).starts_with("checked"); }

  template <class T>
  Matrix from(const Shape& shape, const std::vector<T>& values) {
    return Matrix::from_slice<T>(engine(), shape, std::span<const T>(values));
  }
  Matrix bits(const Shape& shape, DType dtype, const void* data) {
    return Matrix::upload(engine(), shape, dtype, data, static_cast<size_t>(shape.elements()));
  }
  Matrix bools(const Shape& shape, const std::vector<u8>& values) {
    return bits(shape, DType::Bool, values.data());
  }

 private:
  Engine* engine_ = nullptr;
};

#define OA_ON_DEVICES(fixture)                                                           \
  INSTANTIATE_TEST_SUITE_P(Devices, fixture,                                             \
                           testing::Values("cpu", "lavapipe", "checked", "checked_gpu"), \
                           [](const auto& tested) { return std::string(tested.param); })

// Runs f and returns what the error says; fails the test if there is none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline std::vector<f32> random_f32(u32 seed, size_t n, f32 low = -2, f32 high = 2) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<f32> d(low, high);
  std::vector<f32> v(n);
  for (f32& x : v) x = d(rng);
  return v;
}

inline std::vector<i32> random_i32(u32 seed, size_t n, i32 low, i32 high) {
  std::mt19937 rng(seed);
  std::uniform_int_distribution<i32> d(low, high);
  std::vector<i32> v(n);
  for (i32& x : v) x = d(rng);
  return v;
}

}  // namespace oa::test
