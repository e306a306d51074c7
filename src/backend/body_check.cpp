#include "backend/body_check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "backend/check.h"
#include "backend/compiler.h"
#include "backend/cpu/compile.h"
#include "backend/cpu/prelude.h"
#include "backend/cpu/runtime.h"
#include "backend/cuda/emulate_program.h"
#include "backend/cuda_code.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "search/patterns/check.h"

namespace tessera {
namespace {

using patterns::Body;
using patterns::Language;
using patterns::Pattern;

using CompiledBody = void (*)(void** arguments, long begin, long end, char* scratch);

constexpr size_t kPage = 4096;
constexpr unsigned char kCanary = 0xA5;

// Memory that ends at a page nobody may touch, with another such page before it; shared with child
// processes.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes) {
    pages_ = (bytes + 64 + kPage - 1) / kPage * kPage;
    whole_ = static_cast<char*>(mmap(nullptr, pages_ + 2 * kPage, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    if (whole_ == MAP_FAILED) throw Error(ErrorKind::OutOfMemory, "no memory to check a body in");
    std::memset(whole_, kCanary, pages_ + 2 * kPage);
    mprotect(whole_, kPage, PROT_NONE);
    mprotect(whole_ + kPage + pages_, kPage, PROT_NONE);
  }
  ~Guarded() { munmap(whole_, pages_ + 2 * kPage); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  char* data() const { return whole_ + kPage + pages_ - bytes_; }
  size_t bytes() const { return bytes_; }
  void read_only() { mprotect(whole_ + kPage, pages_, PROT_READ); }
  // Whether what lies before the data in its pages is as it was.
  bool canaries() const {
    const char* const from = whole_ + kPage;
    return std::all_of(from, static_cast<const char*>(data()),
                       [](char c) { return static_cast<unsigned char>(c) == kCanary; });
  }

 private:
  size_t bytes_, pages_;
  char* whole_;
};

// Seconds that a check may wait for the processor, per second of work.
constexpr double kWaiting = 60;

std::string signal_text(int signal) {
  switch (signal) {
  case SIGSEGV:
  case SIGBUS: return "it reads or writes memory outside its operands and its result";
  case SIGFPE: return "it divides an integer by zero";
  case SIGILL: return "it runs an instruction that this processor lacks";
  case SIGKILL: return "it was ended: too much time or memory";
  default: return "it crashed (signal " + std::to_string(signal) + ")";
  }
}

// Runs `work` in a child process; what became of it: empty, or why it did not end as it should.
// Time is the processor's: on a busy machine right code waits for its turn.
std::string in_child(const std::function<void()>& work, double timeout_s,
                     const std::atomic<bool>* cancel) {
  const pid_t child = fork();
  if (child < 0) throw Error(ErrorKind::Io, "no process to check a body in");
  if (child == 0) {
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGINT, SIGTERM}) signal(s, SIG_DFL);
    const rlimit no_core{0, 0}, time{rlim_t(timeout_s), rlim_t(timeout_s) + 1};
    setrlimit(RLIMIT_CORE, &no_core);
    setrlimit(RLIMIT_CPU, &time);
    try {
      work();
    } catch (...) {
      _exit(1);  // nothing of the parent's goes on here
    }
    _exit(0);
  }
  const WallClock clock;
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    const double spent = clock.seconds();
    const bool stop = cancel != nullptr && cancel->load(std::memory_order_relaxed);
    if (stop || spent > kWaiting * timeout_s) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      if (stop) throw Error(ErrorKind::Cancelled, "the check was stopped");
      return "it got no time of the processor";
    }
    usleep(spent < 0.01 ? 100 : 1000);
  }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    return "it did not end within " + std::to_string(int(timeout_s)) + " s: a loop without end?";
  if (!WIFEXITED(status)) return signal_text(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "it could not be run";
}

std::string position(const Type& type, int64_t flat) {
  std::string text;
  for (size_t d = type.shape.size(); d-- > 0; flat /= type.shape[d].extent)
    text = std::to_string(flat % type.shape[d].extent) + (text.empty() ? "" : ", ") + text;
  return text;
}

// One way of running a body on a CPU.
class CpuRun {
 public:
  CpuRun(const Pattern& p, const Graph& g, const WrittenSources& sources, bool watched,
         const BodyCheckOptions& options, Cache& cache)
      : p_(p), g_(g), watched_(watched), options_(options) {
    for (const Op& op : g.ops())
      if (written_kernel(g, op))
        kernel_ = &op;
      else if (!is_input(op.kind))
        bad_input("a body with operators around it");
    UnitContext unit;
    unit.isa = options.isa;
    unit.prelude = {"t_bits"};
    const WrittenText text = emit_written("body", g.body(*kernel_), *written_kernel(g, *kernel_),
                                          sources, unit, watched);
    CompileOptions compile;
    compile.isa = options.isa;
    compile.cancel = options.cancel;
    library_ = compile_and_load(prelude(unit.prelude) + text.text, compile, cache);
    function_ = reinterpret_cast<CompiledBody>(library_->symbol("body"));
    units_ = text.units;
  }

  // In memory format, as the graph's inputs and output; `failure` says what went wrong.
  void run(std::span<const void* const> in, std::span<void* const> out, std::string& failure) {
    if (!failure.empty()) return;
    const Type& type = g_.type(g_.outputs()[0]);
    std::vector<std::unique_ptr<Guarded>> memory;
    for (size_t i = 0; i < in.size(); i++) {
      memory.push_back(std::make_unique<Guarded>(size_t(g_.type(g_.inputs()[i]).bytes())));
      std::memcpy(memory.back()->data(), in[i], memory.back()->bytes());
      memory.back()->read_only();
    }
    const Guarded result(size_t(type.bytes()));
    std::memset(result.data(), 0xff, result.bytes());
    const int64_t elements = num_elements(type.shape);
    const Guarded owners(size_t(elements) * sizeof(int)), report(8 * sizeof(long));
    std::memset(owners.data(), 0, owners.bytes());
    std::memset(report.data(), 0, report.bytes());
    std::vector<void*> arguments;
    for (TensorId t : kernel_->inputs)
      for (size_t i = 0; i < g_.inputs().size(); i++)
        if (g_.inputs()[i] == t) arguments.push_back(memory[i]->data());
    arguments.push_back(result.data());
    // Parallel iterations in an order of their own.
    std::vector<long> order(static_cast<size_t>(units_));
    std::iota(order.begin(), order.end(), 0);
    Rng rng(options_.seed);
    for (size_t i = order.size(); i > 1; i--)
      std::swap(order[i - 1], order[size_t(rng.between(0, int64_t(i) - 1))]);
    long* const fault = watched_ ? static_cast<long*>(library_->symbol("t_fault")) : nullptr;
    if (watched_)
      *static_cast<int**>(library_->symbol("t_owner")) = reinterpret_cast<int*>(owners.data());
    failure = in_child(
        [&] {
          if (watched_) {
            for (long unit : order) function_(arguments.data(), unit, unit + 1, nullptr);
            std::memcpy(report.data(), fault, 8 * sizeof(long));
          } else {
            function_(arguments.data(), 0, long(units_), nullptr);
          }
        },
        options_.timeout_s, options_.cancel);
    const long* const f = reinterpret_cast<const long*>(report.data());
    if (failure.empty() && f[0] != 0) failure = told(f);
    if (failure.empty() && !result.canaries()) failure = "it writes before its result";
    if (failure.empty() && watched_) {
      const int* const owner = reinterpret_cast<const int*>(owners.data());
      for (int64_t i = 0; i < elements && failure.empty(); i++)
        if (owner[i] == 0)
          failure = "it never stores " + result_name() + "[" + position(type, i) + "]";
    }
    if (failure.empty()) std::memcpy(out[0], result.data(), result.bytes());
  }

 private:
  std::string result_name() const { return p_.def.tensor(p_.def.outputs()[0]).name; }
  std::string told(const long* f) const {
    const Graph& block = g_.body(*kernel_);
    const WrittenKernel a = *written_kernel(g_, *kernel_);
    const std::string line = "line " + std::to_string(f[2]) + ": ";
    if (f[0] == 4)
      return line + "index " + std::to_string(f[3]) + " of an array of " + std::to_string(f[1]);
    const size_t tensor = size_t(f[1] < 0 ? a.result : a.operands[size_t(f[1])]);
    const Type& type = block.type(TensorId(uint32_t(tensor)));
    const std::string name =
        f[1] < 0 ? result_name() : p_.def.tensor(p_.def.inputs()[size_t(f[1])]).name;
    const std::span index(f + 3, std::min<size_t>(type.shape.size(), 4));
    const std::string where = name + "[" + joined(index, ", ") + "]";
    if (f[0] == 3)
      return line + "two parallel iterations store " + where + ", in an order that nobody knows";
    return line + (f[0] == 1 ? "it loads " : "it stores ") + where + ", which is outside of " +
           name + " : " + type.str();
  }

  const Pattern& p_;
  const Graph& g_;
  const bool watched_;
  const BodyCheckOptions& options_;
  const Op* kernel_ = nullptr;
  std::unique_ptr<Library> library_;
  CompiledBody function_ = nullptr;
  int64_t units_ = 1;
};

std::string text_of(const patterns::Values& values) {
  return joined(
      values, " ", [](const auto& v) { return v.first + "=" + num(v.second); });
}

// What a compiler says of a body: its first error, with the line of the file.
std::string compiler_text(const std::string& message) {
  const size_t error = message.find("error: ");
  if (error == std::string::npos) return message.substr(0, 400);
  const size_t start = message.rfind('\n', error);
  std::string line = message.substr(start == std::string::npos ? 0 : start + 1);
  line = line.substr(0, line.find('\n'));
  const bool placed = line.compare(0, 5, "body:") == 0;
  return "the compiler refuses it: " + (placed ? "line " + line.substr(5) : line);
}

std::vector<DType> types_of(const Pattern& p, const Body& b) {
  std::vector<DType> types;
  for (DType d : {DType::F32, DType::F64, DType::BF16, DType::F16}) {
    if (b.language == Language::OneDnn && d != DType::F32) continue;
    const auto allows = [&](const patterns::Condition& c) {
      return !c.comparison.empty() || c.holds({}, d);
    };
    if (std::ranges::all_of(p.when, allows) && std::ranges::all_of(b.when, allows))
      types.push_back(d);
  }
  return types;
}

class BodyChecker {
 public:
  BodyChecker(const Pattern& p, const Body& b, Cache& cache, const BodyCheckOptions& options)
      : p_(p), b_(b), cache_(cache), options_(options) {
    Pattern alone = patterns::parse_pattern(patterns::recorded_text(p, b), p.file);
    // Faults are told by the lines of the file, not of the record.
    alone.bodies[0].line = b.line;
    sources_[source_of(p, b)] = std::move(alone);
  }

  BodyRecord run() {
    BodyRecord record;
    record.pattern = p_.name;
    record.source = source_of(p_, b_);
    record.text = patterns::recorded_text(p_, b_);
    if (b_.language == Language::Cpp) (void)find_compiler();  // which says what is missing
    record.machine = body_machine(b_.language, options_.isa, device());
    if (record.machine.empty())
      throw Error(ErrorKind::ToolMissing, "the call in line " + std::to_string(b_.line) +
                                              " needs " + name(b_.language) +
                                              ", which is not installed");
    std::string types;
    for (DType dtype : types_of(p_, b_)) {
      types += (types.empty() ? "" : " ") + std::string(tessera::name(dtype));
      std::vector<patterns::Example> all;
      try {
        all = patterns::examples(p_, b_, dtype, options_.seed, options_.sizes, options_.settings);
      } catch (const Error& e) {
        if (e.message().find("one kernel") == std::string::npos) throw;
        failure_ = e.message();
      }
      for (const patterns::Example& e : all) {
        try {
          one(e);
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::Cancelled || error.kind() == ErrorKind::ToolMissing ||
              error.kind() == ErrorKind::Io)
            throw;
          failure_ = compiler_text(error.message());
        }
        if (!failure_.empty()) {
          failure_ += " (" + text_of(e.values) + ", " + tessera::name(dtype) +
                      (e.holes ? ", with its holes filled)" : ")");
          break;
        }
        instances_++;
      }
      if (!failure_.empty()) break;
    }
    record.runs = runs_;
    record.instances = instances_;
    record.state = !failure_.empty() ? BodyRecord::State::Refused
                   : b_.language == Language::Raw && options_.context == nullptr
                       ? BodyRecord::State::CompiledOnly
                       : BodyRecord::State::Checked;
    record.what = failure_.empty() ? "element types " + types : failure_;
    BodyRecords(cache_).store(record);
    return record;
  }

 private:
  std::string device() const { return options_.context ? options_.context->device().str() : ""; }

  void one(const patterns::Example& e) {
    CheckOptions check;
    check.seed = options_.seed;
    check.cancel = options_.cancel;
    check.max_work = 1e7;
    CheckReport report;
    const auto compare =
        [&](const std::function<void(std::span<const void* const>, std::span<void* const>)>& run) {
          if (!failure_.empty()) return;
          const bool right = check_compiled(
                                 e.region,
                                 [&](auto in, auto out) {
                                   runs_++;
                                   run(in, out);
                                 },
                                 check, &report)
                                 .has_value();
          if (options_.cancel != nullptr && options_.cancel->load())
            throw Error(ErrorKind::Cancelled, "the check was stopped");
          if (failure_.empty() && !right)
            failure_ = "its result is not what the def says: " + report.what;
        };
    if (b_.language == Language::Cpp) {
      for (bool watched : {true, false}) {
        if (!failure_.empty()) return;
        CpuRun cpu(p_, e.graph, sources_, watched, options_, cache_);
        compare([&](auto in, auto out) { cpu.run(in, out, failure_); });
      }
    } else if (b_.called()) {
      compare([&](auto in, auto out) { call(e, in, out); });
    } else if (b_.language == Language::Cuda) {
      const EmulatedProgram program(
          e.graph, emit_cuda(e.graph, options_.arch, {}, options_.gpu, {}, {}, sources_, true));
      compare([&](auto in, auto out) { emulate(program, e, in, out); });
    } else {
      raw(e, compare);
    }
  }

  // A call is of this process: after a fork, libraries' threads are gone.
  void call(const patterns::Example& e, std::span<const void* const> in,
            std::span<void* const> out) {
    if (!failure_.empty()) return;
    const auto op = std::ranges::find_if(
        e.graph.ops(), [&](const Op& o) { return written_kernel(e.graph, o).has_value(); });
    const auto made = [&](bool packed) {
      return written_call(e.graph.body(*op), *written_kernel(e.graph, *op), sources_, packed, 2);
    };
    const WrittenCall call = made(false);
    std::vector<AlignedBuffer> memory;
    std::vector<void*> arguments;
    std::vector<size_t> given;  // which input of the program
    const std::vector<TensorId>& inputs = e.graph.inputs();
    for (size_t k : call.operands) {
      const TensorId t = op->inputs[k];
      given.push_back(size_t(std::ranges::find(inputs, t) - inputs.begin()));
      memory.emplace_back(size_t(e.graph.type(t).bytes()));
      std::memcpy(memory.back().data(), in[given.back()], memory.back().size());
      arguments.push_back(memory.back().data());
    }
    arguments.push_back(out[0]);
    if (!call.product) call_host(call.step, arguments.data(), KernelPool::shared().threads());
    for (bool packed : {false, true}) {
      if (!call.product) break;
      const auto product = made(packed).product;
      const AlignedBuffer weights(size_t(product->weight_bytes) + 64);
      const AlignedBuffer scratch(size_t(product->scratch_bytes) + 64);
      std::vector<void*> places = arguments;
      product->pack(places[product->weights], weights.data());
      if (packed) places[product->weights] = weights.data();
      for (int64_t unit = 0; unit < product->units; unit++)
        product->run(places.data(), unit, static_cast<char*>(scratch.data()));
    }
    for (size_t k = 0; k < memory.size(); k++)
      if (std::memcmp(memory[k].data(), in[given[k]], memory[k].size()) != 0)
        failure_ = "it writes into its operands";
  }

  // Emulated in a child process, since a body may loop.
  void emulate(const EmulatedProgram& program, const patterns::Example& e,
               std::span<const void* const> in, std::span<void* const> out) {
    if (!failure_.empty()) return;
    const Guarded result(size_t(e.graph.type(e.graph.outputs()[0]).bytes())), told(2048);
    std::memset(told.data(), 0, told.bytes());
    std::vector<void*> results{result.data()};
    failure_ = in_child(
        [&] {
          auto fault = program.run(in, results, options_.seed + uint64_t(runs_));
          if (fault && fault->line >= 1000000) fault->line = 0;  // not the body's
          if (fault) std::strncpy(told.data(), fault->str().c_str(), told.bytes() - 1);
        },
        options_.timeout_s, options_.cancel);
    if (failure_.empty() && told.data()[0] != 0) {
      failure_ = std::string(told.data());
      const std::string outside = "an access to memory that is no buffer of the kernel";
      if (const size_t at = failure_.find(outside); at != std::string::npos)
        failure_.replace(at, outside.size(), "an index of load or store is outside of its tensor");
    }
    if (failure_.empty()) std::memcpy(out[0], result.data(), result.bytes());
  }

  template <class Compare> void raw(const patterns::Example& e, const Compare& compare) {
    CudaProgram program = emit_cuda(e.graph, options_.arch, {}, options_.gpu, {}, {}, sources_);
    std::vector<std::string> names = mapped(program.kernels, &CudaKernel::name);
    const CudaObject object = compile_cuda_kernels(program.source, names, program.arch.str());
    if (!options_.context) return;
    const CudaModule module(e.graph, program, object.cubin, options_.context);
    compare([&](auto in, auto out) { module.run_on_host_arrays(in, out); });
  }

  const Pattern& p_;
  const Body& b_;
  Cache& cache_;
  const BodyCheckOptions& options_;
  WrittenSources sources_;
  std::string failure_;
  int64_t runs_ = 0;
  int instances_ = 0;
};

}  // namespace

BodyRecord check_body(const Pattern& p, size_t body, Cache& cache,
                      const BodyCheckOptions& options) {
  return BodyChecker(p, p.bodies.at(body), cache, options).run();
}

}  // namespace tessera
