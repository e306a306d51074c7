#include "backend/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/arrays.h"
#include "backend/cpu/runtime.h"
#include "backend/host_calls.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "eval/eval.h"
#include "verify/inputs.h"
#include "verify/range_search.h"
#include "verify/symmetry.h"
#include "verify/work.h"

namespace tessera {
namespace {

double unit_of(DType dtype) {
  return is_float(dtype) ? std::ldexp(1.0, -format_of(dtype).bits) : 0;
}

double largest_of(DType dtype) {
  return dtype == DType::F64 ? 0x1p1023 : dtype == DType::F16 ? 65504.0 : 0x1p127;
}

// What lies below may be flushed or rounded away.
double smallest_of(DType dtype) {
  return dtype == DType::F64 ? 0x1p-1022 : dtype == DType::F16 ? 0x1p-24 : 0x1p-126;
}

struct Outputs {
  std::vector<AlignedBuffer> memory;
  std::vector<void*> pointers;
};

// Guard bytes behind each output show writes out of bounds.
constexpr size_t kGuard = 256;

std::string position(const Type& type, size_t flat) {
  std::string s;
  for (size_t d = type.shape.size(); d-- > 0;) {
    const size_t n = size_t(type.shape[d].extent);
    s = std::to_string(flat % n) + (s.empty() ? "" : "," + s);
    flat /= n;
  }
  return "[" + s + "]";
}

// Where every element of a whole tensor comes from in a smaller one: element i·strides of the axes.
class Source {
 public:
  Source(const std::vector<int64_t>& whole, const std::vector<int64_t>& part, const Repeats& map) {
    int64_t stride = 1;
    offsets_.resize(whole.size());
    for (size_t d = whole.size(); d-- > 0;) {
      for (int64_t i = 0; i < whole[d]; ++i)
        offsets_[d].push_back((map[d] ? (*map[d])[size_t(i)] : i) * stride);
      stride *= part[d];
    }
    last_is_whole_ = !whole.empty() && !map.back();
    columns_ = whole.empty() ? 1 : whole.back();
    for (size_t d = 0; d + 1 < whole.size(); ++d) rows_ *= whole[d];
  }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // Of the first element of a row.
  int64_t row(int64_t r) const {
    int64_t at = 0;
    for (size_t d = offsets_.size(); d-- > 1;) {
      const auto n = int64_t(offsets_[d - 1].size());
      at += offsets_[d - 1][size_t(r % n)];
      r /= n;
    }
    return at;
  }
  // Of a column, relative to its row.
  int64_t column(int64_t c) const { return offsets_.empty() ? 0 : offsets_.back()[size_t(c)]; }
  bool rows_are_copies() const { return last_is_whole_; }

 private:
  std::vector<std::vector<int64_t>> offsets_;
  int64_t rows_ = 1, columns_ = 1;
  bool last_is_whole_ = false;
};

template <class T>
void repeat(const Source& source, const std::byte* from, void* to, ThreadPool* pool) {
  const T* x = reinterpret_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  const int64_t grain = std::max<int64_t>(1, (1 << 16) / source.columns());
  parallel_for(pool, source.rows(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = x + source.row(r);
      T* out = y + r * source.columns();
      if (source.rows_are_copies())
        std::memcpy(out, row, size_t(source.columns()) * sizeof(T));
      else
        for (int64_t c = 0; c < source.columns(); ++c) out[c] = row[source.column(c)];
    }
  });
}

// The interpreter's program, and how its tensors make up those of the compiled one.
struct Model {
  Graph graph;
  std::vector<Source> inputs, outputs;
};

Model model_of(const Graph& graph, const CheckOptions& options) {
  Model m{graph, {}, {}};
  Symmetry::Spread spread;
  if (evaluation_cost(graph) > options.whole_cost) {
    const Symmetry symmetry({&graph});
    const Rng rng(options.seed ^ 0x7469'6c65);
    if (const auto kept = symmetry.choose(options.whole_cost, 4, rng.split(1)))
      if (auto part = symmetry.restrict(0, *kept)) {
        m.graph = std::move(*part);
        spread = symmetry.spread(*kept, rng.split(2));
      }
  }
  const auto sources = [&](const std::vector<TensorId>& whole, const std::vector<TensorId>& part,
                           const std::vector<Repeats>& maps, std::vector<Source>& to) {
    for (size_t k = 0; k < whole.size(); ++k) {
      const std::vector<int64_t> shape = extents(graph.type(whole[k]).shape);
      to.emplace_back(shape, extents(m.graph.type(part[k]).shape),
                      maps.empty() ? Repeats(shape.size()) : maps[k]);
    }
  };
  sources(graph.inputs(), m.graph.inputs(), spread.inputs, m.inputs);
  sources(graph.outputs(), m.graph.outputs(), spread.outputs, m.outputs);
  return m;
}

// A program with opaque operators as one without: what these give are further inputs, what they are
// given further outputs. So it does not matter what they mean, nor how they take rounding.
std::optional<Checked> check_around(const Graph& given, const CompiledFunction& compiled,
                                    const CheckOptions& options, CheckReport* report) {
  const Graph graph = without_dead_code(given);
  struct Place {
    size_t operands, results;  // of the first, among further outputs and inputs
  };
  std::vector<Place> places;
  size_t outputs = graph.outputs().size(), inputs = graph.inputs().size();
  for (const Op& op : graph.ops()) {
    if (!is_opaque(op.kind)) continue;
    places.push_back({outputs, inputs});
    outputs += op.inputs.size();
    inputs += op.num_results;
  }
  const auto run = [&](std::span<const void* const> in, std::span<void* const> out) {
    const HostFunction opaque = [&](const HostStep& step, void* const* arguments, int threads) {
      if (step.number < 0) return find_host(step.host)->run(step, arguments, threads);
      if (size_t(step.number) >= places.size()) return;  // code of something else
      const Place& place = places[size_t(step.number)];
      const size_t n = step.operands.size();
      for (size_t i = 0; i < n; ++i)
        std::memcpy(out[place.operands + i], arguments[i], size_t(step.operands[i].bytes()));
      for (size_t i = 0; i < step.results.size(); ++i)
        std::memcpy(arguments[n + i], in[place.results + i], size_t(step.results[i].bytes()));
    };
    const HostScope scope(opaque);
    compiled(in.first(graph.inputs().size()), out.first(graph.outputs().size()));
  };
  return check_compiled(without_opaque(graph), run, options, report);
}

}  // namespace

std::optional<Checked> check_compiled(const Graph& graph, const CompiledFunction& compiled,
                                      const CheckOptions& options, CheckReport* report) {
  if (std::ranges::any_of(graph.ops(), [](const Op& op) { return is_opaque(op.kind); }))
    return check_around(graph, compiled, options, report);
  const WallClock clock;
  CheckReport r;
  r.passed = true;
  const double spread = std::sqrt(rounding_length(graph)), functions = function_depth(graph);
  const std::vector<DType> rounded = coarsest_rounding(graph);
  // Integers are small among ordinary floats and cover their whole range among large ones.
  const std::vector<IntRange> small = integer_ranges(graph, graph, {-8, 8});
  const std::vector<IntRange> whole = integer_ranges(graph, graph, {INT64_MIN, INT64_MAX});
  const Model model = model_of(graph, options);
  double work = 0, family_work = count_work(model.graph);
  for (TensorId t : graph.inputs()) family_work += 10 * double(num_elements(graph.type(t).shape));
  const auto fail = [&](const std::string& what) {
    r.passed = false;
    if (r.what.empty()) r.what = what;
  };
  for (const std::string& family : input_families()) {
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed))
      fail("stopped before all families of inputs were run");
    if (!r.passed) break;
    // The most telling families come first; large programs stop there.
    const bool special = family == "special";
    if (r.families > 0 && !special && work + family_work > options.max_work) continue;
    work += family_work;
    const std::vector<NDArray> inputs =
        make_inputs(model.graph, family, Rng(options.seed).split(uint64_t(r.families++))(),
                    family == "large" || special ? whole : small);
    const std::vector<WithMagnitude> exact =
        eval_with_magnitude(model.graph, inputs, {Precision::Exact, options.pool, {}});
    const std::vector<NDArray> native =
        eval(model.graph, inputs, {Precision::Native, options.pool, {}});
    std::vector<AlignedBuffer> in;
    std::vector<const void*> in_pointers;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const std::vector<std::byte> bytes = to_memory(inputs[k]);
      const Type& type = graph.type(graph.inputs()[k]);
      in.emplace_back(size_t(type.bytes()));
      void* to = in.back().data();
      switch (size_in_bytes(type.dtype)) {
      case 1: repeat<uint8_t>(model.inputs[k], bytes.data(), to, options.pool); break;
      case 2: repeat<uint16_t>(model.inputs[k], bytes.data(), to, options.pool); break;
      case 4: repeat<uint32_t>(model.inputs[k], bytes.data(), to, options.pool); break;
      default: repeat<uint64_t>(model.inputs[k], bytes.data(), to, options.pool); break;
      }
      in_pointers.push_back(to);
    }
    Outputs out;
    for (TensorId t : graph.outputs()) {
      const size_t bytes = size_t(graph.type(t).bytes());
      out.memory.emplace_back(bytes + kGuard);
      // Poison: elements that are never written must not look right.
      std::memset(out.memory.back().data(), 0xA5, bytes + kGuard);
      out.pointers.push_back(out.memory.back().data());
    }
    compiled(in_pointers, out.pointers);
    // How far the interpreter's results move when inputs move by a few units in the last place: a
    // comparison of equal numbers may go either way. Found out only where something differs.
    std::vector<NDArray> low, high;
    const auto moved = [&](size_t k, size_t j) {
      if (low.empty()) {
        low = high = native;
        Rng rng(options.seed ^ 0x6a75'6d70);
        for (int trial = 0; trial < 16; ++trial) {
          std::vector<NDArray> near = inputs;
          for (NDArray& a : near)
            for (double& x : a.reals)
              x = round_to(a.dtype, x * (1 + 4 * unit_of(a.dtype) * double(rng.between(-2, 2))));
          const std::vector<NDArray> y =
              eval(model.graph, near, {Precision::Native, options.pool, {}});
          for (size_t o = 0; o < y.size(); ++o)
            for (size_t i = 0; i < y[o].reals.size(); ++i) {
              low[o].reals[i] = std::fmin(low[o].reals[i], y[o].reals[i]);
              high[o].reals[i] = std::fmax(high[o].reals[i], y[o].reals[i]);
            }
        }
      }
      return high[k].reals[j] - low[k].reals[j];
    };
    for (size_t k = 0; k < graph.outputs().size(); ++k) {
      const Type& type = graph.type(graph.outputs()[k]);
      const auto* raw = static_cast<const unsigned char*>(out.pointers[k]);
      for (size_t i = 0; i < kGuard; ++i) {
        if (raw[size_t(type.bytes()) + i] != 0xA5) {
          fail(family + ": writes behind output " + std::to_string(k));
          break;
        }
      }
      const NDArray got = from_memory(type, raw);
      const NDArray& want = exact[k].value;
      const NDArray& near = native[k];
      const auto failure = [&](size_t i, double g, double w, double allowed) {
        fail(family + ": output " + std::to_string(k) + " at " + position(type, i) + " is " +
             significant(g, 9) + " instead of " + significant(w, 9) +
             (allowed > 0 ? " (allowed difference " + significant(allowed, 9) + ")" : ""));
      };
      r.elements += num_elements(type.shape);
      const Source& source = model.outputs[k];
      // Calls f(element, the interpreter's element) for all elements.
      const auto each = [&](auto f) {
        for (int64_t row = 0; row < source.rows(); ++row) {
          const int64_t from = source.row(row);
          for (int64_t c = 0; c < source.columns(); ++c)
            f(size_t(row * source.columns() + c), size_t(from + source.column(c)));
        }
      };
      if (got.reals.empty()) {
        each([&](size_t i, size_t j) {
          // Rounding before a comparison or cast may flip what exact arithmetic says.
          if (got.ints[i] == near.ints[j]) return;
          if (got.ints[i] == want.ints[j] || special)
            ++r.special_differ;
          else
            failure(i, double(got.ints[i]), double(near.ints[j]), 0);
        });
      }
      if (got.reals.empty()) continue;
      NDArray scale = exact[k].magnitude;
      const double unit = std::max(unit_of(rounded[k]), options.least_unit);
      double native_error = 0;  // of the interpreter, relative to the scale of each element
      const auto comparable = [&](size_t i) {
        // Where partial sums may overflow in one order and not in another, nothing is compared.
        return std::isfinite(want.reals[i]) && std::isfinite(near.reals[i]) &&
               scale.reals[i] * spread * spread < largest_of(rounded[k]);
      };
      for (size_t i = 0; i < want.reals.size(); ++i) {
        if (comparable(i) && scale.reals[i] > 0) {
          native_error =
              std::max(native_error, std::fabs(near.reals[i] - want.reals[i]) / scale.reals[i]);
        }
      }
      if (options.normwise > 0) {
        double largest = 0;
        for (size_t i = 0; i < want.reals.size(); ++i)
          largest = std::max(largest, comparable(i) ? scale.reals[i] : INFINITY);
        for (double& s : scale.reals) s = options.normwise * largest;
      }
      // Roundings of sums and products cancel like a random walk. Functions may be off by two units
      // in the last place (four roundings) each, all to one side.
      const double relative =
          std::max(2 * native_error, unit * (options.c * spread + 4 * functions));
      // What an exponential loses to underflow is scaled by what follows: x·sigmoid(x)·y loses |x
      // y| times as much. Values are an upper bound of factors, far more than enough.
      double underflow = smallest_of(type.dtype);
      if (type.dtype != DType::F16) {
        double largest = 1;
        for (double w : want.reals)
          if (std::isfinite(w)) largest = std::max(largest, std::fabs(w));
        underflow *= 1024 * std::min(largest, 1e30);
      }
      each([&](size_t i, size_t j) {
        const double g = got.reals[i], w = want.reals[j];
        if (!comparable(j)) {
          const double n = near.reals[j];
          if (!(g == n || (std::isnan(g) && std::isnan(n)))) ++r.special_differ;
          return;
        }
        // The interpreter's own error at this element counts too: in f32 e^-200 <= 0 is true.
        const double allowed =
            relative * scale.reals[j] + 2 * std::fabs(near.reals[j] - w) + underflow;
        const double ratio = std::fabs(g - w) / allowed;
        if (ratio <= 1) {
          r.worst = std::max(r.worst, ratio);
        } else if (std::isfinite(g) && r.passed && 2 * moved(k, j) >= std::fabs(g - w)) {
          ++r.special_differ;
        } else {
          r.worst = std::isfinite(ratio) ? std::max(r.worst, ratio) : INFINITY;
          failure(i, g, w, allowed);
        }
      });
    }
  }
  r.seconds = clock.seconds();
  if (report != nullptr) *report = r;
  if (!r.passed) return std::nullopt;
  return Checked(r);
}

}  // namespace tessera
