#include "oa/engine/engine.h"

#include "oa/device/select.h"
#include "oa/engine/engine_core.h"
#include "oa/engine/profile_table.h"

namespace oa {

namespace {

EngineCore& as_core(const Ref<graph::Recorder>& recorder) {
  return static_cast<EngineCore&>(*recorder);
}

}  // namespace

bool Event::is_complete() const { return !core_ || as_core(core_).device().is_complete(ticket_); }

void Event::wait() const {
  if (core_) as_core(core_).wait(ticket_);
}

std::vector<f64> Event::dispatch_seconds() const {
  if (!timed_) {
    fail(ErrorKind::FailedPrecondition, "Event::device_duration",
         "the event was not timed, expected one from checkpoint_timed()");
  }
  return as_core(core_).device().durations(ticket_);
}

f64 Event::device_duration() const {
  f64 total = 0;
  for (f64 s : dispatch_seconds()) total += s;
  return total;
}

Engine Engine::open(const EngineOptions& options) {
  return open_on(device::open(options.device, options.device_options), options);
}

Engine Engine::open_on(std::unique_ptr<device::Device> device, const EngineOptions& options) {
  return Engine(Ref<graph::Recorder>(new EngineCore(std::move(device), options)));
}

EngineCore& Engine::core() const { return as_core(core_); }

Engine& Engine::operator=(Engine&& other) noexcept {
  if (this != &other) {
    if (core_) core().close();
    core_ = std::move(other.core_);
  }
  return *this;
}

Engine::~Engine() {
  if (core_) core().close();
}

const device::DeviceInfo& Engine::device_info() const { return core().device().info(); }
const kernel::Target& Engine::target() const { return core().device().target(); }

void Engine::flush() {
  core().check_open("flush");
  core().flush();
}

Event Engine::checkpoint() {
  core().check_open("checkpoint");
  core().flush();
  return core().last_event();
}

Event Engine::checkpoint_timed() {
  core().check_open("checkpoint_timed");
  if (core().graph().empty()) {
    fail(ErrorKind::FailedPrecondition, "checkpoint_timed",
         "nothing is pending, expected recorded work");
  }
  core().flush(true);
  return core().last_event();
}

void Engine::wait() {
  core().check_open("wait");
  core().wait();
}

ExecutionPlan Engine::capture(const std::function<std::vector<Matrix>()>& fn,
                              const CaptureOptions& options) {
  return core().capture(fn, options);
}

Event Engine::submit(const ExecutionPlan& plan) { return core().submit(plan, false, "submit"); }
Event Engine::submit_timed(const ExecutionPlan& plan) {
  return core().submit(plan, true, "submit_timed");
}
std::vector<KernelProfile> Engine::profile() const { return core().profile(); }
std::string Engine::profile_table(u32 most_rows) const {
  return oa::profile_table(core().profile(), most_rows);
}
void Engine::write_trace(const std::filesystem::path& path) const { core().write_trace(path); }
MemoryUse Engine::memory() const { return core().memory(); }
EngineCounters Engine::counters() const {
  EngineCounters counters = core().counters();
  counters.kernels_made = core().device().kernels_made();
  return counters;
}
const graph::StageRecords& Engine::last_compilation() const { return core().last_compilation(); }
void Engine::check_guards() { core().check_guards(); }
u64 Engine::next_seed() { return core().next_seed(); }
void Engine::set_rng_seed(u64 seed) { core().set_rng_seed(seed); }
void Engine::close() { core().close(); }

}  // namespace oa
