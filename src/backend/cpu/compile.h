// From C++ source text to loaded machine code, by the system's compiler and the cache on disk.
// Only files that were just compiled, or whose recorded hash still holds, are ever loaded.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "backend/cache.h"
#include "backend/compiler.h"
#include "backend/cpu/isa.h"

namespace tessera {

// A loaded shared object; symbols live as long as it does.
class Library {
 public:
  // Takes a handle of dlopen.
  Library(void* handle, std::string path, std::string source, bool cached);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  // Address of a symbol that must exist.
  void* symbol(const std::string& name) const;
  const std::string& path() const { return path_; }  // of its file
  const std::string& source() const { return source_; }
  bool from_cache() const { return from_cache_; }

 private:
  void* handle_;
  std::string path_, source_;
  bool from_cache_;
};

struct CompileOptions {
  CpuIsa isa = CpuIsa::Generic;
  std::vector<std::string> flags;  // of the compiler; empty: those for kernels on `isa`
  double timeout_s = 120;
  const std::atomic<bool>* cancel = nullptr;  // the compiler is stopped soon after it is set
  // Null: find_compiler().
  const Compiler* compiler = nullptr;
};

// Compiles (or finds) and loads `source`, which includes no header. Throws Error: ToolMissing
// without a compiler, Internal when the compiler rejects the source (the message names a kept copy)
// or exceeds the time-out, Cancelled, Io when nothing can be written.
std::unique_ptr<Library> compile_and_load(const std::string& source, const CompileOptions& options,
                                          Cache& cache);

// Part of every cache key; raised when generated code for the same graph changes its meaning.
inline constexpr int kCodegenVersion = 6;

}  // namespace tessera
