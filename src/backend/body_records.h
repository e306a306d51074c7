// What checks of bodies that people wrote came to, kept in the user's cache folder: only what is
// recorded as checked is compiled into programs.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "backend/cache.h"
#include "backend/cpu/isa.h"
#include "search/patterns/code.h"

namespace tessera {

// What a check of a body came to, kept in the cache folder's `bodies`. A record belongs to the
// hash of the body's text, def, holes, guards and settings, and to what compiled and ran it.
struct BodyRecord {
  enum class State { Checked, CompiledOnly, Refused } state = State::Refused;
  std::string pattern, source, machine;
  int64_t runs = 0;   // of the code, against the meaning
  int instances = 0;  // sizes, settings, element types and holes
  std::string what;   // why it is refused; which sizes and types were run
  std::string text;   // patterns::recorded_text
};
const char* name(BodyRecord::State);

class BodyRecords {
 public:
  explicit BodyRecords(Cache& cache) : folder_(cache.folder("bodies")) {}
  // A record whose text still has the hash `source`; damaged ones count as absent.
  std::optional<BodyRecord> find(const std::string& source, const std::string& machine) const;
  // Throws Error(Io).
  void store(const BodyRecord&) const;

 private:
  std::string file(const std::string& source, const std::string& machine) const;
  std::string folder_;  // empty: nothing persists
};

// What is known of a body here: its record, or none. Raw CUDA: of the device, else of the compiler.
std::optional<BodyRecord> record_of(const patterns::Pattern&, const patterns::Body&, Cache& cache,
                                    CpuIsa isa, const std::string& device = {});
// One line for each different body of a program: "proved up to body rmsnorm (…), which was checked
// by 96 runs …".
std::vector<std::string> trust_lines(const Graph&, Cache& cache, bool cuda, CpuIsa isa,
                                     const std::string& device = {});

// Why bodies in a language cannot be used on this machine, until they are checked, by pattern.
// `device`: of a GPU that is here.
void mark_unusable(std::vector<patterns::Pattern>& warehouse, Cache& cache, bool cuda, CpuIsa isa,
                   const std::string& device = {});

// In which languages bodies are for a CPU, or for a GPU.
std::vector<patterns::Language> languages_of(bool cuda);
// What bodies in a language depend on beside themselves and have to be checked on before they are
// used: version of the translation, compiler, instructions; of CUDA the emulator; of raw CUDA the
// device, or "" where there is none; of calls the library's version. "" where that is not here.
std::string body_machine(patterns::Language, CpuIsa isa, const std::string& device);

}  // namespace tessera
