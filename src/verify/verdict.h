// What the verifier says about two programs: Equal with a certificate, Refuted with real inputs, or
// Unknown with a reason. Unknown is never success and Refuted never rests on the field alone.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "verify/certificate.h"

namespace tessera {

// Raised when the verifier comes to accept less: what it accepted before is then asked again. Part
// of the name of everything that is remembered.
constexpr int kVerifierVersion = 20;

// A tensor of concrete numbers: `reals` for floating types, `ints` for integers and bool.
struct ConcreteTensor {
  std::string name;
  Type type;
  std::vector<double> reals;
  std::vector<int64_t> ints;
  // "X f32[2,3] = [0, 0, 1.5; ...]"; tensors of more than `limit` elements list only those that
  // are not zero, by position.
  std::string str(size_t limit = 64) const;
};

enum class Difference {
  Interface,    // number, order, types of inputs or outputs
  Value,        // different numbers in f64 (or different integers)
  Definedness,  // the original is finite in f64, the rewrite is not (of special inputs also the
                // reverse)
  Precision,    // equal in f64, but off by more than allowed in the program's own dtype
};
const char* name(Difference);

// Inputs at which the two programs were run and differ. `inputs` is empty for Interface only.
struct Counterexample {
  Difference kind = Difference::Value;
  std::string what;  // one sentence
  std::vector<ConcreteTensor> inputs;
  int output = 0;                  // which output
  std::vector<int64_t> position;   // of the element
  double spec = 0, candidate = 0;  // the two values: f64, or in the dtype for Precision
  double allowed = 0;              // the largest difference that rounding explains
  std::string str() const;
};

enum class UnknownReason {
  Field,          // differs in the field where order, roots or unknown functions are only modelled
  Budget,         // the evaluation would cost more than allowed
  Time,           // the time allowed was spent
  Branch,         // equal where it was tried, but not proved on every branch
  Cancelled,      // the caller's flag
  Rounding,       // other operations, where the same bits were asked for
  Undefined,      // some output elements could never be compared
  Bound,          // no error bound as small as asked for was reached
  Unsupported,    // e.g. symbols that no binding satisfies
  SecondOpinion,  // the verifier found them equal, but another argument says they are not
};
const char* name(UnknownReason);

struct Equal {
  Certificate certificate;
};
struct Refuted {
  Counterexample counterexample;
};
struct Unknown {
  UnknownReason reason = UnknownReason::Field;
  std::string what;
};

class Verdict {
 public:
  Verdict(Equal e) : v_(std::move(e)) {}    // NOLINT: each alternative is a verdict
  Verdict(Refuted r) : v_(std::move(r)) {}  // NOLINT
  Verdict(Unknown u) : v_(std::move(u)) {}  // NOLINT
  bool equal() const { return v_.index() == 0; }
  bool refuted() const { return v_.index() == 1; }
  bool unknown() const { return v_.index() == 2; }
  const Certificate& certificate() const { return std::get<Equal>(v_).certificate; }
  const Counterexample& counterexample() const { return std::get<Refuted>(v_).counterexample; }
  const Unknown& why_unknown() const { return std::get<Unknown>(v_); }
  // "equal", "refuted" or "unknown" on the first line, then the evidence.
  std::string str() const;

 private:
  std::variant<Equal, Refuted, Unknown> v_;
};

}  // namespace tessera
