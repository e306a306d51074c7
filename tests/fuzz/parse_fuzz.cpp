// Fuzz target for the .ug parser. Whatever the bytes are, parse() either throws an Error that names
// its place, or returns a graph whose printed form parses back to the same print.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "fuzz_counters.h"
#include "ir/text.h"

namespace {

[[noreturn]] void fail(const char* law, const std::string& detail) {
  std::fprintf(stderr, "law broken: %s\n%s\n", law, detail.c_str());
  std::abort();
}

}  // namespace

FuzzCounters fuzz_counters;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  ParseLimits limits;
  limits.bytes = size_t(1) << 20;
  limits.ops = 10'000;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string printed;
  try {
    printed = print(parse(text, "input.ug", limits));
  } catch (const Error& error) {
    ++fuzz_counters.rejected;
    if (!error.location() || error.location()->line < 1)
      fail("every message has a place", error.what());
    return 0;
  }
  ++fuzz_counters.accepted;
  std::string again;
  try {
    again = print(parse(printed, "printed.ug", limits));
  } catch (const Error& error) {
    fail("what is printed can be parsed", std::string(error.what()) + "\n" + printed);
  }
  if (again != printed) fail("print(parse(print(g))) == print(g)", printed + "\n---\n" + again);
  return 0;
}
