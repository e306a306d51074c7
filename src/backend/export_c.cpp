#include "backend/export_c.h"

#include <algorithm>
#include <cmath>

#include "backend/loops.h"
#include "base/error.h"
#include "eval/eval.h"
#include "kernel/interpret.h"
#include "kernel/validate.h"
#include "verify/inputs.h"

namespace tessera {
namespace {

// Scalars that the loops compute beyond which they are not run, over f64 and over a field.
constexpr double kMostWork = 1e8, kMostFieldWork = 1e7;
constexpr uint64_t kSeed = 1;

[[noreturn]] void not_what_it_is(const Graph& g, const std::string& what) {
  throw Error(ErrorKind::Internal,
              "the loops made of " + g.name() + " are not what it computes: " + what);
}

// The first element that is not what it should be, within rounding; "" where all are.
std::string difference(const NDArray& got, const WithMagnitude& expected, size_t result) {
  const NDArray& right = expected.value;
  for (size_t i = 0; i < size_t(right.size()); ++i) {
    const double a = got.at(i), b = right.at(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    if (is_float(right.dtype) && std::abs(a - b) <= 1e-9 * expected.magnitude.reals[i]) continue;
    return "element " + std::to_string(i) + " of result " + std::to_string(result) + " is " +
           std::to_string(a) + ", not " + std::to_string(b);
  }
  return "";
}

// Elements of all results, which agree at random inputs; null where they do not and the program
// takes another course when a number is rounded otherwise.
std::optional<int64_t> agreeing(const Graph& g, const kernel::Function& f) {
  const auto inputs = make_inputs(g, "normal", kSeed, integer_ranges(g, g, {-4, 4}));
  const auto expected = eval_with_magnitude(g, inputs);
  const auto results = kernel::interpret(f, inputs);
  int64_t n = 0;
  for (size_t k = 0; k < results.size(); ++k, n += results[k - 1].size()) {
    const std::string differs = difference(results[k], expected[k], k);
    if (!differs.empty() && turns(g, true)) return std::nullopt;
    if (!differs.empty()) not_what_it_is(g, differs);
  }
  return n;
}

// A maximum of more than two is there what the set of its elements says, and a loop that folds them
// one by one cannot tell that an element is in the set already.
bool folds_maxima(const Graph& g) {
  return std::ranges::any_of(
      g.ops(),
      [](const Op& op) { return reduces_by_order(op.kind) || op.kind == OpKind::PoolMax; });
}

// The same over a field, bit for bit; 0 where that does not tell.
int64_t agreeing_exactly(const Graph& g, const kernel::Function& f) {
  const FieldModel model(FieldSize::Bits61, kSeed);
  auto inputs = draw_inputs(g, model, std::vector<Components>(g.inputs().size(), 7));
  FieldOptions options;
  options.outputs = 7;
  const RedrawReport drawn = redraw_inputs(g, model, inputs, 16, options);
  const FieldResult expected = eval_field(g, model, inputs, options);
  if (!drawn.unsupported.empty() || !expected.ok()) return 0;
  std::vector<FieldArray> results;
  try {
    results = kernel::interpret(f, model, inputs);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Unsupported) throw;
    return 0;
  }
  int64_t n = 0;
  for (size_t k = 0; k < results.size(); ++k) {
    results[k].shape = expected.outputs[k].shape;
    const FieldComparison c = compare(expected.outputs[k], results[k]);
    if (!c.equal() && (c.first_difference < 0 || folds_maxima(g))) return 0;
    if (!c.equal())
      not_what_it_is(g, "over a finite field element " + std::to_string(c.first_difference) +
                            " of result " + std::to_string(k) + " differs");
    n += c.compared;
  }
  return n;
}

std::string described(const Graph& g, TensorId t, const kernel::Buffer& b) {
  return "  " + b.name + ": " + g.type(t).str() + ", row-major" +
         (is_sixteen(b.dtype) ? ", as bits" : "");
}

std::string notes(const Graph& g, const kernel::Function& f, const CExport& e,
                  const std::string& name) {
  using kernel::Space;
  std::string s =
      f.name + ": " + (g.name().empty() ? "a program" : g.name()) +
      " as plain C11, written by Tessera. It needs libc and libm, allocates nothing\n"
      "and keeps no state; compile with -O3 for the machine it is to run on.\n\nArguments, "
      "which must not overlap:\n";
  for (size_t i = 0; i < g.inputs().size(); ++i)
    if (e.offsets[i] < 0) s += described(g, g.inputs()[i], f.buffers[i]) + "\n";
  for (size_t i = 0; i < g.outputs().size(); ++i)
    s += described(g, g.outputs()[i], f.buffers[g.inputs().size() + i]) + ", written\n";
  if (e.weights_bytes > 0) {
    s += "  weights: the " + std::to_string(e.weights_bytes) + " bytes of " + name +
         ".bin at an address that is a multiple of 64 (what mmap gives is);\n  little-endian, in "
         "it\n";
    for (size_t i = 0; i < g.inputs().size(); ++i)
      if (e.offsets[i] >= 0)
        s += "  " + described(g, g.inputs()[i], f.buffers[i]) + ", at byte " +
             std::to_string(e.offsets[i]) + "\n";
  }
  if (e.workspace_bytes > 0)
    s += "  workspace: " + std::to_string(e.workspace_bytes) +
         " bytes of the caller's at a multiple of 64, from malloc or mmap (not a variable\n  of "
         "some "
         "type, which compilers may think is never written), one per concurrent call\n";
  s += "\nReturns 0, or 1 where the program reads at an index that is out of range (results are "
       "then\n"
       "not complete).\n\nThe loops behind this code were validated: every access is in range, "
       "nothing is read before it is\nwritten, results are written whole. ";
  if (e.compared > 0)
    s += "Run at one random input, they gave what the program's reference\ninterpreter gives: " +
         std::to_string(e.compared) + " elements in f64, within rounding" +
         (e.compared_exactly > 0
              ? "; " + std::to_string(e.compared_exactly) + " in a finite field, exactly"
              : "") +
         ". ";
  else if (e.turned)
    s += "Run at one random input, they do not\ngive what the program's reference interpreter "
         "gives: it takes another course (a comparison, a\nfloor) where a number is rounded "
         "otherwise.\n";
  else
    s += "They were not run: that takes too long.\n";
  return s + "\nNothing here is a proof, and neither this text nor what a compiler makes of it was "
             "checked.";
}

}  // namespace

CExport export_c(const Graph& graph, const std::vector<bool>& data, const std::string& name) {
  const kernel::Function f = lower_to_loops(graph, data);
  if (const std::string why = kernel::why_invalid(f); !why.empty()) not_what_it_is(graph, why);
  CExport e;
  e.function = f.name;
  e.weights_bytes = f.bytes(kernel::Space::Weights);
  e.workspace_bytes = f.bytes(kernel::Space::Workspace);
  for (size_t i = 0; i < data.size(); ++i) e.offsets.push_back(data[i] ? f.buffers[i].offset : -1);
  const double work = kernel::work_of(f);
  if (work <= kMostWork) {
    const std::optional<int64_t> agree = agreeing(graph, f);
    e.turned = !agree;
    e.compared = agree.value_or(0);
  }
  if (work <= kMostFieldWork) e.compared_exactly = agreeing_exactly(graph, f);
  e.loops = kernel::text(f);
  e.source = kernel::print_c(f, name, notes(graph, f, e, name));
  return e;
}

}  // namespace tessera
