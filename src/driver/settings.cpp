#include "driver/settings.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

struct Known {
  const char* name;
  double least, most;
  bool whole = true;
  std::string range() const { return num(int64_t(least)) + " to " + num(int64_t(most)); }
};

constexpr Known kKnown[] = {
    {"mutate.depth", 1, 8},               // operators of a mutant (PET, Algorithm 1)
    {"mutate.rounds", 1, 16},             // mutants of mutants (PET, Algorithm 2: r)
    {"mutate.keep", 1, 1000},             // of a round's mutants, which the next one mutates
    {"mutate.subsets", 0, 8},             // operators of the subsets mutated, too (PET, §6.2)
    {"mutate.candidates", 1, 1000},       // returned by one search, at most
    {"mutate.steps", 1, 1e9},             // operators tried in one search
    {"mutate.least_equal", 0, 1, false},  // share of the output, for a correction to be tried
    {"synth.size", 1, 6},                 // operations found bottom-up (STENSO, §VII.E: d)
    {"synth.leaves", 1, 8},               // values that a discovery may start from
    {"synth.probes", 0, 1e9},             // look-ups of sketches within sketches
};

}  // namespace

Settings read_settings(const std::vector<std::string>& texts) {
  const auto fail = [](const std::string& what) { throw Error(ErrorKind::Usage, what); };
  Settings settings;
  for (const std::string& text : texts) {
    const std::string name = text.substr(0, text.find('='));
    const auto known = std::ranges::find_if(kKnown, [&](auto& k) { return name == k.name; });
    if (known == std::end(kKnown)) {
      std::string all;
      for (const Known& k : kKnown)
        all += std::string(all.empty() ? " " : ", ") + k.name + " (" + k.range() + ")";
      fail("there is no setting " + in_quotes(name) + "; there are" + all);
    }
    const auto value = number_from<double>(text.substr(std::min(name.size() + 1, text.size())));
    if (!value || !(*value >= known->least && *value <= known->most) ||
        (known->whole && *value != std::floor(*value)))
      fail(name + " is a " + (known->whole ? "whole number, " : "number, ") + known->range() +
           ", as in " + name + "=" + num(int64_t(known->most)));
    if (!settings.emplace(name, *value).second) fail(name + " is set twice");
  }
  return settings;
}

}  // namespace tessera
