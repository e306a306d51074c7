#include "search/patterns/semantic_key.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "eval/eval.h"
#include "search/patterns/region.h"
#include "verify/work.h"

namespace tessera::patterns {
namespace {

constexpr int64_t kSmall[] = {3, 5, 2, 7, 4, 6, 9, 8};
constexpr int kMostOrders = 720;
constexpr double kMostWork = 1e6;  // multiply-adds at small sizes

// Extents other than 1, as they appear in the inputs in an order.
std::vector<int64_t> sizes_of(const Graph& g, const std::vector<size_t>& order) {
  std::vector<int64_t> sizes;
  for (size_t i : order)
    for (const Dim& d : g.type(g.inputs()[i]).shape)
      if (d.extent != 1 && std::ranges::find(sizes, d.extent) == sizes.end())
        sizes.push_back(d.extent);
  return sizes;
}

// The values of the output, to eleven digits of the largest: rewriting changes less, another
// constant more. Small inputs tell small constants apart: an epsilon in a norm.
std::string values_of(const Graph& g, const std::vector<size_t>& order,
                      const std::vector<int64_t>& sizes, double scale) {
  std::map<int64_t, Dim> small;
  for (size_t i = 0; i < sizes.size(); i++) small[sizes[i]] = Dim(kSmall[i]);
  const std::optional<Graph> reduced = with_sizes(g, small);
  if (!reduced || count_work(*reduced) > kMostWork) return "";
  std::vector<NDArray> inputs(order.size());
  for (size_t at = 0; at < order.size(); at++) {
    const Type& type = reduced->type(reduced->inputs()[order[at]]);
    NDArray a = NDArray::zeros(type.dtype, extents(type.shape));
    Rng rng(at + 1);
    for (double& x : a.reals) x = scale * (2.5 * rng.unit() - 1);
    for (int64_t& x : a.ints) x = rng.between(0, 1);
    inputs[order[at]] = std::move(a);
  }
  NDArray y;
  try {
    y = eval(*reduced, inputs)[0];
  } catch (const Error&) {
    return "";
  }
  double most = 1e-300;
  for (double x : y.reals)
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
  std::string text = reduced->type(reduced->outputs()[0]).str();
  for (double x : y.reals)
    text += std::isfinite(x) ? " " + std::to_string(std::llround(x / most * 1e11))
            : std::isnan(x)  ? " nan"
            : x > 0          ? " inf"
                             : " -inf";
  for (int64_t x : y.ints) text += " " + std::to_string(x);
  return text;
}

}  // namespace

std::optional<SemanticKey> semantic_key(const Graph& g) {
  if (g.outputs().size() != 1 || g.inputs().empty() || g.inputs().size() > kMostInputs)
    return std::nullopt;
  for (const Op& op : g.ops())
    if (is_kernel(op.kind) || is_opaque(op.kind)) return std::nullopt;
  // Inputs of other types keep their order, by what does not depend on sizes.
  const auto kind = [&](size_t i) {
    const Type& type = g.type(g.inputs()[i]);
    std::string units;
    for (const Dim& d : type.shape) units += d.is_one() ? '1' : 'n';
    return std::string(name(type.dtype)) + (g.is_weight(g.inputs()[i]) ? "w" : "") + units;
  };
  std::vector<size_t> order(g.inputs().size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return kind(a) < kind(b); });
  std::string kinds;
  for (size_t i : order) kinds += kind(i) + " ";
  // The orders of each group, as in an odometer.
  std::vector<std::pair<size_t, size_t>> groups;
  double orders = 1;
  for (size_t from = 0, to = 0; from < order.size(); from = to) {
    while (to < order.size() && kind(order[to]) == kind(order[from])) orders *= double(++to - from);
    groups.emplace_back(from, to);
  }
  if (orders > kMostOrders) return std::nullopt;
  for (const auto& [from, to] : groups)
    std::sort(order.begin() + std::ptrdiff_t(from), order.begin() + std::ptrdiff_t(to));
  std::optional<SemanticKey> best;
  for (bool more = true; more;) {
    const std::vector<int64_t> sizes = sizes_of(g, order);
    if (sizes.size() > std::size(kSmall)) return std::nullopt;
    const std::string values = values_of(g, order, sizes, 1),
                      near = values_of(g, order, sizes, 1e-6);
    if (values.empty() || near.empty()) return std::nullopt;
    const std::string meaning = sha256_hex("meaning 1 " + kinds + values + "\n" + near);
    if (!best || meaning < best->meaning) best = SemanticKey{meaning, order, sizes};
    more = std::ranges::any_of(groups, [&](const auto& group) {
      return std::next_permutation(order.begin() + std::ptrdiff_t(group.first),
                                   order.begin() + std::ptrdiff_t(group.second));
    });
  }
  return best;
}

}  // namespace tessera::patterns
