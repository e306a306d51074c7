#include "base/error.h"

#include <utility>

#include "base/names.h"

namespace tessera {

const char* to_string(ErrorKind kind) {
  return name_of<ErrorKind::Internal>(kind, {"usage", "bad_input", "not_found", "unsupported",
                                             "tool_missing", "io", "cancelled", "out_of_memory",
                                             "device", "internal"});
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
