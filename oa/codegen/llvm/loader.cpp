// ObjectLoader: ORC links every object into a library (JITDylib) of its own, so objects may share
// symbol names and each can be dropped. Libraries of dropped objects are cleared and used again.
#include <llvm-c/Core.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/Orc.h>

#include <cstring>
#include <functional>
#include <mutex>

#include "oa/codegen/llvm/compile.h"
#include "oa/codegen/llvm/initialise.h"
#include "oa/core/error.h"

namespace oa::codegen {
namespace {

std::string message(LLVMErrorRef error) {
  char* text = LLVMGetErrorMessage(error);
  std::string copy = text;
  LLVMDisposeErrorMessage(text);
  return copy;
}

void check(LLVMErrorRef error, const char* what) {
  if (error) fail(ErrorKind::BackendFailure, "cpu::load", "{}: {}", what, message(error));
}

void ignore_report(void*, LLVMErrorRef error) {
  LLVMConsumeError(error);
}  // also returned by calls

struct Found {
  LLVMErrorRef error = nullptr;
  u64 address = 0;
};

void on_lookup(LLVMErrorRef error, LLVMOrcCSymbolMapPairs pairs, size_t count, void* context) {
  auto* found = static_cast<Found*>(context);
  found->error = error;
  if (!error && count == 1) found->address = pairs[0].Sym.Address;
}

}  // namespace

class ObjectLoader::Jit : public std::enable_shared_from_this<ObjectLoader::Jit> {
 public:
  Jit() {
    initialise_llvm();
    check(LLVMOrcCreateLLJIT(&jit_, nullptr), "starting the linker");
    session_ = LLVMOrcLLJITGetExecutionSession(jit_);
    LLVMOrcExecutionSessionSetErrorReporter(session_, ignore_report, nullptr);
  }
  ~Jit() {
    if (const LLVMErrorRef error = LLVMOrcDisposeLLJIT(jit_)) LLVMConsumeError(error);
  }
  Jit(const Jit&) = delete;
  Jit& operator=(const Jit&) = delete;

  std::unique_ptr<LoadedCode> load(std::span<const u8> object, const std::string& symbol);

  void release(LLVMOrcJITDylibRef library) {
    const std::lock_guard lock(mutex_);
    if (const LLVMErrorRef error = LLVMOrcJITDylibClear(library)) {
      LLVMConsumeError(error);
    } else {
      free_.push_back(library);
    }
  }

 private:
  LLVMOrcJITDylibRef library();

  std::mutex mutex_;
  LLVMOrcLLJITRef jit_ = nullptr;
  LLVMOrcExecutionSessionRef session_ = nullptr;
  std::vector<LLVMOrcJITDylibRef> free_;
  u64 libraries_ = 0;
};

namespace {

class Loaded : public LoadedCode {
 public:
  Loaded(CpuFunction function, std::function<void()> release) : release_(std::move(release)) {
    function_ = function;
  }
  ~Loaded() override { release_(); }

 private:
  std::function<void()> release_;
};

}  // namespace

LLVMOrcJITDylibRef ObjectLoader::Jit::library() {
  if (!free_.empty()) {
    const LLVMOrcJITDylibRef library = free_.back();
    free_.pop_back();
    return library;
  }
  const std::string name = fmt::format("oa{}", libraries_++);
  const LLVMOrcJITDylibRef library =
      LLVMOrcExecutionSessionCreateBareJITDylib(session_, name.c_str());
  // Code may call memset, and libm where the CPU lacks an instruction.
  LLVMOrcDefinitionGeneratorRef process = nullptr;
  check(LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(
            &process, LLVMOrcLLJITGetGlobalPrefix(jit_), nullptr, nullptr),
        "symbols of the process");
  LLVMOrcJITDylibAddGenerator(library, process);
  return library;
}

std::unique_ptr<LoadedCode> ObjectLoader::Jit::load(std::span<const u8> object,
                                                    const std::string& symbol) {
  const std::lock_guard lock(mutex_);
  const LLVMOrcJITDylibRef into = library();
  Found found;
  const auto drop = [&] {
    if (const LLVMErrorRef error = LLVMOrcJITDylibClear(into)) {
      LLVMConsumeError(error);
    } else {
      free_.push_back(into);
    }
  };
  LLVMMemoryBufferRef buffer = LLVMCreateMemoryBufferWithMemoryRangeCopy(
      reinterpret_cast<const char*>(object.data()), object.size(), symbol.c_str());
  if (const LLVMErrorRef error = LLVMOrcLLJITAddObjectFile(jit_, into, buffer)) {
    const std::string text = message(error);
    drop();
    fail(ErrorKind::BackendFailure, "cpu::load", "object of {}: {}", symbol, text);
  }
  LLVMOrcCJITDylibSearchOrderElement where{into,
                                           LLVMOrcJITDylibLookupFlagsMatchExportedSymbolsOnly};
  LLVMOrcCLookupSetElement what{LLVMOrcLLJITMangleAndIntern(jit_, symbol.c_str()),
                                LLVMOrcSymbolLookupFlagsRequiredSymbol};
  LLVMOrcExecutionSessionLookup(session_, LLVMOrcLookupKindStatic, &where, 1, &what, 1, on_lookup,
                                &found);
  if (found.error || !found.address) {
    const std::string text = found.error ? message(found.error) : "no address";
    drop();
    fail(ErrorKind::BackendFailure, "cpu::load", "symbol {}: {}", symbol, text);
  }
  CpuFunction function = nullptr;
  static_assert(sizeof function == sizeof found.address);
  std::memcpy(&function, &found.address, sizeof function);
  return std::make_unique<Loaded>(function,
                                  [self = shared_from_this(), into] { self->release(into); });
}

ObjectLoader::ObjectLoader() : jit_(std::make_shared<Jit>()) {}
ObjectLoader::~ObjectLoader() = default;

std::unique_ptr<LoadedCode> ObjectLoader::load(std::span<const u8> object,
                                               const std::string& symbol) {
  return jit_->load(object, symbol);
}

}  // namespace oa::codegen
