// HiGHS through its C interface, loaded at run time: nothing of it is needed to build.
#include <dlfcn.h>

#include <cstdlib>

#include "base/check.h"
#include "solve/ilp.h"

namespace tessera {
namespace {

using HighsInt = int;
constexpr HighsInt kRowwise = 2, kMinimize = 1, kInteger = 1;
constexpr HighsInt kOptimal = 7, kInfeasible = 8;

struct Highs {
  const char* (*version)() = nullptr;
  void* (*create)() = nullptr;
  void (*destroy)(void*) = nullptr;
  HighsInt (*set_bool)(void*, const char*, HighsInt) = nullptr;
  HighsInt (*set_double)(void*, const char*, double) = nullptr;
  HighsInt (*set_int)(void*, const char*, HighsInt) = nullptr;
  HighsInt (*size_of_int)(const void*) = nullptr;
  HighsInt (*pass)(void*, HighsInt, HighsInt, HighsInt, HighsInt, HighsInt, double, const double*,
                   const double*, const double*, const double*, const double*, const HighsInt*,
                   const HighsInt*, const double*, const HighsInt*) = nullptr;
  HighsInt (*run)(void*) = nullptr;
  HighsInt (*status)(const void*) = nullptr;
  HighsInt (*solution)(const void*, double*, double*, double*, double*) = nullptr;
  bool found = false;

  Highs() {
    const char* path = std::getenv("TESSERA_HIGHS");
    void* library =
        dlopen(path != nullptr && *path != 0 ? path : "libhighs.so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr && (path == nullptr || *path == 0))
      library = dlopen("libhighs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto take = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, symbol));
      return function != nullptr;
    };
    found = take(version, "Highs_version") && take(create, "Highs_create") &&
            take(destroy, "Highs_destroy") && take(set_bool, "Highs_setBoolOptionValue") &&
            take(set_double, "Highs_setDoubleOptionValue") &&
            take(set_int, "Highs_setIntOptionValue") &&
            take(size_of_int, "Highs_getSizeofHighsInt") && take(pass, "Highs_passMip") &&
            take(run, "Highs_run") && take(status, "Highs_getModelStatus") &&
            take(solution, "Highs_getSolution");
    if (!found) return;
    void* model = create();
    found = size_of_int(model) == static_cast<HighsInt>(sizeof(HighsInt));
    destroy(model);
  }
};

const Highs& highs() {
  static const Highs library;
  return library;
}

}  // namespace

const char* highs_version() { return highs().found ? highs().version() : nullptr; }

IlpResult solve_ilp_highs(const Ilp& ilp) {
  CHECK(highs_version() != nullptr) << "HiGHS is not there";
  const Highs& h = highs();
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
