// The logical device with its queue, and what happens to every call once it is lost.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "oa/core/error.h"
#include "oa/device/vulkan/physical.h"

namespace oa::device::vulkan {

// The name of a kernel, shared so that a report can name a kernel that is gone.
using Label = std::shared_ptr<const std::string>;

class Context {
 public:
  Context(std::shared_ptr<Instance> instance, Physical physical);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Instance& instance() const { return *instance_; }
  const Physical& physical() const { return physical_; }
  VkDevice device() const { return device_; }
  VkQueue queue() const { return queue_; }
  VkPipelineLayout layout() const { return layout_; }

  // Throws unless `result` is a success; VK_ERROR_DEVICE_LOST makes the device lost for good.
  void check(VkResult result, const char* op);
  // Throws the error of the loss if the device was lost, and then what the validation layers found.
  void require_sound();
  bool is_lost() const { return lost_.has_value(); }

  // Remembers what was submitted last, for the report of a loss.
  void note_submission(u64 value, std::span<const Label> last_kernels);
  void note_completed(u64 value) { completed_ = value; }

  VolkDeviceTable api{};  // public: the folder's code calls through it

 private:
  static constexpr size_t kLogged = 8;  // submissions remembered
  struct Submission {
    u64 value = 0;
    std::vector<Label> kernels;
  };

  [[noreturn]] void lose(const char* op);
  std::string running_kernels() const;
  std::string fault_text();

  std::shared_ptr<Instance> instance_;
  Physical physical_;
  VkDevice device_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  VkPipelineLayout layout_ = VK_NULL_HANDLE;
  std::array<Submission, kLogged> log_;
  size_t next_log_ = 0;
  u64 completed_ = 0;
  std::optional<Error> lost_;
};

}  // namespace oa::device::vulkan
