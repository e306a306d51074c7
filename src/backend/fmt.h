// Text of generated code from a pattern.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include "base/check.h"

namespace tessera {

inline const std::string& piece_of_text(const std::string& text) { return text; }
inline std::string piece_of_text(const char* text) { return text; }
std::string piece_of_text(std::integral auto number) { return std::to_string(number); }

// The pattern with the arguments, texts or whole numbers, in the places of $0, $1, …, $9.
template <class... T> std::string fmt(std::string_view pattern, const T&... arguments) {
  const std::string pieces[] = {piece_of_text(arguments)...};
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '$') {
      out += pattern[i];
      continue;
    }
    const auto which = ++i < pattern.size() ? size_t(pattern[i] - '0') : sizeof...(T);
    CHECK(which < sizeof...(T)) << "'" << pattern << "' has " << sizeof...(T) << " arguments";
    out += pieces[which];
  }
  return out;
}

}  // namespace tessera
