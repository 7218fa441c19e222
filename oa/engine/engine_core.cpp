#include "oa/engine/engine_core.h"

#include <algorithm>
#include <cstring>

#include "oa/core/file.h"

namespace oa {

using graph::Graph;
using graph::Program;
using graph::StorageRef;
using graph::TensorRef;

namespace {

constexpr u64 kGuard = 256;
constexpr u8 kGuardByte = 0xa5;
constexpr size_t kMaxPrograms = 4096;  // graphs of different structure that are remembered

// The key of a graph's program for captures, which has passed other checks.
Hash128 captured(const Hash128& structure) {
  Hasher h;
  h.add(structure.lo);
  h.add(structure.hi);
  return h.finish();
}

// Whether pending work makes the elements, also by an assignment to another view of them.
bool awaits(const Graph& pending, const graph::Tensor& tensor) {
  if (tensor.pending()) return true;
  return tensor.storage() && tensor.storage()->writer_graph == pending.serial();
}

}  // namespace

EngineCore::EngineCore(std::unique_ptr<device::Device> device, const EngineOptions& options)
    : options_(options),
      device_(std::move(device)),
      pool_(*device_),
      graph_(std::make_unique<Graph>(*this)),
      seed_state_(options.seed) {
  if (options_.precision == Precision::Engine) options_.precision = Precision::F32;
  status_ = device_->allocate(256);
  const u32 zeros[64] = {};
  device_->write(status_, 0, zeros, sizeof zeros);
}

Precision EngineCore::usable(Precision p) const {
  const kernel::Target& target = device_->target();
  const bool units = target.fragments && (p != Precision::BF16 || target.fragments_bf16);
  return rounds(p) && !units ? Precision::F32 : p;
}

EngineCore::~EngineCore() {
  settle();
  if (arena_.bytes > 0) device_->release(arena_);
  device_->release(status_);
}

void EngineCore::check_open(std::string_view op) {
  if (closed_) {
    fail(ErrorKind::FailedPrecondition, op,
         "the engine of the operands is closed, expected an open one");
  }
}

void EngineCore::close() {
  if (closed_) return;
  closed_ = true;
  // Pending values hold the engine, so dropping them breaks the circle.
  auto dropped = std::move(graph_);
  graph_ = std::make_unique<Graph>(*this);
}

u64 EngineCore::next_seed() {
  // SplitMix64: any state, zero included, is a good one.
  u64 z = (seed_state_ += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// --- Memory -------------------------------------------------------------------------------------

StorageRef EngineCore::allocate(u64 bytes) {
  const u64 guard = options_.guard_bands ? kGuard : 0;
  const device::Memory memory = pool_.take(std::max<u64>(bytes, 1) + 2 * guard);
  values_bytes_ += memory.bytes;
  // The storage keeps the engine's memory alive for as long as it is held.
  Ref<EngineCore> self(this);
  StorageRef storage(new graph::Storage(memory, guard, bytes, [self, memory]() mutable {
    self->values_bytes_ -= memory.bytes;
    self->guarded_.erase(memory.address);
    self->pool_.give(memory);
  }));
  if (guard > 0) {
    const std::vector<u8> pattern(memory.bytes, kGuardByte);
    device_->write(memory, 0, pattern.data(), pattern.size());
    guarded_[memory.address] = {memory, bytes};
  }
  return storage;
}

void EngineCore::check_guards() {
  wait();
  for (const auto& [address, guarded] : guarded_) {
    const auto& [memory, size] = guarded;
    std::vector<u8> bytes(memory.bytes);
    device_->read(memory, 0, bytes.data(), bytes.size());
    for (u64 i = 0; i < bytes.size(); ++i) {
      if (bytes[i] == kGuardByte || (i >= kGuard && i < kGuard + size)) continue;
      fail(ErrorKind::Internal, "guard bands", "a kernel wrote {} bytes {} a value of {} bytes",
           i < kGuard ? kGuard - i : i - kGuard - size + 1, i < kGuard ? "before" : "past", size);
    }
  }
}

TensorRef EngineCore::upload(std::string_view op, const graph::Spec& spec, const void* data) {
  check_open(op);
  const u64 bytes = static_cast<u64>(spec.shape.elements()) * size_bytes(spec.dtype);
  StorageRef storage = allocate(bytes);
  if (bytes > 0) device_->write(storage->memory(), storage->offset(), data, bytes);
  TensorRef tensor(new graph::Tensor(*this, spec));
  if (watch_) watch_->uploads.push_back(storage->serial());
  tensor->bind_storage(std::move(storage));
  if (frame_) {
    if (frame_->count == frame_->inputs.size()) frame_->inputs.emplace_back();
    InputFrame::Input& input = frame_->inputs[frame_->count++];
    input.tensor = tensor;
    const auto* elements = static_cast<const u8*>(data);
    input.bytes.assign(elements, elements + bytes);
  }
  return tensor;
}

void EngineCore::overwrite(std::string_view op, const TensorRef& tensor, const void* data,
                           u64 bytes) {
  check_open(op);
  refuse_in_capture(op, "elements cannot be replaced during a capture");
  flush();  // what is recorded reads the old elements
  if (!tensor->storage()) fail(ErrorKind::FailedPrecondition, op, "value {}", why_missing());
  OA_CHECK(tensor->storage()->bytes() == bytes);
  ++tensor->storage()->version;
  if (bytes > 0)
    device_->write(tensor->storage()->memory(), tensor->storage()->offset(), data, bytes);
}

void EngineCore::read(std::string_view op, const TensorRef& tensor, void* data, u64 bytes) {
  check_open(op);
  refuse_in_capture(op, tensor->pending() ? "a value of a capture has no elements before submit()"
                                          : "the host would see the same elements at each replay, "
                                            "expected the value itself");
  if (awaits(*graph_, *tensor)) flush();
  if (!tensor->storage()) {
    fail(ErrorKind::FailedPrecondition, op,
         "the value was never computed because its batch failed or its capture ended");
  }
  OA_CHECK(tensor->storage()->bytes() >= bytes);
  if (bytes > 0)
    device_->read(tensor->storage()->memory(), tensor->storage()->offset(), data, bytes);
  raise_bad_index();
}

bool EngineCore::try_read(std::string_view op, const TensorRef& tensor, void* data, u64 bytes) {
  check_open(op);
  if (awaits(*graph_, *tensor) || !device_->is_complete(last_ticket_)) return false;
  read(op, tensor, data, bytes);
  return true;
}

void EngineCore::settle() noexcept {
  try {
    device_->wait(last_ticket_);
  } catch (const Error&) {
    // A lost device runs nothing any more; the error was or will be raised by a call that can.
  }
}

// --- Running ------------------------------------------------------------------------------------

void EngineCore::reserve_arena(u64 bytes) {
  if (bytes <= arena_.bytes) return;
  if (arena_.bytes > 0) device_->release(arena_);
  arena_ = {};
  try {
    arena_ = pool_.allocate(bytes + bytes / 4);  // the next program may want a little more
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::ResourceExhausted) throw;
    arena_ = device_->allocate(bytes);
  }
}

void EngineCore::assign_check_codes(const std::shared_ptr<Program>& program) {
  if (program->checks().empty() || first_code_.contains(program.get())) return;
  first_code_[program.get()] = next_code_;
  check_codes_[next_code_] = program;
  next_code_ += program->checks().size() + 1;
}

std::shared_ptr<Program> EngineCore::new_program(const Graph& graph, bool capture) {
  if (capture) {
    // What ran as a batch is replayed as it is, so that its bits are the same.
    const auto it = programs_.find(graph.structure());
    if (it != programs_.end() && it->second->evidence()) {
      ++counters_.cache_hits;
      return graph::for_replays(graph, *device_, *it->second);
    }
  }
  ++counters_.programs_compiled;
  const f64 begin = trace_.now();
  auto program = graph::compile(graph, *device_, {.capture = capture, .fuse = options_.fuse},
                                &last_compilation_);
  keep_evidence(program);
  if (options_.profile) trace_compile(begin, capture ? "compile a capture" : "compile");
  return program;
}

std::shared_ptr<Program> EngineCore::program_of(const Graph& graph, bool capture) {
  const Hash128 key = capture ? captured(graph.structure()) : graph.structure();
  if (auto it = programs_.find(key); it != programs_.end()) {
    ++counters_.cache_hits;
    return it->second;
  }
  if (programs_.size() >= kMaxPrograms) {
    // Rare by design: forget all that no plan holds rather than keep a history. Nothing may be
    // running from them.
    wait(last_ticket_);
    std::erase_if(programs_, [&](const auto& entry) {
      const auto code = first_code_.find(entry.second.get());
      if (entry.second.use_count() > (code == first_code_.end() ? 1 : 2)) return false;
      if (code != first_code_.end()) {
        check_codes_.erase(code->second);
        first_code_.erase(code);
      }
      return true;
    });
  }
  auto program = new_program(graph, capture);
  programs_[key] = program;
  assign_check_codes(program);
  return program;
}

// A compile as a span, and its stages inside, in their order.
void EngineCore::trace_compile(f64 begin, std::string_view what) {
  trace_.add({.name = std::string(what), .begin = begin, .seconds = trace_.now() - begin});
  f64 at = begin;
  for (const graph::StageRecord& r : last_compilation_) {
    trace_.add({.name = std::string(token(r.stage)), .begin = at, .seconds = r.seconds});
    at += r.seconds;
  }
}

// Eager programs are many; only the latest keep their evidence.
void EngineCore::keep_evidence(const std::shared_ptr<Program>& program) {
  constexpr size_t kMost = 128;
  if (program->captured()) return;
  with_evidence_.push_back(program);
  if (with_evidence_.size() <= kMost) return;
  if (const auto oldest = with_evidence_.front().lock()) oldest->drop_evidence();
  with_evidence_.pop_front();
}

void EngineCore::submit_list(const Program& program, const device::CommandList& list, bool timed) {
  const bool profile = options_.profile;
  const f64 begin = profile ? trace_.now() : 0;
  last_ticket_ = device_->submit(list, timed || profile);
  last_timed_ = timed || profile;
  counters_.dispatches += list.dispatches.size();
  status_used_ = status_used_ || !program.checks().empty();
  if (!profile) return;
  const std::vector<f64> seconds = device_->durations(last_ticket_);
  f64 at = begin;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const Program::Step& step = program.steps()[i];
    KernelProfile& p = profile_[step.label];
    p.label = step.label;
    p.least_seconds = p.count == 0 ? seconds[i] : std::min(p.least_seconds, seconds[i]);
    ++p.count;
    p.seconds += seconds[i];
    p.flops += step.flops;
    p.bytes += static_cast<f64>(step.bytes);
    trace_.add({.name = step.label,
                .track = Trace::Track::Device,
                .begin = at,
                .seconds = seconds[i],
                .workgroups = step.groups,
                .flops = step.flops,
                .bytes = step.bytes});
    at += seconds[i];
  }
  trace_.add({.name = fmt::format("run {} dispatches", seconds.size()),
              .begin = begin,
              .seconds = trace_.now() - begin});
}

std::unique_ptr<Graph> EngineCore::take_pending() {
  return std::exchange(graph_, std::make_unique<Graph>(*this));
}

void EngineCore::run_batch(std::unique_ptr<Graph> batch, bool timed) {
  ++counters_.flushes;
  Ready ready;
  try {
    ready = ready_for(*batch);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::BackendFailure) {  // a lost device computes nothing more
      const graph::StageRecords failed = last_compilation_;
      salvage(*batch);
      last_compilation_ = failed;  // and not what salvaging compiled
    }
    throw;
  }
  run(*batch, ready, timed);
}

void EngineCore::flush(bool timed) {
  if (capturing_ || graph_->empty()) return;
  if (watch_ && watch_->refusal.empty()) {
    watch_->refusal = "flush: the step ran in parts, expected one batch without a flush in between";
  }
  // The graph leaves first: if anything below throws, values of it are lost but the engine is
  // whole.
  run_batch(take_pending(), timed);
}

EngineCore::Ready EngineCore::ready_for(const Graph& graph) {
  Ready ready{program_of(graph, false), {}};
  for (u64 bytes : ready.program->storage_bytes()) ready.storages.push_back(allocate(bytes));
  reserve_arena(ready.program->arena_bytes());
  return ready;
}

void EngineCore::run(Graph& batch, const Ready& ready, bool timed) {
  const std::shared_ptr<Program>& program = ready.program;
  leaf_addresses_.clear();
  for (const graph::Leaf& leaf : batch.leaves)
    leaf_addresses_.push_back(leaf.tensor->storage()->address());
  storage_addresses_.clear();
  for (const StorageRef& s : ready.storages) storage_addresses_.push_back(s->address());
  const auto code = first_code_.find(program.get());
  program->fill({.leaves = leaf_addresses_,
                 .storages = storage_addresses_,
                 .arena = arena_.address,
                 .scalars = batch.scalars,
                 .status = status_.address,
                 .check_code = code == first_code_.end() ? 0 : code->second},
                list_);
  submit_list(*program, list_, timed);
  bind_results(batch, *program, ready.storages);
}

// Values that users hold are ready now, in the order of the device's work.
void EngineCore::bind_results(Graph& batch, const Program& program,
                              const std::vector<StorageRef>& storages) {
  u32 next = 0;
  for (graph::Node& node : batch.nodes) {
    const bool in_storage =
        node.op->info.kind == graph::OpKind::Effect && node.target != graph::kNoNode;
    for (graph::Output& out : node.outputs) {
      if (!out.holder) continue;
      graph::Tensor* holder = out.holder;
      if (in_storage) {
        holder->bind_storage(holder->storage());
        continue;
      }
      const Program::Result& r = program.results()[next++];
      holder->bind_storage(r.shares_leaf ? batch.leaves[r.storage].tensor->storage()
                                         : storages[r.storage]);
    }
  }
}

Event EngineCore::last_event() const {
  Event e;
  e.core_ = Ref<graph::Recorder>(const_cast<EngineCore*>(this));
  e.ticket_ = last_ticket_;
  e.timed_ = last_timed_;
  return e;
}

void EngineCore::wait() {
  flush();
  wait(last_ticket_);
}

void EngineCore::wait(device::Ticket ticket) {
  device_->wait(ticket);
  raise_bad_index();
}

void EngineCore::raise_bad_index() {
  if (!status_used_ || !options_.check_indices) return;
  status_used_ = false;
  u32 words[3];
  device_->read(status_, 0, words, sizeof words);
  if (words[0] == 0) return;
  const u32 zeros[3] = {};
  device_->write(status_, 0, zeros, sizeof zeros);
  auto it = check_codes_.upper_bound(words[0] - 1);
  OA_CHECK(it != check_codes_.begin());
  --it;
  const Program::Check& check = it->second->checks()[words[0] - 1 - it->first];
  fail(ErrorKind::OutOfRange, check.op, "index out of range at row {}, got {}, expected 0 to {}",
       words[1], static_cast<i32>(words[2]), check.limit - 1);
}

// --- Reports ------------------------------------------------------------------------------------

std::vector<KernelProfile> EngineCore::profile() const {
  std::vector<KernelProfile> list;
  for (const auto& [label, p] : profile_) list.push_back(p);
  std::sort(list.begin(), list.end(),
            [](const KernelProfile& a, const KernelProfile& b) { return a.seconds > b.seconds; });
  return list;
}

void EngineCore::write_trace(const std::filesystem::path& path) const {
  if (!options_.profile) {
    fail(ErrorKind::FailedPrecondition, "write_trace",
         "the engine keeps no trace, expected one opened with EngineOptions::profile");
  }
  const std::string text = trace_.chrome_json(device_->info().name);
  write_file(path, {reinterpret_cast<const u8*>(text.data()), text.size()});
}

MemoryUse EngineCore::memory() const {
  return {.device = device_->memory_report(),
          .values_bytes = values_bytes_,
          .kept_bytes = pool_.kept_bytes(),
          .arena_bytes = arena_.bytes};
}

}  // namespace oa
