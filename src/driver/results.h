// Results remembered between runs, as text in the cache: the winning graph and what it measured.
// Proofs are not: whoever reads an entry proves its graph anew. A check counts for exactly the code
// that it was made of.
#pragma once
#include <optional>
#include <string>

#include "backend/cache.h"
#include "driver/optimize.h"

namespace tessera {

struct StoredResult {
  bool improved = false;
  Outcome winner;       // or the original itself
  std::string between;  // a program that its proof went by, as text; a hint, perhaps empty
  std::string checked;  // SHA-256 of the source that agreed with the interpreter; or empty
  double original_s = 0;
};

// SHA-256 over everything the choice depends on: program, options, target, instruction set,
// version.
// The same without the program.
std::string options_key(const OptimizeOptions& options, const Target& target);
std::string result_key(const Graph& program, const OptimizeOptions& options, const Target& target);
// The same for tuned results: neither the budget nor whether this run tunes matters.
std::string tuned_key(const Graph& program, const OptimizeOptions& options, const Target& target);
// For unfinished searches: neither the budget nor the number of threads matters (where the target
// does not follow from it), and whether this run resumes one does not either.
std::string search_key(const Graph& program, const OptimizeOptions& options, const Target& target);
std::optional<StoredResult> load_result(Cache& cache, const std::string& key);
// The text of a result, and what it says; nothing where it does not read.
std::string print_result(const StoredResult& result);
std::optional<StoredResult> read_result(const std::string& text);
void store_result(Cache& cache, const std::string& key, const OptimizeResult& result);

}  // namespace tessera
