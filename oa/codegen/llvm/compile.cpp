// The target, the pass list, and the way from a kernel to an object or to text.
#include "oa/codegen/llvm/compile.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>

#include <mutex>

#include "oa/codegen/llvm/initialise.h"
#include "oa/codegen/llvm/lower.h"
#include "oa/core/error.h"

namespace oa::codegen {
namespace {

// Proven: larger pipelines cost two to three times as much and give the same run time.
constexpr const char* kPasses =
    "function(sroa,early-cse<memssa>,instcombine<no-verify-fixpoint>,simplifycfg,loop-mssa(licm),"
    "early-cse)";

std::string taken(char* message) {
  std::string text = message ? message : "";
  LLVMDisposeMessage(message);
  return text;
}

// LLVM's machine for a target. Making one costs a good part of a small kernel's compilation, so
// each thread keeps the last.
class Machine {
 public:
  explicit Machine(const CpuTarget& target) : cpu_(target.cpu), features_(target.features) {
    initialise_llvm();
    char* text = LLVMGetDefaultTargetTriple();
    triple = taken(text);
    LLVMTargetRef llvm_target = nullptr;
    char* message = nullptr;
    if (LLVMGetTargetFromTriple(triple.c_str(), &llvm_target, &message)) {
      fail(ErrorKind::BackendUnavailable, "codegen", "{}", taken(message));
    }
    ref = LLVMCreateTargetMachine(llvm_target, triple.c_str(), target.cpu.c_str(),
                                  target.features.c_str(), LLVMCodeGenLevelDefault, LLVMRelocPIC,
                                  LLVMCodeModelDefault);
  }
  ~Machine() { LLVMDisposeTargetMachine(ref); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  static Machine& of(const CpuTarget& target) {
    thread_local std::unique_ptr<Machine> last;
    if (!last || last->cpu_ != target.cpu || last->features_ != target.features) {
      last = std::make_unique<Machine>(target);
    }
    return *last;
  }

  LLVMTargetMachineRef ref = nullptr;
  std::string triple;

 private:
  std::string cpu_;
  std::string features_;
};

// A module on its way from the IR to code, with everything it needs, owned by this call.
class Compilation {
 public:
  Compilation(const kernel::Kernel& kernel, const CpuTarget& target, const std::string& symbol)
      : machine_(Machine::of(target).ref) {
    context_ = LLVMContextCreate();
    module_ = LLVMModuleCreateWithNameInContext(symbol.c_str(), context_);
    LLVMSetTarget(module_, Machine::of(target).triple.c_str());
    const LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(machine_);
    LLVMSetModuleDataLayout(module_, layout);
    LLVMDisposeTargetData(layout);
    try {
      const Lowering lowering(kernel, target, module_, symbol);
      verify(kernel.name);
    } catch (...) {
      dispose();
      throw;
    }
  }
  ~Compilation() { dispose(); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  void optimise() {
    const LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
    const LLVMErrorRef error = LLVMRunPasses(module_, kPasses, machine_, options);
    LLVMDisposePassBuilderOptions(options);
    if (error) {
      char* text = LLVMGetErrorMessage(error);
      const std::string message = text;
      LLVMDisposeErrorMessage(text);
      fail(ErrorKind::Internal, "codegen", "LLVM's passes: {}", message);
    }
  }

  std::vector<u8> emit(LLVMCodeGenFileType type) {
    LLVMMemoryBufferRef buffer = nullptr;
    char* message = nullptr;
    if (LLVMTargetMachineEmitToMemoryBuffer(machine_, module_, type, &message, &buffer)) {
      fail(ErrorKind::Internal, "codegen", "LLVM's code generator: {}", taken(message));
    }
    const char* begin = LLVMGetBufferStart(buffer);
    std::vector<u8> bytes(begin, begin + LLVMGetBufferSize(buffer));
    LLVMDisposeMemoryBuffer(buffer);
    return bytes;
  }

  std::string text() { return taken(LLVMPrintModuleToString(module_)); }

 private:
  void verify(const std::string& name) {
    char* message = nullptr;
    const bool broken = LLVMVerifyModule(module_, LLVMReturnStatusAction, &message);
    const std::string text = taken(message);
    if (broken) fail(ErrorKind::Internal, "codegen", "LLVM refuses {}: {}", name, text);
  }

  void dispose() {
    LLVMDisposeModule(module_);
    LLVMContextDispose(context_);
  }

  LLVMTargetMachineRef machine_;
  LLVMContextRef context_ = nullptr;
  LLVMModuleRef module_ = nullptr;
};

}  // namespace

void initialise_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
  });
}

CpuTarget CpuTarget::host() {
  initialise_llvm();
  CpuTarget t{.cpu = taken(LLVMGetHostCPUName()), .features = taken(LLVMGetHostCPUFeatures())};
  if (t.has("avx512f") && t.has("avx512vl") && t.has("avx512bw") && t.has("avx512dq")) {
    t.vector_bytes = 64;
    t.vector_registers = 32;
  } else if (t.has("avx")) {
    t.vector_bytes = 32;
  }
  return t;
}

bool CpuTarget::has(const std::string& feature) const {
  const std::string wanted = "+" + feature;
  for (size_t at = features.find(wanted); at != std::string::npos;
       at = features.find(wanted, at + 1)) {
    const size_t end = at + wanted.size();
    if (end == features.size() || features[end] == ',') return true;
  }
  return false;
}

std::vector<u8> compile_object(const kernel::Kernel& kernel, const CpuTarget& target,
                               const std::string& symbol) {
  Compilation c(kernel, target, symbol);
  c.optimise();
  return c.emit(LLVMObjectFile);
}

std::string compile_to_text(const kernel::Kernel& kernel, const CpuTarget& target, CodeText form) {
  Compilation c(kernel, target, "kernel");
  if (form == CodeText::Ir) return c.text();
  c.optimise();
  if (form == CodeText::OptimisedIr) return c.text();
  const std::vector<u8> bytes = c.emit(LLVMAssemblyFile);
  return std::string(bytes.begin(), bytes.end());
}

std::string llvm_version() {
  unsigned major = 0, minor = 0, patch = 0;
  LLVMGetVersion(&major, &minor, &patch);
  return fmt::format("{}.{}.{}", major, minor, patch);
}

}  // namespace oa::codegen
