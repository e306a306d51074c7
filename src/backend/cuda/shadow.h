// What the emulator knows about memory: who wrote an element last, who has read it since, and
// whether those accesses are ordered (FastTrack, Flanagan and Freund, PLDI'09: a race is an access
// that does not happen after an earlier one of which at least one writes).
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace tessera {

// One vector clock per thread: what each knows of all others.
class Clocks {
 public:
  explicit Clocks(int threads);
  int threads() const { return int(of_.size()); }
  uint32_t now(int thread) const { return of_[size_t(thread)][size_t(thread)]; }
  // Whether what `other` did at `time` happens before what `thread` does now.
  bool knows(int thread, int other, uint32_t time) const {
    return of_[size_t(thread)][size_t(other)] >= time;
  }
  const std::vector<uint32_t>& of(int thread) const { return of_[size_t(thread)]; }
  // The thread learns what is in `clock`, and a new time begins for it.
  void acquire(int thread, const std::vector<uint32_t>& clock);
  static void join(std::vector<uint32_t>& into, const std::vector<uint32_t>& clock);

  // What `thread` has written becomes visible to the asynchronous proxy.
  void fence(int thread);
  // Whether what `other` did at `time` was fenced, by itself, before what `thread` does now. (PTX
  // lets the fence stand anywhere between the two; with who wrote is how NVIDIA's libraries do it.)
  bool fenced(int thread, int other, uint32_t time) const;

 private:
  std::vector<std::vector<uint32_t>> of_;
  std::vector<std::vector<uint32_t>> fences_;  // times of each thread's last few
};

// The state of a range of memory, `grain` bytes at a time: no element is smaller.
class Shadow {
 public:
  Shadow(int64_t bytes, bool initialized, int grain = 2);

  // Each returns what is wrong, if anything is. Offsets and sizes in bytes.
  std::optional<std::string> read(const Clocks& clocks, int thread, int64_t offset, int bytes,
                                  int line);
  std::optional<std::string> write(const Clocks& clocks, int thread, int64_t offset, int bytes,
                                   int line);
  // An asynchronous copy has been started, or is done (`async`: by the asynchronous proxy).
  std::optional<std::string> start_copy(const Clocks& clocks, int thread, int64_t offset, int bytes,
                                        int line);
  // The same by the asynchronous proxy: what threads wrote there must be fenced.
  std::optional<std::string> start_async_copy(const Clocks& clocks, int thread, int64_t offset,
                                              int bytes, int line);
  void end_copy(const Clocks& clocks, int thread, int64_t offset, int bytes, bool async);
  // A read by the asynchronous proxy on behalf of a thread: what threads wrote must be fenced.
  std::optional<std::string> read_async(const Clocks& clocks, int thread, int64_t offset, int bytes,
                                        int line);
  // While something of the asynchronous proxy reads, nobody may write.
  void start_reading(int64_t offset, int bytes);
  void end_reading(int64_t offset, int bytes);
  // Another block begins: nothing of this one is in anybody's way.
  void forget_accesses();

 private:
  struct Reader {
    int thread;
    uint32_t time;
    int line;
  };
  struct Cell {
    uint32_t written = 0;  // time of the writer
    int32_t line = 0;
    uint32_t readers = 0;  // index into sets_
    int16_t writer = -1;   // -1: nobody in this block
    bool initialized = false, copying = false;
    bool async = false;   // the writer was the asynchronous proxy
    uint8_t reading = 0;  // how much of the asynchronous proxy reads
  };
  std::span<Cell> cells(int64_t offset, int bytes);
  std::optional<std::string> check_fenced(const Clocks& clocks, int thread, int64_t offset,
                                          int bytes, const char* does);
  std::optional<std::string> check_write(const Clocks& clocks, int thread, const Cell& c, int line);
  uint32_t with_reader(const Clocks& clocks, uint32_t set, int thread, int line);

  int grain_;
  std::vector<Cell> cells_;
  std::vector<std::vector<Reader>> sets_{{}};  // the first is empty
  std::map<std::tuple<uint32_t, int, uint32_t>, uint32_t> next_;
};

}  // namespace tessera
