// Fuzz target for the parsers of patterns and of their loops. Whatever the bytes are, they throw an
// Error that names its place, or return what prints and parses back to the same print.
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/rational.h"
#include "fuzz_counters.h"
#include "search/patterns/code.h"
#include "search/patterns/pattern.h"

namespace {

[[noreturn]] void fail(const char* law, const std::string& detail) {
  std::fprintf(stderr, "law broken: %s\n%s\n", law, detail.c_str());
  std::abort();
}

// Of a body in C++ or CUDA nothing reaches a compiler but names of ours, declared ones (b_), words
// of a short list, numbers and marks: told here without the translator's own tables.
void closed(const tessera::patterns::Pattern& p, const tessera::patterns::Body& b) {
  using namespace tessera::patterns;
  Values values = settings(p)[0];
  int64_t size = 16;
  for (const std::string& s : p.symbols()) values[s] = size += 8;
  std::map<std::string, std::string> numbers;
  for (const std::string& n : p.numbers) numbers[n] = "0.5f";
  std::string text;
  if (b.called()) {
    // Of a call: a registered name, and arguments that are data.
    text = call_text(p, b, values, std::vector<tessera::Rational>(p.def.inputs().size()));
    for (const char c : b.operator_name)
      if (!isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.')
        fail("operators have names", b.operator_name);
    for (const char c : text)
      if (c < ' ' || c > '~' || c == '\\') fail("a call is plain data", text);
    return;
  }
  try {
    text = expand_code(p, b, values, numbers, "float").text;
  } catch (const tessera::Error&) {
    return;  // arrays or threads that do not fit these sizes
  }
  const bool raw = b.language == Language::Raw;
  for (const char c : {'#', '"', '\'', '\\', '@', '$', '`'})
    if (text.find(c) != std::string::npos) fail("no preprocessor, strings or escapes", text);
  if (raw) return;
  for (size_t at = text.find('&'); at != std::string::npos; at = text.find('&', at + 2))
    if (text.compare(at, 2, "&&") != 0) fail("no addresses", text);
  static const std::set<std::string> words = {
      "if",    "else", "for",  "while", "do",    "break", "continue", "true",   "false",
      "const", "int",  "long", "bool",  "float", "t_vec", "ts",       "shared", "at"};
  for (size_t i = 0; i < text.size();) {
    const auto letter = [&](size_t at) {
      return at < text.size() && (isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_');
    };
    const size_t from = i;
    while (letter(i)) ++i;
    if (i == from) {
      ++i;
      continue;
    }
    const std::string word = text.substr(from, i - from);
    const bool ours =
        word.size() > 2 && word[1] == '_' && (word[0] == 'b' || word[0] == 'f' || word[0] == 'h');
    if (!isdigit(static_cast<unsigned char>(word[0])) && !ours && !words.count(word))
      fail("a name that is not of bodies", word + " in\n" + text);
  }
}

std::string printed(std::string_view text, const char* file) {
  if (text.substr(0, 4) == "loop")
    return tessera::patterns::print(tessera::patterns::parse_loops(text, file));
  const tessera::patterns::Pattern p = tessera::patterns::parse_pattern(text, file);
  for (const tessera::patterns::Body& b : p.bodies)
    if (b.written()) closed(p, b);
  return print(p);
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
