#include "oa/device/select.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "oa/core/error.h"
#include "oa/device/checked/checked_device.h"
#include "oa/device/vulkan/instance.h"

namespace oa::device {
namespace {

std::string describe(const std::vector<DeviceInfo>& devices) {
  std::string text;
  for (const DeviceInfo& d : devices) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} ({})", d.id, d.name);
  }
  return text;
}

constexpr std::string_view kVulkanPrefix = "vulkan:";

std::string wanted_name(const std::string& name) {
  const char* env = std::getenv("OA_DEVICE");
  return name.empty() && env != nullptr ? env : name;
}

const DeviceInfo* first_of(const std::vector<DeviceInfo>& devices, DeviceKind kind) {
  for (const DeviceInfo& d : devices) {
    if (d.kind == kind) return &d;
  }
  return nullptr;
}

const DeviceInfo* best_hardware(const std::vector<DeviceInfo>& devices) {
  const DeviceInfo* discrete = first_of(devices, DeviceKind::DiscreteGpu);
  return discrete != nullptr ? discrete : first_of(devices, DeviceKind::IntegratedGpu);
}

// Keeps the drivers loaded from the listing of devices to the opening of one.
std::shared_ptr<vulkan::Instance> hold_drivers() {
  try {
    return vulkan::Instance::open(false);
  } catch (const Error&) {
    return nullptr;  // the listing gives the reason
  }
}

}  // namespace

std::vector<DeviceInfo> list_devices(std::string* why) {
  std::vector<DeviceInfo> devices = {cpu_info()};
  for (DeviceInfo& d : vulkan_devices(why)) devices.push_back(std::move(d));
  return devices;
}

std::string choose(const std::string& name, const std::vector<DeviceInfo>& devices,
                   const std::string& why) {
  const std::string wanted = wanted_name(name);
  const DeviceInfo* chosen = nullptr;
  if (wanted == "cpu") chosen = first_of(devices, DeviceKind::Cpu);
  if (wanted.empty() || wanted == "vulkan") chosen = best_hardware(devices);
  if (wanted.empty() && chosen == nullptr) chosen = first_of(devices, DeviceKind::Cpu);
  if (wanted == "lavapipe") chosen = first_of(devices, DeviceKind::SoftwareGpu);
  if (wanted.starts_with(kVulkanPrefix)) {
    for (const DeviceInfo& d : devices) {
      if (d.id == wanted) chosen = &d;
    }
  }
  if (chosen == nullptr) {
    fail(ErrorKind::NoSuitableDevice, "open",
         "no device of that name, got \"{}\", expected one of: {}{}", wanted, describe(devices),
         why.empty() ? "" : " (Vulkan: " + why + ")");
  }
  return chosen->id;
}

std::unique_ptr<Device> open(const std::string& name, const DeviceOptions& options) {
  const std::string wanted = wanted_name(name);
  if (wanted == "cpu") return open_cpu(options);
  if (wanted == "checked") return open_checked(CheckedShape::Cpu);
  if (wanted == "checked_gpu") return open_checked(CheckedShape::Gpu);
  const std::shared_ptr<vulkan::Instance> drivers = hold_drivers();
  std::string why;
  const std::vector<DeviceInfo> devices = list_devices(&why);
  const std::string id = choose(name, devices, why);
  if (id == "cpu") return open_cpu(options);
  u32 index = 0;
  std::from_chars(id.data() + kVulkanPrefix.size(), id.data() + id.size(), index);
  return open_vulkan(index, options);
}

}  // namespace oa::device
