// Results remembered between runs, an entry each (base/entries.h) in the cache's folder results/:
// the program, the winning graph, its certificate and what both measured. Whoever reads an entry
// proves its graph anew; a check counts for exactly the code that it was made of.
#pragma once
#include <optional>
#include <string>

#include "backend/cache.h"
#include "base/entries.h"
#include "driver/optimize.h"

namespace tessera {

struct StoredResult {
  bool improved = false;
  Outcome winner;       // or the original itself
  std::string between;  // a program that its proof went by, as text; a hint, perhaps empty
  std::string checked;  // SHA-256 of the source that agreed with the interpreter; or empty
  double original_s = 0;
};

// All that a result depends on, as an entry's fields: "program" (SHA-256 of its canonical text),
// "level", "device", "tools", "options" and "key", which is the SHA-256 of the others.
EntryFields provenance(const Graph& program, const OptimizeOptions& options, const Target& target);
// What the choice depends on besides the program and the device; also of what is no result.
std::string options_key(const OptimizeOptions& options, const Target& target);
std::string result_key(const Graph& program, const OptimizeOptions& options, const Target& target);
// The options of tuned results: neither the budget nor whether this run tunes matters.
OptimizeOptions tuned_options(OptimizeOptions options);
// For unfinished searches: neither the budget nor the number of threads matters (where the target
// does not follow from it), and whether this run resumes one does not either.
std::string search_key(const Graph& program, const OptimizeOptions& options, const Target& target);
// The entry of that key; nothing where there is none, or it is damaged.
std::optional<StoredResult> load_result(Cache& cache, const std::string& key);
// What an optimisation with these options and this target came to.
void store_result(Cache& cache, const OptimizeOptions& options, const Target& target,
                  const OptimizeResult& result);
// A result's fields; and what fields say, nothing where they do not read.
EntryFields fields_of(const StoredResult& result);
std::optional<StoredResult> result_from(const EntryFields& fields);
// The same as a text without a key, for what is kept elsewhere.
std::string print_result(const StoredResult& result);
std::optional<StoredResult> read_result(const std::string& text);
// A program that is to stand in for `of`, with the names of its inputs and the same weights.
Graph fitted_to(const Graph& of, Graph g);
// Where the entries are; empty where nothing persists.
std::string results_folder(Cache& cache);

}  // namespace tessera
