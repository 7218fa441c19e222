// Opening devices by name.
#include "oa/device/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "oa/core/error.h"

namespace oa::device {
namespace {

// The environment of a test: OA_DEVICE as given, and optionally no Vulkan driver.
class Environment {
 public:
  explicit Environment(const char* device, bool drivers = true) {
    set("OA_DEVICE", device);
    if (!drivers) {
      set("VK_DRIVER_FILES", "/nonexistent/driver.json");
      set("VK_ICD_FILENAMES", "/nonexistent/driver.json");
    }
  }
  ~Environment() {
    for (const auto& [name, old] : old_) apply(name, old ? old->c_str() : nullptr);
  }
  Environment(const Environment&) = delete;

 private:
  static void apply(const char* name, const char* value) {
    if (value != nullptr) {
      setenv(name, value, 1);
    } else {
      unsetenv(name);
    }
  }
  void set(const char* name, const char* value) {
    const char* old = std::getenv(name);
    old_.emplace_back(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
    apply(name, value);
  }
  std::vector<std::pair<const char*, std::optional<std::string>>> old_;
};

const DeviceOptions kOptions{.cache_dir = "-"};

std::string message_of(const std::string& name) {
  try {
    open(name, kOptions);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::NoSuitableDevice);
    return e.what();
  }
  return "no error";
}

TEST(SelectDevice, ListsTheCpuAndNumbersVulkanDevices) {
  const std::vector<DeviceInfo> devices = list_devices();
  ASSERT_FALSE(devices.empty());
  EXPECT_EQ(devices[0].id, "cpu");
  EXPECT_EQ(devices[0].kind, DeviceKind::Cpu);
  for (size_t i = 1; i < devices.size(); ++i) {
    EXPECT_EQ(devices[i].id, fmt::format("vulkan:{}", i - 1));
    EXPECT_NE(devices[i].kind, DeviceKind::Cpu);
    if (i > 1) {
      EXPECT_LE(devices[i - 1].kind, devices[i].kind);  // best first
    }
  }
}

TEST(SelectDevice, OpensByIdAndByWord) {
  const Environment environment(nullptr);
  for (const DeviceInfo& info : list_devices()) {
    EXPECT_EQ(open(info.id, kOptions)->info().id, info.id);
    if (info.kind == DeviceKind::SoftwareGpu) {
      EXPECT_EQ(open("lavapipe", kOptions)->info().kind, DeviceKind::SoftwareGpu);
    }
  }
}

TEST(SelectDevice, PrefersHardwareAndNeverSoftwareVulkan) {
  const Environment environment(nullptr);
  const std::vector<DeviceInfo> devices = list_devices();
  const bool gpu = std::any_of(devices.begin(), devices.end(), [](const DeviceInfo& d) {
    return d.kind == DeviceKind::DiscreteGpu || d.kind == DeviceKind::IntegratedGpu;
  });
  EXPECT_EQ(open("", kOptions)->info().id, gpu ? "vulkan:0" : "cpu");
  if (gpu) {
    EXPECT_EQ(open("vulkan", kOptions)->info().id, "vulkan:0");
  } else {
    EXPECT_NE(message_of("vulkan").find("open: no device of that name, got \"vulkan\""),
              std::string::npos);
  }
}

TEST(SelectDevice, TakesTheNameFromTheEnvironment) {
  {
    const Environment environment("cpu");
    EXPECT_EQ(open("", kOptions)->info().id, "cpu");
  }
  const Environment environment("no such thing");
  EXPECT_EQ(message_of("").find("open: no device of that name, got \"no such thing\", expected "
                                "one of: cpu ("),
            0u);
  EXPECT_EQ(open("cpu", kOptions)->info().id, "cpu") << "an explicit name wins";
}

TEST(SelectDevice, RefusesNamesThatFitNothing) {
  const Environment environment(nullptr);
  for (const char* name : {"CPU", "cpu ", "vulkan:", "vulkan:-1", "vulkan:0x0", "vulkan:99",
                           "vulkan:4294967296", "gpu", "vulkan0", " "}) {
    const std::string text = message_of(name);
    EXPECT_EQ(text.find(fmt::format(
                  "open: no device of that name, got \"{}\", expected one of: cpu (", name)),
              0u)
        << text;
  }
}

TEST(SelectDevice, WorksWithoutVulkan) {
  const Environment environment(nullptr, false);
  std::string why;
  EXPECT_EQ(list_devices(&why).size(), 1u);
  EXPECT_FALSE(why.empty());
  EXPECT_EQ(open("", kOptions)->info().id, "cpu");
  EXPECT_NE(message_of("lavapipe").find("(Vulkan: " + why + ")"), std::string::npos);
}

}  // namespace
}  // namespace oa::device
