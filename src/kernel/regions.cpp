#include "kernel/regions.h"

#include <algorithm>

namespace tessera::kernel {

bool varies_with(const Expr& e, const std::set<std::string>& variables) {
  return std::ranges::any_of(
      e.terms(),
      [&](const Expr::Term& t) {
        if (t.atom->made == Expr::Made::Variable) return variables.contains(t.atom->text);
        return std::ranges::any_of(
            t.atom->of, [&](const Expr& x) { return varies_with(x, variables); });
      });
}

std::optional<int64_t> factor_of(const Expr& e, const std::string& variable) {
  int64_t factor = 0;
  for (const Expr::Term& t : e.terms()) {
    if (t.atom->made == Expr::Made::Variable) {
      if (t.atom->text == variable) factor += t.factor;
    } else if (std::ranges::any_of(t.atom->of,
                                   [&](const Expr& x) { return varies_with(x, {variable}); })) {
      return std::nullopt;
    }
  }
  return factor;
}

void Region::absorb() {
  std::ranges::sort(steps, {}, &Step::stride);
  while (!steps.empty() && steps[0].stride <= length) {
    length += steps[0].stride * (steps[0].count - 1);
    steps.erase(steps.begin());
  }
}

std::optional<Region> Region::after(const std::string& variable, const Range& range) const {
  const auto factor = factor_of(start, variable);
  if (!factor) return std::nullopt;
  const int64_t count = range.most + 1;
  Region r = *this;
  r.start = r.start - Expr::variable(variable, range) * *factor;
  if (*factor < 0) r.start += *factor * range.most;
  if (*factor != 0 && count > 1) r.steps.push_back({std::abs(*factor), count});
  r.absorb();
  return r;
}

bool Region::covers(const Expr& offset) const {
  Expr d = offset - start;
  for (size_t k = steps.size(); k-- > 0;)
    for (const Expr::Term& t : d.terms()) {
      if (t.factor != steps[k].stride || t.atom->range.least < 0 ||
          t.atom->range.most >= steps[k].count)
        continue;
      // as an expression of the one atom
      d = d - Expr::variable(t.atom->text, t.atom->range) * t.factor;
      break;
    }
  const Range r = d.range();
  return r.least >= 0 && r.most < length;
}

bool Region::merge(const Region& other) {
  if (buffer != other.buffer || steps != other.steps) return false;
  const auto d = (other.start - start).constant();
  if (!d || *d > length || *d < -other.length) return false;
  if (*d < 0) start = other.start;
  length = std::max(*d + other.length, length) - std::min<int64_t>(*d, 0);
  absorb();
  return true;
}

void add_region(std::vector<Region>& known, Region region) {
  for (size_t i = 0; i < known.size();) {
    if (!region.merge(known[i])) {
      ++i;
      continue;
    }
    known.erase(known.begin() + int64_t(i));
    i = 0;
  }
  known.push_back(std::move(region));
}

}  // namespace tessera::kernel
