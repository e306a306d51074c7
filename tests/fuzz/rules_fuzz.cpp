// Fuzz target for the parser of rules. Whatever the bytes are, parse_rules() either throws an Error
// that names its place, or returns rules whose printed form parses back to the same print.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "fuzz_counters.h"
#include "search/rules/rule.h"

namespace {

[[noreturn]] void fail(const char* law, const std::string& detail) {
  std::fprintf(stderr, "law broken: %s\n%s\n", law, detail.c_str());
  std::abort();
}

std::string printed(std::string_view text, const char* file) {
  std::string all;
  for (const auto& rule : tessera::rules::parse_rules(text, file)) all += print(rule);
  return all;
}

}  // namespace

FuzzCounters fuzz_counters;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::Error;
  std::string once, again;
  try {
    once = printed({reinterpret_cast<const char*>(data), size}, "input.rules");
  } catch (const Error& error) {
    ++fuzz_counters.rejected;
    if (!error.location() || error.location()->line < 1)
      fail("every message has a place", error.what());
    return 0;
  }
  ++fuzz_counters.accepted;
  try {
    again = printed(once, "printed.rules");
  } catch (const Error& error) {
    fail("what is printed can be parsed", std::string(error.what()) + "\n" + once);
  }
  if (again != once) fail("printing what was printed prints the same", once + "\n---\n" + again);
  return 0;
}
