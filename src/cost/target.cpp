#include "cost/target.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"

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

std::string show(double v) {
  std::ostringstream s;
  s.precision(12);
  s << v;
  return s.str();
}

double rate(const std::array<double, kNumDTypes>& rates, DType t) {
  double own = rates[size_t(t)];
  if (own > 0) return own;
  double f32 = rates[size_t(DType::F32)];
  int bytes = size_in_bytes(t);
  return bytes > 4 ? f32 * 4 / bytes : f32;
}

}  // namespace

double Target::matmul_rate(DType t) const { return rate(matmul_flops, t); }
double Target::pointwise_rate(DType t) const { return rate(pointwise_ops, t); }

double Target::weight(OpKind kind) const {
  auto it = weights.find(kind);
  return it == weights.end() ? 1.0 : it->second;
}

int64_t Target::block_bytes() const {
  int64_t best = 0;
  for (const MemoryLevel& l : levels) {
    if (l.per_core) best = l.capacity;
  }
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
      << (l.per_core ? " per_core" : "") << "\n";
  }
  for (int i = 0; i < kNumDTypes; ++i) {
    if (matmul_flops[size_t(i)] > 0) {
      s << "matmul " << tessera::name(DType(i)) << " " << show(matmul_flops[size_t(i)]) << "\n";
    }
  }
  for (int i = 0; i < kNumDTypes; ++i) {
    if (pointwise_ops[size_t(i)] > 0) {
      s << "pointwise " << tessera::name(DType(i)) << " " << show(pointwise_ops[size_t(i)]) << "\n";
    }
  }
  s << "layout strided " << show(strided_operand) << "\nlayout copied " << show(copied_operand)
    << "\nlayout banks " << banks << "\nlayout bulk " << bulk_bytes << "\n";
  for (const auto& [op, w] : weights) s << "weight " << tessera::name(op) << " " << show(w) << "\n";
  return s.str();
}

Target parse_target(std::string_view text, const std::string& file) {
  Target t;
  int line = 0;
  std::map<std::string, int> seen;
  size_t pos = 0;
  while (pos <= text.size()) {
    size_t end = text.find('\n', pos);
    if (end == std::string_view::npos) end = text.size();
    std::string_view row = text.substr(pos, end - pos);
    pos = end + 1;
    ++line;
    row = row.substr(0, row.find('#'));
    std::vector<Word> words;
    for (size_t i = 0; i < row.size();) {
      if (row[i] == ' ' || row[i] == '\t' || row[i] == '\r') {
        ++i;
        continue;
      }
      size_t from = i;
      while (i < row.size() && row[i] != ' ' && row[i] != '\t' && row[i] != '\r') ++i;
      words.push_back({std::string(row.substr(from, i - from)), int(from) + 1});
    }
    if (words.empty()) continue;
    const std::string key = words[0].text;
    Reader r(file, line, std::move(words));
    bool repeatable = key == "level" || key == "matmul" || key == "pointwise" || key == "weight" ||
                      key == "layout";
    if (!repeatable && seen[key]++) r.fail(0, "'" + key + "' is given twice");
    if (key == "target") {
      t.name = r.word(1, "a name");
      r.expect_size(2);
    } else if (key == "kind") {
      const std::string& k = r.word(1, "cpu or gpu");
      if (k != "cpu" && k != "gpu") r.fail(1, "'" + k + "': kind is cpu or gpu");
      t.kind = k == "cpu" ? TargetKind::Cpu : TargetKind::Gpu;
      r.expect_size(2);
    } else if (key == "cores" || key == "vector_bytes" || key == "vector_registers") {
      int v = r.integer(1, 1, 1 << 16);
      (key == "cores" ? t.cores : key == "vector_bytes" ? t.vector_bytes : t.vector_registers) = v;
      r.expect_size(2);
    } else if (key == "launch" || key == "block" || key == "iteration") {
      double v = r.seconds(1);
      (key == "launch"  ? t.launch_seconds
       : key == "block" ? t.block_seconds
                        : t.iteration_seconds) = v;
      r.expect_size(2);
    } else if (key == "level") {
      MemoryLevel l;
      l.name = r.word(1, "a name");
      for (size_t i = 2; i < r.size(); ++i) {
        const std::string& w = r.word(i, "a property");
        if (w == "capacity") {
          double v = r.number(++i, "a capacity", 1024);
          if (v < 1 || v > 1e18) r.fail(i, "a capacity is from 1 byte to 1e18");
          l.capacity = int64_t(v);
        } else if (w == "bandwidth") {
          l.bandwidth = r.number(++i, "a bandwidth", 1000);
        } else if (w == "per_core") {
          l.per_core = true;
        } else {
          r.fail(i, "'" + w + "': a level has capacity, bandwidth and per_core");
        }
      }
      if (l.capacity <= 0) r.fail(1, "level '" + l.name + "' has no capacity");
      if (l.bandwidth <= 0) r.fail(1, "level '" + l.name + "' has no bandwidth");
      t.levels.push_back(std::move(l));
    } else if (key == "matmul" || key == "pointwise") {
      auto type = dtype_from_name(r.word(1, "an element type"));
      if (!type) r.fail(1, "'" + r.word(1, "") + "' is no element type");
      double v = r.number(2, "a rate", 1000);
      if (v <= 0) r.fail(2, "a rate is positive");
      (key == "matmul" ? t.matmul_flops : t.pointwise_ops)[size_t(*type)] = v;
      r.expect_size(3);
    } else if (key == "layout") {
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
      r.expect_size(3);
    } else if (key == "weight") {
      auto op = op_from_name(r.word(1, "an operator"));
      if (!op) r.fail(1, "'" + r.word(1, "") + "' is no operator");
      t.weights[*op] = r.number(2, "a weight", 1000);
      r.expect_size(3);
    } else {
      r.fail(0, "unknown key '" + key + "'");
    }
  }
  auto missing = [&](const std::string& what) {
    throw Error(ErrorKind::BadInput, "target description has no " + what,
                SourceLocation{file, 0, 0});
  };
  if (t.name.empty()) missing("'target' line");
  if (t.levels.size() < 2) missing("two 'level' lines");
  if (t.matmul_flops[size_t(DType::F32)] <= 0) missing("'matmul f32' line");
  if (t.pointwise_ops[size_t(DType::F32)] <= 0) missing("'pointwise f32' line");
  return t;
}

Target load_target(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw Error(ErrorKind::NotFound,
                "cannot read target description " + path + ": " + std::strerror(errno));
  }
  std::ostringstream text;
  text << in.rdbuf();
  return parse_target(text.str(), path);
}

Target find_target(const std::string& name, const std::string& directory) {
  bool path = name.find('/') != std::string::npos || name.find(".target") != std::string::npos;
  return load_target(path ? name : directory + "/" + name + ".target");
}

Target default_cpu_target() { return parse_target(kDefaultCpu, "<built-in>"); }

}  // namespace tessera
