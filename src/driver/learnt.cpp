#include "driver/learnt.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/entries.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/sha256.h"
#include "base/text.h"
#include "driver/results.h"
#include "ir/build.h"
#include "ir/text.h"
#include "search/patterns/learn.h"

namespace tessera {
namespace {

// Raised when the search finds what it did not find before.
constexpr int kSearchVersion = 3;
// A search that had so much more time is another one.
constexpr double kMoreTime = 1.1;
constexpr double kCheckSeconds = 1;  // a user waits for them

// The program with inputs in another order: number i of the result is number order[i] of `g`.
Graph with_inputs(const Graph& g, const std::vector<size_t>& order) {
  Graph out(g.name());
  std::vector<TensorId> inputs(order.size());
  for (size_t i : order) {
    const TensorId t = g.inputs()[i];
    inputs[i] = out.add_input(g.type(t), g.tensor(t).name, g.is_weight(t));
  }
  out.set_outputs(build::graph(out, g, inputs));
  return out;
}

// The stored program for the inputs of `program`; nothing where it has others.
std::optional<Graph> fitted(const std::string& text, const Graph& program,
                            const std::vector<size_t>& order) {
  try {
    std::vector<size_t> at(order.size());
    for (size_t i = 0; i < order.size(); i++) at[order[i]] = i;
    Graph g = with_inputs(parse(text, "<learnt kernel>"), at);
    if (g.outputs().size() != 1 || !(g.type(g.outputs()[0]) == program.type(program.outputs()[0])))
      return std::nullopt;
    for (size_t i = 0; i < order.size(); i++) {
      const TensorId mine = g.inputs()[i], its = program.inputs()[i];
      if (!(g.type(mine) == program.type(its))) return std::nullopt;
      g.set_tensor_name(mine, program.tensor(its).name);
      g.set_weight(i, program.is_weight(its));
    }
    g.set_name(program.name());
    return g;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string file_name(const patterns::SemanticKey& key, const std::string& options) {
  std::string sizes;
  for (int64_t n : key.sizes) sizes += " " + std::to_string(n);
  return sha256_hex(key.meaning + sizes + "\n" + options) + ".entry";
}

void prune(const std::string& folder, const std::string& extension) {
  std::vector<std::string> files = files_of(folder, extension);
  if (files.size() <= kMostLearnt) return;
  std::error_code ignored;
  const auto age = [&](const std::string& f) {
    return std::filesystem::last_write_time(f, ignored);
  };
  std::ranges::sort(files, {}, age);
  for (size_t i = 0; i + kMostLearnt < files.size(); i++) unlink(files[i].c_str());
}

}  // namespace

std::string learnt_folder(Cache& cache) { return cache.folder("learnt"); }

LearntKernels::LearntKernels(Cache& cache, const OptimizeOptions& options, const Target& target)
    : refresh_(options.refresh || options.resume) {
  if (!options.use_cache || options.disable.count("learnt")) return;
  folder_ = learnt_folder(cache);
  OptimizeOptions any = options;
  any.budget_seconds = 0;
  options_key_ = "search " + std::to_string(kSearchVersion) + "\n" + options_key(any, target);
}

std::optional<KnownSearch> LearntKernels::recall(const Graph& program, double seconds) const {
  if (folder_.empty() || refresh_) return std::nullopt;
  const auto key = patterns::semantic_key(program);
  if (!key) return std::nullopt;
  const auto text = read_file(folder_ + "/" + file_name(*key, options_key_));
  const auto fields = text ? readable_entry(*text) : std::nullopt;
  if (!fields) return std::nullopt;
  const auto had = number_from<double>(field_of(*fields, "seconds"));
  if (!had || (field_of(*fields, "complete") != "yes" && seconds > kMoreTime * *had))
    return std::nullopt;
  const std::string pattern(field_of(*fields, "pattern")), graph(field_of(*fields, "graph"));
  KnownSearch known;
  known.note = "an earlier search of " + significant(*had, 2) + " s found ";
  if (graph.empty()) {
    known.note += "nothing faster; --refresh searches again";
    return known;
  }
  if (!pattern.empty() && access((folder_ + "/" + pattern + ".pattern").c_str(), R_OK) != 0)
    return std::nullopt;
  known.graph = fitted(graph, program, key->order);
  if (!known.graph) return std::nullopt;
  known.note += pattern.empty() ? "this kernel" : "this kernel, pattern " + pattern;
  return known;
}

void LearntKernels::remember(const Graph& program, const Graph* found, double seconds,
                             bool complete, const std::string& about) const {
  if (folder_.empty()) return;
  const auto key = patterns::semantic_key(program);
  if (!key) return;
  std::string pattern, graph;
  if (found) {
    graph = print(with_inputs(*found, key->order));
    const std::string stem = "learnt-" + key->meaning.substr(0, 8);
    if (const auto text =
            patterns::learnt_pattern("learnt", program, *found, *key, kCheckSeconds)) {
      // Kernels of one meaning that differ in more than sizes are different patterns.
      pattern = stem + "-" + sha256_hex(*text).substr(0, 4);
      std::string named = *text;
      named.replace(named.find(" learnt\n"), 7, " " + pattern);
      if (!write_atomically(folder_ + "/" + pattern + ".pattern", "# " + about + "\n" + named)
               .empty())
        pattern.clear();
    }
  }
  write_atomically(folder_ + "/" + file_name(*key, options_key_),
                   print_entry({{"kind", "search"},
                                {"seconds", exact(seconds)},
                                {"complete", complete ? "yes" : "no"},
                                {"pattern", pattern},
                                {"graph", graph}}));
  prune(folder_, ".pattern");
  prune(folder_, ".entry");
}

}  // namespace tessera
