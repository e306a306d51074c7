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
#include "verify/bound.h"
#include "verify/inputs.h"

namespace tessera {
namespace {

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
  const double spread = std::sqrt(rounding_length(graph));
  // Integers are small among ordinary floats and cover their whole range among large ones.
  const std::vector<IntRange> small = integer_ranges(graph, graph, {-8, 8});
  const std::vector<IntRange> whole = integer_ranges(graph, graph, {INT64_MIN, INT64_MAX});
  double work = 0;
  const auto fail = [&](const std::string& what) {
    r.passed = false;
    if (r.what.empty()) r.what = what;
  };
  for (const std::string& family : input_families()) {
    if (!r.passed) break;
    // The most telling families come first; large programs stop there.
    const bool special = family == "special";
    if (r.families > 0 && !special && work + count_work(graph) > options.max_work) continue;
    work += count_work(graph);
    const std::vector<NDArray> inputs =
        make_inputs(graph, family, Rng(options.seed).split(static_cast<uint64_t>(r.families++))(),
                    family == "large" || special ? whole : small);
    const std::vector<WithMagnitude> exact =
        eval_with_magnitude(graph, inputs, {Precision::Exact, options.pool, {}});
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
          fail(family + ": writes behind output " + std::to_string(k));
          break;
        }
      }
      const NDArray got = from_memory(type, raw);
      const NDArray& want = exact[k].value;
      const NDArray& near = native[k];
      const auto failure = [&](size_t i, double g, double w, double allowed) {
        fail(family + ": output " + std::to_string(k) + " at " + position(type, i) + " is " +
             show(g) + " instead of " + show(w) +
             (allowed > 0 ? " (allowed difference " + show(allowed) + ")" : ""));
      };
      r.elements += num_elements(type.shape);
      for (size_t i = 0; i < got.ints.size(); ++i) {
        // Rounding before a comparison or cast may flip what exact arithmetic says.
        if (got.ints[i] == near.ints[i]) continue;
        if (got.ints[i] == want.ints[i] || special)
          ++r.special_differ;
        else
          failure(i, static_cast<double>(got.ints[i]), static_cast<double>(near.ints[i]), 0);
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
          native_error =
              std::max(native_error, std::fabs(near.reals[i] - want.reals[i]) / scale.reals[i]);
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
