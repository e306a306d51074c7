#include "backend/cuda/emulator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <map>

#include "backend/cuda/fibers.h"
#include "backend/cuda/shadow.h"
#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"

namespace tessera {
namespace {

constexpr int kWarp = 32;

// What is thrown out of a kernel.
struct Stop {
  KernelFault fault;
};

// Which blocks touched the elements of a buffer, two bytes at a time: between blocks of one launch
// nothing is ordered.
class Owners {
 public:
  explicit Owners(int64_t bytes) : cells_(size_t((bytes + 1) / 2)) {}
  std::optional<std::string> touch(int64_t offset, int bytes, int block, bool writes, bool atomic) {
    for (int64_t i = offset / 2; i < (offset + bytes + 1) / 2; ++i) {
      Cell& c = cells_[size_t(i)];
      const bool other_wrote = c.writer != kNobody && c.writer != block;
      const bool other_read = c.reader != kNobody && c.reader != block;
      if (other_wrote && !(atomic && c.atomic))
        return std::string("two blocks meet: this one ") + (writes ? "writes" : "reads") +
               " what block " + std::to_string(c.writer) + " writes";
      if (writes && other_read)
        return std::string("two blocks meet: this one writes what ") +
               (c.reader == kSeveral ? "others read"
                                     : "block " + std::to_string(c.reader) + " reads");
      if (writes) {
        c.writer = block;
        c.atomic = atomic;
      } else {
        c.reader = c.reader == kNobody || c.reader == block ? block : kSeveral;
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr int kNobody = -1, kSeveral = -2;
  struct Cell {
    int writer = kNobody, reader = kNobody;
    bool atomic = false;
  };
  std::vector<Cell> cells_;
};

class Emulator {
 public:
  Emulator(const EmulatedLaunch& launch, const std::function<void()>& kernel)
      : launch_(launch), kernel_(kernel), rng_(launch.seed),
        shared_(static_cast<std::byte*>(::operator new (
            size_t(std::max<int64_t>(launch.shared_bytes, 1)), std::align_val_t{1024}))) {
    for (const EmulatedBuffer& b : launch.buffers) {
      shadows_.emplace_back(b.bytes, b.initialized);
      owners_.emplace_back(b.writable ? b.bytes : 0);
    }
  }
  ~Emulator() { ::operator delete (shared_, std::align_val_t{1024}); }

  std::optional<KernelFault> run() {
    for (block_[2] = 0; block_[2] < launch_.grid[2]; ++block_[2])
      for (block_[1] = 0; block_[1] < launch_.grid[1]; ++block_[1])
        for (block_[0] = 0; block_[0] < launch_.grid[0]; ++block_[0]) try {
            run_block();
          } catch (Stop& stop) {
            return std::move(stop.fault);
          }
    return std::nullopt;
  }

  // --- what kernels ask
  int thread() const { return thread_; }
  int threads() const { return launch_.threads; }
  int block(int axis) const { return block_[size_t(axis)]; }
  int grid(int axis) const { return launch_.grid[size_t(axis)]; }
  char* shared() { return reinterpret_cast<char*>(shared_); }

  void access(ts::host::Access access, const void* address, int bytes, int line) {
    using ts::host::Access;
    if (reinterpret_cast<uintptr_t>(address) % uintptr_t(bytes) != 0)
      fail("an access of " + std::to_string(bytes) +
               " bytes at an address that is no multiple of "
               "them",
           line);
    if (access == Access::ReadShared || access == Access::WriteShared) {
      const int64_t offset = shared_offset(address, bytes, line);
      found(access == Access::ReadShared
                ? shared_shadow_->read(*clocks_, thread_, offset, bytes, line)
                : shared_shadow_->write(*clocks_, thread_, offset, bytes, line),
            line);
      return;
    }
    const size_t n = buffer_of(address, bytes, line);
    const EmulatedBuffer& b = launch_.buffers[n];
    const int64_t offset =
        static_cast<const std::byte*>(address) - static_cast<const std::byte*>(b.data);
    const bool writes = access != Access::ReadGlobal;
    if (writes && !b.writable) fail("a write to a buffer that is read only", line);
    if (b.writable)
      found(owners_[n].touch(offset, bytes, block_number(), writes, access == Access::AtomicGlobal),
            line);
    if (access == Access::ReadGlobal)
      found(shadows_[n].read(*clocks_, thread_, offset, bytes, line), line);
    else if (access == Access::WriteGlobal)
      found(shadows_[n].write(*clocks_, thread_, offset, bytes, line), line);
  }

  void barrier(int id, int threads, bool wait, int line) {
    Barrier& b = barriers_[id];
    if (b.arrived == 0) {
      b.threads = threads;
      b.clock.assign(size_t(launch_.threads), 0);
    }
    if (b.threads != threads)
      fail("barrier " + std::to_string(id) + " is for " + std::to_string(b.threads) +
               " threads elsewhere and for " + std::to_string(threads) + " here",
           line);
    Clocks::join(b.clock, clocks_->of(thread_));
    ++b.arrived;
    const std::vector<uint32_t> nothing_new(size_t(launch_.threads), 0);
    if (wait)
      b.waiting.push_back(thread_);
    else
      clocks_->acquire(thread_, nothing_new);
    if (b.arrived == b.threads) {
      Barrier done;
      std::swap(done, b);
      for (int t : done.waiting) {
        clocks_->acquire(t, done.clock);
        if (t != thread_) make_ready(t);
      }
      if (!wait) return;
      // The others had better not always come after the last one.
      make_ready(thread_);
      pause("", line);
    } else if (wait) {
      pause("barrier " + std::to_string(id) + " (" + std::to_string(threads) + " threads)", line);
    }
  }

  void collective(const char* name, unsigned mask, void* mine,
                  void (*all)(void* const* lanes, unsigned mask), bool orders, int line) {
    const int lane = thread_ % kWarp;
    Meeting& m = meetings_[size_t(thread_ / kWarp)];
    if ((mask >> lane & 1) == 0)
      fail(std::string(name) + ": the mask leaves out the lane itself", line);
    if (m.present == 0) {
      m.name = name;
      m.mask = mask;
      m.line = line;
    } else if (m.name != name || m.mask != mask) {
      fail(std::string("lanes of one warp part ways: this one is at ") + name + ", others at " +
               m.name + " (line " + std::to_string(m.line) + ")" +
               (m.mask != mask ? ", with another mask" : ""),
           line);
    }
    m.lanes[size_t(lane)] = mine;
    m.present |= 1u << lane;
    if (m.present != m.mask) {
      pause(name, line);
      return;
    }
    Meeting done;
    std::swap(done, m);
    if (all != nullptr) all(done.lanes.data(), done.mask);
    std::vector<uint32_t> clock(size_t(launch_.threads), 0);
    const int first = thread_ / kWarp * kWarp;
    if (orders)
      for (int l = 0; l < kWarp; ++l)
        if (done.mask >> l & 1) Clocks::join(clock, clocks_->of(first + l));
    for (int l = 0; l < kWarp; ++l)
      if (done.mask >> l & 1) {
        if (orders) clocks_->acquire(first + l, clock);
        if (first + l != thread_) make_ready(first + l);
      }
  }

  void copy_async(void* to, const void* from, int bytes, int read, int line) {
    if (bytes != 4 && bytes != 8 && bytes != 16)
      fail("an asynchronous copy of " + std::to_string(bytes) + " bytes; 4, 8 and 16 exist", line);
    for (const void* p : {static_cast<const void*>(to), from})
      if (reinterpret_cast<uintptr_t>(p) % uintptr_t(bytes) != 0)
        fail("an asynchronous copy of " + std::to_string(bytes) +
                 " bytes at an address that is no multiple of them",
             line);
    if (read < 0 || read > bytes) fail("an asynchronous copy reads more than it copies", line);
    if (read > 0) {
      const size_t n = buffer_of(from, read, line);
      const int64_t offset = static_cast<const std::byte*>(from) -
                             static_cast<const std::byte*>(launch_.buffers[n].data);
      found(shadows_[n].read(*clocks_, thread_, offset, read, line), line);
      if (launch_.buffers[n].writable)
        found(owners_[n].touch(offset, read, block_number(), false, false), line);
    }
    const int64_t offset = shared_offset(to, bytes, line);
    found(shared_shadow_->start_copy(*clocks_, thread_, offset, bytes, line), line);
    // Until it is done the old contents must not be of use to anybody.
    std::memset(to, 0xff, size_t(bytes));
    copies_[size_t(thread_)].open.push_back({to, from, offset, bytes, read, line});
  }
  void copy_commit(int) {
    Copies& c = copies_[size_t(thread_)];
    c.groups.push_back(std::move(c.open));
    c.open.clear();
  }
  void copy_wait(int pending, int) {
    Copies& c = copies_[size_t(thread_)];
    for (; int(c.groups.size()) > pending; c.groups.pop_front())
      for (const Copy& copy : c.groups.front()) {
        std::memcpy(copy.to, copy.from, size_t(copy.read));
        std::memset(static_cast<std::byte*>(copy.to) + copy.read, 0,
                    size_t(copy.bytes - copy.read));
        shared_shadow_->end_copy(*clocks_, thread_, copy.offset, copy.bytes);
      }
  }

 private:
  struct Barrier {
    int threads = 0, arrived = 0;
    std::vector<int> waiting;
    std::vector<uint32_t> clock;  // of all that arrived
  };
  struct Meeting {
    std::string name;
    unsigned mask = 0, present = 0;
    int line = 0;
    std::array<void*, kWarp> lanes{};
  };
  struct Copy {
    void* to;
    const void* from;
    int64_t offset;
    int bytes, read, line;
  };
  struct Copies {
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
  };

  void run_block() {
    const int n = launch_.threads;
    clocks_.emplace(n);
    shared_shadow_.emplace(launch_.shared_bytes, false);
    std::memset(shared_, 0xff, size_t(launch_.shared_bytes));  // NaNs
    for (Shadow& s : shadows_) s.forget_accesses();
    barriers_.clear();
    meetings_.assign(size_t((n + kWarp - 1) / kWarp), {});
    copies_.assign(size_t(n), {});
    where_.assign(size_t(n), {});
    ready_.resize(size_t(n));
    for (int t = 0; t < n; ++t) ready_[size_t(t)] = t;
    Fibers fibers(n, [this](int) { kernel_(); });
    fibers_ = &fibers;
    int ended = 0;
    while (ended < n) {
      if (ready_.empty()) deadlock(fibers);
      std::swap(ready_[rng_.below(ready_.size())], ready_.back());
      thread_ = ready_.back();
      ready_.pop_back();
      fibers.resume(thread_);
      if (!fibers.ended(thread_)) continue;
      ++ended;
      const Copies& c = copies_[size_t(thread_)];
      for (const auto& group : c.groups)
        if (!group.empty())
          fail("the thread ends and nobody waited for this copy", group.front().line);
      if (!c.open.empty())
        fail("the thread ends and this copy was not even committed", c.open.front().line);
    }
  }
  [[noreturn]] void deadlock(const Fibers& fibers) {
    std::map<std::string, int> places;
    int first = -1, ended = 0;
    for (int t = 0; t < launch_.threads; ++t) {
      if (fibers.ended(t)) {
        ++ended;
        continue;
      }
      if (first < 0) first = t;
      const Place& p = where_[size_t(t)];
      ++places[p.what + " of line " + std::to_string(p.line)];
    }
    std::string text = "no thread can go on: ";
    for (const auto& [place, count] : places)
      text += std::to_string(count) + " wait at " + place + ", ";
    text += std::to_string(ended) + " have ended";
    thread_ = first;
    fail(text, where_[size_t(first)].line);
  }
  void make_ready(int thread) { ready_.push_back(thread); }
  void pause(const std::string& what, int line) {
    where_[size_t(thread_)] = {what, line};
    fibers_->yield();
  }
  int block_number() const {
    return (block_[2] * launch_.grid[1] + block_[1]) * launch_.grid[0] + block_[0];
  }
  int64_t shared_offset(const void* address, int bytes, int line) const {
    const int64_t offset = static_cast<const std::byte*>(address) - shared_;
    if (offset < 0 || offset + bytes > launch_.shared_bytes)
      fail("shared memory out of bounds: " + std::to_string(bytes) + " bytes at " +
               std::to_string(offset) + " of " + std::to_string(launch_.shared_bytes),
           line);
    return offset;
  }
  size_t buffer_of(const void* address, int bytes, int line) const {
    const std::byte* p = static_cast<const std::byte*>(address);
    for (size_t n = 0; n < launch_.buffers.size(); ++n) {
      const std::byte* begin = static_cast<const std::byte*>(launch_.buffers[n].data);
      if (p >= begin && p + bytes <= begin + launch_.buffers[n].bytes) return n;
    }
    for (size_t n = 0; n < launch_.buffers.size(); ++n) {
      const EmulatedBuffer& b = launch_.buffers[n];
      const int64_t offset = p - static_cast<const std::byte*>(b.data);
      if (offset >= -4096 && offset < b.bytes + 4096)
        fail("out of bounds: " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                 " of the " + std::to_string(b.bytes) + " of buffer " + std::to_string(n),
             line);
    }
    fail("an access to memory that is no buffer of the kernel", line);
  }
  void found(const std::optional<std::string>& wrong, int line) const {
    if (wrong) fail(*wrong, line);
  }
  [[noreturn]] void fail(std::string what, int line) const {
    throw Stop{{std::move(what), line, thread_, block_}};
  }

  struct Place {
    std::string what;
    int line = 0;
  };
  const EmulatedLaunch& launch_;
  const std::function<void()>& kernel_;
  Rng rng_;
  std::byte* shared_;
  std::vector<Shadow> shadows_;  // of the buffers
  std::vector<Owners> owners_;
  std::array<int, 3> block_{};
  // Of the block that runs.
  int thread_ = 0;
  Fibers* fibers_ = nullptr;
  std::optional<Clocks> clocks_;
  std::optional<Shadow> shared_shadow_;
  std::map<int, Barrier> barriers_;
  std::vector<Meeting> meetings_;  // of warps
  std::vector<Copies> copies_;     // of threads
  std::vector<Place> where_;       // threads wait
  std::vector<int> ready_;
};

thread_local Emulator* running = nullptr;

const ts::host::Api kApi = {
    [] { return running->thread(); },
    [] { return running->threads(); },
    [](int axis) { return running->block(axis); },
    [](int axis) { return running->grid(axis); },
    [] { return running->shared(); },
    [](ts::host::Access access, const void* address, int bytes, int line) {
      running->access(access, address, bytes, line);
    },
    [](int id, int threads, bool wait, int line) { running->barrier(id, threads, wait, line); },
    [](const char* name, unsigned mask, void* mine, void (*all)(void* const*, unsigned),
       bool orders, int line) { running->collective(name, mask, mine, all, orders, line); },
    [](void* to, const void* from, int bytes, int read, int line) {
      running->copy_async(to, from, bytes, read, line);
    },
    [](int line) { running->copy_commit(line); },
    [](int pending, int line) { running->copy_wait(pending, line); },
};

}  // namespace

const ts::host::Api* emulator_api() { return &kApi; }

std::string KernelFault::str() const {
  std::string text;
  if (line > 0) text += "line " + std::to_string(line) + ": ";
  text += what + " (thread " + std::to_string(thread) + " of block " + std::to_string(block[0]) +
          "," + std::to_string(block[1]) + "," + std::to_string(block[2]) + ")";
  return text;
}

std::optional<KernelFault> emulate(const EmulatedLaunch& launch,
                                   const std::function<void()>& kernel) {
  if (launch.threads < 1 || launch.threads > 1024)
    throw Error(ErrorKind::Usage,
                "a block has 1 to 1024 threads, not " + std::to_string(launch.threads));
  CHECK(running == nullptr) << "an emulated kernel emulates another";
  Emulator emulator(launch, kernel);
  running = &emulator;
  struct Reset {
    ~Reset() { running = nullptr; }
  } reset;
  return emulator.run();
}

}  // namespace tessera
