#include "backend/cuda/emulator.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>

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

// What is known of threads of other blocks: the times until which their writes are there, by block
// and thread.
using KnownWrites = std::map<int, std::vector<uint32_t>>;

void join(KnownWrites& into, const KnownWrites& more) {
  for (const auto& [block, clock] : more) {
    std::vector<uint32_t>& mine = into[block];
    if (mine.empty()) mine.resize(clock.size());
    Clocks::join(mine, clock);
  }
}

// Which blocks touched the elements of a buffer, `grain` bytes at a time. Between blocks of one
// launch nothing is ordered but what fences and tickets order.
class Owners {
 public:
  struct Access {
    int block, thread;
    uint32_t time;
    bool writes = false, atomic = false;
  };
  Owners(int64_t bytes, int grain) : grain_(grain), cells_(size_t((bytes + grain - 1) / grain)) {}
  // `knows(block, thread, time)`: whether what another did then happens before this access.
  template <class Knows>
  std::optional<std::string> touch(int64_t offset, int bytes, const Access& a, Knows knows) {
    for (int64_t i = offset / grain_; i < (offset + bytes + grain_ - 1) / grain_; ++i) {
      Cell& c = cells_[size_t(i)];
      const bool other_wrote = c.writer != kNobody && c.writer != a.block;
      const bool other_read = c.reader != kNobody && c.reader != a.block;
      if (other_wrote && !(a.atomic && c.atomic) && !knows(c.writer, c.thread, c.time))
        return std::string("two blocks meet: this one ") + (a.writes ? "writes" : "reads") +
               " what block " + std::to_string(c.writer) +
               " writes, and no fences and ticket between them order the two";
      if (a.writes && other_read)
        return std::string("two blocks meet: this one writes what ") +
               (c.reader == kSeveral ? "others read"
                                     : "block " + std::to_string(c.reader) + " reads");
      if (a.writes) {
        c.writer = a.block;
        c.thread = a.thread;
        c.time = a.time;
        c.atomic = a.atomic;
      } else {
        c.reader = c.reader == kNobody || c.reader == a.block ? a.block : kSeveral;
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr int kNobody = -1, kSeveral = -2;
  struct Cell {
    int writer = kNobody, reader = kNobody;
    int thread = 0;     // that wrote, at
    uint32_t time = 0;  // this time of its own
    bool atomic = false;
  };
  int grain_;
  std::vector<Cell> cells_;
};

class Emulator {
 public:
  Emulator(const EmulatedLaunch& launch, const std::function<void()>& kernel)
      : launch_(launch), kernel_(kernel), rng_(launch.seed) {
    for (const EmulatedBuffer& b : launch.buffers) {
      shadows_.emplace_back(b.bytes, b.initialized, launch.grain);
      owners_.emplace_back(b.writable ? b.bytes : 0, launch.grain);
    }
  }

  std::optional<KernelFault> run() {
    try {
      std::vector<int> order(size_t(launch_.grid[0]) * size_t(launch_.grid[1]) *
                             size_t(launch_.grid[2]));
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng_.below(i)]);
      std::vector<bool> done(order.size(), false);
      for (const int b : order)
        if (!done[size_t(b)]) run_cluster(b, done);
      for (const EmulatedBuffer& b : launch_.buffers)
        for (int64_t i = 0; b.tickets && i < b.bytes / 4; ++i)
          if (const unsigned left = static_cast<const unsigned*>(b.data)[i]; left != 0)
            fail("ticket " + std::to_string(i) + " is left at " + std::to_string(left) +
                     ": the next launch would count on from there",
                 0);
    } catch (Stop& stop) {
      return std::move(stop.fault);
    }
    return std::nullopt;
  }

  // --- what kernels ask
  int thread() const { return thread_; }
  int threads() const { return launch_.threads; }
  int block(int axis) const { return b_.place[size_t(axis)]; }
  int grid(int axis) const { return launch_.grid[size_t(axis)]; }
  char* shared() { return reinterpret_cast<char*>(b_.shared.get()); }

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
                ? b_.shared_shadow->read(*b_.clocks, thread_, offset, bytes, line)
                : b_.shared_shadow->write(*b_.clocks, thread_, offset, bytes, line),
            line);
      return;
    }
    const size_t n = buffer_of(address, bytes, line);
    const EmulatedBuffer& b = launch_.buffers[n];
    const int64_t offset =
        static_cast<const std::byte*>(address) - static_cast<const std::byte*>(b.data);
    const bool writes = access != Access::ReadGlobal;
    if (writes && !b.writable) fail("a write to a buffer that is read only", line);
    if (b.writable) touch(n, offset, bytes, writes, access == Access::AtomicGlobal, line);
    if (access == Access::ReadGlobal)
      found(shadows_[n].read(*b_.clocks, thread_, offset, bytes, line), line);
    else if (access == Access::WriteGlobal)
      found(shadows_[n].write(*b_.clocks, thread_, offset, bytes, line), line);
  }

  void barrier(int id, int threads, bool wait, int line) {
    Barrier& b = b_.barriers[id];
    if (b.arrived == 0) {
      b.threads = threads;
      b.clock = no_clock();
    }
    if (b.threads != threads)
      fail("barrier " + std::to_string(id) + " is for " + std::to_string(b.threads) +
               " threads elsewhere and for " + std::to_string(threads) + " here",
           line);
    Clocks::join(b.clock, b_.clocks->of(thread_));
    ++b.arrived;
    const std::vector<uint32_t> nothing_new = no_clock();
    if (wait)
      b.waiting.push_back(thread_);
    else
      b_.clocks->acquire(thread_, nothing_new);
    if (b.arrived == b.threads) {
      Barrier done;
      std::swap(done, b);
      for (int t : done.waiting) {
        b_.clocks->acquire(t, done.clock);
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
    Meeting& m = b_.meetings[size_t(thread_ / kWarp)];
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
    std::vector<uint32_t> clock = no_clock();
    const int first = thread_ / kWarp * kWarp;
    if (orders)
      for (int l = 0; l < kWarp; ++l)
        if (done.mask >> l & 1) Clocks::join(clock, b_.clocks->of(first + l));
    for (int l = 0; l < kWarp; ++l)
      if (done.mask >> l & 1) {
        if (orders) b_.clocks->acquire(first + l, clock);
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
      found(shadows_[n].read(*b_.clocks, thread_, offset, read, line), line);
      if (launch_.buffers[n].writable) touch(n, offset, read, false, false, line);
    }
    const int64_t offset = shared_offset(to, bytes, line);
    found(b_.shared_shadow->start_copy(*b_.clocks, thread_, offset, bytes, line), line);
    // Until it is done the old contents must not be of use to anybody.
    std::memset(to, 0xff, size_t(bytes));
    b_.copies[size_t(thread_)].open.push_back({to, from, offset, bytes, read, line});
  }
  void copy_commit(int) { b_.copies[size_t(thread_)].commit(); }
  void copy_wait(int pending, int) {
    Copies& c = b_.copies[size_t(thread_)];
    for (; int(c.groups.size()) > pending; c.groups.pop_front())
      for (const Copy& copy : c.groups.front()) {
        std::memcpy(copy.to, copy.from, size_t(copy.read));
        std::memset(static_cast<std::byte*>(copy.to) + copy.read, 0,
                    size_t(copy.bytes - copy.read));
        b_.shared_shadow->end_copy(*b_.clocks, thread_, copy.offset, copy.bytes, false);
      }
  }

  // --- an order between blocks
  void fence_device(int) {
    // Fences are cumulative: what others wrote that this thread has met is fenced too.
    KnownWrites& mine = b_.fenced[size_t(thread_)];
    mine[block_number()] = b_.clocks->of(thread_);
    for (const Learnt& l : b_.learnt)
      if (b_.clocks->knows(thread_, l.thread, l.time)) join(mine, l.what);
    b_.clocks->acquire(thread_, no_clock());
    if (b_.seen[size_t(thread_)].empty()) return;
    b_.learnt.push_back({thread_, b_.clocks->now(thread_), b_.seen[size_t(thread_)]});
  }
  unsigned take_ticket(unsigned* counter, unsigned count, int line) {
    access(ts::host::Access::AtomicGlobal, counter, 4, line);
    if (count == 0) fail("tickets of nobody", line);
    KnownWrites& told = told_[counter];
    join(b_.seen[size_t(thread_)], told);
    join(told, b_.fenced[size_t(thread_)]);
    const unsigned was = *counter;
    *counter = was >= count - 1 ? 0 : was + 1;
    return was;
  }

  void sync_cluster(int x, int y, int z, int line) {
    const std::array<int, 3> size = {x, y, z};
    for (size_t d = 0; d < 3; ++d)
      if (size[d] < 1 || launch_.grid[d] % size[d] != 0)
        fail("the grid is not made of clusters of this size", line);
    if (x * y * z > 16) fail("a cluster has 16 blocks at most", line);
    if (b_.arrived > 0 && b_.cluster != size)
      fail("blocks of one cluster say different sizes of it", line);
    b_.cluster = size;
    b_.line = line;
    ++b_.arrived;
    pause("the cluster's barrier", line);
  }

  [[noreturn]] void fail(std::string what, int line) const {
    throw Stop{{std::move(what), line, thread_, b_.place}};
  }

  // --- sm_90: barriers in memory, and the asynchronous proxy
  void barrier_init(void* barrier, int count, int line) {
    access(ts::host::Access::WriteShared, barrier, 8, line);
    Phases& p = b_.phases[barrier];
    p = {};
    p.count = p.missing = count;
    p.agent = launch_.threads + int(b_.phases.size() - 1) % kAgents;
    p.clock = p.ended[0] = p.ended[1] = no_clock();
  }
  void barrier_arrive(void* barrier, int bytes, int line) {
    Phases& p = phases(barrier, line);
    if (p.missing == 0) fail("more arrivals at a barrier than it counts", line);
    p.bytes += bytes;
    Clocks::join(p.clock, b_.clocks->of(thread_));
    b_.clocks->acquire(thread_, no_clock());
    --p.missing;
    maybe_end(p);
  }
  void barrier_wait(void* barrier, int parity, int line) {
    while ((phases(barrier, line).number & 1) == parity) {
      phases(barrier, line).waiting.push_back(thread_);
      pause("a phase of a barrier in shared memory", line);
    }
    b_.clocks->acquire(thread_, phases(barrier, line).ended[size_t(parity)]);
  }
  void copy_rows(const ts::host::Rows& rows, void* barrier, int line) {
    Phases& p = phases(barrier, line);
    found(
        b_.shared_shadow->read_async(*b_.clocks, thread_, shared_offset(barrier, 8, line), 8, line),
        line);
    check_rows(rows, line);
    each_row(rows, [&](int64_t offset, char* global, int bytes) {
      if (global != nullptr) {
        const size_t n = buffer_of(global, bytes, line);
        const int64_t at = global - static_cast<const char*>(launch_.buffers[n].data);
        found(shadows_[n].read(*b_.clocks, thread_, at, bytes, line), line);
        if (launch_.buffers[n].writable) touch_async(n, at, bytes, false, line);
      }
      found(b_.shared_shadow->start_async_copy(*b_.clocks, thread_, offset, 16, line), line);
      std::memset(b_.shared.get() + offset, 0xff, 16);
    });
    b_.flying.push_back({rows, &p});
  }
  void store_rows(const ts::host::Rows& rows, int line) {
    check_rows(rows, line);
    each_row(rows, [&](int64_t offset, char* global, int bytes) {
      if (global == nullptr) return;
      const size_t n = buffer_of(global, bytes, line);
      if (!launch_.buffers[n].writable) fail("a write to a buffer that is read only", line);
      const int64_t at = global - static_cast<const char*>(launch_.buffers[n].data);
      touch_async(n, at, bytes, true, line);
      found(shadows_[n].write(*b_.clocks, thread_, at, bytes, line), line);
      found(b_.shared_shadow->read_async(*b_.clocks, thread_, offset, bytes, line), line);
      b_.shared_shadow->start_reading(offset, bytes);
    });
    b_.stores[size_t(thread_)].open.push_back(rows);
    b_.stores[size_t(thread_)].line = line;
  }
  void store_commit(int) { b_.stores[size_t(thread_)].commit(); }
  void store_wait(int pending, int line) {
    Stores& s = b_.stores[size_t(thread_)];
    for (; int(s.groups.size()) > pending; s.groups.pop_front())
      for (const ts::host::Rows& rows : s.groups.front())
        each_row(rows, [&](int64_t offset, char* global, int bytes) {
          if (global == nullptr) return;
          std::memcpy(global, b_.shared.get() + offset, size_t(bytes));
          b_.shared_shadow->end_reading(offset, bytes);
          found(b_.shared_shadow->read(*b_.clocks, thread_, offset, bytes, line), line);
        });
  }
  void fence_async(int) { b_.clocks->fence(thread_); }

  void product_begin(int) { b_.products[size_t(thread_)].begun = true; }
  void product(float* d, int count, const void* mine, int mine_bytes,
               void (*all)(void* const* threads), const ts::host::Span* reads, int num_reads,
               int line) {
    const int group = thread_ / kGroup, first = group * kGroup;
    if (first + kGroup > launch_.threads)
      fail("a product of four warps in a block that has no four", line);
    std::vector<std::pair<int64_t, int>> spans;
    for (int i = 0; i < num_reads; ++i)
      spans.emplace_back(shared_offset(reads[i].from, reads[i].bytes, line), reads[i].bytes);
    if (thread_ % kWarp == 0)
      for (const auto& [offset, bytes] : spans)
        found(b_.shared_shadow->read_async(*b_.clocks, thread_, offset, bytes, line), line);
    auto& gathering = b_.gathering[group];
    if (!gathering) {
      gathering = std::make_shared<Product>();
      gathering->all = all;
      gathering->line = line;
    } else if (gathering->all != all || gathering->line != line) {
      fail("the threads of four warps part ways: this one multiplies elsewhere than those at "
           "line " +
               std::to_string(gathering->line),
           line);
    }
    const std::shared_ptr<Product> p = gathering;
    if (p->reads.empty()) p->reads = spans;
    const auto* bytes = static_cast<const std::byte*>(mine);
    p->mine[size_t(thread_ - first)].assign(bytes, bytes + mine_bytes);
    p->d[size_t(thread_ - first)] = d;
    Products& own = b_.products[size_t(thread_)];
    if (!own.begun)
      fail("a product whose accumulators are not settled: begin_products comes before", line);
    own.open.push_back(p);
    if (own.saved.try_emplace(d, d, d + count).second) std::fill(d, d + count, NAN);
    if (++p->present < kGroup) {
      pause("a product of four warps", line);
      return;
    }
    gathering.reset();
    for (const auto& [offset, size] : p->reads) b_.shared_shadow->start_reading(offset, size);
    for (int t = first; t < first + kGroup; ++t)
      if (t != thread_) make_ready(t);
  }
  void product_commit(int) {
    Products& own = b_.products[size_t(thread_)];
    own.commit();
    own.begun = false;
  }
  void product_wait(int pending, int line) {
    Products& own = b_.products[size_t(thread_)];
    for (; int(own.groups.size()) > pending; own.groups.pop_front())
      for (const std::shared_ptr<Product>& p : own.groups.front()) {
        if (!p->done) compute(*p);
        if (thread_ % kWarp != 0) continue;
        for (const auto& [offset, bytes] : p->reads)
          found(b_.shared_shadow->read(*b_.clocks, thread_, offset, bytes, line), line);
      }
  }

 private:
  static constexpr int kGroup = 128;  // threads of four warps
  // As many barriers have copies that are told apart: who waits for one knows nothing of another's.
  static constexpr int kAgents = 8;
  struct Phases {
    int count = 0, missing = 0;
    int agent = 0;                               // that lands the copies, in the clocks
    int64_t bytes = 0;                           // announced and not copied yet
    int number = 0;                              // phases that have ended
    std::vector<uint32_t> clock;                 // of who arrived in this phase
    std::array<std::vector<uint32_t>, 2> ended;  // of the last phases, by parity
    std::vector<int> waiting;
  };
  struct Flying {
    ts::host::Rows rows;
    Phases* phases;
  };
  // What a thread began, and what of that it committed.
  template <class T> struct Groups {
    std::vector<T> open;
    std::deque<std::vector<T>> groups;
    void commit() { groups.push_back(std::exchange(open, {})); }
  };
  struct Stores : Groups<ts::host::Rows> {
    int line = 0;  // of the last one
  };
  struct Product {
    void (*all)(void* const*) = nullptr;
    std::vector<std::pair<int64_t, int>> reads;
    std::array<std::vector<std::byte>, kGroup> mine;
    std::array<float*, kGroup> d{};
    int present = 0, line = 0;
    bool done = false;
  };
  struct Products : Groups<std::shared_ptr<Product>> {
    std::map<float*, std::vector<float>> saved;  // accumulators as they were before
    bool begun = false;
  };

  std::vector<uint32_t> no_clock() const {
    return std::vector<uint32_t>(size_t(b_.clocks->threads()));
  }
  // Whether the thread that runs knows what a thread of another block did at a time.
  bool knows(int block, int thread, uint32_t time) const {
    return std::ranges::any_of(
        b_.learnt,
        [&](const Learnt& l) {
          const auto it = l.what.find(block);
          return it != l.what.end() && it->second[size_t(thread)] >= time &&
                 b_.clocks->knows(thread_, l.thread, l.time);
        });
  }
  // An access by the thread that runs to memory that other blocks see.
  void touch(size_t buffer, int64_t offset, int bytes, bool writes, bool atomic, int line) {
    found(owners_[buffer].touch(
              offset, bytes, {block_number(), thread_, b_.clocks->now(thread_), writes, atomic},
              [this](int b, int t, uint32_t time) { return knows(b, t, time); }),
          line);
  }
  // Fences of threads say nothing about the asynchronous proxy: it meets nobody in order.
  void touch_async(size_t buffer, int64_t offset, int bytes, bool writes, int line) {
    found(owners_[buffer].touch(
              offset, bytes, {block_number(), thread_, ~uint32_t{0}, writes, false},
              [](int, int, uint32_t) { return false; }),
          line);
  }
  Phases& phases(const void* barrier, int line) {
    const int64_t offset = shared_offset(barrier, 8, line);
    found(b_.shared_shadow->read(*b_.clocks, thread_, offset, 8, line), line);
    const auto at = b_.phases.find(barrier);
    if (at == b_.phases.end()) fail("this is no barrier: nobody called init_barrier", line);
    return at->second;
  }
  void maybe_end(Phases& p) {
    if (p.missing > 0 || p.bytes != 0) return;
    p.ended[size_t(p.number & 1)] = p.clock;
    ++p.number;
    p.missing = p.count;
    p.clock = no_clock();
    for (int t : p.waiting) make_ready(t);
    p.waiting.clear();
  }
  void check_rows(const ts::host::Rows& r, int line) {
    shared_offset(r.shared, r.rows * r.row_bytes, line);
    const int alignment = r.swizzled ? 8 * r.row_bytes : 128;
    if (reinterpret_cast<uintptr_t>(r.shared) % uintptr_t(alignment) != 0)
      fail("rows are copied to and from shared memory at multiples of " +
               std::to_string(alignment) + " bytes",
           line);
    if (r.row_bytes % 16 != 0 ||
        (r.swizzled && r.row_bytes != 128 && r.row_bytes != 64 && r.row_bytes != 32))
      fail("copied rows are multiples of 16 bytes, swizzled ones 128, 64 or 32", line);
  }
  // Pieces of 16 bytes: their offset in shared memory, and, where they lie in global memory, their
  // place and how many of their bytes do.
  template <class F> void each_row(const ts::host::Rows& r, F f) {
    const int64_t base = reinterpret_cast<std::byte*>(r.shared) - b_.shared.get();
    for (int row = 0; row < r.rows; ++row)
      for (int byte = 0; byte < r.row_bytes; byte += 16) {
        int64_t offset = base + int64_t{row} * r.row_bytes + byte;
        if (r.swizzled) offset ^= (offset >> 7 & (r.row_bytes / 16 - 1)) << 4;
        const bool inside =
            row >= r.first_row && row < r.last_row && byte >= r.first_byte && byte < r.last_byte;
        f(offset, inside ? r.global + row * r.pitch + byte : nullptr,
          inside ? std::min(16, r.last_byte - byte) : 16);
      }
  }
  // A copy of the asynchronous proxy arrives.
  void land(size_t n) {
    const Flying copy = b_.flying[n];
    b_.flying.erase(b_.flying.begin() + std::ptrdiff_t(n));
    const int agent = copy.phases->agent;
    each_row(copy.rows, [&](int64_t offset, char* global, int bytes) {
      std::memset(b_.shared.get() + offset, 0, 16);
      if (global != nullptr) std::memcpy(b_.shared.get() + offset, global, size_t(bytes));
      b_.shared_shadow->end_copy(*b_.clocks, agent, offset, 16, true);
    });
    Phases& p = *copy.phases;
    Clocks::join(p.clock, b_.clocks->of(agent));
    b_.clocks->acquire(agent, no_clock());
    p.bytes -= int64_t{copy.rows.rows} * copy.rows.row_bytes;
    maybe_end(p);
  }
  void compute(Product& p) {
    std::array<void*, kGroup> mine{};
    const int first = thread_ / kGroup * kGroup;
    for (int t = 0; t < kGroup; ++t) {
      mine[size_t(t)] = p.mine[size_t(t)].data();
      Products& own = b_.products[size_t(first + t)];
      const auto saved = own.saved.find(p.d[size_t(t)]);
      if (saved == own.saved.end()) continue;
      std::ranges::copy(saved->second, saved->first);
      own.saved.erase(saved);
    }
    p.all(mine.data());
    for (const auto& [offset, bytes] : p.reads) b_.shared_shadow->end_reading(offset, bytes);
    p.done = true;
  }

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
  using Copies = Groups<Copy>;

  // A block and, where it waits for them, those of its cluster. Between barriers of the cluster
  // they run one after the other: only there they may learn of each other.
  void run_cluster(int first, std::vector<bool>& done) {
    start_block(first);
    done[size_t(first)] = true;
    if (!reaches_cluster_barrier()) return;
    const std::array<int, 3> size = b_.cluster, of = b_.place;
    std::vector<Block> waiting(1);
    for (int z = 0; z < size[2]; ++z)
      for (int y = 0; y < size[1]; ++y)
        for (int x = 0; x < size[0]; ++x) {
          const std::array<int, 3> at = {of[0] / size[0] * size[0] + x,
                                         of[1] / size[1] * size[1] + y,
                                         of[2] / size[2] * size[2] + z};
          if (at == of) continue;
          const int number = (at[2] * launch_.grid[1] + at[1]) * launch_.grid[0] + at[0];
          std::swap(b_, waiting.back());
          waiting.emplace_back();
          start_block(number);
          done[size_t(number)] = true;
          if (!reaches_cluster_barrier()) part_ways(waiting.front().line);
          if (b_.cluster != size) fail("blocks of one cluster say different sizes of it", b_.line);
        }
    std::swap(b_, waiting.back());
    for (size_t left = waiting.size(); left > 0;) {
      KnownWrites all;
      for (const Block& b : waiting) {
        std::vector<uint32_t>& clock = all[number_of(b.place)];
        clock.resize(size_t(b.clocks->threads()));
        for (int t = 0; t < launch_.threads; ++t) Clocks::join(clock, b.clocks->of(t));
      }
      left = 0;
      for (Block& b : waiting) {
        std::swap(b_, b);
        for (Shadow& s : shadows_) s.forget_accesses();
        b_.learnt.push_back({0, b_.clocks->now(0), all});
        b_.arrived = 0;
        for (int t = 0; t < launch_.threads; ++t) {
          b_.clocks->acquire(t, all.at(block_number()));
          make_ready(t);
        }
        const int line = b_.line;
        if (reaches_cluster_barrier())
          ++left;
        else if (left > 0)
          part_ways(line);
        std::swap(b_, b);
      }
      if (left > 0 && left < waiting.size()) part_ways(waiting.front().line);
    }
  }
  [[noreturn]] void part_ways(int line) {
    fail("a block of a cluster ends while others wait at the cluster's barrier", line);
  }
  void start_block(int number) {
    const int n = launch_.threads;
    b_.place = {number % launch_.grid[0], number / launch_.grid[0] % launch_.grid[1],
                number / launch_.grid[0] / launch_.grid[1]};
    if (!b_.shared)
      b_.shared.reset(static_cast<std::byte*>(::operator new (
          size_t(std::max<int64_t>(launch_.shared_bytes, 1)), std::align_val_t{1024})));
    b_.ended = b_.arrived = 0;
    b_.clocks.emplace(n + kAgents);  // the last ones are the asynchronous proxy's
    b_.shared_shadow.emplace(launch_.shared_bytes, false, launch_.grain);
    std::memset(b_.shared.get(), 0xff, size_t(launch_.shared_bytes));  // NaNs
    for (Shadow& s : shadows_) s.forget_accesses();
    b_.barriers.clear();
    b_.meetings.assign(size_t((n + kWarp - 1) / kWarp), {});
    b_.copies.assign(size_t(n), {});
    b_.phases.clear();
    b_.flying.clear();
    b_.stores.assign(size_t(n), {});
    b_.gathering.clear();
    b_.products.assign(size_t(n), {});
    b_.fenced.assign(size_t(n), {});
    b_.seen.assign(size_t(n), {});
    b_.learnt.clear();
    b_.where.assign(size_t(n), {});
    b_.ready.resize(size_t(n));
    for (int t = 0; t < n; ++t) b_.ready[size_t(t)] = t;
    b_.fibers = std::make_unique<Fibers>(n, [this](int) { kernel_(); });
  }
  // Runs the block until all of its threads wait at a barrier of the cluster (true) or have ended.
  bool reaches_cluster_barrier() {
    while (b_.ended < launch_.threads) {
      // Copies take their time: nobody may count on their being early.
      while (!b_.flying.empty() && (b_.ready.empty() || rng_.chance(0.05)))
        land(rng_.below(b_.flying.size()));
      if (b_.ready.empty() && b_.arrived == launch_.threads) return true;
      if (b_.ready.empty()) deadlock(*b_.fibers);
      std::swap(b_.ready[rng_.below(b_.ready.size())], b_.ready.back());
      thread_ = b_.ready.back();
      b_.ready.pop_back();
      b_.fibers->resume(thread_);
      if (!b_.fibers->ended(thread_)) continue;
      ++b_.ended;
      const Copies& c = b_.copies[size_t(thread_)];
      for (const auto& group : c.groups)
        if (!group.empty())
          fail("the thread ends and nobody waited for this copy", group.front().line);
      if (!c.open.empty())
        fail("the thread ends and this copy was not even committed", c.open.front().line);
      const Stores& s = b_.stores[size_t(thread_)];
      if (!s.open.empty() || !s.groups.empty())
        fail("the thread ends and nobody waited for this store", s.line);
      const Products& m = b_.products[size_t(thread_)];
      if (!m.open.empty() || !m.groups.empty())
        fail("the thread ends and nobody waited for this matrix product",
             (m.open.empty() ? m.groups.front() : m.open).front()->line);
    }
    b_.fibers.reset();
    return false;
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
      const Place& p = b_.where[size_t(t)];
      ++places[p.what + " of line " + std::to_string(p.line)];
    }
    std::string text = "no thread can go on: ";
    for (const auto& [place, count] : places)
      text += std::to_string(count) + " wait at " + place + ", ";
    text += std::to_string(ended) + " have ended";
    thread_ = first;
    fail(text, b_.where[size_t(first)].line);
  }
  void make_ready(int thread) { b_.ready.push_back(thread); }
  void pause(const std::string& what, int line) {
    b_.where[size_t(thread_)] = {what, line};
    b_.fibers->yield();
  }
  int number_of(const std::array<int, 3>& place) const {
    return (place[2] * launch_.grid[1] + place[1]) * launch_.grid[0] + place[0];
  }
  int block_number() const { return number_of(b_.place); }
  int64_t shared_offset(const void* address, int bytes, int line) const {
    const int64_t offset = static_cast<const std::byte*>(address) - b_.shared.get();
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

  struct Place {
    std::string what;
    int line = 0;
  };
  struct Learnt {
    int thread;
    uint32_t time;  // from which on it knows, and whoever hears of that
    KnownWrites what;
  };
  const EmulatedLaunch& launch_;
  const std::function<void()>& kernel_;
  Rng rng_;
  std::vector<Shadow> shadows_;  // of the buffers
  std::vector<Owners> owners_;
  std::map<const unsigned*, KnownWrites> told_;  // by whoever took a ticket, by counter
  // What there is of a block.
  struct Block {
    std::array<int, 3> place{};
    std::unique_ptr<std::byte, void (*)(std::byte*)> shared{
        nullptr, [](std::byte* p) { ::operator delete (p, std::align_val_t{1024}); }};
    std::unique_ptr<Fibers> fibers;
    int ended = 0;                 // threads
    std::array<int, 3> cluster{};  // blocks that meet at the barrier where threads wait
    int arrived = 0, line = 0;     // threads there, and where it is
    std::optional<Clocks> clocks;
    std::optional<Shadow> shared_shadow;
    std::map<int, Barrier> barriers;
    std::vector<Meeting> meetings;                      // of warps
    std::vector<Copies> copies;                         // of threads
    std::map<const void*, Phases> phases;               // of barriers in shared memory
    std::vector<Flying> flying;                         // copies of the asynchronous proxy
    std::vector<Stores> stores;                         // of threads
    std::map<int, std::shared_ptr<Product>> gathering;  // of groups of warps
    std::vector<Products> products;                     // of threads
    std::vector<KnownWrites> fenced,
        seen;                    // of threads: what the next ticket tells, and what was told
    std::vector<Learnt> learnt;  // of other blocks, by threads of this one
    std::vector<Place> where;    // threads wait
    std::vector<int> ready;
  };
  Block b_;  // the one that runs
  int thread_ = 0;
};

thread_local Emulator* running = nullptr;

const ts::host::Api kApi = {
    [] { return running->thread(); },
    [] { return running->threads(); },
    [](int axis) { return running->block(axis); },
    [](int axis) { return running->grid(axis); },
    [] { return running->shared(); },
    [](const char* what, int line) { running->fail(what, line); },
    [](auto... a) { return running->access(a...); },
    [](auto... a) { return running->barrier(a...); },
    [](auto... a) { return running->collective(a...); },
    [](auto... a) { return running->copy_async(a...); },
    [](auto... a) { return running->copy_commit(a...); },
    [](auto... a) { return running->copy_wait(a...); },
    [](auto... a) { return running->fence_device(a...); },
    [](auto... a) { return running->take_ticket(a...); },
    [](auto... a) { return running->sync_cluster(a...); },
    [](auto... a) { return running->barrier_init(a...); },
    [](auto... a) { return running->barrier_arrive(a...); },
    [](auto... a) { return running->barrier_wait(a...); },
    [](auto... a) { return running->copy_rows(a...); },
    [](auto... a) { return running->store_rows(a...); },
    [](auto... a) { return running->store_commit(a...); },
    [](auto... a) { return running->store_wait(a...); },
    [](auto... a) { return running->fence_async(a...); },
    [](auto... a) { return running->product_begin(a...); },
    [](auto... a) { return running->product(a...); },
    [](auto... a) { return running->product_commit(a...); },
    [](auto... a) { return running->product_wait(a...); },
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
