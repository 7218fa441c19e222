// The driver's compiled code is kept on disk per kernel, as the data of a pipeline cache that holds
// this one pipeline: so entries are bounded, shared between processes and dropped one by one.
#include "oa/device/vulkan/compiler.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "oa/kernel/hash.h"

namespace oa::device::vulkan {
namespace {

constexpr const char* kCacheKind = "vulkan-pipeline";
constexpr u32 kLoweringVersion = 2;     // raise it when the words of a kernel change
constexpr size_t kMaxPipelines = 8192;  // kept in memory though nobody uses them
constexpr size_t kMaxThreads = 8;

constexpr Trust kTrustAll{.fused_fma = true,
                          .exact_division = true,
                          .fragments = true,
                          .fragments_bf16 = true,
                          .fragments_subnormal = true};

// A pipeline cache for one pipeline.
class PipelineCache {
 public:
  PipelineCache(Context& context, std::span<const u8> data) : context_(context) {
    const VkPipelineCacheCreateInfo info{.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                                         .initialDataSize = data.size(),
                                         .pInitialData = data.data()};
    if (context_.api.vkCreatePipelineCache(context_.device(), &info, nullptr, &handle_) !=
        VK_SUCCESS) {
      handle_ = VK_NULL_HANDLE;  // pipelines do without
    }
  }
  ~PipelineCache() { context_.api.vkDestroyPipelineCache(context_.device(), handle_, nullptr); }
  PipelineCache(const PipelineCache&) = delete;
  PipelineCache& operator=(const PipelineCache&) = delete;

  VkPipelineCache handle() const { return handle_; }
  std::vector<u8> data() const {
    size_t size = 0;
    if (handle_ == VK_NULL_HANDLE ||
        context_.api.vkGetPipelineCacheData(context_.device(), handle_, &size, nullptr) !=
            VK_SUCCESS) {
      return {};
    }
    std::vector<u8> data(size);
    if (context_.api.vkGetPipelineCacheData(context_.device(), handle_, &size, data.data()) !=
        VK_SUCCESS) {
      return {};
    }
    data.resize(size);
    return data;
  }

 private:
  Context& context_;
  VkPipelineCache handle_ = VK_NULL_HANDLE;
};

Hash128 disk_key(const Physical& p, const codegen::spirv::VulkanTarget& target,
                 const Hash128& kernel) {
  Hasher h;
  h.add(kLoweringVersion);
  h.add(kernel.lo);
  h.add(kernel.hi);
  h.bytes(p.cache_uuid.data(), p.cache_uuid.size());
  h.text(p.info.name);
  h.text(p.info.driver);
  // The rest of the target follows from the driver; these two depend on trials.
  h.add(target.fused_fma);
  h.add(target.exact_division);
  return h.finish();
}

}  // namespace

codegen::spirv::VulkanTarget lowering_target(const Physical& p, const Trust& trust) {
  return {.subgroup = p.target.subgroup,
          .push_constant_bytes = p.push_bytes,
          .int64 = true,
          .int16 = p.has_i16,
          .int8 = p.has_i8,
          .f16 = p.has_f16,
          .f64 = p.has_f64,
          .u8_storage = p.storage8,
          .f16_storage = p.storage16,
          .coop_matrix = p.target.fragments && trust.fragments,
          .bf16 = p.target.fragments_bf16 && trust.fragments_bf16,
          .vulkan_memory_model = p.memory_model,
          .preserve_specials_f32 = p.preserve_specials_f32,
          .preserve_specials_f64 = p.preserve_specials_f64,
          .round_even_f16 = p.round_even_f16,
          .round_even_f32 = p.round_even_f32,
          .fused_fma = trust.fused_fma,
          .exact_division = trust.exact_division};
}

Compiler::Compiler(std::shared_ptr<Context> context, const DeviceOptions& options)
    : context_(std::move(context)),
      target_(lowering_target(context_->physical(), kTrustAll)),
      disk_(options.cache_dir),
      use_disk_(!context_->physical().is_software()) {}  // those compile at the first dispatch

void Compiler::use(const codegen::spirv::VulkanTarget& target) {
  target_ = target;
  pipelines_.clear();
}

std::shared_ptr<Pipeline> Compiler::build(const kernel::Kernel& kernel, const Hash128& hash) {
  const std::vector<u32> words = codegen::spirv::compile_spirv(kernel, target_);
  const PipelineSource source{.name = kernel.name,
                              .words = words,
                              .width = kernel.width,
                              .subgroup = kernel.subgroup,
                              .params = kernel.params,
                              .shared_bytes = codegen::spirv::shared_bytes(kernel, target_)};
  if (!use_disk_) return std::make_shared<Pipeline>(context_, VK_NULL_HANDLE, source);
  const Hash128 key = disk_key(context_->physical(), target_, hash);
  const std::optional<std::vector<u8>> stored = disk_.get(key, kCacheKind);
  PipelineCache cache(*context_, stored ? std::span<const u8>(*stored) : std::span<const u8>());
  auto pipeline = std::make_shared<Pipeline>(context_, cache.handle(), source);
  if (!stored) {
    if (const std::vector<u8> data = cache.data(); !data.empty()) disk_.put(key, kCacheKind, data);
  }
  return pipeline;
}

std::vector<std::shared_ptr<Executable>> Compiler::compile(
    std::span<const kernel::Kernel* const> kernels) {
  struct Job {
    const kernel::Kernel* kernel;
    Hash128 hash;
    std::shared_ptr<Pipeline> pipeline;
    std::exception_ptr error;
  };
  std::vector<Hash128> hashes;
  std::vector<Job> jobs;
  for (const kernel::Kernel* kernel : kernels) {
    const Hash128 hash = kernel::hash(*kernel);
    hashes.push_back(hash);
    const bool queued =
        std::any_of(jobs.begin(), jobs.end(), [&](const Job& job) { return job.hash == hash; });
    if (!queued && !pipelines_.contains(hash)) jobs.push_back({kernel, hash, nullptr, nullptr});
  }

  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i = next++; i < jobs.size(); i = next++) {
      try {
        jobs[i].pipeline = build(*jobs[i].kernel, jobs[i].hash);
      } catch (...) {
        jobs[i].error = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const size_t threads = std::min(
        {jobs.size(), kMaxThreads, size_t{std::max(1u, std::thread::hardware_concurrency())}});
    for (size_t t = 1; t < threads; ++t) helpers.emplace_back(work);
    work();
  }
  for (const Job& job : jobs) {
    if (job.error) std::rethrow_exception(job.error);
  }

  if (pipelines_.size() + jobs.size() > kMaxPipelines) {
    std::erase_if(pipelines_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  made_ += jobs.size();
  for (Job& job : jobs) pipelines_.emplace(job.hash, std::move(job.pipeline));
  std::vector<std::shared_ptr<Executable>> result;
  for (const Hash128& hash : hashes) result.push_back(pipelines_.at(hash));
  return result;
}

}  // namespace oa::device::vulkan
