#include "backend/fault_bench.h"

#include <chrono>
#include <memory>

#include "backend/check.h"
#include "backend/cpu/module.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "ir/text.h"
#include "verify/bench/mutations.h"
#include "verify/bench/random_program.h"
#include "verify/funnel.h"

namespace tessera {

FaultBenchRow bench_kernel_faults(Cache& cache, const FaultBenchOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  FaultBenchRow row;
  ThreadPool pool(options.threads);
  const std::vector<ProgramEdit>& edits = mutations();
  // A bound on trials: edits that do not apply, or are harmless, do not count.
  const uint64_t most = uint64_t(options.count) * 50 + 100;
  for (uint64_t trial = 0; trial < most && row.count < options.count; ++trial) {
    if (options.cancel && options.cancel->load(std::memory_order_relaxed)) break;
    Rng rng = Rng(options.seed).split(trial);
    RandomProgramOptions program_options;
    program_options.kernel_chance = 0.7;
    Graph program = random_program(rng(), program_options);
    std::optional<Graph> faulty = edits[trial % edits.size()].apply(program, rng);
    if (!faulty) continue;
    std::unique_ptr<Module> module;
    try {
      module = Module::compile(*faulty, cache);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Unsupported) throw;
      continue;
    }
    CheckOptions check;
    check.seed = options.seed + trial;
    check.pool = &pool;
    auto run = [&](auto inputs, auto outputs) { module->run(inputs, outputs); };
    if (!check_compiled(program, run, check)) {
      ++row.count;
      ++row.caught;
      continue;
    }
    VerifyOptions verify_options;
    verify_options.seed = options.seed + trial;
    verify_options.threads = options.threads;
    Verdict verdict = verify(program, *faulty, verify_options);
    if (verdict.equal()) {
      ++row.harmless;
    } else if (verdict.unknown()) {
      ++row.undecided;
    } else if (verdict.counterexample().kind == Difference::Precision ||
               verdict.counterexample().kind == Difference::Definedness) {
      ++row.numeric;
    } else {
      ++row.count;
      ++row.missed;
      row.failures.push_back(std::string(edits[trial % edits.size()].name) + "\n" + print(program) +
                             print(*faulty) + verdict.str());
    }
  }
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return row;
}

}  // namespace tessera
