#include "base/shared_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace tessera {

SharedLibrary::SharedLibrary(std::string what, std::string needed,
                             const std::vector<std::string>& places, const std::string& missing)
    : what_(std::move(what)), needed_(std::move(needed)) {
  for (const std::string& place : places) {
    place_ = place;
    if ((handle_ = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) != nullptr) return;
  }
  throw Error(ErrorKind::ToolMissing, missing);
}

SharedLibrary::Address SharedLibrary::find(const char* name) const {
  return {dlsym(handle_, name)};
}

SharedLibrary::Address SharedLibrary::need(const char* name) const {
  const Address found = find(name);
  if (found.at == nullptr)
    throw Error(ErrorKind::ToolMissing,
                "this " + what_ + " has no " + name + "; " + needed_ + " is needed");
  return found;
}

}  // namespace tessera
