// Text of generated code from patterns.
#pragma once

#include <concepts>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "backend/nest.h"
#include "base/check.h"

namespace tessera {

// What patterns are filled with: a text or a whole number.
struct Piece {
  std::string text;
  Piece(std::string text) : text(std::move(text)) {}
  Piece(const char* text) : text(text) {}
  Piece(std::integral auto number) : text(std::to_string(number)) {}
};

// The pattern with the arguments in the places of $0, $1, …, $9.
template <class... T> std::string fmt(std::string_view pattern, const T&... arguments) {
  const Piece pieces[] = {Piece(arguments)...};
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '$') {
      out += pattern[i];
      continue;
    }
    const auto which = ++i < pattern.size() ? size_t(pattern[i] - '0') : sizeof...(T);
    CHECK(which < sizeof...(T)) << "'" << pattern << "' has " << sizeof...(T) << " arguments";
    out += pieces[which].text;
  }
  return out;
}

// What $name and ${name} stand for in longer patterns: names and pieces take turns.
class Names {
 public:
  template <class... T> explicit Names(const T&... pairs) { set(pairs...); }
  void set() {}
  template <class... T> void set(const char* name, const Piece& piece, const T&... more) {
    pieces_.insert_or_assign(name, piece);
    set(more...);
  }
  std::string fill(std::string_view pattern) const;
  // Adds the lines of a passage, whose first line's indentation is that of the code so far; blocks
  // that it leaves open indent what follows.
  void write(Code& code, std::string_view passage) const;

 private:
  std::map<std::string, Piece> pieces_;
};

}  // namespace tessera
