#include "kernel/interpret.h"

#include <utility>

#include "base/error.h"
#include "base/interruption.h"
#include "eval/domains.h"
#include "eval/field_eval.h"
#include "eval/pointwise.h"

namespace tessera::kernel {
namespace {

// Whole numbers of a run, one per element.
struct Numbers {
  int64_t v[kRun];
};

template <class D> class Machine {
 public:
  using Chunk = typename D::Chunk;
  Machine(const Function& f, const D& domain, std::vector<View> buffers)
      : f_(f), domain_(domain), buffers_(std::move(buffers)) {}
  void run() { run(f_.body); }

 private:
  struct Binding {
    std::string name;
    int64_t value = 0;
    bool lanes = false;  // value + the number of the element
  };
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::BadInput, f_.name + ": " + what);
  }

  Numbers numbers(const Expr& e) const;
  void add(Numbers& to, const Expr::Term& term) const;
  int64_t number(const Expr& e) const {
    const int n = std::exchange(n_, 1);
    const int64_t value = numbers(e).v[0];
    n_ = n;
    return value;
  }
  IntVec holds(const Condition& c) const;
  // Where of a buffer; elements that `mask` leaves out are not looked at.
  Numbers places(int buffer, const Expr& offset, const IntVec* mask) const;

  void evaluate(const Scalar& x, const IntVec* mask, Chunk& out);
  void constant(DType dtype, const Rational& value, Chunk& out);
  void load(int buffer, const Numbers& at, Chunk& out) const;
  void store(int buffer, const Numbers& at, Chunk& chunk) const;
  void fold(const Accumulate& a);

  void run(const Body& body);
  void run(const Statement& s);
  void run(const Loop& loop);
  static bool in_runs(const Loop& loop);

  void prepare(Chunk& chunk) const {
    if constexpr (D::kIsField) chunk.f.shared = &domain_.shared;
    chunk.f.n = chunk.i.n = n_;
    chunk.i.flagged = false;
  }

  const Function& f_;
  const D& domain_;
  std::vector<View> buffers_;
  std::vector<Binding> bindings_;
  std::vector<std::pair<std::string, Chunk>> variables_;
  mutable int n_ = 1;  // elements of the run
};

// --- whole numbers

template <class D> void Machine<D>::add(Numbers& to, const Expr::Term& term) const {
  const Expr::Atom& a = *term.atom;
  if (a.made == Expr::Made::Variable) {
    for (size_t i = bindings_.size(); i-- > 0;) {
      const Binding& b = bindings_[i];
      if (b.name != a.text) continue;
      for (int k = 0; k < n_; ++k) to.v[k] += term.factor * (b.value + (b.lanes ? k : 0));
      return;
    }
    fail(a.text + " is not known");
  }
  const Numbers x = numbers(a.of[0]), y = a.of.size() > 1 ? numbers(a.of[1]) : Numbers{};
  for (int k = 0; k < n_; ++k) {
    int64_t v = x.v[k];
    switch (a.made) {
    case Expr::Made::Variable:
    case Expr::Made::Within: break;
    case Expr::Made::Product: v *= y.v[k]; break;
    case Expr::Made::Quotient: v /= y.v[k]; break;
    case Expr::Made::Remainder: v %= y.v[k]; break;
    case Expr::Made::Least: v = std::min(v, y.v[k]); break;
    case Expr::Made::Greatest: v = std::max(v, y.v[k]); break;
    }
    to.v[k] += term.factor * v;
  }
}

template <class D> Numbers Machine<D>::numbers(const Expr& e) const {
  Numbers r;
  for (int k = 0; k < n_; ++k) r.v[k] = e.rest();
  for (const Expr::Term& t : e.terms()) add(r, t);
  return r;
}

template <class D> IntVec Machine<D>::holds(const Condition& c) const {
  if (!c.known()) fail("nothing is known of the condition " + c.text());
  IntVec r;
  r.n = n_;
  for (int k = 0; k < n_; ++k) r.v[k] = 1;
  for (const Comparison& x : c.comparisons()) {
    const Numbers a = numbers(x.a), b = numbers(x.b);
    for (int k = 0; k < n_; ++k) r.v[k] &= x.equal ? a.v[k] == b.v[k] : a.v[k] < b.v[k];
  }
  return r;
}

template <class D>
Numbers Machine<D>::places(int buffer, const Expr& offset, const IntVec* mask) const {
  const Buffer& b = f_.buffers[size_t(buffer)];
  Numbers at = numbers(offset);
  for (int k = 0; k < n_; ++k) {
    if (mask != nullptr && mask->v[k] == 0) at.v[k] = 0;
    if (at.v[k] < 0 || at.v[k] >= b.elements)
      fail(b.name + " has no element " + std::to_string(at.v[k]));
  }
  return at;
}

// --- elements

template <class D> void Machine<D>::load(int buffer, const Numbers& at, Chunk& out) const {
  const View& v = buffers_[size_t(buffer)];
  const auto planes = [&](int p, auto* to) {
    const auto* from = static_cast<std::remove_reference_t<decltype(to)>>(v.plane[size_t(p)]);
    for (int k = 0; k < n_; ++k) to[k] = from[at.v[k]];
  };
  if (is_float(v.dtype)) {
    domain_.begin_load(out.f, v, n_);
    domain_.each_plane(out.f, v, planes);
  } else {
    begin_load(out.i, v, n_);
    each_plane(out.i, v, planes);
  }
}

template <class D> void Machine<D>::store(int buffer, const Numbers& at, Chunk& chunk) const {
  const View& v = buffers_[size_t(buffer)];
  const auto planes = [&](int p, auto* from) {
    auto* to = static_cast<std::remove_reference_t<decltype(from)>>(v.plane[size_t(p)]);
    for (int k = 0; k < n_; ++k) to[at.v[k]] = from[k];
  };
  if (is_float(v.dtype)) {
    domain_.begin_store(chunk.f, v);
    domain_.each_plane(chunk.f, v, planes);
  } else {
    begin_store(chunk.i, v);
    each_plane(chunk.i, v, planes);
  }
}

template <class D> void Machine<D>::constant(DType dtype, const Rational& value, Chunk& out) {
  prepare(out);
  if (!is_float(dtype)) {
    out.i = out.i.constant(Rational(wrap_to(dtype, value.num())));
  } else if constexpr (D::kIsField) {
    if (!value.finite() && !value.negative())
      throw Error(ErrorKind::Unsupported, value.str() + " has no meaning in a field");
    out.f = out.f.constant(value.finite() ? value : Rational(0));
    if (value.finite()) return;
    out.f.clear_flags();
    for (int k = 0; k < n_; ++k) out.f.flag[k] = FieldArray::NegInf;
  } else {
    out.f = out.f.constant(value);
  }
}

template <class D> void Machine<D>::evaluate(const Scalar& x, const IntVec* mask, Chunk& out) {
  std::visit(Cases{[&](const Literal& l) { constant(x.dtype, l.value, out); },
                   [&](const Variable& v) {
                     for (size_t i = variables_.size(); i-- > 0;)
                       if (variables_[i].first == v.name) {
                         out = variables_[i].second;
                         return;
                       }
                     fail(v.name + " is not known");
                   },
                   [&](const Expr& e) {
                     prepare(out);
                     const Numbers all = numbers(e);
                     std::copy(all.v, all.v + n_, out.i.v);
                   },
                   [&](const Load& l) { load(l.buffer, places(l.buffer, l.offset, mask), out); },
                   [&](const Apply& a) {
                     Chunk in[3];
                     for (size_t i = 0; i < a.operands.size(); ++i)
                       evaluate(a.operands[i], mask, in[i]);
                     prepare(out);
                     Op op;
                     op.kind = a.kind;
                     op.attrs = a.attrs;
                     apply_pointwise(op, a.operands[first_value(a.kind)].dtype, x.dtype, in, out);
                     if (!is_float(x.dtype))
                       for (int k = 0; k < n_; ++k) out.i.v[k] = wrap_to(x.dtype, out.i.v[k]);
                   },
                   [&](const Select& s) {
                     Chunk in[3];
                     in[0].i = holds(s.when);
                     IntVec then = in[0].i, otherwise = in[0].i;
                     for (int k = 0; k < n_; ++k) {
                       then.v[k] &= mask == nullptr || mask->v[k];
                       otherwise.v[k] = (mask == nullptr || mask->v[k]) && !in[0].i.v[k];
                     }
                     evaluate(s.of[0], &then, in[1]);
                     evaluate(s.of[1], &otherwise, in[2]);
                     prepare(out);
                     Op op;
                     op.kind = OpKind::Where;
                     apply_pointwise(op, x.dtype, x.dtype, in, out);
                   }},
             *x.node);
}

// --- statements

template <class D> void Machine<D>::fold(const Accumulate& a) {
  Chunk in[2], out;
  evaluate(a.value, nullptr, in[1]);
  const Numbers at = places(a.buffer, a.offset, nullptr);
  load(a.buffer, at, in[0]);
  prepare(out);
  Op op;
  op.kind = step_by(a.fold);
  const DType dtype = f_.buffers[size_t(a.buffer)].dtype;
  apply_pointwise(op, dtype, dtype, in, out);
  if (!is_float(dtype))
    for (int k = 0; k < n_; ++k) out.i.v[k] = wrap_to(dtype, out.i.v[k]);
  store(a.buffer, at, out);
}

template <class D> void Machine<D>::run(const Body& body) {
  const size_t bindings = bindings_.size(), variables = variables_.size();
  for (const Statement& s : body) run(s);
  bindings_.resize(bindings);
  variables_.resize(variables);
}

template <class D> void Machine<D>::run(const Statement& s) {
  std::visit(Cases{[&](const Block& x) { run(x.body); }, [&](const Loop& x) { run(x); },
                   [&](const If& x) { run(holds(x.when).v[0] ? x.then : x.otherwise); },
                   [&](const Let& x) {
                     Chunk chunk;
                     evaluate(x.value, nullptr, chunk);
                     variables_.emplace_back(x.name, chunk);
                   },
                   [&](const Index& x) {
                     Chunk chunk;
                     evaluate(x.value, nullptr, chunk);
                     int64_t at = chunk.i.v[0];
                     if (at < x.range.least || at > x.range.most) {
                       if (!D::kIsField) fail(x.name + " is " + std::to_string(at));
                       at = x.range.least;  // indices that nobody draws are what they may be
                     }
                     bindings_.push_back({x.name, at});
                   },
                   [&](const Local&) {},
                   [&](const Store& x) {
                     Chunk chunk;
                     evaluate(x.value, nullptr, chunk);
                     store(x.buffer, places(x.buffer, x.offset, nullptr), chunk);
                   },
                   [&](const Accumulate& x) { fold(x); }},
             s.is);
}

template <class D> bool Machine<D>::in_runs(const Loop& loop) {
  return loop.kind != LoopKind::Serial && std::ranges::all_of(
                                              loop.body,
                                              [](const Statement& s) {
                                                return std::holds_alternative<Let>(s.is) ||
                                                       std::holds_alternative<Store>(s.is) ||
                                                       std::holds_alternative<Accumulate>(s.is);
                                              });
}

template <class D> void Machine<D>::run(const Loop& loop) {
  interruption_point();
  const int64_t extent = number(loop.extent);
  const int most = in_runs(loop) ? kRun : 1;
  const size_t place = bindings_.size();
  for (int64_t i = 0; i < extent; i += most) {
    n_ = int(std::min<int64_t>(most, extent - i));
    bindings_.push_back({loop.variable, i, most > 1});
    run(loop.body);
    bindings_.resize(place);
    n_ = 1;
  }
}

// --- functions

// Buffers that hold all that a domain keeps of an element; inputs are what `given` holds.
template <class D>
std::vector<View> make_buffers(const Function& f, std::vector<View> given, Arena& arena) {
  std::vector<View> views;
  size_t next = 0;
  for (const Buffer& b : f.buffers) {
    const bool is_given = b.space == Space::Weights || (b.space == Space::Argument && !b.written);
    View v;
    v.dtype = b.dtype;
    v.set_shape({b.elements});
    v.set_contiguous_strides();
    if (is_given) {
      if (next >= given.size() || given[next].size() != b.elements || given[next].dtype != b.dtype)
        throw Error(ErrorKind::BadInput, f.name + ": another input than " + b.name);
      v.plane = given[next++].plane;
    } else {
      const uint8_t planes = !is_float(b.dtype) || !D::kIsField ? 1 : 7;
      for (int p = 0; p < kPlanes; ++p) {
        const bool extra = D::kIsField && (p == kFlagPlane || (p == kSetPlane && planes == 7));
        if (p < 3 ? (planes >> p & 1) == 0 : !extra) continue;
        const size_t bytes = size_t(b.elements) * plane_width(v, p, D::kWord);
        v.plane[size_t(p)] = arena.allocate(bytes);
        std::memset(v.plane[size_t(p)], 0, bytes);
      }
    }
    views.push_back(v);
  }
  return views;
}

double work_in(const Scalar& x) {
  double n = 1;
  if (const auto* a = std::get_if<Apply>(x.node.get()))
    for (const Scalar& y : a->operands) n += work_in(y);
  if (const auto* s = std::get_if<Select>(x.node.get()))
    for (const Scalar& y : s->of) n += work_in(y);
  return n;
}
double work_in(const Body& body) {
  double n = 0;
  for (const Statement& s : body)
    std::visit(Cases{[&](const Block& x) { n += work_in(x.body); },
                     [&](const Loop& x) { n += double(x.extent.range().most) * work_in(x.body); },
                     [&](const If& x) { n += work_in(x.then) + work_in(x.otherwise); },
                     [&](const Local&) {}, [&](const auto& x) { n += work_in(x.value); }},
               s.is);
  return n;
}

}  // namespace

double work_of(const Function& function) { return work_in(function.body); }

std::vector<NDArray> interpret(const Function& f, const std::vector<NDArray>& inputs) {
  std::vector<View> given;
  for (const NDArray& x : inputs) {
    View v;
    v.dtype = x.dtype;
    v.set_shape({x.size()});
    v.plane[0] = is_float(x.dtype) ? const_cast<double*>(x.reals.data())
                                   : static_cast<void*>(const_cast<int64_t*>(x.ints.data()));
    given.push_back(v);
  }
  using D = RealDomain<double>;
  Arena arena;
  const std::vector<View> buffers = make_buffers<D>(f, given, arena);
  const D domain;
  Machine<D>(f, domain, buffers).run();
  std::vector<NDArray> results;
  for (size_t i = 0; i < f.buffers.size(); ++i) {
    if (!f.buffers[i].written) continue;
    const int64_t n = f.buffers[i].elements;
    NDArray r;
    r.dtype = f.buffers[i].dtype;
    r.shape = {n};
    if (is_float(r.dtype))
      r.reals.assign(buffers[i].as<double>(0), buffers[i].as<double>(0) + n);
    else
      r.ints.assign(buffers[i].as<int64_t>(0), buffers[i].as<int64_t>(0) + n);
    results.push_back(std::move(r));
  }
  return results;
}

std::vector<FieldArray> interpret(const Function& f, const FieldModel& model,
                                  const std::vector<FieldArray>& inputs) {
  return with_word(
      model.size(),
      [&](auto word) {
        using D = FieldDomain<decltype(word)>;
        std::vector<View> given = mapped(
            inputs, [&](const FieldArray& x) { return view_of(x); });
        Arena arena;
        const std::vector<View> buffers = make_buffers<D>(f, given, arena);
        const D domain(model);
        Machine<D>(f, domain, buffers).run();
        std::vector<FieldArray> results;
        for (size_t i = 0; i < f.buffers.size(); ++i) {
          if (!f.buffers[i].written) continue;
          const View& v = buffers[i];
          FieldArray r;
          r.dtype = v.dtype;
          r.field = model.size();
          r.shape = {v.size()};
          const auto copy = [&](int plane) {
            tessera::Buffer bytes(size_t(v.size()) * plane_width(v, plane, D::kWord));
            std::memcpy(bytes.template as<std::byte>(), v.plane[size_t(plane)], bytes.bytes());
            return bytes;
          };
          if (is_float(v.dtype))
            r.components[0] = copy(0);
          else
            r.ints.assign(v.as<int64_t>(0), v.as<int64_t>(0) + v.size());
          r.flags = copy(kFlagPlane);
          results.push_back(std::move(r));
        }
        return results;
      });
}

}  // namespace tessera::kernel
