// The state that the makers of random programs share: the program so far, what is known of its
// values, and helpers that add operators.
#pragma once
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "verify/bench/random_program.h"

namespace tessera::random_programs {

// What the generator knows about a value, to keep programs tame.
struct Facts {
  bool positive = false;  // bounded away from zero
  bool bounded = false;   // |x| of order 1
  int size = 1;           // rough log2 of |x| on ordinary inputs
  int exps = 0;           // nesting of exponentials
  int unknowns = 0;       // nesting of erf, log, sin, ...
  bool order = false;     // made by an extremum: order is only modelled in the field, so that
                          // extrema of extrema are left to the tests that are about them
  bool repeats = false;   // few different values: extrema meet many equal ones
};

class Generator {
 public:
  Generator(uint64_t seed, const RandomProgramOptions& options)
      : rng_(seed), windows_(mix64(seed)), o_(options), g_("random") {}
  Graph run();

 private:
  template <class F> bool attempt(F f) {
    const Graph::Mark mark = g_.mark();
    const size_t facts = facts_.size(), pool = pool_.size();
    try {
      if (f()) return true;
    } catch (const Error&) {  // the random choice did not type-check
    }
    g_.rollback(mark);
    facts_.resize(facts);
    pool_.resize(pool);
    return false;
  }
  int64_t size_of(TensorId t) const { return num_elements(g_.type(t).shape); }
  const Shape& shape(TensorId t) const { return g_.type(t).shape; }
  int rank(TensorId t) const { return g_.type(t).rank(); }
  TensorId last() const { return pool_.back(); }
  Facts& fact(TensorId t) {
    if (facts_.size() <= t.index) facts_.resize(t.index + 1);
    return facts_[t.index];
  }
  int pick(int n) { return int(rng_.below(uint64_t(n))); }
  template <class T> T one_of(std::initializer_list<T> list) {
    return *(list.begin() + pick(int(list.size())));
  }

  TensorId emit(OpKind kind, std::vector<TensorId> in, Attrs attrs = NoAttrs{}) {
    TensorId t = g_.add(kind, in, std::move(attrs));
    Facts f;
    for (TensorId i : in) {
      f.size = std::max(f.size, fact(i).size);
      f.exps = std::max(f.exps, fact(i).exps);
      f.unknowns = std::max(f.unknowns, fact(i).unknowns);
      f.order = f.order || fact(i).order;
      f.repeats = f.repeats || fact(i).repeats;
    }
    f.order = f.order || kind == OpKind::ReduceMax || kind == OpKind::ReduceMin ||
              kind == OpKind::Max || kind == OpKind::Min;
    f.repeats = f.repeats || kind == OpKind::Sign || kind == OpKind::Relu || kind == OpKind::Cast ||
                kind == OpKind::Where || kind == OpKind::Pad || kind == OpKind::Triu ||
                kind == OpKind::Tril || kind == OpKind::Repeat || kind == OpKind::Broadcast;
    fact(t) = f;
    return t;
  }
  bool keep(TensorId t) {
    if (fact(t).size > 24 || size_of(t) > 2000) return false;
    pool_.push_back(t);
    return true;
  }
  TensorId constant(Rational value, DType dtype, Shape shape = {}) {
    TensorId t = g_.add_const(value, {dtype, std::move(shape)});
    fact(t).positive = !value.negative() && !value.is_zero();
    fact(t).bounded = true;
    return t;
  }
  // A tensor of the pool, recent ones preferred; -1 rank and any dtype class allowed by `ok`.
  template <class Ok> TensorId choose(Ok ok) {
    std::vector<TensorId> list;
    for (TensorId t : pool_)
      if (ok(t)) list.push_back(t);
    if (list.empty()) throw Error(ErrorKind::BadInput, "no operand fits");
    if (rng_.chance(0.5))
      return list[list.size() - 1 - rng_.below(std::min<size_t>(2, list.size()))];
    return list[rng_.below(list.size())];
  }
  bool is_real(TensorId t) const { return is_float(g_.type(t).dtype); }
  TensorId real() {
    return choose([&](TensorId t) { return is_real(t); });
  }
  TensorId real_of_rank(int low) {
    return choose([&](TensorId t) { return is_real(t) && rank(t) >= low; });
  }
  TensorId partner(TensorId x) {  // broadcasts with x
    return choose([&](TensorId t) {
      return g_.type(t).dtype == g_.type(x).dtype && broadcast(shape(t), shape(x)).has_value();
    });
  }
  TensorId bounded(TensorId x) {
    if (fact(x).bounded) return x;
    TensorId t = emit(one_of({OpKind::Tanh, OpKind::Sigmoid, OpKind::Tanh}), {x});
    fact(t).exps++;
    fact(t).bounded = true;
    fact(t).size = 1;
    return t;
  }
  TensorId positive(TensorId x) {
    if (fact(x).positive) return x;
    TensorId s = emit(OpKind::Sqr, {x});
    TensorId t =
        emit(OpKind::Add,
             {s, constant(one_of({Rational(1), Rational::ratio(1, 100000), Rational::ratio(1, 2)}),
                          g_.type(x).dtype)});
    fact(t).positive = true;
    fact(t).size = 2 * fact(x).size;
    return t;
  }

  void add_input(bool integral);
  Graph finish();

  // --- one random operator, or a few, at kernel level (random_operators.cpp)
  bool step();
  bool arithmetic();
  bool division_or_extremum();
  bool unary();
  bool root_or_exp();
  bool activation();
  bool given(TensorId t) const;
  bool named_function(TensorId x);
  TensorId condition();
  bool selection();
  bool reduction();
  bool product();
  TensorId transpose_last(TensorId x);
  TensorId emit_movement(OpKind kind, TensorId x, Attrs attrs);
  bool movement();
  bool slice_or_pad();
  bool join();
  bool window();
  bool mask();
  bool gather();
  bool constant_step();
  bool softmax_like();
  bool norm_like();
  bool heads();
  bool moments();
  bool convolution();

  // --- integers: exact modulo 2^w
  bool integer_step();

  // --- fused kernels (random_kernels.cpp)
  struct Arg {
    TensorId outer;
    IterAttrs iter;
  };
  // A loop count or grid size for an extent: often not a divisor, sometimes one too many.
  int64_t parts(int64_t extent) { return rng_.between(1, std::min<int64_t>(extent, 4)); }
  bool fused_kernel();
  TensorId tile(Graph& b, TensorId arg, GridMap imap, LoopMap fmap);
  TensorId chain(Graph& b, TensorId x, int length);
  bool finish_kernel(std::vector<TensorId> args, Graph body);
  bool pointwise_kernel();
  bool reduce_kernel();
  bool two_pass_kernel();
  bool matmul_kernel();
  bool online_softmax_kernel();

  Rng rng_, windows_;
  RandomProgramOptions o_;
  Graph g_;
  int dims_[3] = {};
  std::vector<TensorId> pool_;
  std::vector<Facts> facts_;
};

}  // namespace tessera::random_programs
