#include "eval/trace.h"

#include <algorithm>

#include "eval/domains.h"
#include "eval/eval.h"
#include "ir/window.h"

namespace tessera {
namespace {

View view(const Marked& m) {
  View v;
  v.set_shape(m.shape);
  v.set_contiguous_strides();
  v.plane[0] = m.marks->data();
  return v;
}

void unite(const View& into, const View& from) {
  Walker<2> walk(into, {&into, &from});
  const int64_t total = into.size();
  for (int64_t done = 0; done < total;) {
    const int64_t n = walk.run(total - done);
    uint8_t* to = into.as<uint8_t>(0) + walk.offset(0);
    const uint8_t* x = from.as<const uint8_t>(0) + walk.offset(1);
    for (int64_t i = 0; i < n; ++i) to[i * walk.step(0)] |= x[i * walk.step(1)];
    done += n;
    if (done < total) walk.advance(n);
  }
}

void mark_broadcast(const Marked& operand, const Marked& result) {
  const View r = view(result);
  unite(stretched(view(operand), r.rank, r.shape), r);
}

void mark_reduction(const ReduceAttrs& a, const Marked& operand, const Marked& result) {
  View r = view(result);
  const View x = view(operand);
  if (!a.keepdims)
    for (int axis : a.axes) r.insert_axis(axis, 1, 0);
  unite(x, stretched(r, x.rank, x.shape));
}

void mark_matmul(const Marked& a, const Marked& b, const Marked& result) {
  const View r = view(result);
  if (r.size() == 0) return;
  View rows = r, columns = r;  // marks by row and by column, for every batch
  Marks by_row(size_t(r.size() / r.shape[size_t(r.rank - 1)]), 0);
  Marks by_column(size_t(r.size() / r.shape[size_t(r.rank - 2)]), 0);
  rows.shape[size_t(r.rank - 1)] = columns.shape[size_t(r.rank - 2)] = 1;
  rows.set_contiguous_strides();
  columns.set_contiguous_strides();
  rows.plane[0] = by_row.data();
  columns.plane[0] = by_column.data();
  unite(stretched(rows, r.rank, r.shape), r);
  unite(stretched(columns, r.rank, r.shape), r);
  auto into = [&](const Marked& m, const View& marks) {
    const View v = view(m);
    std::array<int64_t, kMaxRank> shape = r.shape;
    shape[size_t(r.rank - 2)] = v.shape[size_t(v.rank - 2)];
    shape[size_t(r.rank - 1)] = v.shape[size_t(v.rank - 1)];
    unite(stretched(v, r.rank, shape), stretched(marks, r.rank, shape));
  };
  into(a, rows);
  into(b, columns);
}

// An element of a running sum feeds all later ones.
void mark_cumsum(int axis, const Marked& operand, const Marked& result) {
  View x = view(operand), r = view(result);
  const int64_t n = r.shape[size_t(axis)], step = r.stride[size_t(axis)];
  x.shape[size_t(axis)] = r.shape[size_t(axis)] = 1;
  for (int64_t i = n; i-- > 0;) {
    View to = x, from = r, later = x;
    to.plane[0] = operand.marks->data() + i * step;
    from.plane[0] = result.marks->data() + i * step;
    unite(to, from);
    if (i + 1 == n) continue;
    later.plane[0] = operand.marks->data() + (i + 1) * step;
    unite(to, later);
  }
}

// An element of x feeds the results whose windows it lies in, in all channels of its group; a
// weight those of its output channel.
void mark_windows(const Graph& g, const Op& op, const std::vector<Marked>& operands,
                  const Marked& result) {
  const std::vector<WindowAxis> axes = window_axes(g, op);
  const bool products = is_convolution(op.kind), transposed = op.kind == OpKind::ConvTranspose;
  const int64_t groups = products ? g.attrs<ConvAttrs>(op).groups : 1;
  int64_t taps = 1, in = 1, out = 1;
  for (const WindowAxis& a : axes) taps *= a.taps, in *= a.in, out *= a.out;
  // Leading axes as [outer, channels]: channels mix within groups, of pooling not at all.
  const int64_t from = int64_t(operands[0].marks->size()) / in;
  const int64_t to = int64_t(result.marks->size()) / out;
  const int64_t batch = products ? operands[0].shape[0] : from;
  const int64_t c = from / batch / groups, f = to / batch / groups;
  for (int64_t b = 0; b < batch * groups; ++b) {
    Marks results(size_t(out), 0);
    for (int64_t k = 0; k < f; ++k)
      for (int64_t o = 0; o < out; ++o)
        results[size_t(o)] |= (*result.marks)[size_t((b * f + k) * out + o)];
    Marks elements(size_t(in), 0);
    // conv: o and t tell i; conv_transpose: i and t tell o
    const int64_t walked = transposed ? in : out;
    for (int64_t p = 0; p < walked * taps; ++p) {
      int64_t at = p / taps, tap = p % taps, met = 0, step = 1;
      bool inside = true;
      for (size_t d = axes.size(); d-- > 0;) {
        const WindowAxis& a = axes[d];
        const int64_t mine = transposed ? a.in : a.out, other = transposed ? a.out : a.in;
        const int64_t x = at % mine * a.stride + tap % a.taps * a.dilation - a.low;
        inside = inside && x >= 0 && x < other;
        met += x * step;
        step *= other;
        at /= mine;
        tap /= a.taps;
      }
      if (!inside) continue;
      const int64_t i = transposed ? p / taps : met, o = transposed ? met : p / taps;
      elements[size_t(i)] |= results[size_t(o)];
    }
    for (int64_t k = 0; k < c; ++k)
      for (int64_t i = 0; i < in; ++i)
        (*operands[0].marks)[size_t((b * c + k) * in + i)] |= elements[size_t(i)];
  }
  if (!products) return;
  std::vector<uint8_t> channel(size_t(groups * f), 0);
  for (size_t i = 0; i < result.marks->size(); ++i)
    channel[i / size_t(out) % channel.size()] |= (*result.marks)[i];
  Marks& w = *operands[1].marks;
  for (int64_t i = 0; i < int64_t(w.size()); ++i) {
    // [G·F, C, t…], transposed [G·C, F, t…]
    const int64_t first = i / taps / operands[1].shape[1], second = i / taps % operands[1].shape[1];
    w[size_t(i)] |= channel[size_t(transposed ? first / c * f + second : first)];
  }
}

// Moves element numbers instead of values and sends each mark to the element's origin.
void mark_movement(const Op& op, const std::vector<Marked>& operands, const Marked& result,
                   const NDArray& index) {
  Graph mover;
  std::vector<TensorId> inputs;
  std::vector<NDArray> numbers;
  std::vector<int64_t> start = {1};  // 0 stands for padding and cleared triangles
  for (size_t i = 0; i < operands.size(); ++i) {
    if (op.kind == OpKind::Gather && i == 1) {
      inputs.push_back(
          mover.add_input({index.dtype, Shape(index.shape.begin(), index.shape.end())}));
      numbers.push_back(index);
    } else {
      const auto& shape = operands[i].shape;
      NDArray a = NDArray::zeros(DType::I64, shape);
      for (size_t k = 0; k < a.ints.size(); ++k) a.ints[k] = start.back() + int64_t(k);
      inputs.push_back(mover.add_input({DType::I64, Shape(shape.begin(), shape.end())}));
      numbers.push_back(std::move(a));
    }
    start.push_back(start.back() + int64_t(operands[i].marks->size()));
  }
  Attrs attrs = op.attrs;
  if (op.kind == OpKind::Pad) std::get<PadAttrs>(attrs).value = Rational(0);
  mover.add_output(mover.add(op.kind, inputs, attrs));
  const NDArray from = eval(mover, numbers)[0];
  for (size_t i = 0; i < result.marks->size(); ++i) {
    if ((*result.marks)[i] == 0 || from.ints[i] == 0) continue;
    const size_t k = size_t(std::ranges::upper_bound(start, from.ints[i]) - start.begin()) - 1;
    (*operands[k].marks)[size_t(from.ints[i] - start[k])] |= (*result.marks)[i];
  }
}

}  // namespace

bool is_partial(OpKind kind) {
  return FieldDomain<uint32_t>::may_flag(kind) || kind == OpKind::Gather;
}

Marks origin_marks(OpKind kind, const std::vector<View>& in, const View& out) {
  if (!is_partial(kind)) return {};
  Marks m(size_t(out.size()), 0);
  std::vector<View> flags;
  std::vector<Walker<1>> walk;
  bool flagged_operand = false;
  for (const View& v : in) {
    if (!v.flagged()) continue;
    flagged_operand = true;
    if (has(kind, algebra::Pointwise)) flags.push_back(stretched(v, out.rank, out.shape));
  }
  for (const View& v : flags) walk.emplace_back(v, std::array<const View*, 1>{&v});
  Walker<1> place(out, {&out});
  for (size_t i = 0; i < m.size(); ++i) {
    const bool bad =
        out.flagged() && out.as<uint8_t>(kFlagPlane)[place.offset(0)] == FieldArray::Undefined;
    bool inherited = !has(kind, algebra::Pointwise) && flagged_operand;
    for (size_t k = 0; k < flags.size(); ++k)
      inherited = inherited || flags[k].as<uint8_t>(kFlagPlane)[walk[k].offset(0)] != 0;
    if (!inherited) m[i] = bad ? kFeedsBad : kFeedsGood;
    if (i + 1 < m.size()) {
      place.advance(1);
      for (Walker<1>& w : walk) w.advance(1);
    }
  }
  return m;
}

NDArray integers_of(const View& v) {
  NDArray a;
  a.dtype = v.dtype;
  a.shape.assign(v.shape.begin(), v.shape.begin() + v.rank);
  Walker<1> walk(v, {&v});
  const int64_t n = v.size();
  for (int64_t i = 0; i < n; ++i) {
    a.ints.push_back(v.as<const int64_t>(0)[walk.offset(0)]);
    if (i + 1 < n) walk.advance(1);
  }
  return a;
}

void mark_operands(const Graph& g, const Op& op, const std::vector<Marked>& operands,
                   const Marked& result, const NDArray& index) {
  if (result.marks->empty() || std::ranges::all_of(*result.marks, [](uint8_t m) { return m == 0; }))
    return;
  if (has(op.kind, algebra::Pointwise)) {
    for (const Marked& m : operands) mark_broadcast(m, result);
  } else if (has(op.kind, algebra::Movement)) {
    mark_movement(op, operands, result, index);
  } else if (is_reduction(op.kind)) {
    mark_reduction(g.attrs<ReduceAttrs>(op), operands[0], result);
  } else if (is_product(op.kind)) {
    const size_t n = operands.size() / 2;
    for (size_t i = 0; i < n; ++i) mark_matmul(operands[i], operands[i + n], result);
  } else if (is_scan(op.kind)) {
    mark_cumsum(g.attrs<AxisAttrs>(op).axis, operands[0], result);
  } else if (is_windowed(op.kind)) {
    mark_windows(g, op, operands, result);
  }
}

void mark_region(const Marked& whole, const Marked& part, const std::vector<int64_t>& begin,
                 bool into_whole) {
  View w = view(whole);
  int64_t offset = 0;
  for (size_t i = 0; i < begin.size(); ++i) {
    offset += begin[i] * w.stride[i];
    w.shape[i] = part.shape[i];
  }
  if (w.size() == 0) return;
  w.plane[0] = whole.marks->data() + offset;
  const View p = view(part);
  if (into_whole)
    unite(w, p);
  else
    unite(p, w);
}

void mark_block(const BlockTrace& trace, const std::vector<Marked>& arguments,
                const std::vector<Marked>& results) {
  std::vector<Marks> marks(trace.entries.size());
  auto of = [&](int entry) {
    const auto& e = trace.entries[size_t(entry)];
    Marks& m = marks[size_t(entry)];
    if (m.empty()) m = e.origin.empty() ? Marks(size_t(product_of(e.shape)), 0) : e.origin;
    return Marked{e.shape, &m};
  };
  for (size_t n = trace.entries.size(); n-- > 0;) {
    const BlockTrace::Entry& e = trace.entries[n];
    if (marks[n].empty() && e.origin.empty() && !is_store(e.op->kind)) continue;  // unmarked
    const Marked result = of(int(n));
    if (result.marks->empty()) continue;  // an empty tile
    std::vector<Marked> operands = mapped(e.operands, [&](int part) { return of(part); });
    if (is_load(e.op->kind)) {
      mark_region(arguments[size_t(e.outside)], result, e.begin, true);
    } else if (is_store(e.op->kind)) {
      if (!results[size_t(e.outside)].marks->empty())
        mark_region(results[size_t(e.outside)], operands[0], e.begin, false);
    } else if (e.op->kind == OpKind::Accum) {
      const auto& a = e.graph->attrs<AccumAttrs>(*e.op);
      std::vector<int64_t> begin(e.shape.size(), 0);
      for (const Marked& m : operands) {
        mark_region(result, m, begin, false);
        if (a.kind == AccumKind::Concat) begin[size_t(a.axis)] += m.shape[size_t(a.axis)];
      }
    } else if (e.op->kind == OpKind::AccumRescale) {
      for (const Marked& m : operands) mark_broadcast(m, result);
    } else {
      mark_operands(*e.graph, *e.op, operands, result, e.index);
    }
  }
}

}  // namespace tessera
