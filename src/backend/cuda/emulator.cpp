#include "backend/cuda/emulator.h"

#include <algorithm>
#include <cmath>
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
using Known = std::map<int, std::vector<uint32_t>>;

void join(Known& into, const Known& more) {
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
      : launch_(launch), kernel_(kernel), rng_(launch.seed),
        shared_(static_cast<std::byte*>(::operator new (
            size_t(std::max<int64_t>(launch.shared_bytes, 1)), std::align_val_t{1024}))) {
    for (const EmulatedBuffer& b : launch.buffers) {
      shadows_.emplace_back(b.bytes, b.initialized, launch.grain);
      owners_.emplace_back(b.writable ? b.bytes : 0, launch.grain);
    }
  }
  ~Emulator() { ::operator delete (shared_, std::align_val_t{1024}); }

  std::optional<KernelFault> run() {
    try {
      std::vector<int> order(size_t(launch_.grid[0]) * size_t(launch_.grid[1]) *
                             size_t(launch_.grid[2]));
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng_.below(i)]);
      for (const int b : order) {
        block_ = {b % launch_.grid[0], b / launch_.grid[0] % launch_.grid[1],
                  b / launch_.grid[0] / launch_.grid[1]};
        run_block();
      }
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
    if (b.writable) touch(n, offset, bytes, writes, access == Access::AtomicGlobal, line);
    if (access == Access::ReadGlobal)
      found(shadows_[n].read(*clocks_, thread_, offset, bytes, line), line);
    else if (access == Access::WriteGlobal)
      found(shadows_[n].write(*clocks_, thread_, offset, bytes, line), line);
  }

  void barrier(int id, int threads, bool wait, int line) {
    Barrier& b = barriers_[id];
    if (b.arrived == 0) {
      b.threads = threads;
      b.clock = no_clock();
    }
    if (b.threads != threads)
      fail("barrier " + std::to_string(id) + " is for " + std::to_string(b.threads) +
               " threads elsewhere and for " + std::to_string(threads) + " here",
           line);
    Clocks::join(b.clock, clocks_->of(thread_));
    ++b.arrived;
    const std::vector<uint32_t> nothing_new = no_clock();
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
    std::vector<uint32_t> clock = no_clock();
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
      if (launch_.buffers[n].writable) touch(n, offset, read, false, false, line);
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
        shared_shadow_->end_copy(*clocks_, thread_, copy.offset, copy.bytes, false);
      }
  }

  // --- an order between blocks
  void fence_device(int) {
    // Fences are cumulative: what others wrote that this thread has met is fenced too.
    Known& mine = fenced_[size_t(thread_)];
    mine[block_number()] = clocks_->of(thread_);
    for (const Learnt& l : learnt_)
      if (clocks_->knows(thread_, l.thread, l.time)) join(mine, l.what);
    clocks_->acquire(thread_, no_clock());
    if (seen_[size_t(thread_)].empty()) return;
    learnt_.push_back({thread_, clocks_->now(thread_), seen_[size_t(thread_)]});
  }
  unsigned take_ticket(unsigned* counter, unsigned count, int line) {
    access(ts::host::Access::AtomicGlobal, counter, 4, line);
    if (count == 0) fail("tickets of nobody", line);
    Known& told = told_[counter];
    join(seen_[size_t(thread_)], told);
    join(told, fenced_[size_t(thread_)]);
    const unsigned was = *counter;
    *counter = was >= count - 1 ? 0 : was + 1;
    return was;
  }

  // --- sm_90: barriers in memory, and the asynchronous proxy
  void barrier_init(void* barrier, int count, int line) {
    access(ts::host::Access::WriteShared, barrier, 8, line);
    Phases& p = phases_[barrier];
    p = {};
    p.count = p.missing = count;
    p.agent = launch_.threads + int(phases_.size() - 1) % kAgents;
    p.clock = p.ended[0] = p.ended[1] = no_clock();
  }
  void barrier_arrive(void* barrier, int bytes, int line) {
    Phases& p = phases(barrier, line);
    if (p.missing == 0) fail("more arrivals at a barrier than it counts", line);
    p.bytes += bytes;
    Clocks::join(p.clock, clocks_->of(thread_));
    clocks_->acquire(thread_, no_clock());
    --p.missing;
    maybe_end(p);
  }
  void barrier_wait(void* barrier, int parity, int line) {
    while ((phases(barrier, line).number & 1) == parity) {
      phases(barrier, line).waiting.push_back(thread_);
      pause("a phase of a barrier in shared memory", line);
    }
    clocks_->acquire(thread_, phases(barrier, line).ended[size_t(parity)]);
  }
  void copy_rows(const ts::host::Rows& rows, void* barrier, int line) {
    Phases& p = phases(barrier, line);
    found(shared_shadow_->read_async(*clocks_, thread_, shared_offset(barrier, 8, line), 8, line),
          line);
    check_rows(rows, line);
    each_row(rows, [&](int64_t offset, char* global, int bytes, int) {
      if (global != nullptr) {
        const size_t n = buffer_of(global, bytes, line);
        const int64_t at = global - static_cast<const char*>(launch_.buffers[n].data);
        found(shadows_[n].read(*clocks_, thread_, at, bytes, line), line);
        if (launch_.buffers[n].writable) touch_async(n, at, bytes, false, line);
      }
      const int all = 16;
      found(shared_shadow_->start_async_copy(*clocks_, thread_, offset, all, line), line);
      std::memset(shared_ + offset, 0xff, size_t(all));
    });
    flying_.push_back({rows, &p});
  }
  void store_rows(const ts::host::Rows& rows, int line) {
    check_rows(rows, line);
    each_row(rows, [&](int64_t offset, char* global, int bytes, int) {
      if (global == nullptr) return;
      const size_t n = buffer_of(global, bytes, line);
      if (!launch_.buffers[n].writable) fail("a write to a buffer that is read only", line);
      const int64_t at = global - static_cast<const char*>(launch_.buffers[n].data);
      touch_async(n, at, bytes, true, line);
      found(shadows_[n].write(*clocks_, thread_, at, bytes, line), line);
      found(shared_shadow_->read_async(*clocks_, thread_, offset, bytes, line), line);
      shared_shadow_->start_reading(offset, bytes);
    });
    stores_[size_t(thread_)].open.push_back(rows);
    stores_[size_t(thread_)].line = line;
  }
  void store_commit(int) {
    Stores& s = stores_[size_t(thread_)];
    s.groups.push_back(std::move(s.open));
    s.open.clear();
  }
  void store_wait(int pending, int line) {
    Stores& s = stores_[size_t(thread_)];
    for (; int(s.groups.size()) > pending; s.groups.pop_front())
      for (const ts::host::Rows& rows : s.groups.front())
        each_row(rows, [&](int64_t offset, char* global, int bytes, int) {
          if (global == nullptr) return;
          std::memcpy(global, shared_ + offset, size_t(bytes));
          shared_shadow_->end_reading(offset, bytes);
          found(shared_shadow_->read(*clocks_, thread_, offset, bytes, line), line);
        });
  }
  void fence_async(int) { clocks_->fence(thread_); }

  void product_begin(int) { products_[size_t(thread_)].begun = true; }
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
        found(shared_shadow_->read_async(*clocks_, thread_, offset, bytes, line), line);
    auto& gathering = gathering_[group];
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
    Products& own = products_[size_t(thread_)];
    if (!own.begun)
      fail("a product whose accumulators are not settled: begin_products comes before", line);
    own.open.push_back(p);
    if (own.saved.try_emplace(d, d, d + count).second) std::fill(d, d + count, NAN);
    if (++p->present < kGroup) {
      pause("a product of four warps", line);
      return;
    }
    gathering.reset();
    for (const auto& [offset, size] : p->reads) shared_shadow_->start_reading(offset, size);
    for (int t = first; t < first + kGroup; ++t)
      if (t != thread_) make_ready(t);
  }
  void product_commit(int) {
    Products& own = products_[size_t(thread_)];
    own.groups.push_back(std::move(own.open));
    own.open.clear();
    own.begun = false;
  }
  void product_wait(int pending, int line) {
    Products& own = products_[size_t(thread_)];
    for (; int(own.groups.size()) > pending; own.groups.pop_front())
      for (const std::shared_ptr<Product>& p : own.groups.front()) {
        if (!p->done) compute(*p);
        if (thread_ % kWarp != 0) continue;
        for (const auto& [offset, bytes] : p->reads)
          found(shared_shadow_->read(*clocks_, thread_, offset, bytes, line), line);
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
  struct Stores {
    std::vector<ts::host::Rows> open;
    std::deque<std::vector<ts::host::Rows>> groups;
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
  struct Products {
    std::vector<std::shared_ptr<Product>> open;
    std::deque<std::vector<std::shared_ptr<Product>>> groups;
    std::map<float*, std::vector<float>> saved;  // accumulators as they were before
    bool begun = false;
  };

  std::vector<uint32_t> no_clock() const {
    return std::vector<uint32_t>(size_t(clocks_->threads()));
  }
  // Whether the thread that runs knows what a thread of another block did at a time.
  bool knows(int block, int thread, uint32_t time) const {
    return std::any_of(learnt_.begin(), learnt_.end(), [&](const Learnt& l) {
      const auto it = l.what.find(block);
      return it != l.what.end() && it->second[size_t(thread)] >= time &&
             clocks_->knows(thread_, l.thread, l.time);
    });
  }
  // An access by the thread that runs to memory that other blocks see.
  void touch(size_t buffer, int64_t offset, int bytes, bool writes, bool atomic, int line) {
    found(owners_[buffer].touch(offset, bytes,
                                {block_number(), thread_, clocks_->now(thread_), writes, atomic},
                                [this](int b, int t, uint32_t time) { return knows(b, t, time); }),
          line);
  }
  // Fences of threads say nothing about the asynchronous proxy: it meets nobody in order.
  void touch_async(size_t buffer, int64_t offset, int bytes, bool writes, int line) {
    found(owners_[buffer].touch(offset, bytes,
                                {block_number(), thread_, ~uint32_t{0}, writes, false},
                                [](int, int, uint32_t) { return false; }),
          line);
  }
  Phases& phases(const void* barrier, int line) {
    const int64_t offset = shared_offset(barrier, 8, line);
    found(shared_shadow_->read(*clocks_, thread_, offset, 8, line), line);
    const auto at = phases_.find(barrier);
    if (at == phases_.end()) fail("this is no barrier: nobody called init_barrier", line);
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
  // Pieces of 16 bytes: their offset in shared memory, and in global memory, where they lie in it,
  // their place and how many of their bytes do.
  template <class F> void each_row(const ts::host::Rows& r, F f) {
    const int64_t base = reinterpret_cast<std::byte*>(r.shared) - shared_;
    for (int row = 0; row < r.rows; ++row)
      for (int byte = 0; byte < r.row_bytes; byte += 16) {
        int64_t offset = base + int64_t{row} * r.row_bytes + byte;
        if (r.swizzled) offset ^= (offset >> 7 & (r.row_bytes / 16 - 1)) << 4;
        const bool inside =
            row >= r.first_row && row < r.last_row && byte >= r.first_byte && byte < r.last_byte;
        f(offset, inside ? r.global + row * r.pitch + byte : nullptr,
          inside ? std::min(16, r.last_byte - byte) : 16, row);
      }
  }
  // A copy of the asynchronous proxy arrives.
  void land(size_t n) {
    const Flying copy = flying_[n];
    flying_.erase(flying_.begin() + std::ptrdiff_t(n));
    const int agent = copy.phases->agent;
    each_row(copy.rows, [&](int64_t offset, char* global, int bytes, int) {
      std::memset(shared_ + offset, 0, 16);
      if (global != nullptr) std::memcpy(shared_ + offset, global, size_t(bytes));
      shared_shadow_->end_copy(*clocks_, agent, offset, 16, true);
    });
    Phases& p = *copy.phases;
    Clocks::join(p.clock, clocks_->of(agent));
    clocks_->acquire(agent, no_clock());
    p.bytes -= int64_t{copy.rows.rows} * copy.rows.row_bytes;
    maybe_end(p);
  }
  void compute(Product& p) {
    std::array<void*, kGroup> mine{};
    const int first = thread_ / kGroup * kGroup;
    for (int t = 0; t < kGroup; ++t) {
      mine[size_t(t)] = p.mine[size_t(t)].data();
      Products& own = products_[size_t(first + t)];
      const auto saved = own.saved.find(p.d[size_t(t)]);
      if (saved == own.saved.end()) continue;
      std::copy(saved->second.begin(), saved->second.end(), saved->first);
      own.saved.erase(saved);
    }
    p.all(mine.data());
    for (const auto& [offset, bytes] : p.reads) shared_shadow_->end_reading(offset, bytes);
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
  struct Copies {
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
  };

  void run_block() {
    const int n = launch_.threads;
    clocks_.emplace(n + kAgents);  // the last ones are the asynchronous proxy's
    shared_shadow_.emplace(launch_.shared_bytes, false, launch_.grain);
    std::memset(shared_, 0xff, size_t(launch_.shared_bytes));  // NaNs
    for (Shadow& s : shadows_) s.forget_accesses();
    barriers_.clear();
    meetings_.assign(size_t((n + kWarp - 1) / kWarp), {});
    copies_.assign(size_t(n), {});
    phases_.clear();
    flying_.clear();
    stores_.assign(size_t(n), {});
    gathering_.clear();
    products_.assign(size_t(n), {});
    fenced_.assign(size_t(n), {});
    seen_.assign(size_t(n), {});
    learnt_.clear();
    where_.assign(size_t(n), {});
    ready_.resize(size_t(n));
    for (int t = 0; t < n; ++t) ready_[size_t(t)] = t;
    Fibers fibers(n, [this](int) { kernel_(); });
    fibers_ = &fibers;
    int ended = 0;
    while (ended < n) {
      // Copies take their time: nobody may count on their being early.
      while (!flying_.empty() && (ready_.empty() || rng_.chance(0.05)))
        land(rng_.below(flying_.size()));
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
      const Stores& s = stores_[size_t(thread_)];
      if (!s.open.empty() || !s.groups.empty())
        fail("the thread ends and nobody waited for this store", s.line);
      const Products& m = products_[size_t(thread_)];
      if (!m.open.empty() || !m.groups.empty())
        fail("the thread ends and nobody waited for this matrix product",
             (m.open.empty() ? m.groups.front() : m.open).front()->line);
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
  struct Learnt {
    int thread;
    uint32_t time;  // from which on it knows, and whoever hears of that
    Known what;
  };
  const EmulatedLaunch& launch_;
  const std::function<void()>& kernel_;
  Rng rng_;
  std::byte* shared_;
  std::vector<Shadow> shadows_;  // of the buffers
  std::vector<Owners> owners_;
  std::map<const unsigned*, Known> told_;  // by whoever took a ticket, by counter
  std::array<int, 3> block_{};
  // Of the block that runs.
  int thread_ = 0;
  Fibers* fibers_ = nullptr;
  std::optional<Clocks> clocks_;
  std::optional<Shadow> shared_shadow_;
  std::map<int, Barrier> barriers_;
  std::vector<Meeting> meetings_;                      // of warps
  std::vector<Copies> copies_;                         // of threads
  std::map<const void*, Phases> phases_;               // of barriers in shared memory
  std::vector<Flying> flying_;                         // copies of the asynchronous proxy
  std::vector<Stores> stores_;                         // of threads
  std::map<int, std::shared_ptr<Product>> gathering_;  // of groups of warps
  std::vector<Products> products_;                     // of threads
  std::vector<Known> fenced_, seen_;  // of threads: what the next ticket tells, and what was told
  std::vector<Learnt> learnt_;        // of other blocks, by threads of this one
  std::vector<Place> where_;          // threads wait
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
    [](int line) { running->fence_device(line); },
    [](unsigned* counter, unsigned count, int line) {
      return running->take_ticket(counter, count, line);
    },
    [](void* barrier, int count, int line) { running->barrier_init(barrier, count, line); },
    [](void* barrier, int bytes, int line) { running->barrier_arrive(barrier, bytes, line); },
    [](void* barrier, int parity, int line) { running->barrier_wait(barrier, parity, line); },
    [](const ts::host::Rows& rows, void* barrier, int line) {
      running->copy_rows(rows, barrier, line);
    },
    [](const ts::host::Rows& rows, int line) { running->store_rows(rows, line); },
    [](int line) { running->store_commit(line); },
    [](int pending, int line) { running->store_wait(pending, line); },
    [](int line) { running->fence_async(line); },
    [](int line) { running->product_begin(line); },
    [](float* d, int count, const void* mine, int bytes, void (*all)(void* const*),
       const ts::host::Span* reads, int num_reads,
       int line) { running->product(d, count, mine, bytes, all, reads, num_reads, line); },
    [](int line) { running->product_commit(line); },
    [](int pending, int line) { running->product_wait(pending, line); },
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
