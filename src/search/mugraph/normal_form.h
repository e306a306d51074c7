// The axis-aware (einsum) normal form of tensor values that the µGraph search computes with, and
// the test "is part of a goal". Forms are hash-consed in one pool: equal values have equal ids.
//
// A form is a sum of terms; a term is a coefficient times a monomial; a monomial is a product of
// atoms with rational exponents. Axes are bits, so a form knows which axes it varies with. Sums
// over axes capture exactly the factors that depend on them; independent factors stay outside.
// A sum of several terms under a root or a reciprocal becomes one projective atom (its common
// monomial and leading coefficient removed). exp(Σ cᵢ mᵢ) = Π E(mᵢ)^cᵢ, so shifts cancel.
// What the form cannot see through is an opaque function of its operands' exact forms.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "search/mugraph/coef.h"

namespace tessera::mugraph {

using AxisMask = uint64_t;  // one bit per axis, or per part of a split axis
inline AxisMask bit(int axis) { return AxisMask(1) << axis; }
inline int count(AxisMask m) { return __builtin_popcountll(m); }
inline int lowest(AxisMask m) { return __builtin_ctzll(m); }

using AtomId = uint32_t;
using MonoId = uint32_t;
using PolyId = uint32_t;
inline constexpr uint32_t kNone = UINT32_MAX;  // "this operation has no normal form"

enum class AtomKind : uint8_t {
  Input,  // a tensor under given axis names
  Sum,    // Σ over `bound` of a monomial
  Poly,   // a projective polynomial, or a base that a root may not be distributed over
  Exp,    // e^monomial
  Fn,     // an opaque function of exact forms, possibly reducing over `bound`
};

struct Atom {
  AtomKind kind = AtomKind::Input;
  uint32_t ref = 0;          // Input: view; Sum, Exp: MonoId; Poly: PolyId; Fn: function
  AxisMask bound = 0;        // Sum, Fn: axes reduced by this atom itself
  std::vector<PolyId> args;  // Fn
  AxisMask axes = 0;         // axes the atom varies with
  AxisMask inner = 0;        // all axes bound anywhere inside
  uint32_t size = 0;
  bool nonneg = false;  // provably >= 0 for all real inputs
};

struct Factor {
  AtomId atom;
  Q exponent;
  friend bool operator==(const Factor&, const Factor&) = default;
};

struct Mono {
  std::vector<Factor> factors;  // ascending atoms, exponents not zero
  AxisMask axes = 0, inner = 0;
  uint64_t signature = 0;  // one bit per atom (mod 64): a part's is a subset of the whole's
  uint32_t size = 0;       // atoms and summed bits: grows along every useful operation
  bool nonneg = true;
};

struct Term {
  MonoId mono;
  Coef coef;
  friend bool operator==(const Term&, const Term&) = default;
};

struct Poly {
  std::vector<Term> terms;  // ascending monomials, coefficients not zero
  AxisMask axes = 0, inner = 0;
  uint32_t size = 0;
  bool nonneg = false;
};

struct FormOptions {
  int cap = 16;              // products of two sums expand up to this many terms
  bool keep_shifts = false;  // exp(x - max …) stays one function instead of cancelling
};

// How a value is contained in a goal: quotient·ratio·value is the sum of the goal's terms in mask.
struct Embedding {
  MonoId quotient;
  Coef ratio;
  uint64_t mask;
};

class NormalForms {
 public:
  explicit NormalForms(std::vector<int64_t> extents, FormOptions options = {});
  // The axis counts the place inside a part and `part` the parts: only both together have a known
  // extent, that of `axis`.
  void split(int axis, int part) { splits_.push_back({axis, part}); }

  const FormOptions& options() const { return options_; }
  const Atom& atom(AtomId id) const { return atoms_[id]; }
  const Mono& mono(MonoId id) const { return monos_[id]; }
  const Poly& poly(PolyId id) const { return polys_[id]; }
  int64_t extent(int axis) const { return extents_[size_t(axis)]; }

  // A function known by number: `nonneg` results, `is_max` marks reductions that shift exponents.
  struct Function {
    std::string name;
    bool nonneg = false;
    bool is_max = false;
  };
  uint32_t function(const Function& f);  // by name; the first registration counts
  const Function& function_info(uint32_t fn) const { return functions_[fn]; }

  // --- building; kNone operands give kNone
  PolyId input(uint32_t view, AxisMask axes, const std::string& name = "");
  PolyId constant(const Coef& c);
  PolyId one() { return constant(1); }
  PolyId scale(PolyId p, const Coef& c);
  PolyId add(PolyId a, PolyId b);
  PolyId mul(PolyId a, PolyId b);
  PolyId div(PolyId a, PolyId b) { return mul(a, pow(b, -1)); }
  PolyId pow(PolyId p, const Q& exponent);
  PolyId sum(PolyId p, AxisMask axes);
  PolyId exp(PolyId p);
  PolyId log(PolyId p);
  PolyId fn(uint32_t function, std::vector<PolyId> args, AxisMask bound = 0);

  // --- values modulo a scalar: p = coefficient · representative
  struct Primitive {
    PolyId form;
    Coef coef;
  };
  Primitive primitive(PolyId p);

  // --- division
  MonoId divide(MonoId whole, MonoId part);  // kNone unless part divides without cancellation
  std::vector<Embedding> embeddings(PolyId part, PolyId goal);
  // Forms that useful values are parts of: `targets` closed under opening sums and entering
  // roots, denominators, exponents and arguments. At most `limit` forms.
  std::vector<PolyId> goals(const std::vector<PolyId>& targets, size_t limit);

  // True when no factor of the operands vanished in `product` = a·b^(±1).
  bool cancels(PolyId a, PolyId b, bool divide);

  MonoId intern_mono(std::vector<Factor> factors);
  PolyId from_mono(MonoId m, const Coef& c = 1);
  PolyId from_terms(std::vector<Term> terms);  // collects like terms
  std::string str(PolyId p) const;
  std::string str_mono(MonoId m) const;

 private:
  using Exponents = std::vector<Factor>;
  AtomId intern_atom(Atom a);
  PolyId intern_poly(std::vector<Term> terms);
  PolyId product(const Coef& c, Exponents factors);  // expands sums where options allow
  PolyId distribute(PolyId a, PolyId b);
  Exponents merge(const Exponents& a, const Exponents& b) const;
  PolyId sum_mono(MonoId m, AxisMask axes, const Coef& c);
  AtomId base_atom(PolyId p);  // Poly atom over p as it is
  struct Split {               // p = coef · common · rest
    Coef coef;
    MonoId common;
    PolyId rest;
  };
  Split split(PolyId p, bool for_root);
  PolyId log_mono(MonoId m);
  void open_sums(PolyId goal, std::vector<PolyId>& out);
  void enter(PolyId goal, std::vector<PolyId>& out);
  std::string str_atom(AtomId a) const;

  std::vector<int64_t> extents_;
  std::vector<std::pair<int, int>> splits_;  // (axis, axis of its parts)
  FormOptions options_;
  std::vector<Atom> atoms_;
  std::vector<Mono> monos_;
  std::vector<Poly> polys_;
  std::vector<Function> functions_;
  std::vector<std::string> view_names_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> atom_index_, mono_index_, poly_index_;
  std::unordered_map<uint64_t, PolyId> mul_memo_, sum_memo_;
  std::unordered_map<uint64_t, MonoId> div_memo_;
  std::unordered_map<PolyId, Term> factored_;  // sums as one monomial: common · (rest)
};

}  // namespace tessera::mugraph
