#include "base/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace tessera {

std::vector<std::string> files_of(const std::string& folder, const std::string& extension) {
  std::vector<std::string> files;
  // Not std::filesystem, whose iterators end the process where memory is short.
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), closedir);
  while (const dirent* entry = open ? readdir(open.get()) : nullptr) {
    const std::string name = entry->d_name, path = folder + "/" + name;
    struct stat info;
    if (name.size() > extension.size() && name.ends_with(extension) &&
        stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode))
      files.push_back(path);
  }
  std::ranges::sort(files);
  return files;
}

std::optional<std::string> read_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {  // a pipe would never end
    close(fd);
    return std::nullopt;
  }
  std::string bytes;
  char buffer[65536];
  ssize_t n = 0;
  while ((n = read(fd, buffer, sizeof buffer)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    bytes.append(buffer, size_t(n));
  }
  close(fd);
  return n == 0 ? std::optional(std::move(bytes)) : std::nullopt;
}

std::string read_text(const std::string& file) {
  if (std::optional<std::string> text = read_file(file)) return *std::move(text);
  throw Error(ErrorKind::Io, "cannot be read", SourceLocation{file});
}

std::string why_not_own(const std::string& folder, bool alone) {
  struct stat link, info;
  if (lstat(folder.c_str(), &link) != 0 || stat(folder.c_str(), &info) != 0)
    return "cannot read '" + folder + "': " + std::strerror(errno);
  if (!S_ISDIR(info.st_mode)) return "'" + folder + "' is not a directory";
  if (info.st_uid != geteuid()) return "'" + folder + "' belongs to another user";
  // Whoever made a link can have it point elsewhere at any time.
  if (link.st_uid != geteuid() && link.st_uid != 0)
    return "'" + folder + "' is a link that belongs to another user";
  if (alone && (info.st_mode & 077) != 0)
    return "'" + folder + "' can be entered by other users (run: chmod 700 '" + folder + "')";
  if ((info.st_mode & S_IWOTH) || ((info.st_mode & S_IWGRP) && info.st_gid != getegid()))
    return "'" + folder + "' can be written to by other users (run: chmod go-w '" + folder + "')";
  return "";
}

}  // namespace tessera
