#include "cost/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/records.h"
#include "cost/analytical.h"

namespace tessera {
namespace {

constexpr int kTerms = 4, kFitRounds = 40;
constexpr double kPull = 1e-3;  // towards 1, of one row's weight
constexpr double kLeastFactor = 0.2, kMostFactor = 5;

using Vector = std::array<double, kTerms>;

Scales scales_of(const Vector& x) { return {x[0], x[1], x[2], x[3]}; }

// How fast the modelled time grows with each factor.
Vector slopes(const MeasuredKernels& row, const Vector& x) {
  constexpr double kStep = 1e-6;
  Vector g{};
  for (int i = 0; i < kTerms; ++i) {
    Vector up = x, down = x;
    up[size_t(i)] += kStep;
    down[size_t(i)] -= kStep;
    g[size_t(i)] = (row.modelled(scales_of(up)) - row.modelled(scales_of(down))) / (2 * kStep);
  }
  return g;
}

// Solves a·x = b for symmetric positive definite a.
Vector solve(std::array<Vector, kTerms> a, Vector b) {
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = i + 1; j < kTerms; ++j) {
      const double f = a[j][i] / a[i][i];
      for (size_t k = i; k < kTerms; ++k) a[j][k] -= f * a[i][k];
      b[j] -= f * b[i];
    }
  }
  for (size_t i = kTerms; i-- > 0;) {
    for (size_t k = i + 1; k < kTerms; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

double objective(std::span<const MeasuredKernels* const> rows, const Vector& x) {
  double sum = 0;
  for (const MeasuredKernels* r : rows) {
    const double e = r->modelled(scales_of(x)) / r->seconds - 1;
    sum += e * e;
  }
  for (double v : x) sum += kPull * (v - 1) * (v - 1);
  return sum;
}

std::vector<double> ranks(std::span<const double> v) {
  std::vector<size_t> order(v.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::ranges::sort(order, [&](size_t a, size_t b) { return v[a] < v[b]; });
  std::vector<double> out(v.size());
  for (size_t i = 0; i < order.size();) {
    size_t j = i;
    while (j < order.size() && v[order[j]] == v[order[i]]) ++j;
    for (size_t k = i; k < j; ++k) out[order[k]] = 0.5 * double(i + j - 1);
    i = j;
  }
  return out;
}

}  // namespace

double MeasuredKernels::modelled(const Scales& s) const {
  return sum_of<double>(
      kernels, [&](const GpuTimes& k) { return k.scaled(s); });
}

std::vector<GpuTimes> modelled_kernels(const Graph& graph, const Target& target,
                                       const std::function<bool(const LibraryCall&)>& calls) {
  Target plain = target;
  plain.scale = {};
  const AnalyticalModel model(plain);
  const auto& machine = dynamic_cast<const GpuMachine&>(model.machine());
  std::vector<GpuTimes> times;
  for (const AnalyticalModel::KernelCost& k : model.kernels(graph, calls))
    times.push_back(k.call   ? machine.library_times(*k.call)
                    : k.join ? machine.joined_times(k.first_work, k.work, *k.join)
                             : machine.times(k.work));
  return times;
}

template <class Archive> void record(Archive& a, GpuTimes& k) {
  a(k.launch, k.first_load, k.chain, k.memory, k.compute, k.overlap);
  k.seconds = k.scaled({});
}
template <class Archive> void record(Archive& a, MeasuredKernels& r) { a(r.seconds, r.kernels); }

std::string print_rows(const std::vector<MeasuredKernels>& rows) { return to_text(rows); }

std::vector<MeasuredKernels> read_rows(const std::string& text) {
  return from_text<std::vector<MeasuredKernels>>(text).value_or(std::vector<MeasuredKernels>());
}

double rank_correlation(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double mean = 0.5 * (double(x.size()) - 1);
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

Fit fit_scales(std::span<const MeasuredKernels> all) {
  std::vector<const MeasuredKernels*> rows;
  for (const MeasuredKernels& r : all)
    if (r.seconds > 0 && std::isfinite(r.seconds) && !r.kernels.empty()) rows.push_back(&r);
  Fit fit;
  fit.rows = int(rows.size());
  if (rows.empty()) return fit;
  Vector x{1, 1, 1, 1};
  double best = objective(rows, x);
  for (int round = 0; round < kFitRounds; ++round) {
    std::array<Vector, kTerms> a{};
    Vector b{};
    for (const MeasuredKernels* r : rows) {
      Vector g = slopes(*r, x);
      const double e = 1 - r->modelled(scales_of(x)) / r->seconds;
      for (double& v : g) v /= r->seconds;
      for (size_t i = 0; i < kTerms; ++i) {
        b[i] += g[i] * e;
        for (size_t j = 0; j < kTerms; ++j) a[i][j] += g[i] * g[j];
      }
    }
    for (size_t i = 0; i < kTerms; ++i) {
      a[i][i] += kPull;
      b[i] += kPull * (1 - x[i]);
    }
    const Vector step = solve(a, b);
    // Other terms may decide after a whole step: shorter ones are tried.
    bool better = false;
    for (double length = 1; length > 0.01 && !better; length /= 2) {
      Vector next = x;
      for (size_t i = 0; i < kTerms; ++i)
        next[i] = std::clamp(x[i] + length * step[i], kLeastFactor, kMostFactor);
      const double o = objective(rows, next);
      better = o < best * (1 - 1e-9);
      if (better) {
        best = o;
        x = next;
      }
    }
    if (!better) break;
  }
  fit.scales = scales_of(x);
  std::vector<double> measured, before, after;
  for (const MeasuredKernels* r : rows) {
    measured.push_back(r->seconds);
    before.push_back(r->modelled({}));
    after.push_back(r->modelled(fit.scales));
  }
  auto error = [&](const std::vector<double>& modelled) {
    double sum = 0;
    for (size_t i = 0; i < modelled.size(); ++i) {
      const double e = modelled[i] / measured[i] - 1;
      sum += e * e;
    }
    return std::sqrt(sum / double(modelled.size()));
  };
  fit.error_before = error(before);
  fit.error = error(after);
  fit.rank_before = rank_correlation(before, measured);
  fit.rank = rank_correlation(after, measured);
  return fit;
}

}  // namespace tessera
