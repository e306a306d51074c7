#include "backend/cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/sha256.h"

namespace tessera {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string default_directory() {
  if (std::string dir = environment("TESSERA_CACHE_DIR"); !dir.empty()) return dir;
  if (std::string dir = environment("XDG_CACHE_HOME"); !dir.empty() && dir[0] == '/')
    return dir + "/tessera";
  if (std::string dir = environment("HOME"); !dir.empty()) return dir + "/.cache/tessera";
  return "";
}

// Empty when `dir` is an existing or new directory that only this user can enter.
std::string why_not_private(const std::string& dir) {
  if (dir.empty()) return "neither TESSERA_CACHE_DIR, XDG_CACHE_HOME nor HOME is set";
  struct stat info;
  if (stat(dir.c_str(), &info) != 0) {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::path(dir).parent_path();
    if (!parent.empty()) std::filesystem::create_directories(parent, error);
    if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
      return "cannot create '" + dir + "': " + std::strerror(errno);
  }
  return why_not_own(dir, true);
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(size_t(n));
  }
  return true;
}

// With its own name: a line in another's place is damage like any other.
std::string index_line(const std::string& hash, std::string_view suffix, const std::string& key) {
  return hash + " " + std::string(suffix) + " " + key + "\n";
}

bool is_hex64(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

// Writes a new file next to `path` and renames it; leaves nothing behind on failure.
std::string write_atomically(const std::string& path, std::string_view bytes) {
  std::string partial = path + ".tmpXXXXXX";  // processes of two containers may share an id
  const int fd = mkostemp(partial.data(), O_CLOEXEC);
  if (fd < 0) return "cannot write '" + path + "': " + std::strerror(errno);
  const bool written = write_all(fd, bytes);
  const int error = errno;
  const bool closed = close(fd) == 0;
  if (written && closed && rename(partial.c_str(), path.c_str()) == 0) return "";
  const std::string reason = std::strerror(written ? errno : error);
  unlink(partial.c_str());
  return "cannot write '" + path + "': " + reason;
}

Cache::Cache(CacheOptions options) : options_(std::move(options)) {
  const std::string dir = options_.directory.empty() ? default_directory() : options_.directory;
  std::string problem = why_not_private(dir);
  for (const char* sub : {"/objects", "/index"})
    if (problem.empty()) problem = why_not_private(dir + sub);
  if (problem.empty())
    root_ = dir;
  else
    complain(problem);
}

Cache::~Cache() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

void Cache::complain(const std::string& problem) {
  if (!problem_.empty()) return;
  problem_ = problem;
  const std::string message =
      "tessera: warning: generated code is not kept for the next run: " + problem;
  if (options_.warn) {
    options_.warn(message);
  } else {  // once, however many caches a process makes
    static std::mutex mutex;
    static std::set<std::string> told;
    const std::lock_guard lock(mutex);
    if (told.insert(problem).second) std::fprintf(stderr, "%s\n", message.c_str());
  }
}

std::optional<std::string> Cache::find(const std::string& key, std::string_view suffix) {
  CHECK(is_hex64(key)) << "cache key " << key;
  const std::lock_guard lock(mutex_);
  for (const std::string& root : {root_, temporary_}) {
    if (root.empty()) continue;
    const std::optional<std::string> line = read_file(root + "/index/" + key);
    if (!line) continue;
    // "sha256 suffix key\n"; the name of the object is rebuilt from checked parts only.
    const std::string hash = line->substr(0, 64);
    if (!is_hex64(hash) || *line != index_line(hash, suffix, key)) continue;
    std::string path = root + "/objects/" + hash + std::string(suffix);
    const std::optional<std::string> bytes = read_file(path);
    if (bytes && sha256_hex(*bytes) == hash) return path;
  }
  return std::nullopt;
}

std::string Cache::write(const std::string& root, const std::string& key, std::string_view suffix,
                         std::string_view bytes) {
  const std::string hash = sha256_hex(bytes);
  const std::string path = root + "/objects/" + hash + std::string(suffix);
  if (std::string problem = write_atomically(path, bytes); !problem.empty())
    throw Error(ErrorKind::Io, problem);
  if (std::string problem = write_atomically(root + "/index/" + key, index_line(hash, suffix, key));
      !problem.empty())
    throw Error(ErrorKind::Io, problem);
  return path;
}

std::string Cache::store(const std::string& key, std::string_view suffix, std::string_view bytes) {
  CHECK(is_hex64(key)) << "cache key " << key;
  {
    const std::lock_guard lock(mutex_);
    if (!root_.empty()) {
      try {
        return write(root_, key, suffix, bytes);
      } catch (const Error& error) {
        complain(error.message());
      }
    }
  }
  const std::string dir = temporary_directory();
  const std::lock_guard lock(mutex_);
  return write(dir, key, suffix, bytes);
}

std::optional<std::string> Cache::find_text(const std::string& key) {
  const std::optional<std::string> path = find(key, ".txt");
  return path ? read_file(*path) : std::nullopt;
}

void Cache::store_text(const std::string& key, std::string_view text) { store(key, ".txt", text); }

std::string Cache::folder(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (root_.empty()) return "";
  const std::string path = root_ + "/" + name;
  if (const std::string problem = why_not_private(path); !problem.empty()) {
    complain(problem);
    return "";
  }
  return path;
}

std::string Cache::directory() const {
  const std::lock_guard lock(mutex_);
  return root_.empty() ? temporary_ : root_;
}

std::string Cache::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

std::string Cache::temporary_directory() {
  const std::lock_guard lock(mutex_);
  if (!temporary_.empty()) return temporary_;
  std::string base = environment("TMPDIR");
  if (base.empty() || base[0] != '/') base = "/tmp";
  std::string pattern = base + "/tessera-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    throw Error(ErrorKind::Io, "cannot create a temporary directory in '" + base + "': " +
                                   std::strerror(errno) + " (set TMPDIR to a writable directory)");
  }
  for (const char* sub : {"/objects", "/index"})
    if (mkdir((pattern + sub).c_str(), 0700) != 0)
      throw Error(ErrorKind::Io, "cannot write to '" + pattern + "': " + std::strerror(errno));
  temporary_ = pattern;
  return temporary_;
}

}  // namespace tessera
