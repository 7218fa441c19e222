#include "oa/engine/trace.h"

#include <chrono>
#include <nlohmann/json.hpp>

namespace oa {
namespace {

f64 clock_seconds() {
  return std::chrono::duration<f64>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Trace::Trace() : start_(clock_seconds()) {}
f64 Trace::now() const { return clock_seconds() - start_; }

void Trace::add(Span span) {
  if (spans_.size() < kMost) {
    spans_.push_back(std::move(span));
  } else {
    ++dropped_;
  }
}

std::string Trace::chrome_json(const std::string& device) const {
  using nlohmann::ordered_json;
  constexpr u32 kProcess = 1;
  ordered_json events = ordered_json::array();
  const auto name_track = [&](Track track, const std::string& name) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", kProcess},
                      {"tid", static_cast<u32>(track)},
                      {"args", {{"name", name}}}});
  };
  name_track(Track::Host, "host");
  name_track(Track::Device, device);
  for (const Span& s : spans_) {
    ordered_json event = {{"name", s.name},
                          {"cat", s.track == Track::Host ? "host" : "kernel"},
                          {"ph", "X"},
                          {"pid", kProcess},
                          {"tid", static_cast<u32>(s.track)},
                          {"ts", s.begin * 1e6},
                          {"dur", s.seconds * 1e6}};
    if (s.track == Track::Device) {
      event["args"] = {{"workgroups", s.workgroups}, {"flops", s.flops}, {"bytes", s.bytes}};
    }
    events.push_back(std::move(event));
  }
  const ordered_json all = {{"displayTimeUnit", "ns"},
                            {"otherData", {{"device", device}, {"dropped_spans", dropped_}}},
                            {"traceEvents", std::move(events)}};
  return all.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace oa
