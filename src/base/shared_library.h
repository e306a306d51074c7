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

  // Where something lies: what a pointer to a function of any type is initialised with.
  struct Address {
    void* at;
    template <class T> operator T*() const { return reinterpret_cast<T*>(at); }
  };
  // Null where it has none of this name.
  Address find(const char* name) const;
  // Error(ToolMissing) instead.
  Address need(const char* name) const;

 private:
  std::string what_, needed_, place_;
  void* handle_ = nullptr;
};

}  // namespace tessera
