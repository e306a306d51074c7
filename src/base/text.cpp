#include "base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"

namespace tessera {
namespace {

constexpr size_t kMostOfName = 100, kMostQuoted = 40;

}  // namespace

std::string significant(double x, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*g", digits, x);
  return text;
}

std::string decimals(double x, int digits) {
  char text[340];
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

std::string exact(double x) {
  std::string text;
  for (int digits = 6; digits <= 17; ++digits)
    if (text = significant(x, digits); std::isnan(x) || std::strtod(text.c_str(), nullptr) == x)
      break;
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
    if (text.empty()) parts.emplace_back();
  }
  return parts;
}

std::string one_line(std::string_view text) {
  std::string line;
  for (char c : text)
    if (c == '\n')
      line += "\\n";
    else
      line += c == '\\' ? "\\\\" : std::string(1, c);
  return line;
}

std::string from_one_line(std::string_view line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool escape = line[i] == '\\' && i + 1 < line.size();
    if (escape) ++i;
    text += escape && line[i] == 'n' ? '\n' : line[i];
  }
  return text;
}

std::string in_quotes(std::string_view text) {
  std::string shown;
  for (char c : text.substr(0, kMostQuoted)) shown += c >= 0x20 && c < 0x7f ? c : '?';
  return "'" + shown + (text.size() > kMostQuoted ? "…'" : "'");
}

void Scanner::fail(const std::string& what, size_t at) const {
  throw Error(ErrorKind::BadInput, what, SourceLocation{file_, line_of(at), column_of(at)});
}

int Scanner::line_of(size_t at) const {
  const std::string_view before = text_.substr(0, at);
  return first_line_ + int(std::ranges::count(before, '\n'));
}

int Scanner::column_of(size_t at) const {
  const size_t end = text_.substr(0, at).rfind('\n');
  return int(at - (end == std::string_view::npos ? 0 : end + 1)) + 1;
}

size_t Scanner::skip() {
  while (peek() == ' ' || peek() == '\t' || peek() == '\r') ++at_;
  if (peek() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
  return at_;
}

void Scanner::skip_lines() {
  while (skip() < text_.size() && peek() == '\n') ++at_;
}

bool Scanner::at_end() { return skip() >= text_.size() || peek() == '\n'; }

void Scanner::end_of_line() {
  if (!at_end()) fail("expected the end of the line, not " + in_quotes(rest()));
}

bool Scanner::take(std::string_view token) {
  if (text_.substr(skip(), token.size()) != token) return false;
  const size_t end = at_ + token.size();
  const char next = end < text_.size() ? text_[end] : '\0';
  if (is_alpha(token.back()) && (is_alpha(next) || is_digit(next))) return false;
  if (token == "*" && next == '*') return false;
  at_ = end;
  return true;
}

void Scanner::expect(std::string_view token) {
  if (!take(token)) fail("expected '" + std::string(token) + "', not " + in_quotes(rest()));
}

std::string Scanner::word(const std::string& what, std::string_view more) {
  const size_t from = skip();
  const auto belongs = [&](char c) {
    const bool inside = at_ > from;
    return is_alpha(c) || (is_digit(c) && (inside || !more.empty())) ||
           (inside && c != '\0' && more.find(c) != std::string_view::npos);
  };
  while (belongs(peek())) ++at_;
  if (at_ == from) fail("expected " + what + ", not " + in_quotes(rest()));
  if (at_ - from > kMostOfName) fail("a name of more than 100 characters", from);
  return std::string(text_.substr(from, at_ - from));
}

std::optional<int64_t> Scanner::number(int64_t most) {
  const size_t from = skip();
  while (is_digit(peek())) ++at_;
  if (at_ == from) return std::nullopt;
  const auto n = number_from<int64_t>(text_.substr(from, at_ - from));
  if (!n || *n > most) fail("a number beyond " + std::to_string(most), from);
  return n;
}

std::string Scanner::rest() {
  if (at_end()) return "the end of the line";
  const std::string_view line = text_.substr(at_, text_.find_first_of("#\n", at_) - at_);
  return std::string(line.substr(0, line.find_last_not_of(" \t\r") + 1));
}

}  // namespace tessera
