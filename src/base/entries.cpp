#include "base/entries.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr std::string_view kFirstLine = "tessera entry 1", kSeal = "sha256 ";

bool is_name(std::string_view name) {
  return !name.empty() && name[0] >= 'a' && name[0] <= 'z' &&
         std::ranges::all_of(
             name, [](char c) { return (c >= 'a' && c <= 'z') || is_digit(c) || c == '_'; });
}

class EntryReader {
 public:
  EntryReader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  EntryFields read() {
    if (text_.empty() || text_.back() != '\n') fail("it ends in the middle of a line");
    if (line() != kFirstLine) fail("it does not begin with '" + std::string(kFirstLine) + "'");
    const std::string_view seal = line();
    if (!seal.starts_with(kSeal)) fail("there is no checksum");
    if (seal.substr(kSeal.size()) != sha256_hex(std::string(text_)))
      fail("its checksum is another");
    EntryFields fields;
    std::set<std::string_view> names;
    while (!text_.empty()) {
      const std::string_view field = line();
      const size_t space = field.find(' ');
      if (space == field.npos || !is_name(field.substr(0, space))) fail("this is no field");
      const std::string_view name = field.substr(0, space), value = field.substr(space + 1);
      if (!names.insert(name).second) fail("'" + std::string(name) + "' is there twice");
      if (value.empty()) fail("'" + std::string(name) + "' has no value");
      fields.emplace_back(name, value == "|" ? block() : std::string(value));
    }
    return fields;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    bad_input(file_ + ":" + std::to_string(std::max(line_, 1)) + ": " + what);
  }
  std::string_view line() {
    const size_t end = std::min(text_.find('\n'), text_.size());
    const std::string_view taken = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    ++line_;
    return taken;
  }
  std::string block() {
    std::string value;
    int lines = 0;
    for (; text_.starts_with("  ") || text_.starts_with('\n'); ++lines) {
      if (lines > 0) value += '\n';
      const std::string_view own = line();
      value += own.substr(std::min<size_t>(2, own.size()));
    }
    if (lines == 0) fail("a block has no lines");
    return value;
  }

  std::string_view text_;
  const std::string& file_;
  int line_ = 0;
};

}  // namespace

std::string print_entry(const EntryFields& fields) {
  std::string text;
  std::set<std::string_view> names;
  for (const auto& [name, value] : fields) {
    if (!is_name(name) || !names.insert(name).second)
      bad_input("an entry has no field of the name " + in_quotes(name) + ", or has it twice");
    if (!value.empty() && value != "|" && value.find('\n') == value.npos) {
      text += name + " " + value + "\n";
      continue;
    }
    text += name + " |\n";
    const std::string lines = value.empty() ? "\n" : value + "\n";
    for (const std::string_view line : split(lines, '\n'))
      text += (line.empty() ? "" : "  ") + std::string(line) + "\n";
    text.pop_back();  // split() sees an empty line behind the last
  }
  return std::string(kFirstLine) + "\n" + std::string(kSeal) + sha256_hex(text) + "\n" + text;
}

EntryFields parse_entry(std::string_view text, const std::string& file) {
  return EntryReader(text, file).read();
}

std::optional<EntryFields> readable_entry(std::string_view text) {
  try {
    return parse_entry(text);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string_view field_of(const EntryFields& fields, std::string_view name) {
  const auto it = std::ranges::find(fields, name, &EntryFields::value_type::first);
  return it == fields.end() ? std::string_view() : std::string_view(it->second);
}

}  // namespace tessera
