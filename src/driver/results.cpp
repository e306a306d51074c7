#include "driver/results.h"

#include <algorithm>
#include <sstream>

#include "backend/body_records.h"
#include "backend/cpu/compile.h"
#include "base/error.h"
#include "base/records.h"
#include "base/thread_pool.h"
#include "driver/code.h"
#include "ir/text.h"
#include "search/patterns/warehouse.h"
#include "verify/verdict.h"

namespace tessera {
namespace {

// Raised when what is stored, or how it is chosen or proved, changes its meaning.
constexpr int kResultVersion = 10;

// Where code for a GPU runs, and that it does.
std::string gpu_of(const OptimizeOptions& o) {
  const CodePlace place = place_of(o.target, o.target_directory);
  if (!place.gpu) return "";
  return place.arch.str() + " " + (place.context ? place.context->device().str() : "not here");
}

// Which bodies that may serve the program are checked: once they are, it is searched again.
std::string checked_bodies(const OptimizeOptions& o, const Graph& program) {
  std::vector<std::string> problems;
  std::vector<patterns::Pattern> all = patterns::load_warehouse(o.pattern_folders, problems);
  std::erase_if(all, [&](const patterns::Pattern& p) {
    return !patterns::may_match(p, program) ||
           std::ranges::none_of(p.bodies, [](const patterns::Body& b) { return b.written(); });
  });
  if (all.empty()) return "";
  CacheOptions quiet;
  quiet.warn = [](const std::string&) {};
  Cache cache(std::move(quiet));
  const CodePlace place = place_of(o.target, o.target_directory);
  mark_unusable(all, cache, place.gpu, best_isa(), place.device());
  std::string text;
  for (const patterns::Pattern& p : all)
    for (const patterns::Body& b : p.bodies) text += b.unusable.empty() ? " 1" : " 0";
  return text;
}

}  // namespace

static void record(RecordWriter& a, Graph& graph) {
  std::string text = print(graph);
  a(text);
}
static void record(RecordReader& a, Graph& graph) {
  std::string text;
  a(text);
  graph = parse(text, "<cached result>");
}
template <class Archive> void record(Archive& a, StoredResult& r) {
  Outcome& w = r.winner;
  a(r.improved, w.rank, w.model_seconds, r.original_s, w.seconds, w.speedup, w.origin, w.derivation,
    r.checked, r.between);
  record(a, w.graph);
}

std::string options_key(const OptimizeOptions& o, const Target& target) {
  std::ostringstream text;
  text << "result " << kResultVersion << " verifier " << kVerifierVersion << " codegen "
       << kCodegenVersion << "\n"
       << target.str() << to_string(best_isa()) << "\n"
       << gpu_of(o) << "\n"
       << "threads " << (o.threads > 0 ? o.threads : default_threads()) << " seed " << o.seed
       << " tested " << o.accept_tested << " level " << name(o.level) << " special " << o.special
       << " tf32 " << o.tf32 << " tune " << o.tune << " budget " << o.budget_seconds
       << " max_block_ops " << (o.max_block_ops ? *o.max_block_ops : -1) << " cost " << o.cost
       << "\n";
  for (const std::string& d : o.disable) text << "disable " << d << "\n";
  return text.str();
}

std::string result_key(const Graph& program, const OptimizeOptions& o, const Target& target) {
  std::string patterns;
  if (!o.pattern_folders.empty() && !o.disable.count("patterns"))
    patterns = "patterns " + patterns::warehouse_key(o.pattern_folders, program) +
               checked_bodies(o, program) + "\n";
  return sha256_hex(options_key(o, target) + patterns + print(program));
}

std::string tuned_key(const Graph& program, const OptimizeOptions& o, const Target& target) {
  OptimizeOptions any = o;
  any.tune = true;
  any.budget_seconds = 0;
  return result_key(program, any, target);
}

std::string search_key(const Graph& program, const OptimizeOptions& o, const Target& target) {
  OptimizeOptions any = o;
  any.budget_seconds = 0;
  any.threads = 1;
  return sha256_hex("search " + result_key(program, any, target));
}

std::optional<StoredResult> load_result(Cache& cache, const std::string& key) {
  const auto text = cache.find_text(key);
  return text ? read_result(*text) : std::nullopt;
}

std::optional<StoredResult> read_result(const std::string& text) {
  try {
    return from_text<StoredResult>(text);
  } catch (const Error&) {
    return std::nullopt;  // as good as absent; it will be written anew
  }
}

void store_result(Cache& cache, const std::string& key, const OptimizeResult& result) {
  StoredResult r;
  for (const Outcome& o : result.candidates)
    if (o.fate == Fate::Chosen && o.graph == result.graph()) r.winner = o;
  r.improved = result.improved();
  r.winner.graph = result.graph();
  r.winner.seconds = result.seconds;
  r.winner.speedup = result.speedup;
  r.original_s = result.original_s;
  if (result.improved()) r.between = result.certificate()->between;
  if (const CompiledCode code = result.code()) r.checked = sha256_hex(code.source());
  cache.store_text(key, print_result(r));
}

std::string print_result(const StoredResult& r) { return to_text(r); }

}  // namespace tessera
