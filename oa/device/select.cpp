#include "oa/device/select.h"

#include <charconv>
#include <cstdlib>
#include <optional>

#include "oa/core/error.h"
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

// Index of the first Vulkan device of a kind.
std::optional<u32> first_of(const std::vector<DeviceInfo>& vulkan, DeviceKind kind) {
  for (u32 i = 0; i < vulkan.size(); ++i) {
    if (vulkan[i].kind == kind) return i;
  }
  return std::nullopt;
}

std::optional<u32> best_hardware(const std::vector<DeviceInfo>& vulkan) {
  if (auto i = first_of(vulkan, DeviceKind::DiscreteGpu)) return i;
  return first_of(vulkan, DeviceKind::IntegratedGpu);
}

// Keeps the drivers loaded from the listing of devices to the opening of one.
std::shared_ptr<vulkan::Instance> hold_drivers() {
  try {
    return vulkan::Instance::open(false);
  } catch (const Error&) {
    return nullptr;  // the listing gives the reason
  }
}

std::optional<u32> index_in(const std::string& name) {
  constexpr std::string_view prefix = "vulkan:";
  if (!name.starts_with(prefix)) return std::nullopt;
  u32 index = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, index);
  if (error != std::errc() || rest != end) return std::nullopt;
  return index;
}

}  // namespace

std::vector<DeviceInfo> list_devices(std::string* why) {
  std::vector<DeviceInfo> devices = {cpu_info()};
  for (DeviceInfo& d : vulkan_devices(why)) devices.push_back(std::move(d));
  return devices;
}

std::unique_ptr<Device> open(const std::string& name, const DeviceOptions& options) {
  std::string wanted = name;
  if (wanted.empty()) {
    if (const char* env = std::getenv("OA_DEVICE")) wanted = env;
  }
  if (wanted == "cpu") return open_cpu(options);
  const std::shared_ptr<vulkan::Instance> drivers = hold_drivers();
  std::string why;
  const std::vector<DeviceInfo> vulkan = vulkan_devices(&why);
  if (wanted.empty()) {
    const auto best = best_hardware(vulkan);
    return best ? open_vulkan(*best, options) : open_cpu(options);
  }
  std::optional<u32> index;
  if (wanted == "vulkan") index = best_hardware(vulkan);
  if (wanted == "lavapipe") index = first_of(vulkan, DeviceKind::SoftwareGpu);
  if (const auto i = index_in(wanted); i && *i < vulkan.size()) index = i;
  if (!index) {
    std::vector<DeviceInfo> all = {cpu_info()};
    all.insert(all.end(), vulkan.begin(), vulkan.end());
    fail(ErrorKind::NoSuitableDevice, "open",
         "no device of that name, got \"{}\", expected one of: {}{}", wanted, describe(all),
         why.empty() ? "" : " (Vulkan: " + why + ")");
  }
  return open_vulkan(*index, options);
}

}  // namespace oa::device
