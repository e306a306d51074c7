#include "driver/saved_search.h"

#include <unistd.h>

#include <sstream>

#include "base/sha256.h"
#include "base/text.h"
#include "driver/results.h"
#include "ir/text.h"

namespace tessera {
namespace {

constexpr double kWriteEverySeconds = 5;
// "tessera search N SHA256\n", then what the checksum is of: "budget SECONDS\n" per earlier run and
// "note BYTES BYTES\nNAME\nTEXT\n" per text.
constexpr int kVersion = 1;
const std::string kMagic = "tessera search ";

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
  const size_t end = text.find('\n');
  const std::string head = text.substr(0, end);
  if (end == std::string::npos || head.rfind(kMagic, 0) != 0) {
    problem_ = path_ + " is not a saved search";
    return;
  }
  std::istringstream first(head.substr(kMagic.size()));
  int version = 0;
  std::string hash;
  first >> version >> hash;
  if (version != kVersion) {
    problem_ = path_ + " is of another version of Tessera";
    return;
  }
  const std::string rest = text.substr(end + 1);
  if (sha256_hex(key_ + rest) != hash) {
    problem_ = path_ + " is damaged, or of another program";
    return;
  }
  std::istringstream in(rest);
  std::string word;
  while (in >> word) {
    if (word == "budget") {
      double seconds = 0;
      in >> seconds;
      budgets_.push_back(seconds);
    } else if (word == "note") {
      size_t name_bytes = 0, text_bytes = 0;
      in >> name_bytes >> text_bytes;
      in.get();
      if (!in || name_bytes + text_bytes > rest.size()) break;
      std::string name(name_bytes, '\0'), body(text_bytes, '\0');
      in.read(name.data(), std::streamsize(name_bytes));
      in.get();
      in.read(body.data(), std::streamsize(text_bytes));
      if (!in) break;
      from_file_[name] = false;
      texts_[name] = std::move(body);
    } else {
      break;
    }
  }
}

std::string SavedSearch::note() const {
  if (!asked_) return "";
  if (!problem_.empty())
    return "the saved search was ignored and searched from the beginning: " + problem_;
  if (path_.empty()) return "nothing to resume: nothing is kept without the cache";
  if (!resumed()) return "nothing to resume: no unfinished search of this program and options";
  double seconds = 0;
  for (double s : budgets_) seconds += s;
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
  const double now =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (now < written_ + kWriteEverySeconds) return;
  written_ = now;
  save(now);
}

std::string SavedSearch::text(double seconds) const {
  std::string body;
  for (double s : budgets_) body += "budget " + significant(s, 6) + "\n";
  body += "budget " + significant(seconds, 6) + "\n";
  for (const auto& [name, text] : texts_)
    body += "note " + std::to_string(name.size()) + " " + std::to_string(text.size()) + "\n" +
            name + "\n" + text + "\n";
  return kMagic + std::to_string(kVersion) + " " + sha256_hex(key_ + body) + "\n" + body;
}

bool SavedSearch::save(double seconds) {
  return !path_.empty() && write_atomically(path_, text(seconds)).empty();
}

void SavedSearch::forget() {
  if (!path_.empty()) unlink(path_.c_str());
}

}  // namespace tessera
