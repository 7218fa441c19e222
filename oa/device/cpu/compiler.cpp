// The way of a kernel through the caches. A disk entry holds one object file.
#include "oa/device/cpu/compiler.h"

#include <algorithm>
#include <exception>

#include "oa/core/error.h"
#include "oa/kernel/hash.h"

namespace oa::device {
namespace {

// Counts changes of the calling convention that keep the IR as it is.
constexpr u32 kAbiVersion = 1;
constexpr std::string_view kCacheKind = "cpu";
// A name of its own for each kernel would keep equal kernels from sharing an entry.
constexpr const char* kSymbol = "oa_kernel";
// Code kept in memory for kernels that nobody holds now.
constexpr size_t kMaxKept = 4096;

constexpr f64 kFlopsPerNs = 20;  // of one thread, in a good kernel

}  // namespace

CpuExecutable::CpuExecutable(std::string name, std::shared_ptr<const codegen::LoadedCode> code,
                             u32 params, GroupCost cost, std::shared_ptr<const void> owner)
    : Executable(std::move(name)),
      code_(std::move(code)),
      params_(params),
      cost_(cost),
      owner_(std::move(owner)) {}

f32 CpuExecutable::group_ns(u32 groups, f64 flops) const {
  if (cost_.certain || flops <= 0 || groups == 0) return static_cast<f32>(cost_.ns);
  return static_cast<f32>(flops / groups / kFlopsPerNs);
}

CpuCompiler::CpuCompiler(const kernel::Target& target, codegen::CpuTarget cpu,
                         const std::string& cache_dir, ThreadPool& pool,
                         std::shared_ptr<const void> owner)
    : target_(target),
      cpu_(std::move(cpu)),
      pool_(pool),
      owner_(std::move(owner)),
      disk_(cache_dir) {
  Hasher h;
  h.add(kAbiVersion);
  h.add(codegen::kLoweringVersion);
  h.text(codegen::llvm_version());
  h.text(cpu_.cpu);
  h.text(cpu_.features);
  machine_ = h.finish();
}

Hash128 CpuCompiler::key_of(const kernel::Kernel& kernel) const {
  Hasher h;
  h.add(machine_.lo);
  h.add(machine_.hi);
  const Hash128 program = kernel::hash(kernel);
  h.add(program.lo);
  h.add(program.hi);
  return h.finish();
}

void CpuCompiler::build(Job& job) {
  job.code.cost = estimate_group(*job.kernel, target_);
  if (const auto object = disk_.get(job.key, kCacheKind)) {
    try {
      job.code.loaded = loader_.load(*object, kSymbol);
      job.from_disk = true;
      return;
    } catch (const Error&) {
      // The checksum was right, yet the linker refuses it: compile it anew.
    }
  }
  const std::vector<u8> object = codegen::compile_object(*job.kernel, cpu_, kSymbol);
  job.code.loaded = loader_.load(object, kSymbol);
  disk_.put(job.key, kCacheKind, object);
}

std::vector<std::shared_ptr<Executable>> CpuCompiler::compile(
    std::span<const kernel::Kernel* const> kernels) {
  std::vector<Hash128> keys;
  std::vector<Job> jobs;
  std::unordered_map<Hash128, size_t> job_of;
  for (const kernel::Kernel* kernel : kernels) {
    const Hash128& key = keys.emplace_back(key_of(*kernel));
    if (memory_.contains(key) || !job_of.emplace(key, jobs.size()).second) {
      ++statistics_.from_memory;
    } else {
      jobs.push_back({kernel, key});
    }
  }
  pool_.for_each(static_cast<u32>(jobs.size()), [&](u32 i) {
    try {
      build(jobs[i]);
    } catch (...) {
      jobs[i].error = std::current_exception();
    }
  });
  // What did compile stays on disk; nothing else has changed if one of them fails.
  for (const Job& job : jobs)
    if (job.error) std::rethrow_exception(job.error);

  for (Job& job : jobs) {
    ++(job.from_disk ? statistics_.from_disk : statistics_.compiled);
    memory_.emplace(job.key, std::move(job.code));
  }
  std::vector<std::shared_ptr<Executable>> result;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const Code& code = memory_.at(keys[i]);
    result.push_back(std::make_shared<CpuExecutable>(kernels[i]->name, code.loaded,
                                                     kernels[i]->params, code.cost, owner_));
  }
  if (memory_.size() > kMaxKept)
    std::erase_if(memory_, [](const auto& e) { return e.second.loaded.use_count() == 1; });
  return result;
}

}  // namespace oa::device
