// Text of generated code from patterns.
#pragma once

#include <concepts>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "backend/nest.h"

namespace tessera {

// Stands for a function's name until it is known whether there is one with the same text.
inline const std::string kUnnamed = "k@";

// What patterns are filled with: a text or a whole number.
struct Piece {
  std::string text;
  Piece(std::string text) : text(std::move(text)) {}
  Piece(const char* text) : text(text) {}
  Piece(const Expr& number) : text(number.text()) {}
  Piece(std::integral auto number) : text(std::to_string(number)) {}
};

// What $name and ${name} stand for in patterns: names and pieces take turns.
class Names {
 public:
  template <class... T> explicit Names(const T&... pairs) { set(pairs...); }
  void set() {}
  template <class... T> void set(std::string name, const Piece& piece, const T&... more) {
    pieces_.insert_or_assign(std::move(name), piece);
    set(more...);
  }
  std::string fill(std::string_view pattern) const;
  // Adds the lines of a passage, whose first line's indentation is that of the code so far; blocks
  // that it leaves open indent what follows.
  void write(Code& code, std::string_view passage) const;

 private:
  std::map<std::string, Piece, std::less<>> pieces_;
};

std::string filled(std::string_view pattern, const Piece* pieces, size_t count);

// The pattern with the arguments in the places of $0, $1, …, $9.
template <class... T> std::string fmt(std::string_view pattern, const T&... arguments) {
  const Piece pieces[] = {Piece(arguments)...};
  return filled(pattern, pieces, sizeof...(T));
}

}  // namespace tessera
