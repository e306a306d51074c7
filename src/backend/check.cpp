#include "backend/check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "backend/arrays.h"
#include "backend/cpu/runtime.h"
#include "base/rng.h"
#include "eval/eval.h"

namespace tessera {
namespace {

// Families of inputs; the last one holds infinities, NaN, subnormal and huge numbers.
const char* const kFamilies[] = {"normal", "wide", "zeros", "special"};

// Integers that no gather of the program can reject.
int64_t index_bound(const Graph& graph) {
  int64_t bound = INT64_MAX;
  const auto visit = [&](const Graph& g, const auto& self) -> void {
    for (const Op& op : g.ops()) {
      if (op.kind == OpKind::Gather) {
        const size_t axis = static_cast<size_t>(g.attrs<AxisAttrs>(op).axis);
        bound = std::min(bound, g.type(op.inputs[0]).shape[axis].extent);
      }
      if (op.body.valid()) self(g.body(op), self);
    }
  };
  visit(graph, visit);
  return bound;
}

double draw(Rng& rng, int family) {
  double x = -6;  // about normal
  for (int i = 0; i < 12; ++i) x += rng.unit();
  switch (family) {
    case 0: return x;
    case 1: return x * std::exp2(static_cast<double>(rng.below(13)) - 6);
    case 2: return rng.below(3) == 0 ? 0.0 : x;
    default: break;
  }
  static const double special[] = {INFINITY, -INFINITY, NAN, 0.0, -0.0, 1e-40, -1e-310, 3e38, -1e300, 88.9, -104.0};
  return rng.below(8) == 0 ? special[rng.below(std::size(special))] : x;
}

std::vector<NDArray> draw_inputs_of(const Graph& graph, int family, uint64_t seed) {
  std::vector<NDArray> inputs;
  Rng rng(seed);
  const int64_t bound = index_bound(graph);
  for (TensorId t : graph.inputs()) {
    const Type& type = graph.type(t);
    NDArray x = NDArray::zeros(type.dtype, extents(type.shape));
    for (double& v : x.reals) v = round_to(type.dtype, draw(rng, family));
    for (int64_t& v : x.ints) {
      if (type.dtype == DType::Bool) v = static_cast<int64_t>(rng.below(2));
      else if (bound != INT64_MAX) v = static_cast<int64_t>(rng.below(static_cast<uint64_t>(bound)));
      else if (family == 1) v = wrap_to(type.dtype, static_cast<int64_t>(rng()));
      else v = wrap_to(type.dtype, static_cast<int64_t>(rng.below(17)) - 8);
    }
    inputs.push_back(std::move(x));
  }
  return inputs;
}

double unit_of(DType dtype) {
  switch (dtype) {
    case DType::F64: return 0x1p-53;
    case DType::F32: return 0x1p-24;
    case DType::F16: return 0x1p-11;
    case DType::BF16: return 0x1p-8;
    case DType::I64:
    case DType::I32:
    case DType::I8:
    case DType::U8:
    case DType::Bool: break;
  }
  return 0;
}

double largest_of(DType dtype) {
  return dtype == DType::F64 ? 0x1p1023 : dtype == DType::F16 ? 65504.0 : 0x1p127;
}

// What lies below may be flushed or rounded away.
double smallest_of(DType dtype) {
  return dtype == DType::F64 ? 0x1p-1022 : dtype == DType::F16 ? 0x1p-24 : 0x1p-126;
}

// Sum of contraction lengths of all operators: no chain of roundings is longer.
double rounding_terms(const Graph& graph) {
  double k = 1;
  for (const Op& op : graph.ops()) {
    double n = 1;
    if (op.kind == OpKind::Matmul || op.kind == OpKind::ConcatMatmul) {
      n = static_cast<double>(graph.type(op.inputs[0]).shape.back().extent);
      if (op.kind == OpKind::ConcatMatmul) n += static_cast<double>(graph.type(op.inputs[1]).shape.back().extent);
    } else if (!op.inputs.empty() && op.num_results == 1 && op.kind != OpKind::Iter) {
      const double in = static_cast<double>(num_elements(graph.type(op.inputs[0]).shape));
      const double out = static_cast<double>(num_elements(graph.type(op.result()).shape));
      if (op.kind == OpKind::Cumsum) n = in;
      else if (op.kind == OpKind::Accum || op.kind == OpKind::AccumRescale) {
        for (int64_t l : graph.loops()) n *= static_cast<double>(l);
      } else if (!has(op.kind, algebra::Movement)) n = std::max(1.0, in / out);
    }
    if (op.body.valid()) n += rounding_terms(graph.body(op));
    k += n;
  }
  return k;
}

struct Outputs {
  std::vector<AlignedBuffer> memory;
  std::vector<void*> pointers;
};

// Guard bytes behind each output show writes out of bounds.
constexpr size_t kGuard = 256;

std::string show(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

std::string position(const Type& type, size_t flat) {
  std::string s;
  for (size_t d = type.shape.size(); d-- > 0;) {
    const size_t n = static_cast<size_t>(type.shape[d].extent);
    s = std::to_string(flat % n) + (s.empty() ? "" : "," + s);
    flat /= n;
  }
  return "[" + s + "]";
}

}  // namespace

std::optional<Checked> check_compiled(const Graph& graph, const CompiledFunction& compiled,
                                      const CheckOptions& options, CheckReport* report) {
  const auto start = std::chrono::steady_clock::now();
  CheckReport r;
  r.passed = true;
  const double spread = std::sqrt(rounding_terms(graph));
  const auto fail = [&](const std::string& what) {
    r.passed = false;
    if (r.what.empty()) r.what = what;
  };
  for (int family = 0; family < static_cast<int>(std::size(kFamilies)) && r.passed; ++family) {
    const std::vector<NDArray> inputs = draw_inputs_of(graph, family, options.seed * 1000003 + static_cast<uint64_t>(family));
    const std::vector<WithMagnitude> exact = eval_with_magnitude(graph, inputs, {Precision::Exact, options.pool, {}});
    const std::vector<NDArray> native = eval(graph, inputs, {Precision::Native, options.pool, {}});
    std::vector<AlignedBuffer> in;
    std::vector<const void*> in_pointers;
    for (const NDArray& x : inputs) {
      const std::vector<std::byte> bytes = to_memory(x);
      in.emplace_back(bytes.size());
      std::memcpy(in.back().data(), bytes.data(), bytes.size());
      in_pointers.push_back(in.back().data());
    }
    Outputs out;
    for (TensorId t : graph.outputs()) {
      const size_t bytes = static_cast<size_t>(graph.type(t).bytes());
      out.memory.emplace_back(bytes + kGuard);
      // Poison: elements that are never written must not look right.
      std::memset(out.memory.back().data(), 0xA5, bytes + kGuard);
      out.pointers.push_back(out.memory.back().data());
    }
    compiled(in_pointers, out.pointers);
    for (size_t k = 0; k < graph.outputs().size(); ++k) {
      const Type& type = graph.type(graph.outputs()[k]);
      const auto* raw = static_cast<const unsigned char*>(out.pointers[k]);
      for (size_t i = 0; i < kGuard; ++i) {
        if (raw[static_cast<size_t>(type.bytes()) + i] != 0xA5) {
          fail(std::string(kFamilies[family]) + ": writes behind output " + std::to_string(k));
          break;
        }
      }
      const NDArray got = from_memory(type, raw);
      const NDArray& want = exact[k].value;
      const NDArray& near = native[k];
      const auto failure = [&](size_t i, double g, double w, double allowed) {
        fail(std::string(kFamilies[family]) + ": output " + std::to_string(k) + " at " + position(type, i) +
             " is " + show(g) + " instead of " + show(w) +
             (allowed > 0 ? " (allowed difference " + show(allowed) + ")" : ""));
      };
      r.elements += num_elements(type.shape);
      for (size_t i = 0; i < got.ints.size(); ++i) {
        // Rounding before a comparison or cast may flip what exact arithmetic says.
        if (got.ints[i] == near.ints[i]) continue;
        if (got.ints[i] == want.ints[i] || family == 3) ++r.special_differ;
        else failure(i, static_cast<double>(got.ints[i]), static_cast<double>(near.ints[i]), 0);
      }
      if (got.reals.empty()) continue;
      const NDArray& scale = exact[k].magnitude;
      const double unit = unit_of(type.dtype);
      double native_error = 0;  // of the interpreter, relative to the scale of each element
      const auto comparable = [&](size_t i) {
        // Where partial sums may overflow in one order and not in another, nothing is compared.
        return std::isfinite(want.reals[i]) && std::isfinite(near.reals[i]) &&
               scale.reals[i] * spread * spread < largest_of(type.dtype);
      };
      for (size_t i = 0; i < want.reals.size(); ++i) {
        if (comparable(i) && scale.reals[i] > 0) {
          native_error = std::max(native_error, std::fabs(near.reals[i] - want.reals[i]) / scale.reals[i]);
        }
      }
      const double relative = std::max(2 * native_error, options.c * unit * spread);
      for (size_t i = 0; i < got.reals.size(); ++i) {
        const double g = got.reals[i], w = want.reals[i];
        if (!comparable(i)) {
          const double n = near.reals[i];
          if (!(g == n || (std::isnan(g) && std::isnan(n)))) ++r.special_differ;
          continue;
        }
        const double allowed = relative * scale.reals[i] + smallest_of(type.dtype);
        const double ratio = std::fabs(g - w) / allowed;
        if (ratio <= 1) {
          r.worst = std::max(r.worst, ratio);
        } else {
          r.worst = std::isfinite(ratio) ? std::max(r.worst, ratio) : INFINITY;
          failure(i, g, w, allowed);
        }
      }
    }
  }
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (report != nullptr) *report = r;
  if (!r.passed) return std::nullopt;
  return Checked(r);
}

}  // namespace tessera
