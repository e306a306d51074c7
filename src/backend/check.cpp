#include "backend/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/arrays.h"
#include "backend/cpu/runtime.h"
#include "backend/host_calls.h"
#include "base/error.h"
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

double unit_roundoff(DType dtype) {
  return is_float(dtype) ? std::ldexp(1.0, -format_of(dtype).bits) : 0;
}

double largest_of(DType dtype) {
  return dtype == DType::F64 ? 0x1p1023 : dtype == DType::F16 ? 65504.0 : 0x1p127;
}

struct Arrays {
  std::vector<AlignedBuffer> memory;
  std::vector<void*> pointers;

  void* add(size_t bytes) {
    pointers.push_back(memory.emplace_back(bytes).data());
    return pointers.back();
  }
};

// Guard bytes behind each output show writes out of bounds.
constexpr size_t kGuard = 256;
constexpr unsigned char kPoison = 0xA5;

std::string index_text(const Type& type, size_t flat) {
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
  // Calls f(element, where it comes from) for all elements.
  template <class F> void each(F f) const {
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0, from = row(r); c < columns_; ++c)
        f(size_t(r * columns_ + c), size_t(from + column(c)));
  }

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

class Checker {
 public:
  Checker(const Graph& graph, const CompiledFunction& compiled, const CheckOptions& options)
      : graph_(graph), compiled_(compiled), options_(options),
        spread_(std::sqrt(rounding_length(graph))), functions_(function_depth(graph)),
        rounded_(coarsest_rounding(graph)), small_(integer_ranges(graph, graph, {-8, 8})),
        whole_(integer_ranges(graph, graph, {INT64_MIN, INT64_MAX})),
        model_(model_of(graph, options)) {}

  CheckReport run() {
    const WallClock clock;
    report_.passed = true;
    double work = 0, family_work = count_work(model_.graph);
    for (TensorId t : graph_.inputs())
      family_work += 10 * double(num_elements(graph_.type(t).shape));
    for (const std::string& name : input_families()) {
      if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed))
        fail("stopped before all families of inputs were run");
      if (!report_.passed) break;
      // The most telling families come first; large programs stop there.
      if (report_.families > 0 && name != "special" && work + family_work > options_.max_work)
        continue;
      work += family_work;
      const std::optional<Family> made = make_family(name);
      if (!made) continue;
      const Family& family = *made;
      const Arrays in = in_memory(family.inputs);
      Arrays out;
      for (TensorId t : graph_.outputs()) {
        const size_t bytes = size_t(graph_.type(t).bytes()) + kGuard;
        // Poison: elements that are never written must not look right.
        std::memset(out.add(bytes), kPoison, bytes);
      }
      compiled_(in.pointers, out.pointers);
      Moved moved(*this, family);
      for (size_t k = 0; k < graph_.outputs().size(); ++k)
        compare(family, k, static_cast<const unsigned char*>(out.pointers[k]), moved);
    }
    if (report_.families == 0 && undefined_) throw *undefined_;
    report_.seconds = clock.seconds();
    return report_;
  }

 private:
  // Inputs of one kind, and what the interpreter makes of them.
  struct Family {
    std::string name;
    bool special = false;
    std::vector<NDArray> inputs;
    std::vector<WithMagnitude> exact;
    std::vector<NDArray> native;
  };

  std::vector<NDArray> interpreted(const std::vector<NDArray>& inputs) const {
    return eval(model_.graph, inputs, {Precision::Native, options_.pool, {}});
  }

  // Null where the program reads out of range, as what is cast from NaN may.
  std::optional<Family> make_family(const std::string& name) {
    Family f;
    f.name = name;
    f.special = name == "special";
    // Integers are small among ordinary floats and cover their whole range among large ones.
    f.inputs =
        make_inputs(model_.graph, name, Rng(options_.seed).split(uint64_t(report_.families))(),
                    name == "large" || f.special ? whole_ : small_);
    try {
      f.exact = eval_with_magnitude(model_.graph, f.inputs, {Precision::Exact, options_.pool, {}});
      f.native = interpreted(f.inputs);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::BadInput) throw;
      undefined_ = e;
      return std::nullopt;
    }
    ++report_.families;
    return f;
  }

  // The interpreter's inputs as the compiled program takes them.
  Arrays in_memory(const std::vector<NDArray>& inputs) const {
    Arrays in;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const std::vector<std::byte> bytes = to_memory(inputs[k]);
      const Type& type = graph_.type(graph_.inputs()[k]);
      const Source& source = model_.inputs[k];
      void* to = in.add(size_t(type.bytes()));
      switch (size_in_bytes(type.dtype)) {
      case 1: repeat<uint8_t>(source, bytes.data(), to, options_.pool); break;
      case 2: repeat<uint16_t>(source, bytes.data(), to, options_.pool); break;
      case 4: repeat<uint32_t>(source, bytes.data(), to, options_.pool); break;
      default: repeat<uint64_t>(source, bytes.data(), to, options_.pool); break;
      }
    }
    return in;
  }

  // How far the interpreter's results move when inputs move by a few units in the last place: a
  // comparison of equal numbers may go either way. Found out only where something differs.
  class Moved {
   public:
    Moved(const Checker& checker, const Family& family) : checker_(checker), family_(family) {}
    double operator()(size_t output, size_t element) {
      if (low_.empty()) find();
      return high_[output].reals[element] - low_[output].reals[element];
    }

   private:
    void find() {
      low_ = high_ = family_.native;
      Rng rng(checker_.options_.seed ^ 0x6a75'6d70);
      for (int trial = 0; trial < 16; ++trial) {
        std::vector<NDArray> near = family_.inputs;
        for (NDArray& a : near)
          for (double& x : a.reals)
            x = round_to(a.dtype,
                         x * (1 + 4 * unit_roundoff(a.dtype) * double(rng.between(-2, 2))));
        std::vector<NDArray> y;
        try {
          y = checker_.interpreted(near);
        } catch (const Error& e) {
          if (e.kind() != ErrorKind::BadInput) throw;  // out of range: tells nothing
        }
        for (size_t o = 0; o < y.size(); ++o)
          for (size_t i = 0; i < y[o].reals.size(); ++i) {
            low_[o].reals[i] = std::fmin(low_[o].reals[i], y[o].reals[i]);
            high_[o].reals[i] = std::fmax(high_[o].reals[i], y[o].reals[i]);
          }
      }
    }
    const Checker& checker_;
    const Family& family_;
    std::vector<NDArray> low_, high_;
  };

  void fail(const std::string& what) {
    report_.passed = false;
    if (report_.what.empty()) report_.what = what;
  }
  void differs(const Family& family, size_t output, size_t element, double got, double want,
               double allowed) {
    const Type& type = graph_.type(graph_.outputs()[output]);
    fail(family.name + ": output " + std::to_string(output) + " at " + index_text(type, element) +
         " is " + significant(got, 9) + " instead of " + significant(want, 9) +
         (allowed > 0 ? " (allowed difference " + significant(allowed, 9) + ")" : ""));
  }

  void compare(const Family& family, size_t k, const unsigned char* raw, Moved& moved) {
    const Type& type = graph_.type(graph_.outputs()[k]);
    const unsigned char* guard = raw + type.bytes();
    if (std::any_of(guard, guard + kGuard, [](unsigned char c) { return c != kPoison; }))
      fail(family.name + ": writes behind output " + std::to_string(k));
    const NDArray got = from_memory(type, raw);
    report_.elements += num_elements(type.shape);
    if (got.reals.empty())
      compare_integers(family, k, got);
    else
      compare_reals(family, k, got, moved);
  }

  void compare_integers(const Family& family, size_t k, const NDArray& got) {
    model_.outputs[k].each([&](size_t i, size_t j) {
      // Rounding before a comparison or cast may flip what exact arithmetic says.
      const int64_t near = family.native[k].ints[j];
      if (got.ints[i] == near) return;
      if (got.ints[i] == family.exact[k].value.ints[j] || family.special)
        ++report_.special_differ;
      else
        differs(family, k, i, double(got.ints[i]), double(near), 0);
    });
  }

  void compare_reals(const Family& family, size_t k, const NDArray& got, Moved& moved) {
    const std::vector<double>& want = family.exact[k].value.reals;
    const std::vector<double>& near = family.native[k].reals;
    std::vector<double> scale = family.exact[k].magnitude.reals;
    const auto comparable = [&](size_t i) {
      // Where partial sums may overflow in one order and not in another, nothing is compared.
      return std::isfinite(want[i]) && std::isfinite(near[i]) &&
             scale[i] * spread_ * spread_ < largest_of(rounded_[k]);
    };
    double native_error = 0;  // of the interpreter, relative to the scale of each element
    for (size_t i = 0; i < want.size(); ++i)
      if (comparable(i) && scale[i] > 0)
        native_error = std::max(native_error, std::fabs(near[i] - want[i]) / scale[i]);
    if (options_.normwise > 0) {
      double largest = 0;
      for (size_t i = 0; i < want.size(); ++i)
        largest = std::max(largest, comparable(i) ? scale[i] : INFINITY);
      for (double& s : scale) s = options_.normwise * largest;
    }
    // Roundings of sums and products cancel like a random walk. Functions may be off by two units
    // in the last place (four roundings) each, all to one side.
    const double unit = std::max(unit_roundoff(rounded_[k]), options_.least_unit);
    const double relative =
        std::max(2 * native_error, unit * (options_.c * spread_ + 4 * functions_));
    const double underflow = lost_to_underflow(got.dtype, want);
    model_.outputs[k].each([&](size_t i, size_t j) {
      const double g = got.reals[i], w = want[j], n = near[j];
      if (!comparable(j)) {
        if (!(g == n || (std::isnan(g) && std::isnan(n)))) ++report_.special_differ;
        return;
      }
      // The interpreter's own error at this element counts too: in f32 e^-200 <= 0 is true.
      const double allowed = relative * scale[j] + 2 * std::fabs(n - w) + underflow;
      const double ratio = std::fabs(g - w) / allowed;
      if (ratio <= 1) {
        report_.worst = std::max(report_.worst, ratio);
      } else if (std::isfinite(g) && report_.passed && 2 * moved(k, j) >= std::fabs(g - w)) {
        ++report_.special_differ;
      } else {
        report_.worst = std::isfinite(ratio) ? std::max(report_.worst, ratio) : INFINITY;
        differs(family, k, i, g, w, allowed);
      }
    });
  }

  // What an exponential loses to underflow is scaled by what follows: x·sigmoid(x)·y loses |x y|
  // times as much. Values are an upper bound of factors, far more than enough.
  static double lost_to_underflow(DType dtype, const std::vector<double>& values) {
    if (dtype == DType::F16) return smallest_of(dtype);
    double largest = 1;
    for (double x : values)
      if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
    return smallest_of(dtype) * 1024 * std::min(largest, 1e30);
  }

  const Graph& graph_;
  const CompiledFunction& compiled_;
  const CheckOptions& options_;
  const double spread_, functions_;
  const std::vector<DType> rounded_;
  const std::vector<IntRange> small_, whole_;
  const Model model_;
  CheckReport report_;
  std::optional<Error> undefined_;  // why a family was left out
};

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
  const CheckReport found = Checker(graph, compiled, options).run();
  if (report != nullptr) *report = found;
  if (!found.passed) return std::nullopt;
  return Checked(found);
}

}  // namespace tessera
