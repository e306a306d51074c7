#include "verify/verdict.h"

#include "base/names.h"
#include "base/text.h"

namespace tessera {

const char* name(Difference d) {
  return name_of<Difference::Precision>(d, {"interface", "value", "definedness", "precision"});
}

const char* name(UnknownReason r) {
  return name_of<UnknownReason::SecondOpinion>(r, {"field", "budget", "time", "branch", "cancelled",
                                                   "rounding", "undefined", "bound", "unsupported",
                                                   "second_opinion"});
}

std::string ConcreteTensor::str(size_t limit) const {
  const bool integral = !is_float(type.dtype);
  const size_t n = integral ? ints.size() : reals.size();
  auto value = [&](size_t i) { return integral ? std::to_string(ints[i]) : exact(reals[i]); };
  auto zero = [&](size_t i) { return integral ? ints[i] == 0 : reals[i] == 0; };
  std::string s = name + " " + type.str() + " = ";
  if (n <= limit) {
    const size_t row = type.shape.empty() ? 1 : size_t(type.shape.back().extent);
    s += "[";
    for (size_t i = 0; i < n; i++) s += (i == 0 ? "" : i % row == 0 ? "; " : ", ") + value(i);
    return s + "]";
  }
  const auto shape = extents(type.shape);
  size_t shown = 0, non_zero = 0;
  for (size_t i = 0; i < n; i++) {
    if (zero(i)) continue;
    if (++non_zero > limit) continue;
    std::vector<int64_t> position(shape.size());
    size_t rest = i;
    for (size_t d = shape.size(); d-- > 0; rest /= size_t(shape[d]))
      position[d] = int64_t(rest % size_t(shape[d]));
    s += std::string(shown++ ? ", [" : "[") + joined(position) + "]" + ": " + value(i);
  }
  if (non_zero > limit) return s + ", ... (" + std::to_string(non_zero) + " elements are not zero)";
  return s + (shown ? "; all others 0" : "all 0");
}

std::string Counterexample::str() const {
  std::string s = std::string("difference: ") + name(kind) + "\n" + what + "\n";
  if (inputs.empty()) return s;
  s += "output " + std::to_string(output) + "[" + joined(position) + "]" + ": original " +
       exact(spec) + ", rewrite " + exact(candidate) + " (allowed difference " + exact(allowed) +
       ")\n";
  for (const ConcreteTensor& t : inputs) s += "  " + t.str() + "\n";
  return s;
}

std::string Verdict::str() const {
  if (equal()) return "equal\n" + certificate().str();
  if (refuted()) return "refuted\n" + counterexample().str();
  return std::string("unknown\n") + "reason: " + name(why_unknown().reason) + "\n" +
         why_unknown().what + "\n";
}

}  // namespace tessera
