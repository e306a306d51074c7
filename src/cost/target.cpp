#include "cost/target.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "base/folder.h"
#include "base/text.h"

namespace tessera {
namespace {

const char* const kDefaultCpu = R"(target cpu
kind cpu
cores 2
vector_bytes 64
vector_registers 32
launch 4us
block 0.3us
iteration 60ns
level dram capacity 16G bandwidth 45G
level l3 capacity 32M bandwidth 160G
level l2 capacity 1M bandwidth 100G per_core
matmul f32 140G
pointwise f32 16G
weight exp 8
weight log 10
weight sin 12
weight cos 12
weight erf 14
weight tanh 14
weight sigmoid 11
weight silu 12
weight gelu 16
weight gelu_tanh 16
weight pow 20
weight log1p 14
weight expm1 10
weight power 30
weight mod 40
weight atan2 30
weight div 4
weight sqrt 5
weight rsqrt 6
)";

struct Word {
  std::string text;
  int col = 0;
};

class Reader {
 public:
  Reader(std::string file, int line, std::vector<Word> words)
      : file_(std::move(file)), line_(line), words_(std::move(words)) {}

  [[noreturn]] void fail(size_t word, const std::string& message) const {
    int col = word < words_.size() ? words_[word].col : words_.back().col;
    throw Error(ErrorKind::BadInput, message, SourceLocation{file_, line_, col});
  }
  const std::string& word(size_t i, const char* what) const {
    if (i >= words_.size()) fail(i, "'" + words_[0].text + "': " + what + " is missing");
    return words_[i].text;
  }
  size_t size() const { return words_.size(); }
  void expect_size(size_t n) const {
    if (words_.size() > n) fail(n, "unexpected '" + words_[n].text + "'");
  }
  // A number with an optional suffix; `unit` is 1024 for capacities and 1000 for rates.
  double number(size_t i, const char* what, double unit) const {
    const std::string& text = word(i, what);
    double v = plain(i, text, what, &suffix_);
    double factor = 1;
    if (suffix_ == "K")
      factor = unit;
    else if (suffix_ == "M")
      factor = unit * unit;
    else if (suffix_ == "G")
      factor = unit * unit * unit;
    else if (suffix_ == "T")
      factor = unit * unit * unit * unit;
    else if (!suffix_.empty())
      fail(i, "'" + text + "': unknown suffix '" + suffix_ + "'");
    return v * factor;
  }
  double positive(size_t i, const char* what) const {
    const double v = number(i, what, 1000);
    if (v <= 0) fail(i, std::string(what) + " is positive");
    return v;
  }
  double seconds(size_t i) const {
    const std::string& text = word(i, "a time");
    double v = plain(i, text, "a time", &suffix_);
    if (suffix_ == "s") return v;
    if (suffix_ == "ms") return v * 1e-3;
    if (suffix_ == "us") return v * 1e-6;
    if (suffix_ == "ns") return v * 1e-9;
    fail(i, "'" + text + "': a time ends in s, ms, us or ns");
  }
  int integer(size_t i, int low, int high) const {
    double v = number(i, "a number", 1000);
    if (v != std::floor(v) || v < low || v > high) {
      fail(i, "'" + words_[i].text + "': expected a whole number from " + std::to_string(low) +
                  " to " + std::to_string(high));
    }
    return int(v);
  }

 private:
  double plain(size_t i, const std::string& text, const char* what, std::string* suffix) const {
    char* end = nullptr;
    double v = std::strtod(text.c_str(), &end);
    if (end == text.c_str()) fail(i, "'" + text + "': expected " + what);
    if (!std::isfinite(v) || v < 0) fail(i, "'" + text + "': must be finite and not negative");
    *suffix = end;
    return v;
  }
  std::string file_;
  int line_;
  std::vector<Word> words_;
  mutable std::string suffix_;
};

std::string show(double v) { return significant(v, 12); }

// Figures of a GPU by the words they are written with; the file's and `str`'s one list of them.
template <class Owner, class Number> struct Figure {
  const char* name;
  Number Owner::*value;
};
using SmCount = Figure<Multiprocessor, int>;
using SmBytes = Figure<Multiprocessor, int64_t>;
using Latency = Figure<Multiprocessor, double>;
using Scale = Figure<Scales, double>;
constexpr SmCount kSmCounts[] = {{"threads", &Multiprocessor::threads},
                                 {"blocks", &Multiprocessor::blocks},
                                 {"registers", &Multiprocessor::registers},
                                 {"cluster", &Multiprocessor::cluster}};
constexpr SmBytes kSmBytes[] = {{"shared", &Multiprocessor::shared},
                                {"reserved", &Multiprocessor::reserved}};
constexpr Latency kLatencies[] = {{"dram", &Multiprocessor::dram_latency},
                                  {"l2", &Multiprocessor::l2_latency}};
constexpr Scale kScales[] = {{"launch", &Scales::launch},
                             {"latency", &Scales::latency},
                             {"memory", &Scales::memory},
                             {"compute", &Scales::compute}};
constexpr const char* kLibraries[] = {"matmul", "attention", "convolution"};

void read_sm(const Reader& r, Multiprocessor& sm) {
  const std::string& what =
      r.word(1, "threads, blocks, registers, cluster, shared, reserved or port");
  for (const SmCount& c : kSmCounts)
    if (what == c.name) return void(sm.*c.value = r.integer(2, 1, 1 << 20));
  for (const SmBytes& b : kSmBytes)
    if (what == b.name) return void(sm.*b.value = int64_t(r.number(2, "a capacity", 1024)));
  if (what != "port")
    r.fail(1,
           "'" + what + "': sm has threads, blocks, registers, cluster, shared, reserved and port");
  sm.port = r.positive(2, "a bandwidth");
}

void read_latency(const Reader& r, Multiprocessor& sm) {
  const std::string& what = r.word(1, "dram or l2");
  for (const Latency& l : kLatencies)
    if (what == l.name) return void(sm.*l.value = r.seconds(2));
  r.fail(1, "'" + what + "': latency has dram and l2");
}

void read_library(const Reader& r, Target& t) {
  const std::string& name = r.word(1, "matmul, attention or convolution");
  if (std::find(std::begin(kLibraries), std::end(kLibraries), name) == std::end(kLibraries))
    r.fail(1, "'" + name + "': library has matmul, attention and convolution");
  LibraryRate rate;
  for (size_t i = 2; i < r.size(); ++i) {
    const std::string& w = r.word(i, "a property");
    if (w == "bandwidth" || w == "compute") {
      const double share = r.positive(++i, "a share");
      if (share > 2) r.fail(i, "a share of the target's own figure is at most 2");
      (w == "bandwidth" ? rate.bandwidth : rate.compute) = share;
    } else if (w == "overhead") {
      rate.overhead = r.seconds(++i);
    } else {
      r.fail(i, "'" + w + "': a library has bandwidth, compute and overhead");
    }
  }
  if (rate.bandwidth == 0 || rate.compute == 0)
    r.fail(1, "library '" + name + "' needs its bandwidth and compute");
  t.libraries[name] = rate;
}

void read_scale(const Reader& r, Scales& scale) {
  const std::string& what = r.word(1, "launch, latency, memory or compute");
  for (const Scale& c : kScales)
    if (what == c.name) return void(scale.*c.value = r.positive(2, "a factor"));
  r.fail(1, "'" + what + "': scale has launch, latency, memory and compute");
}

void read_level(const Reader& r, Target& t) {
  MemoryLevel l;
  l.name = r.word(1, "a name");
  for (size_t i = 2; i < r.size(); ++i) {
    const std::string& w = r.word(i, "a property");
    if (w == "capacity") {
      const double v = r.number(++i, "a capacity", 1024);
      if (v < 1 || v > 1e18) r.fail(i, "a capacity is from 1 byte to 1e18");
      l.capacity = int64_t(v);
    } else if (w == "bandwidth" || w == "nominal") {
      (w == "nominal" ? l.nominal : l.bandwidth) = r.number(++i, "a bandwidth", 1000);
    } else if (w == "per_core") {
      l.per_core = true;
    } else {
      r.fail(i, "'" + w + "': a level has capacity, bandwidth, nominal and per_core");
    }
  }
  if (l.capacity <= 0) r.fail(1, "level '" + l.name + "' has no capacity");
  if (l.bandwidth <= 0) r.fail(1, "level '" + l.name + "' has no bandwidth");
  if (l.nominal > 0 && l.nominal < l.bandwidth)
    r.fail(1, "level '" + l.name + "' reaches more than its nominal bandwidth");
  t.levels.push_back(std::move(l));
}

void read_rate(const Reader& r, Target& t) {
  const bool products = r.word(0, "") == "matmul";
  const std::string& name = r.word(1, "an element type");
  if (products && name == "tf32") return void(t.tf32_flops = r.positive(2, "a rate"));
  const auto type = dtype_from_name(name);
  if (!type) r.fail(1, "'" + name + "' is no element type");
  (products ? t.matmul_flops : t.pointwise_ops)[size_t(*type)] = r.positive(2, "a rate");
}

void read_layout(const Reader& r, Target& t) {
  const std::string& what = r.word(1, "strided, copied, banks or bulk");
  if (what == "strided" || what == "copied") {
    const double v = r.number(2, "a factor", 1000);
    if (v < 1) r.fail(2, "a factor of time is at least 1");
    (what == "strided" ? t.strided_operand : t.copied_operand) = v;
  } else if (what == "banks" || what == "bulk") {
    (what == "banks" ? t.banks : t.bulk_bytes) = r.integer(2, 0, 1 << 16);
  } else {
    r.fail(1, "'" + what + "': layout has strided, copied, banks and bulk");
  }
}

void read_weight(const Reader& r, Target& t) {
  const std::string& name = r.word(1, "an operator");
  const auto op = op_from_name(name);
  if (!op) r.fail(1, "'" + name + "' is no operator");
  t.weights[*op] = r.number(2, "a weight", 1000);
}

void read_kind(const Reader& r, Target& t) {
  const std::string& k = r.word(1, "cpu or gpu");
  if (k != "cpu" && k != "gpu") r.fail(1, "'" + k + "': kind is cpu or gpu");
  t.kind = k == "cpu" ? TargetKind::Cpu : TargetKind::Gpu;
}

struct Entry {
  const char* key;
  size_t words;  // of its line at most; 0: `read` sees to it
  bool repeatable;
  void (*read)(const Reader&, Target&);
};
constexpr int kMostUnits = 1 << 16;
const Entry kEntries[] = {
    {"target", 2, false, [](const Reader& r, Target& t) { t.name = r.word(1, "a name"); }},
    {"kind", 2, false, read_kind},
    {"cores", 2, false, [](const Reader& r, Target& t) { t.cores = r.integer(1, 1, kMostUnits); }},
    {"vector_bytes", 2, false,
     [](const Reader& r, Target& t) { t.vector_bytes = r.integer(1, 1, kMostUnits); }},
    {"vector_registers", 2, false,
     [](const Reader& r, Target& t) { t.vector_registers = r.integer(1, 1, kMostUnits); }},
    {"launch", 2, false, [](const Reader& r, Target& t) { t.launch_seconds = r.seconds(1); }},
    {"launch_in_graph", 2, false,
     [](const Reader& r, Target& t) { t.launch_in_graph = r.seconds(1); }},
    {"block", 2, false, [](const Reader& r, Target& t) { t.block_seconds = r.seconds(1); }},
    {"iteration", 2, false, [](const Reader& r, Target& t) { t.iteration_seconds = r.seconds(1); }},
    {"clock", 2, false, [](const Reader& r, Target& t) { t.sm.clock = r.positive(1, "a rate"); }},
    {"special", 2, false,
     [](const Reader& r, Target& t) { t.sm.special = r.positive(1, "a rate"); }},
    {"sm", 3, true, [](const Reader& r, Target& t) { read_sm(r, t.sm); }},
    {"latency", 3, true, [](const Reader& r, Target& t) { read_latency(r, t.sm); }},
    {"library", 0, true, read_library},
    {"scale", 3, true, [](const Reader& r, Target& t) { read_scale(r, t.scale); }},
    {"level", 0, true, read_level},
    {"matmul", 3, true, read_rate},
    {"pointwise", 3, true, read_rate},
    {"layout", 3, true, read_layout},
    {"weight", 3, true, read_weight},
};

double rate(const std::array<double, kNumDTypes>& rates, DType t) {
  double own = rates[size_t(t)];
  if (own > 0) return own;
  double f32 = rates[size_t(DType::F32)];
  int bytes = size_in_bytes(t);
  return bytes > 4 ? f32 * 4 / bytes : f32;
}

}  // namespace

double Target::matmul_rate(DType t) const {
  return tf32 && t == DType::F32 && tf32_flops > 0 ? tf32_flops : rate(matmul_flops, t);
}
double Target::pointwise_rate(DType t) const { return rate(pointwise_ops, t); }

double Target::weight(OpKind kind) const {
  auto it = weights.find(kind);
  return it == weights.end() ? 1.0 : it->second;
}

int64_t Target::block_bytes() const {
  int64_t best = 0;
  for (const MemoryLevel& l : levels)
    if (l.per_core) best = l.capacity;
  if (best == 0) best = levels.back().capacity;
  // A cache is shared with code, stack and prefetched lines; shared memory is all ours.
  return kind == TargetKind::Cpu ? best - best / 4 : best;
}

std::string Target::str() const {
  std::ostringstream s;
  s << "target " << name << "\nkind " << (kind == TargetKind::Cpu ? "cpu" : "gpu") << "\ncores "
    << cores << "\nvector_bytes " << vector_bytes << "\nvector_registers " << vector_registers
    << "\nlaunch " << show(launch_seconds) << "s\nblock " << show(block_seconds) << "s\niteration "
    << show(iteration_seconds) << "s\n";
  for (const MemoryLevel& l : levels) {
    s << "level " << l.name << " capacity " << l.capacity << " bandwidth " << show(l.bandwidth)
      << (l.nominal > 0 ? " nominal " + show(l.nominal) : "") << (l.per_core ? " per_core" : "")
      << "\n";
  }
  if (kind == TargetKind::Gpu) {
    s << "launch_in_graph " << show(launch_in_graph) << "s\nclock " << show(sm.clock) << "\n";
    for (const SmCount& c : kSmCounts) s << "sm " << c.name << " " << sm.*c.value << "\n";
    for (const SmBytes& b : kSmBytes) s << "sm " << b.name << " " << sm.*b.value << "\n";
    s << "sm port " << show(sm.port) << "\nspecial " << show(sm.special) << "\n";
    for (const Latency& l : kLatencies)
      s << "latency " << l.name << " " << show(sm.*l.value) << "s\n";
    for (const auto& [name, l] : libraries)
      s << "library " << name << " bandwidth " << show(l.bandwidth) << " compute "
        << show(l.compute) << " overhead " << show(l.overhead) << "s\n";
    for (const Scale& c : kScales)
      if (scale.*c.value != 1) s << "scale " << c.name << " " << show(scale.*c.value) << "\n";
  }
  if (tf32_flops > 0) s << "matmul tf32 " << show(tf32_flops) << "\n";
  for (int i = 0; i < kNumDTypes; ++i)
    if (matmul_flops[size_t(i)] > 0)
      s << "matmul " << tessera::name(DType(i)) << " " << show(matmul_flops[size_t(i)]) << "\n";
  for (int i = 0; i < kNumDTypes; ++i)
    if (pointwise_ops[size_t(i)] > 0)
      s << "pointwise " << tessera::name(DType(i)) << " " << show(pointwise_ops[size_t(i)]) << "\n";
  s << "layout strided " << show(strided_operand) << "\nlayout copied " << show(copied_operand)
    << "\nlayout banks " << banks << "\nlayout bulk " << bulk_bytes << "\n";
  for (const auto& [op, w] : weights) s << "weight " << tessera::name(op) << " " << show(w) << "\n";
  return s.str();
}

std::string Target::summary() const {
  // A number with a unit of thousands (`unit` 1000) or of 1024.
  auto human = [](double v, double unit) {
    const char* const prefix[] = {"", "K", "M", "G", "T", "P"};
    size_t p = 0;
    for (; v >= unit && p + 1 < std::size(prefix); ++p) v /= unit;
    std::ostringstream s;
    s << std::setprecision(v < 1000 ? 3 : 4) << v << " " << prefix[p];
    return s.str();
  };
  const bool gpu = kind == TargetKind::Gpu;
  std::ostringstream s;
  s << name << ": " << cores << (gpu ? " multiprocessors" : " cores");
  if (gpu) s << " at " << human(sm.clock, 1000) << "Hz";
  s << "\n";
  for (const MemoryLevel& l : levels) {
    s << "  " << l.name << ": " << human(double(l.capacity), 1024) << "B, "
      << human(l.bandwidth, 1000) << "B/s";
    if (l.per_core) s << (gpu ? " per multiprocessor" : " per core");
    if (l.nominal > 0) s << " (nominal " << human(l.nominal, 1000) << "B/s)";
    s << "\n";
  }
  const double dram = levels.front().bandwidth;
  for (int i = 0; i < kNumDTypes; ++i) {
    const double all = matmul_flops[size_t(i)] * cores;
    if (all == 0) continue;
    s << "  products in " << tessera::name(DType(i)) << ": " << human(all, 1000)
      << "FLOP/s, bound by memory below " << human(all / dram, 1000) << "FLOP/B\n";
  }
  s << "  elementwise in f32: " << human(pointwise_rate(DType::F32) * cores, 1000) << "op/s";
  if (gpu) s << ", special functions " << human(sm.special * cores, 1000) << "op/s";
  s << "\n";
  if (!gpu) return s.str();
  s << "  a multiprocessor: " << sm.threads << " threads, " << sm.blocks << " blocks, "
    << sm.registers << " registers, " << human(double(sm.shared), 1024) << "B shared ("
    << human(double(block_bytes()), 1024) << "B a block), " << human(sm.port, 1000) << "B/s from "
    << levels[levels.size() - 2].name;
  if (sm.cluster > 1) s << ", clusters of " << sm.cluster << " blocks at most";
  s << "\n";
  s << "  to keep memory busy: " << human(dram * sm.dram_latency / cores, 1024)
    << "B on the way to each multiprocessor\n";
  s << "  launch: " << launch_seconds * 1e6 << " us from the host, " << launch_in_graph * 1e6
    << " us in a graph\n";
  for (const auto& [library, r] : libraries)
    s << "  library " << library << ": " << 100 * r.bandwidth << " % of the bandwidth, "
      << 100 * r.compute << " % of the rate, " << r.overhead * 1e6 << " us a call\n";
  return s.str();
}

Target parse_target(std::string_view text, const std::string& file) {
  Target t;
  int line = 0;
  std::map<std::string, int> seen;
  for (std::string_view row : split(text, '\n')) {
    ++line;
    row = row.substr(0, row.find('#'));
    std::vector<Word> words;
    constexpr std::string_view kBlanks = " \t\r";
    for (size_t from = row.find_first_not_of(kBlanks); from != std::string_view::npos;) {
      const size_t end = std::min(row.find_first_of(kBlanks, from), row.size());
      words.push_back({std::string(row.substr(from, end - from)), int(from) + 1});
      from = row.find_first_not_of(kBlanks, end);
    }
    if (words.empty()) continue;
    const std::string key = words[0].text;
    Reader r(file, line, std::move(words));
    const auto entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                    [&](const Entry& e) { return key == e.key; });
    if (entry == std::end(kEntries)) r.fail(0, "unknown key '" + key + "'");
    if (!entry->repeatable && seen[key]++) r.fail(0, "'" + key + "' is given twice");
    entry->read(r, t);
    if (entry->words > 0) r.expect_size(entry->words);
  }
  auto missing = [&](const std::string& what) {
    throw Error(ErrorKind::BadInput, "target description has no " + what,
                SourceLocation{file, 0, 0});
  };
  if (t.name.empty()) missing("'target' line");
  if (t.levels.size() < 2) missing("two 'level' lines");
  if (t.matmul_flops[size_t(DType::F32)] <= 0) missing("'matmul f32' line");
  if (t.pointwise_ops[size_t(DType::F32)] <= 0) missing("'pointwise f32' line");
  if (t.kind == TargetKind::Cpu) return t;
  if (!t.levels.back().per_core) missing("per_core level: the memory of a block");
  if (t.levels.size() < 3) missing("three levels: memory, cache, and the memory of a block");
  if (t.launch_in_graph <= 0) missing("'launch_in_graph' line");
  if (t.sm.clock <= 0) missing("'clock' line");
  if (t.sm.special <= 0) missing("'special' line");
  if (t.sm.port <= 0) missing("'sm port' line");
  for (const SmCount& c : kSmCounts)
    if (t.sm.*c.value <= 0) missing(std::string("'sm ") + c.name + "' line");
  for (const SmBytes& b : kSmBytes)
    if (t.sm.*b.value <= 0) missing(std::string("'sm ") + b.name + "' line");
  for (const Latency& l : kLatencies)
    if (t.sm.*l.value <= 0) missing(std::string("'latency ") + l.name + "' line");
  if (t.block_bytes() + t.sm.reserved > t.sm.shared)
    missing("room for a block: 'sm shared' is less than its level's capacity and 'sm reserved'");
  return t;
}

Target load_target(const std::string& path) {
  if (const std::optional<std::string> text = read_file(path)) return parse_target(*text, path);
  throw Error(ErrorKind::NotFound,
              "cannot read target description " + path + ": " + std::strerror(errno));
}

Target find_target(const std::string& name, const std::string& directory) {
  bool path = name.find('/') != std::string::npos || name.find(".target") != std::string::npos;
  if (!path && directory.empty())
    throw Error(ErrorKind::Usage, "target " + name +
                                      " is the name of a description: say in which "
                                      "folder it is (target_folder), or give its path");
  return load_target(path ? name : directory + "/" + name + ".target");
}

Target default_cpu_target() { return parse_target(kDefaultCpu, "<built-in>"); }

}  // namespace tessera
