// What an engine did and when: programs compiled, stage by stage, and kernels run. Kept by engines
// with EngineOptions::profile.
#pragma once

#include <string>
#include <vector>

#include "oa/core/types.h"

namespace oa {

class Trace {
 public:
  enum class Track : u8 { Host, Device };
  struct Span {
    std::string name;
    Track track = Track::Host;
    f64 begin = 0, seconds = 0;  // since the engine was opened
    u32 workgroups = 0;          // of kernels
    f64 flops = 0;
    u64 bytes = 0;
  };

  Trace();
  f64 now() const;
  void add(Span span);  // the first kMost are kept
  const std::vector<Span>& spans() const { return spans_; }
  u64 dropped() const { return dropped_; }
  // The format of chrome://tracing and Perfetto. Kernels of one submission stand in a row from the
  // moment of the submission on, in the order and with the times that the device reported.
  std::string chrome_json(const std::string& device) const;

  static constexpr size_t kMost = 500'000;

 private:
  f64 start_;
  std::vector<Span> spans_;
  u64 dropped_ = 0;
};

}  // namespace oa
