// Loops that a function says: what it makes of each item, which ones it holds of, and sums and
// products of what it makes.
#pragma once
#include <algorithm>
#include <concepts>
#include <functional>
#include <iterator>
#include <type_traits>
#include <vector>

namespace tessera {

// What `f` (a function, or a member) makes of each item, in their order.
template <std::ranges::range Items, class F> auto mapped(const Items& items, F f) {
  std::vector<std::decay_t<decltype(std::invoke(f, *std::begin(items)))>> all;
  all.reserve(std::size(items));
  for (const auto& item : items) all.push_back(std::invoke(f, item));
  return all;
}

// What `f` makes of 0, 1, … below `count`.
template <std::integral N, class F> auto mapped(N count, F f) {
  std::vector<std::decay_t<decltype(f(count))>> all;
  for (N n = 0; n < count; ++n) all.push_back(f(n));
  return all;
}

// The items of which it holds.
template <class T, class F> std::vector<T> those(const std::vector<T>& items, F holds) {
  std::vector<T> all;
  std::ranges::copy_if(items, std::back_inserter(all), holds);
  return all;
}

template <class T, class Items, class F = std::identity> T sum_of(const Items& items, F f = {}) {
  T all = 0;
  for (const auto& item : items) all += std::invoke(f, item);
  return all;
}
template <class T, class Items, class F = std::identity>
T product_of(const Items& items, F f = {}) {
  T all = 1;
  for (const auto& item : items) all *= std::invoke(f, item);
  return all;
}
// The largest of `least` and what `f` makes of each item.
template <class T, class Items, class F = std::identity>
T most_of(T least, const Items& items, F f = {}) {
  for (const auto& item : items) least = std::max(least, T(std::invoke(f, item)));
  return least;
}

}  // namespace tessera
