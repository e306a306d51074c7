// Evidence that two programs are equal: what was tested, with which seeds, and how likely a wrong
// acceptance is. A value type that prints as text, parses back, and can be replayed (funnel.h).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace tessera {

// How near a rewrite's numbers have to be to the original's; the user's choice.
enum class Accuracy {
  Bitwise,  // the same bits, NaN where it is NaN: every operation rounds as the original's does
  Close,    // as accurate as the original wherever that is finite and accurate
  Fast,     // as accurate as the original at inputs of ordinary magnitudes
};
const char* name(Accuracy);     // "bitwise", "close", "fast"
const char* meaning(Accuracy);  // in plain words
// Throws Error(Usage) at any other name.
Accuracy accuracy_named(std::string_view name);

// Values given to the symbols of the shapes; empty for static programs.
using Binding = std::vector<std::pair<std::string, int64_t>>;

// One evaluation of both programs over a finite field at inputs drawn from `seed`; field "exact" is
// an integer program run as it is, "terms" both programs over terms (verify/bitwise.h).
struct FieldDraw {
  std::string field;             // "p31", "p61"
  std::vector<uint64_t> primes;  // the chain p, q, ...
  uint64_t seed = 0;
  uint64_t exponent_bound = 0;  // exponents were drawn below this; 0: uniformly
  int redraws = 0;              // rounds of redrawing inputs at which something is undefined
  int binding = 0;              // index into Certificate::bindings
  int part = -1;                // index into Certificate::parts; −1: of the whole programs
  int64_t elements = 0;         // output elements compared
  int64_t undefined = 0;        // elements outside the domain in this draw, so not compared
  friend bool operator==(const FieldDraw&, const FieldDraw&) = default;
};

// One part of a proof in parts (verify/composition.h): its text names the values proved equal and
// the cuts they were proved over. Parts come after those whose targets they cut at.
struct CertificatePart {
  int binding = 0;
  std::string text;
  bool second = false;  // of Certificate::between and the rewrite
  friend bool operator==(const CertificatePart&, const CertificatePart&) = default;
};

// One family of real inputs on which both programs were compared with f64, in their own dtype.
struct GateFamily {
  std::string family;  // "normal", "large", ...
  uint64_t seed = 0;
  int binding = 0;
  int64_t elements = 0;        // compared (the original and f64 finite)
  int64_t not_finite = 0;      // elements where the original is not finite
  int64_t special_differ = 0;  // of these, elements where the rewrite is another special value
  double spec_error = 0;       // largest |original - f64| / Σ|terms|
  double candidate_error = 0;  // largest |rewrite - f64| / Σ|terms|
  double spec_mean = 0;        // mean of the same over the compared elements
  double candidate_mean = 0;
  double worst_ratio = 0;  // largest |rewrite - f64| / allowed; accepted up to 1
  int part = -1;           // as of draws
  friend bool operator==(const GateFamily&, const GateFamily&) = default;
};

// Appends a text unless it is there.
void add_once(std::vector<std::string>& list, const std::string& text);

// Coverages: of programs as they are, and the beginning of that of some places.
inline constexpr const char* kWhole = "all elements of all outputs, full shapes";
inline constexpr const char* kInRegions = "where the programs differ: ";

// log2 of the error of what needs no draw.
inline constexpr double kCertain = -1000;

struct Certificate {
  std::string spec_name, candidate_name;
  uint64_t spec_hash = 0, candidate_hash = 0;  // structural_hash
  uint64_t seed = 0;
  Accuracy level = Accuracy::Close;
  std::vector<std::string> inputs, outputs;  // "X f32[16,1024]"
  std::vector<Binding> bindings;             // "tested at"; one empty binding if static
  std::vector<CertificatePart> parts;        // empty: the programs were compared as wholes
  // A program that both were proved equal to in parts, as text; empty: they were compared directly.
  std::string between;
  std::vector<FieldDraw> draws;
  int min_draws = 0;     // smallest number of draws in which an element was compared
  std::string coverage;  // "all elements" or which
  // Where the normal forms with unknown extents agree (verify/all_sizes.h): "X[N,M] with N >= 1,
  // …". Equality over the reals then holds for these; draws, gate and coverage are of the bindings.
  std::string all_sizes;
  // Where representatives were evaluated: how many tiles of each class of axes (verify/symmetry.h),
  // in the order of the inputs' axes; empty: everything.
  std::vector<int64_t> tiles;
  double error_log2 = 0;  // log2 of the probability of accepting an unequal program; 0: tested only
  std::string bound;      // how error_log2 was computed, with the degrees
  // "proved", "proved, assuming …" (what the bound takes for granted) or "tested: …"
  std::string basis;
  bool proved() const { return basis.rfind("tested", 0) != 0; }
  std::vector<std::string> assumptions;  // on the inputs, e.g. where the original is undefined
  std::vector<GateFamily> gate;
  std::vector<std::string> notes;
  // "agrees: …" or "cannot tell: …" where one was asked for (verify/opinion); it takes no part in
  // the error bound.
  std::string second_opinion;

  std::string str() const;
  // Throws Error(BadInput) with file:line:col; parse(c.str()) == c.
  static Certificate parse(std::string_view text, const std::string& file = "<certificate>");
  friend bool operator==(const Certificate&, const Certificate&) = default;
};

}  // namespace tessera
