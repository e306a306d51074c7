#include "base/error.h"

#include <utility>

#include "base/check.h"

namespace tessera {

const char* to_string(ErrorKind kind) {
  switch (kind) {
  case ErrorKind::Usage: return "usage";
  case ErrorKind::BadInput: return "bad_input";
  case ErrorKind::NotFound: return "not_found";
  case ErrorKind::Unsupported: return "unsupported";
  case ErrorKind::ToolMissing: return "tool_missing";
  case ErrorKind::Io: return "io";
  case ErrorKind::Cancelled: return "cancelled";
  case ErrorKind::OutOfMemory: return "out_of_memory";
  case ErrorKind::Device: return "device";
  case ErrorKind::Internal: return "internal";
  }
  unreachable("ErrorKind");
}

std::string to_string(const SourceLocation& location) {
  std::string text = location.file;
  if (location.line > 0) {
    text += ":" + std::to_string(location.line);
    if (location.col > 0) text += ":" + std::to_string(location.col);
  }
  return text;
}

Error::Error(ErrorKind kind, std::string message, std::optional<SourceLocation> location)
    : kind_(kind), message_(std::move(message)), location_(std::move(location)) {
  if (location_) what_ = to_string(*location_) + ": ";
  what_ += message_;
}

}  // namespace tessera
