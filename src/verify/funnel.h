// The one place that accepts rewrites: interface, field tests on full shapes, definedness, numeric
// gate. `Verified` can be made only here, and a rewrite for a user (driver/optimize.h) of nothing
// else.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "verify/opinion/second_opinion.h"
#include "verify/verdict.h"

namespace tessera {

struct VerifyOptions {
  // Also accepts what was tried on both sides of every decision and is not proved on every branch;
  // its certificate says `tested` and states no error.
  bool accept_tested = false;
  Accuracy level = Accuracy::Close;
  bool special = false;  // the program asks for NaN, ±inf, −0: they are compared where they come in
  // Looks for the scales of inputs at which formats break, too. Not of rules and patterns, which
  // are true of real numbers; programs made with them are proved at their own scales.
  bool scales = true;
  std::optional<uint64_t> seed;      // none: from the operating system, recorded in the certificate
  int64_t max_macs = 5'000'000'000;  // of one evaluation of one program
  // Programs that cost more are evaluated on representative tiles of the axes along which both do
  // the same everywhere (verify/symmetry.h), which cost at most that; infinity: never.
  double whole_cost = 2.5e5;
  int threads = 1;
  int bindings = 4;         // how many random shapes a symbolic program is tested at
  bool minimise = true;     // make refuting inputs small before they are shown
  double error_log2 = -40;  // accept only with an error bound at most this
  // Also asks verify/opinion about programs found equal, at the first binding of symbolic ones.
  bool second_opinion = false;
  std::string z3;  // its executable; empty: see solve/smt.h
  // Of wall time for one verdict, then Unknown{time}; none: as long as it takes. What is under way
  // is finished first, which takes as long as one evaluation of the programs.
  std::optional<double> seconds;
  const std::atomic<bool>* cancel = nullptr;
  // Told what is about to be done: "field draw 3", "real inputs: large"; on the calling thread.
  std::function<void(const std::string& step)> progress;
};

// Are the programs equal? Both are kernel graphs; the candidate's inputs and outputs must agree
// with the spec's in number, order and type (names may differ).
Verdict verify(const Graph& spec, const Graph& candidate, const VerifyOptions& options = {});

// An Equal verdict after a second opinion: the certificate tells it; Unknown if it disagrees.
Verdict after(Verdict equal, const SecondOpinion& opinion);

// Compares many rewrites with one original, whose evaluations they share: one seed, the same draws
// and the same real inputs for all. Not to be used by several threads at once.
class Verifier {
 public:
  explicit Verifier(Graph spec, VerifyOptions options = {});
  ~Verifier();
  Verifier(Verifier&&) noexcept;
  Verifier& operator=(Verifier&&) noexcept;

  // `between`: a program that may be equal to both and nearer to each, by way of which they are
  // compared first. It needs no trust: if it is equal to one only, that proves nothing.
  Verdict verify(const Graph& candidate, const Graph* between = nullptr);
  struct Acceptance accept(Graph candidate, const Graph* between = nullptr);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A rewrite that verify() found equal.
class Verified {
 public:
  const Graph& spec() const { return spec_; }
  const Graph& graph() const { return candidate_; }
  const Certificate& certificate() const { return certificate_; }
  void note(std::string text) { certificate_.notes.push_back(std::move(text)); }

 private:
  friend class Verifier;
  Verified(Graph spec, Graph candidate, Certificate certificate)
      : spec_(std::move(spec)), candidate_(std::move(candidate)),
        certificate_(std::move(certificate)) {}
  Graph spec_, candidate_;
  Certificate certificate_;
};

struct Acceptance {
  Verdict verdict;
  std::optional<Verified> verified;  // exactly when verdict.equal()
};
Acceptance accept(const Graph& spec, Graph candidate, const VerifyOptions& options = {});

// Replays a certificate: the graphs must be the ones it names, every recorded draw must still
// agree with the recorded counts, and a fresh draw must agree too.
struct Recheck {
  bool ok = false;
  std::string what;  // what was replayed, or what is wrong
};
Recheck recheck(const Certificate& certificate, const Graph& spec, const Graph& candidate,
                const VerifyOptions& options = {});

}  // namespace tessera
