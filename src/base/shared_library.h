#pragma once
#include <string>
#include <vector>

namespace tessera {

// A shared library that is looked for when it is first needed, and stays loaded.
class SharedLibrary {
 public:
  // The first of these places that loads: paths, or names that the loader looks for. Where none
  // does, Error(ToolMissing, missing). `needed` names versions that have what is looked up.
  SharedLibrary(std::string what, std::string needed, const std::vector<std::string>& places,
                const std::string& missing);

  const std::string& place() const { return place_; }

  // Null where it has none of this name.
  template <class Function> void find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(address(name, false));
  }
  // Error(ToolMissing) instead.
  template <class Function> void need(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(address(name, true));
  }

 private:
  void* address(const char* name, bool needed) const;

  std::string what_, needed_, place_;
  void* handle_ = nullptr;
};

}  // namespace tessera
