#include "driver/saved_search.h"

#include <unistd.h>

#include "base/records.h"
#include "driver/results.h"
#include "ir/text.h"

namespace tessera {
namespace {

constexpr double kWriteEverySeconds = 5;
const std::string kMagic = "tessera search 2\n";

}  // namespace

std::string memory_prefix(const Graph& subprogram) {
  return sha256_hex(print(subprogram)).substr(0, 16) + "/";
}

SavedSearch::SavedSearch(Cache& cache, const Graph& program, const OptimizeOptions& options,
                         const Target& target)
    : asked_(options.resume) {
  if (!options.use_cache) return;
  key_ = search_key(program, options, target);
  const std::string folder = cache.folder("searches");
  if (folder.empty()) {
    problem_ = cache.problem();
    return;
  }
  path_ = folder + "/" + key_;
  if (!asked_) return;
  if (std::optional<std::string> text = read_file(path_)) read(*text);
}

void SavedSearch::read(const std::string& text) {
  if (!text.starts_with(kMagic)) {
    problem_ = path_ + " is not a saved search, or of another version of Tessera";
    return;
  }
  const auto body = unsealed(text.substr(kMagic.size()), key_);
  RecordReader reader(body ? std::string_view(*body) : std::string_view());
  reader(budgets_, texts_);
  if (!body || !reader.complete()) {
    problem_ = path_ + " is damaged, or of another program";
    budgets_.clear();
    texts_.clear();
  }
  for (const auto& [name, text_of] : texts_) from_file_[name] = false;
}

std::string SavedSearch::note() const {
  if (!asked_) return "";
  if (!problem_.empty())
    return "the saved search was ignored and searched from the beginning: " + problem_;
  if (path_.empty()) return "nothing to resume: nothing is kept without the cache";
  if (!resumed()) return "nothing to resume: no unfinished search of this program and options";
  double seconds = sum_of<double>(budgets_);
  return "resumed after " + significant(seconds, 6) + " s of earlier search; " +
         std::to_string(taken_up_) + " finished piece" + (taken_up_ == 1 ? "" : "s") + " taken up";
}

std::optional<std::string> SavedSearch::recall(const std::string& name) {
  const auto it = texts_.find(name);
  if (it == texts_.end()) return std::nullopt;
  if (const auto known = from_file_.find(name); known != from_file_.end() && !known->second) {
    known->second = true;
    taken_up_++;
  }
  return it->second;
}

void SavedSearch::remember(const std::string& name, const std::string& text) {
  texts_[name] = text;
  if (path_.empty()) return;
  const double now = clock_.seconds();
  if (now < written_ + kWriteEverySeconds) return;
  written_ = now;
  save(now);
}

std::string SavedSearch::text(double seconds) const {
  std::vector<double> budgets = budgets_;
  budgets.push_back(seconds);
  auto texts = texts_;
  RecordWriter writer;
  writer(budgets, texts);
  return kMagic + sealed(writer.take(), key_);
}

bool SavedSearch::save(double seconds) {
  return !path_.empty() && write_atomically(path_, text(seconds)).empty();
}

void SavedSearch::forget() {
  if (!path_.empty()) unlink(path_.c_str());
}

}  // namespace tessera
