// HiGHS through its C interface, loaded at run time: nothing of it is needed to build.
#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "base/shared_library.h"
#include "solve/ilp.h"

namespace tessera {
namespace {

using HighsInt = int;
constexpr HighsInt kRowwise = 2, kMinimize = 1, kInteger = 1;
constexpr HighsInt kOptimal = 7, kInfeasible = 8;

struct Highs {
  SharedLibrary library;
  const char* (*version)() = library.need("Highs_version");
  void* (*create)() = library.need("Highs_create");
  void (*destroy)(void*) = library.need("Highs_destroy");
  HighsInt (*set_bool)(void*, const char*, HighsInt) = library.need("Highs_setBoolOptionValue");
  HighsInt (*set_double)(void*, const char*, double) = library.need("Highs_setDoubleOptionValue");
  HighsInt (*set_int)(void*, const char*, HighsInt) = library.need("Highs_setIntOptionValue");
  HighsInt (*size_of_int)(const void*) = library.need("Highs_getSizeofHighsInt");
  HighsInt (*pass)(void*, HighsInt, HighsInt, HighsInt, HighsInt, HighsInt, double, const double*,
                   const double*, const double*, const double*, const double*, const HighsInt*,
                   const HighsInt*, const double*, const HighsInt*) = library.need("Highs_passMip");
  HighsInt (*run)(void*) = library.need("Highs_run");
  HighsInt (*status)(const void*) = library.need("Highs_getModelStatus");
  HighsInt (*solution)(const void*, double*, double*, double*,
                       double*) = library.need("Highs_getSolution");
};

std::optional<Highs> load_highs() {
  const char* path = std::getenv("TESSERA_HIGHS");
  std::vector<std::string> places{"libhighs.so", "libhighs.so.1"};
  if (path != nullptr && *path != 0) places = {path};
  try {
    Highs h{SharedLibrary("HiGHS", "", places, "")};
    void* model = h.create();
    const bool fits = h.size_of_int(model) == static_cast<HighsInt>(sizeof(HighsInt));
    h.destroy(model);
    return fits ? std::optional(h) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

const std::optional<Highs>& highs() {
  static const std::optional<Highs> loaded = load_highs();
  return loaded;
}

}  // namespace

const char* highs_version() { return highs() ? highs()->version() : nullptr; }

IlpResult solve_ilp_highs(const Ilp& ilp) {
  CHECK(highs_version() != nullptr) << "HiGHS is not there";
  const Highs& h = *highs();
  const HighsInt columns = static_cast<HighsInt>(ilp.cost.size());
  std::vector<double> zeros(ilp.cost.size(), 0), ones(ilp.cost.size(), 1), low, high, values;
  std::vector<HighsInt> starts, indices, integral(ilp.cost.size(), kInteger);
  for (const IlpConstraint& c : ilp.constraints) {
    starts.push_back(static_cast<HighsInt>(indices.size()));
    low.push_back(c.relation == Relation::LessEqual ? -INFINITY : c.bound);
    high.push_back(c.relation == Relation::GreaterEqual ? INFINITY : c.bound);
    for (const auto& [j, a] : c.terms) {
      indices.push_back(j);
      values.push_back(a);
    }
  }
  void* model = h.create();
  h.set_bool(model, "output_flag", 0);
  h.set_double(model, "mip_rel_gap", 0);
  h.set_double(model, "mip_abs_gap", 0);
  h.set_int(model, "threads", 1);
  h.pass(model, columns, static_cast<HighsInt>(low.size()), static_cast<HighsInt>(indices.size()),
         kRowwise, kMinimize, 0, ilp.cost.data(), zeros.data(), ones.data(), low.data(),
         high.data(), starts.data(), indices.data(), values.data(), integral.data());
  h.run(model);
  IlpResult result;
  result.solver = std::string("HiGHS ") + h.version();
  const HighsInt status = h.status(model);
  if (status == kInfeasible) result.status = IlpStatus::Infeasible;
  if (status == kOptimal) {
    std::vector<double> x(ilp.cost.size()), dual(ilp.cost.size()), row(low.size()),
        row_dual(low.size());
    h.solution(model, x.data(), dual.data(), row.data(), row_dual.data());
    result.x.resize(x.size());
    for (size_t j = 0; j < x.size(); ++j) result.x[j] = x[j] > 0.5;
    // Believed only as far as it can be checked.
    if (ilp.feasible(result.x)) {
      result.status = IlpStatus::Optimal;
      result.value = result.bound = ilp.value(result.x);
    }
  }
  h.destroy(model);
  return result;
}

}  // namespace tessera
