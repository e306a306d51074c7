#include "backend/fmt.h"

#include <algorithm>

#include "base/text.h"

namespace tessera {

std::string Names::fill(std::string_view pattern) const {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '$') {
      out += pattern[i];
      continue;
    }
    const bool braces = pattern[i + 1] == '{';
    std::string name;
    for (i += braces ? 2 : 1; i < pattern.size() && is_alpha(pattern[i]); ++i) name += pattern[i];
    if (!braces) --i;
    const auto known = pieces_.find(name);
    CHECK(known != pieces_.end()) << "nothing is called $" << name;
    out += known->second.text;
  }
  return out;
}

void Names::write(Code& code, std::string_view passage) const {
  passage.remove_prefix(1);  // the line that opens it
  const size_t indent = passage.find_first_not_of(' ');
  const auto base = std::string(size_t(2 * code.indent()), ' ');
  int open = 0;
  for (std::string_view line : split(passage, '\n')) {
    if (line.find_first_not_of(' ') == std::string_view::npos) continue;
    line.remove_prefix(indent);
    code.append(base + fill(line) + "\n");
    open += int(std::ranges::count(line, '{') - std::ranges::count(line, '}'));
  }
  // Of ${name} each brace has its other one.
  code.set_indent(code.indent() + open);
}

}  // namespace tessera
