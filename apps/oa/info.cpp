// `oa info`: devices with drivers and capabilities, the chosen one, and the cache of compiled code.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/oa/commands.h"
#include "oa/codegen/cache.h"
#include "oa/device/select.h"

namespace oa::command {
namespace {

using device::DeviceInfo;
using device::DeviceKind;

struct Report {
  std::vector<DeviceInfo> devices;
  std::string chosen;     // id of the device that an engine opens by default
  std::string no_vulkan;  // why there is no Vulkan device, if there is none
  codegen::CacheStatistics cache;
};

const char* text(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::Cpu: return "cpu";
    case DeviceKind::DiscreteGpu: return "discrete gpu";
    case DeviceKind::IntegratedGpu: return "integrated gpu";
    case DeviceKind::SoftwareGpu: return "software gpu";
  }
  return "?";
}

std::string text_bytes(u64 bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

Report collect() {
  Report report;
  report.devices = device::list_devices(&report.no_vulkan);
  report.chosen = device::choose("", report.devices, report.no_vulkan);
  report.cache = codegen::CodeCache().statistics();
  return report;
}

void print_text(const Report& report) {
  fmt::print("oa {}\n", OA_VERSION);
  for (const DeviceInfo& d : report.devices) {
    fmt::print("\n{}: {} ({}){}\n", d.id, d.name, text(d.kind),
               d.id == report.chosen ? ", the default" : "");
    const auto row = [](const std::string& name, const std::string& value) {
      fmt::print("  {:<20}{}\n", name, value);
    };
    row("driver", d.driver);
    row("memory", text_bytes(d.memory_bytes));
    if (d.max_allocation != 0) row("largest allocation", text_bytes(d.max_allocation));
    for (const auto& [name, value] : d.capabilities) row(name, value);
  }
  if (!report.no_vulkan.empty()) fmt::print("\nvulkan: none, {}\n", report.no_vulkan);

  const codegen::CacheStatistics& cache = report.cache;
  fmt::print("\ncache: {}\n", cache.directory.empty() ? "none" : cache.directory);
  if (!cache.directory.empty()) {
    fmt::print("  {} files, {} of {}\n", cache.files, text_bytes(cache.bytes),
               text_bytes(cache.limit_bytes));
  }
  if (!cache.reason.empty()) fmt::print("  {}\n", cache.reason);
}

void print_json(const Report& report) {
  using nlohmann::ordered_json;
  ordered_json devices = ordered_json::array();
  for (const DeviceInfo& d : report.devices) {
    ordered_json capabilities = ordered_json::object();
    for (const auto& [name, value] : d.capabilities) capabilities[name] = value;
    devices.push_back({{"id", d.id},
                       {"name", d.name},
                       {"kind", text(d.kind)},
                       {"driver", d.driver},
                       {"memory_bytes", d.memory_bytes},
                       {"max_allocation", d.max_allocation},
                       {"capabilities", capabilities}});
  }
  const ordered_json cache = {{"directory", report.cache.directory},
                              {"reason", report.cache.reason},
                              {"files", report.cache.files},
                              {"bytes", report.cache.bytes},
                              {"limit_bytes", report.cache.limit_bytes}};
  const ordered_json all = {{"version", OA_VERSION},
                            {"default", report.chosen},
                            {"devices", devices},
                            {"no_vulkan", report.no_vulkan},
                            {"cache", cache}};
  // Names of devices and folders come from outside and need not be UTF-8.
  fmt::print("{}\n", all.dump(2, ' ', false, ordered_json::error_handler_t::replace));
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  CLI::App* info = app.add_subcommand("info", "Devices, drivers, capabilities and the code cache");
  const auto json = std::make_shared<bool>(false);
  info->add_flag("--json", *json, "Print JSON");
  info->callback([&action, json] {
    action = [json] {
      const Report report = collect();
      *json ? print_json(report) : print_text(report);
    };
  });
}

}  // namespace oa::command
