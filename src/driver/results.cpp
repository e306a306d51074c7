#include "driver/results.h"

#include <algorithm>
#include <ctime>
#include <sstream>
#include <type_traits>

#include "backend/body_records.h"
#include "backend/cpu/compile.h"
#include "backend/cpu/conv_costs.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/sha256.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "driver/code.h"
#include "ir/text.h"
#include "search/patterns/warehouse.h"
#include "verify/verdict.h"

namespace tessera {
namespace {

// Raised when what is stored, or how it is chosen or proved, changes its meaning.
constexpr int kResultVersion = 11;

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

std::string tools() {
  return "result " + num(kResultVersion) + " verifier " + num(kVerifierVersion) + " codegen " +
         num(kCodegenVersion);
}

// What measures and runs the result; of a GPU, also whether it is here.
std::string device(const OptimizeOptions& o) {
  const CodePlace place = place_of(o.target, o.target_directory);
  if (place.gpu)
    return place.arch.str() + " " + (place.context ? place.context->device().str() : "not here");
  const int threads = o.threads > 0 ? o.threads : default_threads();
  return processor_name() + ", " + to_string(best_isa()) + ", " + num(threads) +
         (threads == 1 ? " thread" : " threads");
}

std::string options_text(const OptimizeOptions& o) {
  const double budget = o.kept_budget > 0 ? o.kept_budget : o.budget_seconds;
  std::ostringstream text;
  text << "seed " << o.seed << " tested " << o.accept_tested << " special " << o.special << " tf32 "
       << o.tf32 << " tune " << o.tune << " budget " << budget << " max_block_ops "
       << (o.max_block_ops ? *o.max_block_ops : -1) << " cost " << o.cost << " level "
       << name(o.level) << " threads " << (o.threads > 0 ? o.threads : default_threads()) << "\n";
  for (const std::string& d : o.disable) text << "disable " << d << "\n";
  for (const auto& [name, value] : o.settings)
    text << "set " << name << " " << exact(value) << "\n";
  return text.str();
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &utc)};
}

}  // namespace

std::string options_key(const OptimizeOptions& o, const Target& target) {
  return tools() + "\n" + target.str() + device(o) + "\n" + options_text(o);
}

EntryFields provenance(const Graph& program, const OptimizeOptions& o, const Target& target) {
  std::string options = options_text(o) + "target " + sha256_hex(target.str()) + "\n";
  if (!o.pattern_folders.empty() && !o.disable.count("patterns"))
    options += "patterns " + patterns::warehouse_key(o.pattern_folders, program) +
               checked_bodies(o, program) + "\n";
  EntryFields fields = {{"program", sha256_hex(print_canonical(program))},
                        {"level", name(o.level)},
                        {"device", device(o)},
                        {"tools", tools()},
                        {"options", options}};
  std::string all;
  for (const auto& [field, value] : fields) all += field + " " + value + "\n";
  fields.insert(fields.begin(), {"key", sha256_hex(all)});
  return fields;
}

std::string result_key(const Graph& program, const OptimizeOptions& o, const Target& target) {
  return std::string(field_of(provenance(program, o, target), "key"));
}

OptimizeOptions tuned_options(OptimizeOptions o) {
  o.tune = true;
  o.budget_seconds = 0;
  return o;
}

std::string search_key(const Graph& program, const OptimizeOptions& o, const Target& target) {
  OptimizeOptions any = o;
  any.budget_seconds = 0;
  any.threads = 1;
  return sha256_hex("search " + result_key(program, any, target));
}

// --- entries -----------------------------------------------------------------------------------

EntryFields fields_of(const StoredResult& r) {
  const Outcome& w = r.winner;
  EntryFields fields = {{"improved", r.improved ? "yes" : "no"},
                        {"original_s", exact(r.original_s)},
                        {"seconds", exact(w.seconds)},
                        {"spread", exact(w.spread)},
                        {"speedup", exact(w.speedup)},
                        {"model_s", exact(w.model_seconds)},
                        {"rank", num(w.rank)},
                        {"origin", w.origin},
                        {"derivation", w.derivation}};
  if (!r.checked.empty()) fields.emplace_back("checked", r.checked);
  if (!r.between.empty()) fields.emplace_back("between", r.between);
  fields.emplace_back("graph", print(w.graph));
  return fields;
}

std::optional<StoredResult> result_from(const EntryFields& fields) {
  StoredResult r;
  Outcome& w = r.winner;
  bool complete = true;
  const auto number = [&](std::string_view name, auto& to) {
    const auto n = number_from<std::remove_reference_t<decltype(to)>>(field_of(fields, name));
    complete = complete && n;
    to = n.value_or(0);
  };
  number("original_s", r.original_s);
  number("seconds", w.seconds);
  number("spread", w.spread);
  number("speedup", w.speedup);
  number("model_s", w.model_seconds);
  number("rank", w.rank);
  if (!complete) return std::nullopt;
  r.improved = field_of(fields, "improved") == "yes";
  w.origin = field_of(fields, "origin");
  w.derivation = field_of(fields, "derivation");
  r.checked = field_of(fields, "checked");
  r.between = field_of(fields, "between");
  try {
    w.graph = parse(field_of(fields, "graph"), "<stored result>");
  } catch (const Error&) {
    return std::nullopt;
  }
  return r;
}

std::string print_result(const StoredResult& r) { return print_entry(fields_of(r)); }

std::optional<StoredResult> read_result(const std::string& text) {
  const auto fields = readable_entry(text);
  return fields ? result_from(*fields) : std::nullopt;
}

Graph fitted_to(const Graph& of, Graph g) {
  g = with_names_of(of, std::move(g));
  for (size_t i = 0; i < std::min(g.inputs().size(), of.inputs().size()); i++)
    g.set_weight(i, of.is_weight(of.inputs()[i]));
  return g;
}

std::string results_folder(Cache& cache) { return cache.folder("results"); }

std::optional<StoredResult> load_result(Cache& cache, const std::string& key) {
  const std::string folder = results_folder(cache);
  const auto text = folder.empty() ? std::nullopt : read_file(folder + "/" + key + ".entry");
  const auto fields = text ? readable_entry(*text) : std::nullopt;
  return fields && field_of(*fields, "key") == key ? result_from(*fields) : std::nullopt;
}

void store_result(Cache& cache, const OptimizeOptions& options, const Target& target,
                  const OptimizeResult& result) {
  const std::string folder = results_folder(cache);
  if (folder.empty()) return;
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
  EntryFields fields = provenance(result.original, options, target);
  const std::string key(field_of(fields, "key"));
  fields.insert(fields.begin(), {"kind", "program"});
  fields.emplace_back("made", today());
  fields.emplace_back("original_spread", exact(result.original_spread));
  fields.emplace_back("original", print(result.original));
  for (auto& f : fields_of(r)) fields.push_back(std::move(f));
  if (const Certificate* c = result.certificate()) fields.emplace_back("certificate", c->str());
  write_atomically(folder + "/" + key + ".entry", print_entry(fields));
}

}  // namespace tessera
