// Distributions harden what they compile; that check takes a jump to another stack for an error.
#undef _FORTIFY_SOURCE

#include "backend/cuda/fibers.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"

#if defined(__USE_FORTIFY_LEVEL) && __USE_FORTIFY_LEVEL > 0
#error "no header, a precompiled one neither, may be read before _FORTIFY_SOURCE is undefined"
#endif
#if defined(__SANITIZE_ADDRESS__)
#define TESSERA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TESSERA_ASAN 1
#endif
#endif
#ifdef TESSERA_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tessera {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;

// Thrown by yield() where the fiber will not run on.
struct Unwind {};

// Stacks that ended fibers of this thread left, for the next ones: an emulated launch has a block's
// threads many times over, and making and touching new stacks takes longer than they run.
class Stacks {
 public:
  static Stacks& of_this_thread() {
    thread_local Stacks stacks;
    return stacks;
  }
  ~Stacks() {
    for (std::byte* stack : free_) release(stack);
  }
  // Lies above a page that must not be touched; null where there is no memory.
  std::byte* take() {
    if (free_.empty()) {
      void* const memory = mmap(nullptr, page_ + kStackBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
      if (memory == MAP_FAILED) return nullptr;
      mprotect(memory, page_, PROT_NONE);
      return static_cast<std::byte*>(memory) + page_;
    }
    std::byte* const stack = free_.back();
    free_.pop_back();
#ifdef TESSERA_ASAN
    __asan_unpoison_memory_region(stack, kStackBytes);  // of frames that never returned
#endif
    return stack;
  }
  void give(std::byte* stack) {
    if (free_.size() < kKept)
      free_.push_back(stack);
    else
      release(stack);
  }

 private:
  static constexpr size_t kKept = 1024;  // a block's threads
  void release(std::byte* stack) const { munmap(stack - page_, page_ + kStackBytes); }
  const size_t page_ = size_t(sysconf(_SC_PAGESIZE));
  std::vector<std::byte*> free_;
};

}  // namespace

// ucontext makes the stacks; switching between them by _longjmp spares the system call that
// swapcontext makes for the signal mask (30 times faster).
struct Fibers::State {
  struct Fiber {
    ucontext_t context;
    jmp_buf at;
    std::byte* stack = nullptr;  // above a page that must not be touched
    bool started = false, ended = false;
    std::exception_ptr error;
    void* fake_stack = nullptr;
  };
  std::vector<Fiber> fibers;
  std::function<void(int)> body;
  jmp_buf scheduler;
  ucontext_t outside;
  int running = -1;
  bool unwinding = false;
  void* fake_stack = nullptr;
  const void* outside_stack = nullptr;
  size_t outside_size = 0;

  ~State() {
    for (Fiber& f : fibers)
      if (f.stack != nullptr) Stacks::of_this_thread().give(f.stack);
  }
  static void entry(unsigned low, unsigned high);
  void switch_to_scheduler(Fiber& f, bool last);
};

void Fibers::State::entry(unsigned low, unsigned high) {
  State& s = *reinterpret_cast<State*>(uintptr_t(low) | uintptr_t(high) << 32);
  const int me = s.running;
  Fiber& f = s.fibers[size_t(me)];
#ifdef TESSERA_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &s.outside_stack, &s.outside_size);
#endif
  try {
    s.body(me);
  } catch (const Unwind&) {
  } catch (...) {
    f.error = std::current_exception();
  }
  f.ended = true;
  s.switch_to_scheduler(f, true);
  unreachable("an ended fiber runs");
}

void Fibers::State::switch_to_scheduler(Fiber& f, bool last) {
#ifdef TESSERA_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &f.fake_stack, outside_stack, outside_size);
#endif
  if (last) _longjmp(scheduler, 1);
  if (_setjmp(f.at) == 0) _longjmp(scheduler, 1);
#ifdef TESSERA_ASAN
  __sanitizer_finish_switch_fiber(f.fake_stack, &outside_stack, &outside_size);
#endif
}

Fibers::Fibers(int count, std::function<void(int)> body) : state_(std::make_unique<State>()) {
  state_->fibers.resize(size_t(count));
  state_->body = std::move(body);
  for (State::Fiber& f : state_->fibers) {
    f.stack = Stacks::of_this_thread().take();
    if (f.stack == nullptr)
      throw Error(ErrorKind::Io,
                  "no memory for the stacks of " + std::to_string(count) + " emulated threads");
  }
}

Fibers::~Fibers() {
  state_->unwinding = true;
  for (size_t i = 0; i < state_->fibers.size(); ++i)
    if (state_->fibers[i].started && !state_->fibers[i].ended) resume(int(i));
}

void Fibers::resume(int fiber) {
  State& s = *state_;
  State::Fiber& f = s.fibers[size_t(fiber)];
  CHECK(s.running == -1 && !f.ended);
  s.running = fiber;
#ifdef TESSERA_ASAN
  __sanitizer_start_switch_fiber(&s.fake_stack, f.stack, kStackBytes);
#endif
  if (_setjmp(s.scheduler) == 0) {
    if (f.started) _longjmp(f.at, 1);
    f.started = true;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = kStackBytes;
    f.context.uc_link = nullptr;
    const uintptr_t self = reinterpret_cast<uintptr_t>(&s);
    makecontext(&f.context, reinterpret_cast<void (*)()>(&State::entry), 2, unsigned(self),
                unsigned(self >> 32));
    setcontext(&f.context);
  }
#ifdef TESSERA_ASAN
  __sanitizer_finish_switch_fiber(s.fake_stack, nullptr, nullptr);
#endif
  s.running = -1;
  // After a jump locals may be stale: what is needed is looked up again.
  State::Fiber& g = state_->fibers[size_t(fiber)];
  if (g.error) std::rethrow_exception(std::exchange(g.error, nullptr));
}

bool Fibers::ended(int fiber) const { return state_->fibers[size_t(fiber)].ended; }

void Fibers::yield() {
  State& s = *state_;
  CHECK(s.running >= 0);
  s.switch_to_scheduler(s.fibers[size_t(s.running)], false);
  if (s.unwinding) throw Unwind{};
}

}  // namespace tessera
