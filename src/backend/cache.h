// A content-addressed store of generated files on disk, private to the user. What is read back has
// the SHA-256 that was recorded when it was written; anything else counts as absent and is
// replaced.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/folder.h"

namespace tessera {

struct CacheOptions {
  // Empty: $TESSERA_CACHE_DIR, else $XDG_CACHE_HOME/tessera, else ~/.cache/tessera.
  std::string directory;
  // Called at most once per Cache when the directory cannot be used. Null: one line on stderr.
  std::function<void(const std::string&)> warn;
};

// Safe to use from several threads and processes at once: entries appear by atomic rename.
// Layout: <dir>/objects/<sha256><suffix>, named by content, and <dir>/index/<key>, one line
// each, which names both.
class Cache {
 public:
  // Uses the directory if it is (or can be created as) the user's own with mode 0700; otherwise
  // warns and keeps entries in a private temporary directory, which the destructor removes.
  explicit Cache(CacheOptions options = {});
  ~Cache();

  // Path of the stored file for `key` (64 hex digits) after checking its hash, or nullopt.
  std::optional<std::string> find(const std::string& key, std::string_view suffix);
  // Stores `bytes` and returns the path they are at; never fails for a full or read-only
  // directory as long as the temporary directory can be written. Throws Error{Io} otherwise.
  std::string store(const std::string& key, std::string_view suffix, std::string_view bytes);
  // The same for short texts.
  std::optional<std::string> find_text(const std::string& key);
  void store_text(const std::string& key, std::string_view text);

  // A private folder beside the entries for files that are replaced, not addressed by content;
  // empty where nothing persists.
  std::string folder(const std::string& name);
  // The persistent directory in use, or the temporary one.
  std::string directory() const;
  // Why entries do not persist; empty when they do.
  std::string problem() const;
  // A 0700 directory for files in the making, on demand; removed by the destructor.
  std::string temporary_directory();

 private:
  std::string write(const std::string& root, const std::string& key, std::string_view suffix,
                    std::string_view bytes);
  void complain(const std::string& problem);

  CacheOptions options_;
  mutable std::mutex mutex_;
  std::string root_;  // empty: not usable
  std::string temporary_;
  std::string problem_;
};

// Replaces a file of the user's alone, all or nothing. The reason of a failure, or "".
std::string write_atomically(const std::string& path, std::string_view bytes);

}  // namespace tessera
