// Text that is read and written: one form of numbers, and a scanner that knows its place.
#pragma once
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Of names and numbers. Letters are ASCII's and "_".
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_alpha(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

inline std::string num(int64_t n) { return std::to_string(n); }
// x to so many significant digits, as %g prints it; with so many decimals.
std::string significant(double x, int digits);
std::string decimals(double x, int digits);
// The shortest text, from six digits on, that reads back as x.
std::string exact(double x);

// The number that a whole text is, if it is one that T holds.
template <class T> std::optional<T> number_from(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// What stands between separators: n + 1 parts for n of them, none of an empty text.
std::vector<std::string_view> split(std::string_view text, char separator);

// What `text_of` says of each item, with a separator between them.
template <class Items, class TextOf>
std::string joined(const Items& items, const char* separator, TextOf text_of) {
  std::string text;
  size_t n = 0;
  for (const auto& item : items) (text += n++ == 0 ? "" : separator) += text_of(item);
  return text;
}
// Whole numbers with a separator between them.
template <class Numbers> std::string joined(const Numbers& numbers, const char* separator = ",") {
  return joined(
      numbers, separator, [](auto n) { return std::to_string(n); });
}

// A text on one line, newlines and backslashes escaped; and back.
std::string one_line(std::string_view text);
std::string from_one_line(std::string_view line);

// As a message quotes it: printable, and not long.
std::string in_quotes(std::string_view text);

// Reads a text from left to right; what it complains about has its place.
class Scanner {
 public:
  // The text and the file's name outlive the scanner. `line`: the number of the first line.
  Scanner(std::string_view text, const std::string& file, int line = 1)
      : text_(text), file_(file), first_line_(line) {}

  // Throws Error (BadInput) with line and column, here or there.
  [[noreturn]] void fail(const std::string& what) const { fail(what, at_); }
  [[noreturn]] void fail(const std::string& what, size_t at) const;
  int line_of(size_t at) const;
  int column_of(size_t at) const;

  std::string_view text() const { return text_; }
  size_t at() const { return at_; }
  void go_to(size_t at) { at_ = at; }
  // The character here; '\0' behind the last.
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // Skips blanks within a line, and the comment that ends it ("# …"); tells where it is then.
  size_t skip();
  // And the ends of lines.
  void skip_lines();
  // Whether the line ends here (behind blanks); `end_of_line` fails if not.
  bool at_end();
  void end_of_line();
  // Takes a token if it is next. Words end where letters do; "*" is not half of "**".
  bool take(std::string_view token);
  void expect(std::string_view token);
  // Letters and digits; a letter is first. Where there are `more` characters, a digit may be.
  std::string word(const std::string& what, std::string_view more = "");
  // Digits, if any are next; fails beyond `most`.
  std::optional<int64_t> number(int64_t most);
  // What is left of the line; "the end of the line" if nothing is.
  std::string rest();

 private:
  std::string_view text_;
  const std::string& file_;
  int first_line_;
  size_t at_ = 0;
};

}  // namespace tessera
