// Fuzz target for the parsers of patterns and of their loops. Whatever the bytes are, they throw an
// Error that names its place, or return what prints and parses back to the same print.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "fuzz_counters.h"
#include "search/patterns/pattern.h"

namespace {

[[noreturn]] void fail(const char* law, const std::string& detail) {
  std::fprintf(stderr, "law broken: %s\n%s\n", law, detail.c_str());
  std::abort();
}

std::string printed(std::string_view text, const char* file) {
  if (text.substr(0, 4) == "loop")
    return tessera::patterns::print(tessera::patterns::parse_loops(text, file));
  return print(tessera::patterns::parse_pattern(text, file));
}

}  // namespace

FuzzCounters fuzz_counters;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::Error;
  std::string once, again;
  try {
    once = printed({reinterpret_cast<const char*>(data), size}, "input.pattern");
  } catch (const Error& error) {
    ++fuzz_counters.rejected;
    if (!error.location() || error.location()->line < 1)
      fail("every message has a place", error.what());
    return 0;
  }
  ++fuzz_counters.accepted;
  try {
    again = printed(once, "printed.pattern");
  } catch (const Error& error) {
    fail("what is printed can be parsed", std::string(error.what()) + "\n" + once);
  }
  if (again != once) fail("printing what was printed prints the same", once + "\n---\n" + again);
  return 0;
}
