#include "backend/fmt.h"

#include <algorithm>

#include "base/check.h"
#include "base/text.h"

namespace tessera {
namespace {

// `piece` gives the text of a name: one digit, or letters.
template <class F> std::string with_pieces(std::string_view pattern, F piece) {
  std::string out;
  for (;;) {
    const size_t at = pattern.find('$');
    out += pattern.substr(0, at);
    if (at == pattern.npos) return out;
    pattern.remove_prefix(at + 1);
    const bool braces = pattern.starts_with('{');
    pattern.remove_prefix(braces);
    size_t length = pattern.empty() ? 0 : 1;
    while (length < pattern.size() && !is_digit(pattern[0]) && is_alpha(pattern[length])) ++length;
    out += piece(pattern.substr(0, length));
    pattern.remove_prefix(length + braces);
  }
}

}  // namespace

std::string filled(std::string_view pattern, const Piece* pieces, size_t count) {
  return with_pieces(
      pattern,
      [&](std::string_view name) -> const std::string& {
        const size_t which = name.empty() ? count : size_t(name[0] - '0');
        CHECK(which < count) << "'" << pattern << "' has " << count << " arguments";
        return pieces[which].text;
      });
}

std::string Names::fill(std::string_view pattern) const {
  return with_pieces(
      pattern,
      [&](std::string_view name) -> const std::string& {
        const auto known = pieces_.find(name);
        CHECK(known != pieces_.end()) << "nothing is called $" << name;
        return known->second.text;
      });
}

void Names::write(Code& code, std::string_view passage) const {
  passage.remove_prefix(1);  // the line that opens it
  const size_t indent = passage.find_first_not_of(' ');
  const auto base = std::string(size_t(2 * code.indent()), ' ');
  int open = 0;  // the braces of a ${name} have each other
  for (std::string_view line : split(passage, '\n')) {
    line.remove_prefix(indent);
    code.append(base + fill(line) + "\n");
    open += int(std::ranges::count(line, '{') - std::ranges::count(line, '}'));
  }
  code.set_indent(code.indent() + open);
}

}  // namespace tessera
