#include "ir/extent.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"

namespace tessera {
namespace {
constexpr size_t kMostTerms = 64, kMostFactors = 16;

std::vector<std::string_view> parts(std::string_view text, char between) {
  std::vector<std::string_view> result;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(between, at), text.size());
    result.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return result;
}

bool is_symbol(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !text.empty() && letter(text[0]) && std::ranges::all_of(text, [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '.';
  });
}
}  // namespace

SymbolicExtent::SymbolicExtent(int64_t n) { add({}, n); }

SymbolicExtent::SymbolicExtent(const Dim& d) {
  if (d.symbolic())
    *this = parse(d.symbol);
  else
    add({}, d.extent);
}

SymbolicExtent SymbolicExtent::parse(std::string_view text) {
  SymbolicExtent result(0);
  for (std::string_view term : parts(text, '+')) {
    int64_t coefficient = 1, constant = 0;
    const size_t minus = term.rfind('-');  // seq-1 is two terms
    if (minus != std::string_view::npos && minus > 0 && term[minus - 1] != '*') {
      const char* end = term.data() + term.size();
      const auto [stop, error] = std::from_chars(term.data() + minus, end, constant);
      if (error != std::errc() || stop != end)
        bad_input("'" + std::string(text) + "' is no extent");
      term = term.substr(0, minus);
    }
    Factors factors;
    for (std::string_view factor : parts(term, '*')) {
      int64_t n = 0;
      const auto [stop, error] = std::from_chars(factor.data(), factor.data() + factor.size(), n);
      const bool number = error == std::errc() && stop == factor.data() + factor.size();
      if (number ? __builtin_mul_overflow(coefficient, n, &coefficient) : !is_symbol(factor))
        bad_input("'" + std::string(text) + "' is no extent");
      if (!number) factors.emplace_back(factor);
    }
    std::ranges::sort(factors);
    result.add(factors, coefficient);
    result.add({}, constant);
  }
  return result;
}

void SymbolicExtent::add(const Factors& factors, int64_t coefficient) {
  int64_t& sum = terms_[factors];
  if (__builtin_add_overflow(sum, coefficient, &sum) || factors.size() > kMostFactors)
    bad_input("an extent is too large");
  if (sum == 0) terms_.erase(factors);
  if (terms_.size() > kMostTerms) bad_input("an extent has too many terms");
}

Dim SymbolicExtent::dim() const {
  if (known()) return Dim(terms_.empty() ? 0 : terms_.begin()->second);
  std::string text;
  for (const auto& [factors, coefficient] : terms_) {
    if (factors.empty()) continue;
    if (!text.empty()) text += '+';
    for (size_t i = 0; i < factors.size(); i++) text += (i ? "*" : "") + factors[i];
    if (coefficient != 1) text += "*" + std::to_string(coefficient);
  }
  if (const auto constant = terms_.find({}); constant != terms_.end())
    text += (constant->second > 0 ? "+" : "") + std::to_string(constant->second);
  return Dim(text);
}

bool SymbolicExtent::known() const {
  return terms_.empty() || (terms_.size() == 1 && terms_.begin()->first.empty());
}

std::vector<std::string> SymbolicExtent::symbols() const {
  std::set<std::string> found;
  for (const auto& [factors, coefficient] : terms_) found.insert(factors.begin(), factors.end());
  return {found.begin(), found.end()};
}

SymbolicExtent
SymbolicExtent::bound(const std::vector<std::pair<std::string, int64_t>>& values) const {
  SymbolicExtent result(0);
  for (const auto& [factors, coefficient] : terms_) {
    SymbolicExtent term(coefficient);
    for (const std::string& symbol : factors) {
      const auto value =
          std::ranges::find_if(values, [&](const auto& v) { return v.first == symbol; });
      term = term *
             (value != values.end() ? SymbolicExtent(value->second) : SymbolicExtent(Dim(symbol)));
    }
    result = result + term;
  }
  return result;
}

SymbolicExtent operator+(const SymbolicExtent& a, const SymbolicExtent& b) {
  SymbolicExtent result = a;
  for (const auto& [factors, coefficient] : b.terms_) result.add(factors, coefficient);
  return result;
}

SymbolicExtent operator*(const SymbolicExtent& a, const SymbolicExtent& b) {
  SymbolicExtent result(0);
  for (const auto& [x, m] : a.terms_)
    for (const auto& [y, n] : b.terms_) {
      SymbolicExtent::Factors factors = x;
      factors.insert(factors.end(), y.begin(), y.end());
      std::ranges::sort(factors);
      int64_t coefficient = 0;
      if (__builtin_mul_overflow(m, n, &coefficient)) bad_input("an extent is too large");
      result.add(factors, coefficient);
    }
  return result;
}

SymbolicExtent volume(const Shape& shape) {
  SymbolicExtent n(1);
  for (const Dim& d : shape) n = n * SymbolicExtent(d);
  return n;
}

}  // namespace tessera
