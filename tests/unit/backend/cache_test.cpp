#include "backend/cache.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "backend/cpu/compile.h"
#include "backend/testing.h"
#include "base/error.h"
#include "base/sha256.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const std::string kKey(64, 'a');

CacheOptions quiet(const std::string& directory, std::vector<std::string>* warnings = nullptr) {
  return {directory, [warnings](const std::string& w) {
            if (warnings != nullptr) warnings->push_back(w);
          }};
}

std::vector<fs::path> files_in(const std::string& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

void overwrite(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

// Sets an environment variable for the life of a test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    const char* old = std::getenv(name);
    had_ = old != nullptr;
    if (had_) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  bool had_;
  std::string old_;
};

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_NE(Sha256().field("ab").field("c").hex(), Sha256().field("a").field("bc").hex());
}

TEST(Cache, KeepsWhatItIsGiven) {
  TemporaryDirectory dir;
  const std::string path = dir.path() + "/cache";
  {
    Cache cache(quiet(path));
    EXPECT_FALSE(cache.find(kKey, ".so"));
    const std::string at = cache.store(kKey, ".so", "hello");
    EXPECT_EQ(read_file(at), "hello");
    EXPECT_EQ(cache.find(kKey, ".so"), at);
    EXPECT_FALSE(cache.find(kKey, ".txt"));
  }
  Cache again(quiet(path));
  EXPECT_TRUE(again.find(kKey, ".so"));
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST(Cache, DamagedEntriesCountAsAbsent) {
  for (const std::string damage : {"", "hell", "hello!", "HELLO"}) {
    for (const char* part : {"objects", "index"}) {
      TemporaryDirectory dir;
      Cache cache(quiet(dir.path() + "/c"));
      cache.store(kKey, ".so", "hello");
      for (const fs::path& file : files_in(dir.path() + "/c/" + part)) overwrite(file, damage);
      EXPECT_FALSE(cache.find(kKey, ".so")) << part << " '" << damage << "'";
      cache.store(kKey, ".so", "hello");
      EXPECT_TRUE(cache.find(kKey, ".so"));
    }
  }
}

TEST(Cache, IndexCannotPointOutside) {
  TemporaryDirectory dir;
  Cache cache(quiet(dir.path() + "/c"));
  overwrite(dir.path() + "/evil.so", "evil");
  overwrite(dir.path() + "/c/index/" + kKey, "../../evil .so\n");
  EXPECT_FALSE(cache.find(kKey, ".so"));
}

TEST(Cache, OpenDirectoriesAreNotUsed) {
  TemporaryDirectory dir;
  const std::string path = dir.path() + "/open";
  fs::create_directory(path);
  chmod(path.c_str(), 0755);
  std::vector<std::string> warnings;
  Cache cache(quiet(path, &warnings));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("chmod 700"), std::string::npos);
  const std::string at = cache.store(kKey, ".so", "hello");
  EXPECT_EQ(at.rfind(cache.temporary_directory(), 0), 0u);
  EXPECT_TRUE(cache.find(kKey, ".so"));
  EXPECT_TRUE(files_in(path).empty());
}

TEST(Cache, UnusableDirectoriesStillWork) {
  TemporaryDirectory dir;
  overwrite(dir.path() + "/file", "");
  for (const std::string& path :
       {dir.path() + "/file", dir.path() + "/file/sub", std::string("/proc/none/cache")}) {
    std::vector<std::string> warnings;
    std::string temporary;
    {
      Cache cache(quiet(path, &warnings));
      cache.store(kKey, ".so", "hello");
      cache.store(std::string(64, 'b'), ".so", "world");
      EXPECT_TRUE(cache.find(kKey, ".so"));
      EXPECT_FALSE(cache.problem().empty());
      temporary = cache.temporary_directory();
      EXPECT_TRUE(fs::exists(temporary));
    }
    EXPECT_EQ(warnings.size(), 1u) << path;
    EXPECT_FALSE(fs::exists(temporary));
  }
}

// A full disk, imitated by a limit on file sizes.
TEST(Cache, FullDiskLeavesNothingBehind) {
  TemporaryDirectory dir;
  std::vector<std::string> warnings;
  Cache cache(quiet(dir.path() + "/c", &warnings));
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = old;
  small.rlim_cur = 1000;
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(cache.store(kKey, ".so", std::string(5000, 'x')),
               Error);  // nor in the temporary one
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(files_in(dir.path()).empty());
  EXPECT_FALSE(cache.find(kKey, ".so"));
  cache.store(kKey, ".so", "hello");
  EXPECT_TRUE(cache.find(kKey, ".so"));
}

TEST(Cache, DefaultDirectoryComesFromTheEnvironment) {
  TemporaryDirectory dir;
  const Environment a("TESSERA_CACHE_DIR", "");
  const Environment b("XDG_CACHE_HOME", dir.path() + "/xdg");
  EXPECT_EQ(Cache(quiet("")).directory(), dir.path() + "/xdg/tessera");
  const Environment c("TESSERA_CACHE_DIR", dir.path() + "/mine");
  EXPECT_EQ(Cache(quiet("")).directory(), dir.path() + "/mine");
}

const char* const kSource =
    "extern \"C\" __attribute__((visibility(\"default\"))) int answer() { return 42; }\n";

int call(const Library& library) { return reinterpret_cast<int (*)()>(library.symbol("answer"))(); }

TEST(Compile, SecondTimeComesFromTheCache) {
  TemporaryDirectory dir;
  Cache cache(quiet(dir.path() + "/c"));
  const auto first = compile_and_load(kSource, {}, cache);
  EXPECT_FALSE(first->from_cache());
  EXPECT_EQ(call(*first), 42);
  Cache other(quiet(dir.path() + "/c"));
  const auto second = compile_and_load(kSource, {}, other);
  EXPECT_TRUE(second->from_cache());
  EXPECT_EQ(call(*second), 42);
}

TEST(Compile, DamagedMachineCodeIsCompiledAgain) {
  TemporaryDirectory dir;
  Cache cache(quiet(dir.path() + "/c"));
  compile_and_load(kSource, {}, cache);
  for (const fs::path& file : files_in(dir.path() + "/c/objects")) {
    std::string bytes = *read_file(file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    overwrite(file, bytes);
  }
  const auto again = compile_and_load(kSource, {}, cache);
  EXPECT_FALSE(again->from_cache());
  EXPECT_EQ(call(*again), 42);
  EXPECT_TRUE(compile_and_load(kSource, {}, cache)->from_cache());
}

template <class F> Error error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorKind::Usage, "");
}

TEST(Compile, MissingCompilerSaysWhatToInstall) {
  TemporaryDirectory dir;
  Cache cache(quiet(dir.path() + "/c"));
  {
    const Environment a("TESSERA_CXX", "");
    const Environment b("PATH", dir.path());
    const Error e = error_of([&] { compile_and_load(kSource, {}, cache); });
    EXPECT_EQ(e.kind(), ErrorKind::ToolMissing);
    EXPECT_NE(e.message().find("apt-get install g++"), std::string::npos);
  }
  const Environment a("TESSERA_CXX", "no-such-compiler");
  const Error e = error_of([&] { compile_and_load(kSource, {}, cache); });
  EXPECT_EQ(e.kind(), ErrorKind::ToolMissing);
  EXPECT_NE(e.message().find("no-such-compiler"), std::string::npos);
}

TEST(Compile, RejectedSourceIsKept) {
  TemporaryDirectory dir;
  const Environment tmp("TMPDIR", dir.path());
  Cache cache(quiet(dir.path() + "/c"));
  const Error e = error_of([&] { compile_and_load("this is not C++\n", {}, cache); });
  EXPECT_EQ(e.kind(), ErrorKind::Internal);
  const size_t at = e.message().find("kept at ") + 8;
  const std::string path = e.message().substr(at, e.message().find('\n', at) - at);
  EXPECT_EQ(read_file(path), "this is not C++\n");
  EXPECT_TRUE(files_in(dir.path() + "/c").empty());
}

TEST(Compile, SlowCompilersAreStopped) {
  TemporaryDirectory dir;
  const Environment tmp("TMPDIR", dir.path());
  const std::string slow = dir.path() + "/slow-c++";
  overwrite(slow, "#!/bin/sh\ncase \"$1\" in --version) echo slow 1;; *) sleep 30;; esac\n");
  chmod(slow.c_str(), 0755);
  const Environment cxx("TESSERA_CXX", slow);
  Cache cache(quiet(dir.path() + "/c"));
  CompileOptions options;
  options.timeout_s = 0.3;
  const auto start = std::chrono::steady_clock::now();
  const Error e = error_of([&] { compile_and_load(kSource, options, cache); });
  EXPECT_EQ(e.kind(), ErrorKind::Internal);
  EXPECT_NE(e.message().find("stopped"), std::string::npos);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10);
}

TEST(Compile, ShellCharactersInPathsMeanNothing) {
  TemporaryDirectory dir;
  const Environment tmp("TMPDIR", dir.path());
  Cache cache(quiet(dir.path() + "/a b;$(touch x)`id`"));
  EXPECT_EQ(call(*compile_and_load(kSource, {}, cache)), 42);
  EXPECT_EQ(call(*compile_and_load(kSource, {}, cache)), 42);
}

}  // namespace
}  // namespace tessera
