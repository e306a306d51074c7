// Unfinished searches on disk, so that `--resume` goes on where one stopped: what the engine found
// region by region, verdicts on candidates, and the parts of a program that are done. One file per
// program, options (without the budget), target and version, with a checksum.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/cache.h"
#include "base/wall_clock.h"
#include "driver/optimize.h"

namespace tessera {

class SavedSearch : public SearchMemory {
 public:
  // Keeps nothing on disk where `options.use_cache` is off; reads only with `options.resume`.
  SavedSearch(Cache& cache, const Graph& program, const OptimizeOptions& options,
              const Target& target);

  // Whether there was something to go on from, and for the user, if asked to resume: what was.
  bool resumed() const { return !budgets_.empty(); }
  std::string note() const;

  std::optional<std::string> recall(const std::string& name) override;
  // Also writes the file now and then, in case the process is killed.
  void remember(const std::string& name, const std::string& text) override;

  // The search stops unfinished after `seconds` of this run: writes the file. False where it cannot
  // be kept.
  bool save(double seconds);
  // The search is finished: deletes the file.
  void forget();

 private:
  void read(const std::string& text);
  std::string text(double seconds) const;

  std::string key_, path_;  // no path: nothing is kept
  bool asked_;
  std::string problem_;          // why a file was ignored
  std::vector<double> budgets_;  // seconds that earlier runs took
  std::map<std::string, std::string> texts_;
  size_t taken_up_ = 0;  // texts that were read and asked for
  std::map<std::string, bool> from_file_;
  double written_ = 0;  // when, on this run's clock
  WallClock clock_;
};

// Where a subprogram's texts are: the same for the same text, wherever in a program it stands.
std::string memory_prefix(const Graph& subprogram);

// A SearchMemory of its own inside another: names get a prefix.
class MemoryOf : public SearchMemory {
 public:
  MemoryOf(SearchMemory& all, std::string prefix) : all_(all), prefix_(std::move(prefix)) {}
  std::optional<std::string> recall(const std::string& name) override {
    return all_.recall(prefix_ + name);
  }
  void remember(const std::string& name, const std::string& text) override {
    all_.remember(prefix_ + name, text);
  }

 private:
  SearchMemory& all_;
  std::string prefix_;
};

}  // namespace tessera
