#include "kernel/validate.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "ir/infer.h"
#include "kernel/regions.h"

namespace tessera::kernel {
namespace {

// The first fault ends the walk.
struct Fault {
  std::string what;
};

struct Access {
  int buffer;
  Expr offset;
  bool writes;
};

class Validator {
 public:
  explicit Validator(const Function& f) : f_(f) {}
  void run();

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Fault{what}; }
  const Buffer& buffer(int id) const {
    if (id < 0 || size_t(id) >= f_.buffers.size()) fail("there is no buffer of that number");
    return f_.buffers[size_t(id)];
  }
  void check_buffers() const;
  void check_sharing() const;

  void check(const Expr& e) const;
  void check(const Condition& c) const;
  bool proved(const Expr& e, const Range& range) const;
  void check(const Scalar& x);
  void check_apply(const Scalar& x, const Apply& a);
  void touch(int id, const Expr& offset, DType dtype, bool reads, bool writes);

  // Adds what a body definitely writes to what is known.
  void walk(const Body& body);
  void walk(const Block& block) { walk(block.body); }
  void walk(const Loop& loop);
  void walk(const If& branch);
  void walk(const Let& let);
  void walk(const Index& index);
  void walk(const Local& local);
  void walk(const Store& store);
  void walk(const Accumulate& a);
  void check_races(const Loop& loop, size_t from, const std::set<std::string>& inner) const;
  struct Reach;
  static Reach inside(const Access& a, const Loop& loop, int64_t factor,
                      const std::set<std::string>& inner);
  static bool may_meet(const Reach& x, const Reach& y, int64_t factor, int64_t extent);
  void check_races(const Loop& loop, int id, const std::vector<const Access*>& all,
                   const std::set<std::string>& inner) const;
  void declare(const std::string& name) {
    if (!names_.insert(name).second) fail(name + " is declared twice");
  }

  const Function& f_;
  std::set<std::string> names_;             // of variables in scope and of all buffers
  std::map<std::string, Range> indices_;    // in scope
  std::map<std::string, DType> variables_;  // likewise
  std::set<int> locals_;                    // likewise
  std::vector<Comparison> facts_;           // what conditions around say
  std::vector<Region> written_;             // in expressions of what is in scope
  std::vector<Access> accesses_;            // of all statements so far
  std::vector<size_t> ends_;                // how many, after each of the function's own
  std::vector<std::string> declared_;       // indices in order, all of them
  std::vector<int> begun_;                  // locals in order
  int repeats_ = 0;                         // loops around whose order means nothing
};

// --- numbers and scalars

bool Validator::proved(const Expr& e, const Range& range) const {
  const Range own = e.range();
  bool above = own.least >= range.least, below = own.most <= range.most;
  for (const Comparison& c : facts_) {
    if (c.equal) continue;
    if (const auto d = (c.a - e).constant()) below |= c.b.range().most - 1 - *d <= range.most;
    if (const auto d = (c.b - e).constant()) above |= c.a.range().least + 1 - *d >= range.least;
  }
  return above && below;
}

void Validator::check(const Expr& e) const {
  for (const Expr::Term& t : e.terms()) {
    const Expr::Atom& a = *t.atom;
    for (const Expr& x : a.of) check(x);
    if (a.made == Expr::Made::Within && !proved(a.of[0], a.range))
      fail("no condition keeps " + a.text + " in its range");
    if (a.made != Expr::Made::Variable) continue;
    const auto it = indices_.find(a.text);
    if (it == indices_.end()) fail(a.text + " is not known here");
    if (it->second.least < a.range.least || it->second.most > a.range.most)
      fail(a.text + " has another range here");
  }
}

void Validator::check(const Condition& c) const {
  if (!c.known()) fail("nothing is known of the condition " + c.text());
  for (const Comparison& x : c.comparisons()) check(x.a), check(x.b);
}

void Validator::check_apply(const Scalar& x, const Apply& a) {
  if (!has(a.kind, algebra::Pointwise)) fail(std::string(name(a.kind)) + " is not pointwise");
  const OpInfo& facts = info(a.kind);
  if (int(a.operands.size()) < facts.min_arity || int(a.operands.size()) > facts.max_arity)
    fail(std::string(name(a.kind)) + " has other operands");
  std::vector<Type> types;
  for (const Scalar& y : a.operands) {
    check(y);
    types.push_back({y.dtype, {}});
  }
  Attrs attrs = a.attrs;
  if (attrs.index() != facts.default_attrs.index()) fail("attributes of another operator");
  std::string why;
  try {
    const DType to = infer_types(a.kind, types, attrs, Graph(), nullptr)[0].dtype;
    if (to != x.dtype) why = std::string(name(a.kind)) + " gives " + name(to);
  } catch (const Error& e) {
    why = e.what();
  }
  if (!why.empty()) fail(why);
}

void Validator::check(const Scalar& x) {
  const auto is = [&](DType dtype) {
    if (dtype != x.dtype) fail(text(f_, x) + " is " + name(dtype) + ", not " + name(x.dtype));
  };
  if (!x.node) fail("an empty scalar");
  std::visit(Cases{[&](const Literal& l) {
                     if (!is_float(x.dtype) && !l.value.is_integer())
                       fail(l.value.str() + " is no whole number");
                   },
                   [&](const Variable& v) {
                     const auto it = variables_.find(v.name);
                     if (it == variables_.end()) fail(v.name + " is not known here");
                     is(it->second);
                   },
                   [&](const Expr& e) { check(e), is(DType::I64); },
                   [&](const Load& l) { touch(l.buffer, l.offset, x.dtype, true, false); },
                   [&](const Apply& a) { check_apply(x, a); },
                   [&](const Select& s) {
                     check(s.when);
                     if (s.of.size() != 2) fail("a choice of other than two");
                     const size_t before = facts_.size();
                     const auto& c = s.when.comparisons();
                     facts_.insert(facts_.end(), c.begin(), c.end());
                     check(s.of[0]);
                     facts_.resize(before);
                     check(s.of[1]);
                     is(s.of[0].dtype), is(s.of[1].dtype);
                   }},
             *x.node);
}

void Validator::touch(int id, const Expr& offset, DType dtype, bool reads, bool writes) {
  const Buffer& b = buffer(id);
  const std::string place = b.name + "[" + offset.text() + "]";
  if (dtype != b.dtype) fail(place + " is " + name(b.dtype) + ", not " + name(dtype));
  check(offset);
  const Range r = offset.range();
  if (r.least < 0 || r.most >= b.elements)
    fail(place + " is one of " + std::to_string(r.least) + " to " + std::to_string(r.most) +
         ", of " + std::to_string(b.elements) + " elements");
  const bool given = b.space == Space::Weights || (b.space == Space::Argument && !b.written);
  if (writes && given) fail(b.name + " is not to be written");
  if (b.space == Space::Stack && !locals_.contains(id)) fail(b.name + " has not begun");
  if (reads && !given && std::ranges::none_of(written_, [&](const Region& w) {
        return w.buffer == id && w.covers(offset);
      }))
    fail(place + " is read before it is known to be written");
  accesses_.push_back({id, offset, writes});
}

// --- statements

void Validator::walk(const Body& body) {
  const auto indices = indices_;
  const auto variables = variables_;
  const auto locals = locals_;
  const auto names = names_;
  for (const Statement& s : body) std::visit([&](const auto& x) { walk(x); }, s.is);
  indices_ = indices, variables_ = variables, locals_ = locals, names_ = names;
}

void Validator::walk(const Loop& loop) {
  check(loop.extent);
  const Range extent = loop.extent.range();
  if (extent.least < 0) fail("the extent of " + loop.variable + " may be negative");
  declare(loop.variable);
  declared_.push_back(loop.variable);
  if (extent.most == 0) fail("the loop over " + loop.variable + " is empty");
  const Range range{0, extent.most - 1};
  const size_t from = accesses_.size(), names = declared_.size(), begun = begun_.size();
  const std::vector<Region> before = written_;
  const bool unordered = loop.kind != LoopKind::Serial;
  indices_[loop.variable] = range;
  repeats_ += unordered;
  walk(loop.body);
  repeats_ -= unordered;
  indices_.erase(loop.variable);
  names_.erase(loop.variable);
  const std::set<std::string> inner(declared_.begin() + int64_t(names), declared_.end());
  if (unordered && extent.most > 1) check_races(loop, from, inner);
  // What all iterations write, in terms of what is in scope outside.
  const std::set<int> gone(begun_.begin() + int64_t(begun), begun_.end());
  std::vector<Region> inside = std::move(written_);
  written_ = before;
  if (!loop.extent.constant()) return;
  for (const Region& r : inside) {
    if (gone.contains(r.buffer) || varies_with(r.start, inner)) continue;
    if (auto all = r.after(loop.variable, range)) add_region(written_, std::move(*all));
  }
}

void Validator::walk(const If& branch) {
  check(branch.when);
  const std::vector<Region> before = written_;
  const size_t facts = facts_.size();
  const auto& c = branch.when.comparisons();
  facts_.insert(facts_.end(), c.begin(), c.end());
  walk(branch.then);
  facts_.resize(facts);
  written_ = before;
  walk(branch.otherwise);
  written_ = before;
}

void Validator::walk(const Let& let) {
  check(let.value);
  declare(let.name);
  variables_[let.name] = let.value.dtype;
}

void Validator::walk(const Index& index) {
  check(index.value);
  if (index.value.dtype != DType::I64) fail(index.name + " is not i64");
  if (index.range.least > index.range.most) fail(index.name + " has an empty range");
  if (repeats_ > 0) fail("the function may end inside of a parallel loop");
  declare(index.name);
  declared_.push_back(index.name);
  indices_[index.name] = index.range;
}

void Validator::walk(const Local& local) {
  if (buffer(local.buffer).space != Space::Stack) fail("only stack buffers begin");
  if (std::ranges::count(begun_, local.buffer) != 0)
    fail(buffer(local.buffer).name + " begins twice");
  locals_.insert(local.buffer);
  begun_.push_back(local.buffer);
}

void Validator::walk(const Store& store) {
  check(store.value);
  touch(store.buffer, store.offset, store.value.dtype, false, true);
  add_region(written_, {store.buffer, store.offset, 1, {}});
}

void Validator::walk(const Accumulate& a) {
  check(a.value);
  if (a.fold == AccumKind::Concat) fail("concat folds nothing");
  if (a.value.dtype == DType::Bool) fail("bools are not accumulated");
  touch(a.buffer, a.offset, a.value.dtype, true, true);
}

// --- iterations that do not depend on one another

void Validator::check_races(const Loop& loop, size_t from,
                            const std::set<std::string>& inner) const {
  std::map<int, std::vector<const Access*>> by_buffer;
  for (size_t i = from; i < accesses_.size(); ++i)
    by_buffer[accesses_[i].buffer].push_back(&accesses_[i]);
  for (const auto& [id, all] : by_buffer) {
    if (std::ranges::none_of(all, &Access::writes)) continue;
    // A stack buffer that began inside is each iteration's own.
    if (f_.buffers[size_t(id)].space == Space::Stack && !locals_.contains(id)) continue;
    check_races(loop, id, all, inner);
  }
}

// Where an access is within an iteration: what the loop's variable adds is not counted.
struct Validator::Reach {
  Range near{};                 // of terms that step by no more than the variable does
  Range all{};                  // of all
  int64_t multiple = 0;         // what all terms but the near ones are multiples of
  std::set<std::string> fixed;  // terms that are the same in all iterations, not counted
};

Validator::Reach Validator::inside(const Access& a, const Loop& loop, int64_t factor,
                                   const std::set<std::string>& inner) {
  Reach r;
  r.near = r.all = {a.offset.rest(), a.offset.rest()};
  const auto add = [](Range& to, const Range& more) {
    to.least += more.least, to.most += more.most;
  };
  for (const Expr::Term& t : a.offset.terms()) {
    const bool is_variable = t.atom->made == Expr::Made::Variable;
    if (is_variable && t.atom->text == loop.variable) continue;
    const Expr term = Expr::variable(t.atom->text, t.atom->range) * t.factor;
    const auto varies = [&](const Expr& x) { return varies_with(x, inner); };
    if (is_variable ? !inner.contains(t.atom->text) : std::ranges::none_of(t.atom->of, varies)) {
      r.fixed.insert(term.text());
      continue;
    }
    add(r.all, term.range());
    if (std::abs(t.factor) > std::abs(factor))
      r.multiple = std::gcd(r.multiple, t.factor);
    else
      add(r.near, term.range());
  }
  return r;
}

// Whether x + factor·k = y for some x and y of these and some k with 0 < |k| < extent.
bool Validator::may_meet(const Reach& x, const Reach& y, int64_t factor, int64_t extent) {
  const int64_t f = std::abs(factor);
  const auto within = [&](const Range& a, const Range& b) {
    if (f == 0) return a.least <= b.most && b.least <= a.most;
    const auto above = [&](int64_t least, int64_t most) {
      const int64_t k = std::max<int64_t>(1, least > 0 ? (least + f - 1) / f : 1);
      return k < extent && f * k <= most;
    };
    return above(b.least - a.most, b.most - a.least) || above(a.least - b.most, a.most - b.least);
  };
  if (!within(x.all, y.all)) return false;
  // Far terms keep iterations apart where the near ones and the variable cannot make one up.
  const int64_t multiple = std::gcd(x.multiple, y.multiple);
  const int64_t apart = std::max(x.near.most, y.near.most) - std::min(x.near.least, y.near.least);
  return multiple == 0 || f * (extent - 1) + apart >= multiple || within(x.near, y.near);
}

void Validator::check_races(const Loop& loop, int id, const std::vector<const Access*>& all,
                            const std::set<std::string>& inner) const {
  const int64_t extent = loop.extent.range().most;
  for (const Access* a : all)
    for (const Access* b : all) {
      if (!a->writes || (b->writes && b < a)) continue;
      const auto f = factor_of(a->offset, loop.variable), g = factor_of(b->offset, loop.variable);
      const bool alike = f && f == g;
      const Reach x = inside(*a, loop, f.value_or(0), inner);
      const Reach y = inside(*b, loop, f.value_or(0), inner);
      if (!alike || x.fixed != y.fixed || may_meet(x, y, *f, extent))
        fail("iterations of " + loop.variable + " may meet at " + f_.buffers[size_t(id)].name);
    }
}

// --- the whole

void Validator::check_buffers() const {
  for (const Buffer& b : f_.buffers) {
    if (b.elements <= 0 || b.elements > kMaxElements) fail(b.name + " has no elements");
    if (b.alignment <= 0 || b.offset < 0 || b.offset % b.alignment != 0 ||
        b.alignment % size_in_bytes(b.dtype) != 0)
      fail(b.name + " is not aligned");
    if (b.written && b.space != Space::Argument) fail(b.name + " is no argument");
  }
}

// By statements of the function itself: what shares bytes of the workspace is not needed at once.
void Validator::check_sharing() const {
  struct Use {
    size_t first = SIZE_MAX, last = 0;
  };
  std::vector<Use> uses(f_.buffers.size());
  for (size_t i = 0, k = 0; i < ends_.size(); ++i)
    for (; k < ends_[i]; ++k) {
      Use& u = uses[size_t(accesses_[k].buffer)];
      u.first = std::min(u.first, i), u.last = i;
    }
  for (size_t i = 0; i < uses.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const Buffer &a = f_.buffers[i], &b = f_.buffers[j];
      if (a.space != Space::Workspace || b.space != a.space) continue;
      const auto end = [](const Buffer& x) {
        return x.offset + x.elements * size_in_bytes(x.dtype);
      };
      if (a.offset < end(b) && b.offset < end(a) && uses[i].first <= uses[j].last &&
          uses[j].first <= uses[i].last)
        fail(a.name + " and " + b.name + " need the same memory at once");
    }
}

void Validator::run() {
  check_buffers();
  for (const Buffer& b : f_.buffers) declare(b.name);
  for (const Statement& s : f_.body) {
    std::visit([&](const auto& x) { walk(x); }, s.is);
    ends_.push_back(accesses_.size());
  }
  for (size_t i = 0; i < f_.buffers.size(); ++i) {
    const Buffer& b = f_.buffers[i];
    const auto whole = [&](const Region& r) {
      return r.buffer == int(i) && r.start.is(0) && r.steps.empty() && r.length >= b.elements;
    };
    if (b.written && std::ranges::none_of(written_, whole)) fail(b.name + " is not written whole");
  }
  check_sharing();
}

}  // namespace

std::string why_invalid(const Function& function) {
  try {
    Validator(function).run();
  } catch (const Fault& fault) {
    return fault.what;
  }
  return "";
}

}  // namespace tessera::kernel
