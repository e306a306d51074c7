// What µGraph searches came to, kept between runs by what their programs mean: kernels that were
// found become patterns (search/patterns/learn.h) and are found again in other programs; that
// nothing was found is kept too. In the cache's folder learnt/, NAME.pattern and KEY.entry, each
// written by an atomic rename; the oldest go where there are more than kMostLearnt of either.
#pragma once
#include <optional>
#include <string>

#include "driver/optimize.h"

namespace tessera {

inline constexpr size_t kMostLearnt = 256;

// Where that is; empty where nothing persists.
std::string learnt_folder(Cache& cache);

struct KnownSearch {
  std::optional<Graph> graph;  // what was found, with the program's inputs; as yet unproved
  std::string note;            // for the user
};

class LearntKernels {
 public:
  // Neither reads nor writes without the cache, or with "learnt" disabled; `refresh` does not read,
  // nor does `resume`, which goes on with a search that was cut short.
  LearntKernels(Cache& cache, const OptimizeOptions& options, const Target& target);

  // What a search of a program of this meaning at these sizes came to, with the same options and
  // version: one that was complete, or that had `seconds` at least. What is damaged, or belongs to
  // a pattern that was removed, counts as absent.
  std::optional<KnownSearch> recall(const Graph& program, double seconds) const;
  // `found`: proved equal and faster; null: nothing was. `complete`: the search was not cut short.
  void remember(const Graph& program, const Graph* found, double seconds, bool complete,
                const std::string& about) const;

 private:
  std::string folder_;  // empty: nothing is kept
  std::string options_key_;
  bool refresh_;
};

}  // namespace tessera
