// The one exception type that a user's mistake can cause, with its place in the input.
// Bugs of Tessera itself never throw: they fail a CHECK (base/check.h).
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace tessera {

enum class ErrorKind {
  Usage,        // a wrong flag, option or call
  BadInput,     // malformed or inconsistent program, file or data
  NotFound,     // a name, file or entry that does not exist
  Unsupported,  // legal input that Tessera does not handle (yet)
  ToolMissing,  // a compiler or library that has to be installed
  Io,           // the operating system refused: permissions, full disk, ...
  Cancelled,    // the user interrupted
  OutOfMemory,  // of a device
  Device,       // a GPU or its driver reports a failure
  Internal,     // a bug of Tessera that need not abort: a compiler rejects generated code, ...
};

const char* to_string(ErrorKind kind);

// A position in a text; lines and columns count from 1, 0 means "unknown".
struct SourceLocation {
  std::string file;
  int line = 0;
  int col = 0;
};

// "file:line:col", without the parts that are unknown.
std::string to_string(const SourceLocation& location);

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message, std::optional<SourceLocation> location = std::nullopt);

  ErrorKind kind() const { return kind_; }
  const std::string& message() const { return message_; }
  const std::optional<SourceLocation>& location() const { return location_; }

  // "file:line:col: message", or the bare message where no location is known.
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  ErrorKind kind_;
  std::string message_;
  std::optional<SourceLocation> location_;
  std::string what_;
};

[[noreturn]] inline void bad_input(const std::string& what) {
  throw Error(ErrorKind::BadInput, what);
}

}  // namespace tessera
