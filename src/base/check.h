// Checks for what can only be a bug of Tessera: `CHECK(cond) << context` prints and aborts.
// They are on in every build; a user's mistake throws tessera::Error instead (base/error.h).
#pragma once

#include <sstream>

namespace tessera {

// Marks a place that no execution reaches; prints `what` and aborts if one does.
[[noreturn]] void unreachable(const char* what);

namespace detail {

// Collects the context of a failed check; its destructor prints it and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

// `&` binds weaker than `<<`, so the whole context is streamed before the result is dropped.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace detail
}  // namespace tessera

#define CHECK(cond)                                                                                \
  (cond) ? static_cast<void>(0)                                                                    \
         : ::tessera::detail::Voidify() &                                                          \
               ::tessera::detail::CheckFailure(__FILE__, __LINE__, #cond).stream()
