#include "backend/loop_builder.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/interruption.h"
#include "ir/axis_reads.h"
#include "kernel/regions.h"
#include "plan/strides.h"

namespace tessera::kernel {

Expr offset_of(const Indices& index, const std::vector<int64_t>& extents) {
  Expr offset;
  int64_t stride = 1;
  for (size_t d = extents.size(); d-- > 0;) {
    offset += index[d] * stride;
    stride *= extents[d];
  }
  return offset;
}

Rational extreme(DType dtype, bool least) {
  if (is_float(dtype)) return Rational::infinity(least);
  if (dtype == DType::U8) return least ? 0 : 255;
  const int bits = 8 * size_in_bytes(dtype) - 1;
  const int64_t most = bits == 63 ? std::numeric_limits<int64_t>::max() : (int64_t(1) << bits) - 1;
  return least ? -most - 1 : most;
}

// --- statements

std::string LoopBuilder::fresh(const std::string& name) {
  std::string s = name;
  for (int n = 2; names_.contains(s); ++n) s = name + "_" + std::to_string(n);
  return s;
}

int LoopBuilder::add_buffer(const std::string& name, DType dtype, int64_t elements, Space space) {
  Buffer b;
  b.name = fresh(name);
  names_.insert(b.name);
  b.dtype = dtype;
  b.elements = elements;
  b.space = space;
  f_.buffers.push_back(std::move(b));
  return int(f_.buffers.size()) - 1;
}

void LoopBuilder::block(const std::string& note, const std::function<void()>& body) {
  Block b{note, {}};
  Body* outside = std::exchange(body_, &b.body);
  known_.clear();
  lets_ = 0;
  body();
  body_ = outside;
  statement({std::move(b)});
}

void LoopBuilder::loop(LoopKind kind, int64_t extent,
                       const std::function<void(const Expr&)>& body) {
  if (extent == 1) return body(0);
  interruption_point();
  Loop l{kind, fresh("i" + std::to_string(depth_)), extent, {}};
  Body* outside = std::exchange(body_, &l.body);
  const auto known = known_;
  const Expr i = Expr::variable(l.variable, {0, extent - 1}, depth_++);
  body(i);
  --depth_;
  known_ = known;
  body_ = outside;
  statement({std::move(l)});
}

void LoopBuilder::loops(const std::vector<int64_t>& extents,
                        const std::function<void(const Indices&)>& body) {
  size_t last = extents.size();
  while (last > 0 && extents[last - 1] == 1) --last;
  Indices index(extents.size());
  const std::function<void(size_t)> at = [&](size_t d) {
    if (d == extents.size()) return body(index);
    loop(d + 1 == last ? LoopKind::Vector : LoopKind::Parallel, extents[d], [&](const Expr& i) {
      index[d] = i;
      at(d + 1);
    });
  };
  at(0);
}

void LoopBuilder::nest(LoopKind kind, const std::vector<int64_t>& extents, Indices& index,
                       const std::function<void()>& body, size_t next) {
  if (next == extents.size()) return body();
  loop(kind, extents[next], [&](const Expr& i) {
    index[next] = i;
    nest(kind, extents, index, body, next + 1);
  });
}

void LoopBuilder::store(int buffer, const Expr& offset, const Scalar& value) {
  statement({Store{buffer, offset, cast(value, f_.buffers[size_t(buffer)].dtype)}});
}

Expr LoopBuilder::index(const Scalar& value, int64_t extent) {
  const std::string name = fresh("at" + std::to_string(lets_++));
  statement({Index{name, {0, extent - 1}, value}});
  return Expr::variable(name, {0, extent - 1}, depth_ - 1);
}

int LoopBuilder::local(DType dtype, int64_t elements) {
  const int b = add_buffer(elements == 1 ? "total" : "totals", dtype, elements, Space::Stack);
  statement({Local{b}});
  return b;
}

// --- elements

Scalar LoopBuilder::load(int buffer, const Expr& offset) const {
  return make(f_.buffers[size_t(buffer)].dtype, Load{buffer, offset});
}

Scalar LoopBuilder::chosen(const Condition& when, const std::function<Scalar()>& then,
                           const Scalar& otherwise) {
  if (when.always()) return then();
  ++guards_;
  const Scalar x = then();
  --guards_;
  return make(x.dtype, Select{when, {x, otherwise}});
}

Scalar LoopBuilder::element(TensorId t, const Indices& index) {
  if (const int b = home[t.index]; b >= 0) {
    const auto all = extents(g_.type(t).shape);
    if (flat_) return load(b, f_.buffers[size_t(b)].elements == 1 ? Expr(0) : index[0]);
    return load(b, offset_of(index, all));
  }
  const Op& op = g_.producer(t);
  const DType dtype = g_.type(t).dtype;
  if (op.kind == OpKind::Const) return literal(dtype, *op.constant());
  if (op.kind == OpKind::Iota)
    return cast(make(DType::I64, index[size_t(g_.attrs<IotaAttrs>(op).axis)]), dtype);
  if (!has(op.kind, algebra::Pointwise)) return movement(op, index);
  std::string key = std::to_string(t.index);
  for (const Expr& i : index) key += "," + i.text();
  if (const auto it = known_.find(key); it != known_.end()) return it->second;
  Scalar x = pointwise(op, index);
  if (guards_ == 0 && uses_[t.index] > 1) {
    const std::string name = fresh("v" + std::to_string(lets_++));
    statement({Let{name, x}});
    x = known_[key] = make(dtype, Variable{name});
  }
  return x;
}

Scalar LoopBuilder::pointwise(const Op& op, const Indices& index) {
  std::vector<Scalar> in;
  for (TensorId x : op.inputs) {
    const Shape& shape = g_.type(x).shape;
    Indices at = index;
    if (!flat_) {
      at.erase(at.begin(), at.begin() + int64_t(index.size() - shape.size()));
      for (size_t d = 0; d < shape.size(); ++d)
        if (shape[d].is_one()) at[d] = 0;
    }
    in.push_back(element(x, at));
  }
  if (op.kind == OpKind::Cast) return cast(in[0], g_.type(op.result()).dtype);
  return apply(op.kind, std::move(in), op.attrs);
}

Scalar LoopBuilder::reshaped(const Op& op, const Indices& index) {
  const TensorId x = op.inputs[0];
  if (flat_) return element(x, index);
  const Expr flat = offset_of(index, extents(g_.type(op.result()).shape));
  if (const int b = home[x.index]; b >= 0) return load(b, flat);
  const auto all = extents(g_.type(x).shape);
  Indices at(all.size());
  int64_t stride = 1;
  for (size_t d = all.size(); d-- > 0;) {
    at[d] = flat / stride % all[d];
    stride *= all[d];
  }
  return element(x, at);
}

Scalar LoopBuilder::movement(const Op& op, const Indices& index) {
  const TensorId x = op.inputs[0];
  const Type &from = g_.type(x), &to = g_.type(op.result());
  if (op.kind == OpKind::Reshape || (flat_ && is_reshape(op.kind))) return reshaped(op, index);
  if (is_triangle(op.kind)) {
    const int64_t k = g_.attrs<DiagonalAttrs>(op).k;
    const Expr row = index[index.size() - 2] + k, column = index[index.size() - 1];
    return chosen(
        op.kind == OpKind::Triu ? row < column + 1 : column < row + 1,
        [&] { return element(x, index); }, literal(to.dtype, 0));
  }
  if (op.kind == OpKind::Pad) {
    const auto& a = g_.attrs<PadAttrs>(op);
    Condition inside;
    Indices at = index;
    for (size_t d = 0; d < at.size(); ++d) {
      at[d] = at[d] - a.low[d];
      const int64_t extent = from.shape[d].extent;
      if (const auto n = at[d].constant(); n && (*n < 0 || *n >= extent))
        return literal(to.dtype, a.value);
      inside = inside && Expr(-1) < at[d] && at[d] < Expr(extent);
      at[d] = at[d].within(extent);
    }
    return chosen(
        inside, [&] { return element(x, at); }, literal(to.dtype, a.value));
  }
  const auto reads = axis_reads(op.kind, op.attrs, from.rank(), to.rank());
  CHECK(reads) << name(op.kind) << " is not pulled";
  Indices at(reads->size());
  for (size_t d = 0; d < at.size(); ++d) {
    const AxisRead& r = (*reads)[d];
    if (r.axis < 0) continue;
    const Expr& i = index[size_t(r.axis)];
    at[d] = r.wraps ? i % from.shape[d].extent : i * r.step + r.start;
  }
  return element(x, at);
}

bool LoopBuilder::is_flat(TensorId t, int64_t elements) const {
  const int64_t own = num_elements(g_.type(t).shape);
  const Op& op = g_.producer(t);
  if (home[t.index] >= 0) return own == elements || own == 1;
  if (op.kind == OpKind::Const) return true;
  if (!has(op.kind, algebra::Pointwise) && !is_reshape(op.kind)) return false;
  return (own == elements || own == 1) &&
         std::ranges::all_of(op.inputs, [&](TensorId x) { return is_flat(x, elements); });
}

void LoopBuilder::store_all(TensorId t, int buffer,
                            const std::function<Expr(const Indices&)>& offset) {
  const Shape& shape = g_.type(t).shape;
  const int64_t n = num_elements(shape);
  if (!offset && is_flat(t, n)) {
    loops({n}, [&](const Indices& i) {
      flat_ = true;
      const Scalar x = element(t, i);
      flat_ = false;
      store(buffer, i[0], x);
    });
    return;
  }
  const auto all = extents(shape);
  loops(all, [&](const Indices& i) {
    const Scalar x = element(t, i);
    store(buffer, offset ? offset(i) : offset_of(i, all), x);
  });
}

// --- folds

namespace {

// Elements that are made at once, and lanes that share a sum.
constexpr int64_t kColumns = 64, kRows = 4, kLanes = 16;
// More terms in a row are summed in f64: equal ones, whose roundings all go one way, would show.
constexpr int64_t kLongSum = 1024, kLongProduct = 8192;

// Whether all loads step by one or not at all with a variable.
bool steps_by_one(const Scalar& x, const std::string& variable) {
  return std::visit(Cases{[&](const Load& l) {
                            const auto f = factor_of(l.offset, variable);
                            return f && (*f == 0 || *f == 1);
                          },
                          [&](const Apply& a) {
                            return std::ranges::all_of(
                                a.operands,
                                [&](const Scalar& y) { return steps_by_one(y, variable); });
                          },
                          [&](const Select& s) {
                            return std::ranges::all_of(
                                s.of, [&](const Scalar& y) { return steps_by_one(y, variable); });
                          },
                          [](const auto&) { return true; }},
                    *x.node);
}

// [0, extent) in parts of `size`, and what is left.
void in_parts(LoopBuilder& b, LoopKind kind, int64_t extent, int64_t size,
              const std::function<void(const Expr& begin, int64_t size)>& body) {
  const int64_t whole = extent / size;
  if (whole > 0) b.loop(kind, whole, [&](const Expr& i) { body(i * size, size); });
  if (extent % size != 0) body(whole * size, extent % size);
}

}  // namespace

void LoopBuilder::fold(const Fold& f) {
  const DType own = f_.buffers[size_t(f.buffer)].dtype;
  DType as = is_sixteen(own) ? DType::F32 : own;
  const int64_t terms = product_of(f.in);
  const int64_t columns = f.out.empty() ? 1 : f.out.back(), lanes = f.in.empty() ? 1 : f.in.back();
  Indices out(f.out.size()), in(f.in.size());
  const std::string probe = "probe";
  // Looked at, not kept: no value gets a name.
  const auto by_one = [&](Indices& of, int64_t extent) {
    of.back() = Expr::variable(probe, {0, extent - 1});
    ++guards_;
    const Scalar x = f.term(out, in);
    --guards_;
    of.back() = 0;
    return steps_by_one(x, probe);
  };
  const bool good_columns = columns >= 4 && by_one(out, columns);
  const bool good_lanes = !good_columns && lanes >= kLanes && by_one(in, lanes);
  const int64_t chain = good_lanes ? terms / kLanes : terms;
  if (as == DType::F32 && f.kind == AccumKind::Sum &&
      chain > (f.shared < 0 ? kLongSum : kLongProduct))
    as = DType::F64;
  good_lanes ? fold_lanes(f, as) : fold_columns(f, as);
}

namespace {

Scalar neutral(AccumKind kind, DType dtype) {
  return literal(dtype,
                 kind == AccumKind::Sum ? Rational(0) : extreme(dtype, kind == AccumKind::Max));
}

}  // namespace

// Neighbours along the innermost axis of the result, for some positions of the shared one at once.
void LoopBuilder::fold_columns(const Fold& f, DType as) {
  const size_t rank = f.out.size();
  const int64_t columns = rank == 0 ? 1 : f.out.back();
  const bool several = f.shared >= 0 && size_t(f.shared) + 1 < rank;
  std::vector<int64_t> outer = f.out;
  if (rank > 0) outer.back() = 1;
  if (several) outer[size_t(f.shared)] = 1;
  Indices out(rank), in(f.in.size());
  const auto tile = [&](const Expr& row, int64_t rows, const Expr& column, int64_t width) {
    const int totals = local(as, rows * width);
    loop(
        LoopKind::Vector, rows * width,
        [&](const Expr& i) { store(totals, i, neutral(f.kind, as)); });
    const auto each = [&](const std::function<void(const Expr& place)>& body) {
      loop(
          LoopKind::Vector, width,
          [&](const Expr& j) {
            for (int64_t r = 0; r < rows; ++r) {
              if (several) out[size_t(f.shared)] = row + r;
              if (rank > 0) out.back() = column + j;
              body(j + r * width);
            }
          });
    };
    nest(
        LoopKind::Serial, f.in, in,
        [&] {
          each([&](const Expr& place) {
            statement({Accumulate{totals, place, f.kind, cast(f.term(out, in), as)}});
          });
        });
    each([&](const Expr& place) {
      store(f.buffer, offset_of(out, f.out), f.finish(load(totals, place), out));
    });
  };
  nest(LoopKind::Parallel, outer, out, [&] {
    in_parts(*this, LoopKind::Parallel, several ? f.out[size_t(f.shared)] : 1, kRows,
             [&](const Expr& row, int64_t rows) {
               in_parts(*this, LoopKind::Parallel, columns, kColumns,
                        [&](const Expr& column, int64_t width) { tile(row, rows, column, width); });
             });
  });
}

// Lanes of the innermost folded axis have totals of their own, which are folded in the end.
void LoopBuilder::fold_lanes(const Fold& f, DType as) {
  const size_t rank = f.out.size(), last = f.in.size() - 1;
  const bool several = rank > 0 && f.shared >= 0;
  std::vector<int64_t> outer = f.out, inner = f.in;
  inner.back() = 1;
  if (several) outer.back() = 1;
  Indices out(rank), in(f.in.size());
  const auto tile = [&](const Expr& column, int64_t columns) {
    const int totals = local(as, columns * kLanes);
    loop(
        LoopKind::Vector, columns * kLanes,
        [&](const Expr& i) { store(totals, i, neutral(f.kind, as)); });
    const auto each = [&](const std::function<void(const Expr& first)>& body) {
      for (int64_t c = 0; c < columns; ++c) {
        if (several) out.back() = column + c;
        body(c * kLanes);
      }
    };
    nest(
        LoopKind::Serial, inner, in,
        [&] {
          in_parts(
              *this, LoopKind::Serial, f.in[last], kLanes,
              [&](const Expr& from, int64_t lanes) {
                loop(
                    LoopKind::Vector, lanes,
                    [&](const Expr& lane) {
                      in[last] = from + lane;
                      each([&](const Expr& first) {
                        statement(
                            {Accumulate{totals, first + lane, f.kind, cast(f.term(out, in), as)}});
                      });
                    });
              });
        });
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
      each([&](const Expr& first) {
        loop(
            LoopKind::Serial, half,
            [&](const Expr& lane) {
              statement(
                  {Accumulate{totals, first + lane, f.kind, load(totals, first + lane + half)}});
            });
      });
    each([&](const Expr& first) {
      store(f.buffer, offset_of(out, f.out), f.finish(load(totals, first), out));
    });
  };
  nest(LoopKind::Parallel, outer, out, [&] {
    if (several)
      in_parts(*this, LoopKind::Parallel, f.out.back(), kRows, tile);
    else
      tile(0, 1);
  });
}

}  // namespace tessera::kernel
