#include "oa/core/error.h"

namespace oa {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::InvalidArgument: return "InvalidArgument";
    case ErrorKind::NotReady: return "NotReady";
    case ErrorKind::BackendUnavailable: return "BackendUnavailable";
    case ErrorKind::BackendFailure: return "BackendFailure";
    case ErrorKind::UnsupportedBackendVersion: return "UnsupportedBackendVersion";
    case ErrorKind::NoSuitableDevice: return "NoSuitableDevice";
    case ErrorKind::MissingCapability: return "MissingCapability";
    case ErrorKind::ResourceExhausted: return "ResourceExhausted";
    case ErrorKind::FailedPrecondition: return "FailedPrecondition";
    case ErrorKind::OutOfRange: return "OutOfRange";
    case ErrorKind::NotFound: return "NotFound";
    case ErrorKind::AlreadyExists: return "AlreadyExists";
    case ErrorKind::Aborted: return "Aborted";
    case ErrorKind::CallbackFailure: return "CallbackFailure";
    case ErrorKind::CheckpointCorrupt: return "CheckpointCorrupt";
    case ErrorKind::DataLoss: return "DataLoss";
    case ErrorKind::Internal: return "Internal";
    case ErrorKind::Io: return "Io";
  }
  return "Unknown";
}

Error::Error(ErrorKind kind, std::string op, std::string message)
    : kind_(kind), op_(std::move(op)), message_(std::move(message)), text_(op_ + ": " + message_) {}

Error Error::callback(std::string message) {
  return Error(ErrorKind::CallbackFailure, "callback", std::move(message));
}

void check_failed(const char* condition, const char* file, int line) {
  throw Error(ErrorKind::Internal, "oa",
              fmt::format("broken invariant `{}` at {}:{}", condition, file, line));
}

}  // namespace oa
