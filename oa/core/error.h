// The one exception type of the library, and the helper that builds its messages.
//
// Every message has the form `op: what is wrong, got X, expected Y`. A throwing call leaves every
// object as it was.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace oa {

enum class ErrorKind {
  InvalidArgument,            // bad value, shape, range or combination supplied by the caller
  NotReady,                   // the value is not complete yet (non-waiting reads)
  BackendUnavailable,         // a backend could not be loaded
  BackendFailure,             // an operation of a backend failed
  UnsupportedBackendVersion,  // the backend is too old
  NoSuitableDevice,           // no device fits the request
  MissingCapability,          // a needed device or runtime capability is absent
  ResourceExhausted,          // memory, queue, counter or address space used up
  FailedPrecondition,         // the call is not allowed in the present state
  OutOfRange,                 // index or numeric value outside its owner's range
  NotFound,                   // the named object is absent
  AlreadyExists,              // the named object is present already
  Aborted,                    // optimistic concurrency: stale revision
  CallbackFailure,            // an application callback failed
  CheckpointCorrupt,          // a persisted checkpoint fails its integrity rules
  DataLoss,                   // other external encoded data is truncated or malformed
  Internal,                   // the library violated its own invariant
  Io,                         // file-system failure
};

std::string_view to_string(ErrorKind kind);

class Error : public std::exception {
 public:
  // `message` without the op; what() is "op: message".
  Error(ErrorKind kind, std::string op, std::string message);

  ErrorKind kind() const noexcept { return kind_; }
  const std::string& op() const noexcept { return op_; }
  const std::string& message() const noexcept { return message_; }
  const char* what() const noexcept override { return text_.c_str(); }

  // An error that an application callback reports about itself.
  static Error callback(std::string message);

 private:
  ErrorKind kind_;
  std::string op_;
  std::string message_;
  std::string text_;
};

// Throws Error(kind, op, formatted text).
template <class... Args>
[[noreturn]] void fail(ErrorKind kind, std::string_view op, fmt::format_string<Args...> text,
                       Args&&... args) {
  throw Error(kind, std::string(op), fmt::format(text, std::forward<Args>(args)...));
}

// The commonest kind: the caller's mistake.
template <class... Args>
[[noreturn]] void invalid(std::string_view op, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorKind::InvalidArgument, std::string(op),
              fmt::format(text, std::forward<Args>(args)...));
}

// Our own bug: throws ErrorKind::Internal with the place and the broken condition.
[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace oa

// States an invariant of the library; never used for a caller's mistake.
#define OA_CHECK(condition) \
  ((condition) ? void(0) : ::oa::check_failed(#condition, __FILE__, __LINE__))
