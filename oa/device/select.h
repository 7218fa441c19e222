// Choosing a device by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "oa/device/device.h"

namespace oa::device {

// Every device that open() can open, the CPU first. `why`, if given, says why there is no Vulkan
// device.
std::vector<DeviceInfo> list_devices(std::string* why = nullptr);

// The id of the device, of those listed, that a name means:
//   ""          OA_DEVICE if set, else the best: discrete GPU, integrated GPU, the CPU
//   "cpu"       the CPU
//   "vulkan"    the best Vulkan device that is hardware
//   "vulkan:1"  the Vulkan device with that index
//   "lavapipe"  the software Vulkan driver
// Throws NoSuitableDevice, which lists what exists, when the name fits nothing.
std::string choose(const std::string& name, const std::vector<DeviceInfo>& devices,
                   const std::string& why = {});

// Opens the device that a name means. Besides those listed there are "checked", the reference
// interpreter that finds races and bad accesses, and "checked_gpu", the same with kernels in the
// shape of a GPU.
std::unique_ptr<Device> open(const std::string& name, const DeviceOptions& options = {});

}  // namespace oa::device
