// Numbers inside the engines that experts may set, say "mutate.depth": for ablations, and for
// searches larger than usual.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace tessera {

using Settings = std::map<std::string, double>;  // by "ENGINE.NAME"

// From texts "ENGINE.NAME=VALUE". Throws Error (Usage) on a name that is none, a value out of its
// range, and a name that is set twice.
Settings read_settings(const std::vector<std::string>& texts);

// The value becomes what is set, if anything is.
template <class T> void take(const Settings& settings, const std::string& name, T& value) {
  if (const auto it = settings.find(name); it != settings.end()) value = T(it->second);
}

}  // namespace tessera
