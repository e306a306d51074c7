// Evaluation over finite fields: inputs, outputs, comparison, and drawing again what is undefined.
#include <algorithm>
#include <set>

#include "eval/eval.h"
#include "eval/interpreter.h"

namespace tessera {
namespace {

// Calls f(W()) for the word type of a model.
template <class F>
auto with_word(FieldSize size, F f) {
  return size == FieldSize::Bits31 ? f(uint32_t()) : f(uint64_t());
}

// Why a graph has no meaning in the field; empty when it has one.
std::string unsupported_in(const Graph& g, const FieldModel& model) {
  auto constant = [&](const Rational& value, DType dtype, const char* what) -> std::string {
    if (!is_float(dtype)) return "";
    if (!value.finite()) {
      return value.negative() ? "" : std::string(what) + " " + value.str() + " has no field meaning";
    }
    for (int c = 0; c < 3; ++c) {
      if (value.den() % int64_t(model.prime(c)) == 0) return "a constant's denominator is divisible by the prime";
    }
    return "";
  };
  if (g.level() == Level::Kernel) {
    for (const Tensor& t : g.tensors()) {
      if (!is_static(t.type.shape)) return "symbolic shapes";
    }
  }
  for (const Op& op : g.ops()) {
    std::string why;
    if (op.kind == OpKind::Const) {
      const auto& a = g.attrs<ConstAttrs>(op);
      why = constant(a.value, a.type.dtype, "the constant");
    } else if (op.kind == OpKind::Pad) {
      why = constant(g.attrs<PadAttrs>(op).value, g.type(op.result()).dtype, "padding with");
    }
    if (!why.empty()) return why;
  }
  for (const Graph& body : g.bodies()) {
    std::string why = unsupported_in(body, model);
    if (!why.empty()) return why;
  }
  return "";
}

// A view of an input array's planes, without copying.
View view_of(const FieldArray& a) {
  View v;
  v.dtype = a.dtype;
  v.set_shape(a.shape);
  v.set_contiguous_strides();
  auto* self = const_cast<FieldArray*>(&a);  // inputs are only read
  if (is_float(a.dtype)) {
    for (size_t c = 0; c < 3; ++c) v.plane[c] = self->components[c].as<void>();
  } else {
    v.plane[0] = self->ints.data();
  }
  v.plane[kFlagPlane] = self->flags.as<void>();
  return v;
}

FieldArray array_of(const View& v, const FieldModel& model, Components components) {
  FieldArray a;
  a.dtype = v.dtype;
  a.field = model.size();
  a.shape.assign(v.shape.begin(), v.shape.begin() + v.rank);
  const size_t n = size_t(v.size()), word = model.size() == FieldSize::Bits31 ? 4 : 8;
  View to = v;
  to.plane = {};
  to.set_contiguous_strides();
  if (is_float(v.dtype)) {
    for (size_t c = 0; c < 3; ++c) {
      if (!(components >> c & 1)) continue;
      a.components[c] = Buffer(n * word);
      to.plane[c] = a.components[c].as<void>();
    }
  } else {
    a.ints.resize(n);
    to.plane[0] = a.ints.data();
  }
  if (v.flagged()) {
    a.flags = Buffer(n);
    to.plane[kFlagPlane] = a.flags.as<void>();
  }
  copy_view(to, v, word);
  return a;
}

void check_inputs(const Graph& g, const FieldModel& model, const std::vector<FieldArray>& inputs,
                  const Demand& demand) {
  auto bad = [](const std::string& what) { throw Error(ErrorKind::BadInput, "eval_field: " + what); };
  if (g.level() != Level::Kernel) bad("only kernel graphs can be evaluated");
  if (inputs.size() != g.inputs().size()) bad("wrong number of inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorId t = g.inputs()[i];
    const Type& type = g.type(t);
    const FieldArray& a = inputs[i];
    if (a.dtype != type.dtype || a.shape != extents(type.shape)) {
      bad("input " + std::to_string(i) + " must be " + type.str());
    }
    if (a.field != model.size()) bad("input " + std::to_string(i) + " is of another field");
    if (is_float(type.dtype) && (demand.of(t) & ~a.present()) != 0) {
      bad("input " + std::to_string(i) + " lacks a component that is needed");
    }
  }
}

template <class W>
typename Interpreter<FieldDomain<W>>::Opaque opaque_function(const FieldModel& model) {
  const ChainTables<W>& chain = model.tables().get<W>();
  // A keyed function of all operands together; every result element has its own.
  return [&chain](const Op& op, const std::vector<View>& in, std::vector<View>& out) {
    const auto& a = std::get<OpaqueAttrs>(op.attrs);
    uint64_t hash = chain.function_key(Keyed::Opaque, 0);
    for (const std::string* text : {&a.function, &a.payload}) {
      for (unsigned char ch : *text) hash = keyed_hash(hash, ch);
      hash = keyed_hash(hash, 256);
    }
    bool defined = true;
    for (const View& v : in) {
      const int64_t n = v.size();
      Walker<1> walk(v, {&v});
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = walk.offset(0);
        hash = keyed_hash(hash, is_float(v.dtype) ? uint64_t(v.as<const W>(0)[at])
                                                  : uint64_t(v.as<const int64_t>(0)[at]));
        if (v.flagged() && v.as<const uint8_t>(kFlagPlane)[at] != 0) defined = false;
        if (i + 1 < n) walk.advance(1);
      }
      hash = keyed_hash(hash, uint64_t(n));
    }
    for (size_t r = 0; r < out.size(); ++r) {
      const View& v = out[r];
      for (int64_t i = 0; i < v.size(); ++i) {
        const uint64_t element = keyed_hash(derive_key(hash, r), uint64_t(i));
        if (!is_float(v.dtype)) v.as<int64_t>(0)[i] = wrap_to(v.dtype, int64_t(element));
        for (int c = 0; is_float(v.dtype) && c < 3; ++c) {
          if (v.plane[size_t(c)] == nullptr) continue;
          v.as<W>(c)[i] = chain.element(c, derive_key(element, uint64_t(c)));
        }
        v.as<uint8_t>(kFlagPlane)[i] = defined ? FieldArray::Defined : FieldArray::Undefined;
      }
    }
  };
}

template <class W>
void set_inputs(const Graph& g, const std::vector<FieldArray>& inputs, std::vector<View>& values) {
  values.assign(g.tensors().size(), View());
  for (size_t i = 0; i < inputs.size(); ++i) values[g.inputs()[i].index] = view_of(inputs[i]);
}

template <class W>
FieldResult evaluate(const Graph& g, const FieldModel& model, const std::vector<FieldArray>& inputs,
                     const FieldOptions& options, const Demand& demand) {
  Interpreter<FieldDomain<W>> interpreter(FieldDomain<W>(model), options.pool, opaque_function<W>(model));
  std::vector<View> values;
  set_inputs<W>(g, inputs, values);
  std::vector<Arena> arenas;
  interpreter.run(g, demand, values, arenas);
  FieldResult result;
  for (TensorId t : g.outputs()) {
    result.outputs.push_back(array_of(values[t.index], model, options.outputs));
  }
  return result;
}

// Draws component c of element i of input k for the given round.
struct InputStream {
  uint64_t seed;
  CounterRng at(size_t k, int component, int round) const {
    return CounterRng{derive_key(derive_key(derive_key(seed, 0x696e707574), uint64_t(k)),
                                 uint64_t(round) * 4 + uint64_t(component))};
  }
};

// --- undefined elements, traced back to inputs

constexpr uint8_t kFeedsBad = 1, kFeedsGood = 2;

// Operators where elements can become undefined although their operands are defined.
bool is_partial(OpKind kind) {
  return FieldDomain<uint32_t>::may_flag(kind) || kind == OpKind::Kernel || kind == OpKind::Thread ||
         kind == OpKind::Gather;
}

// Marks on the elements of every kernel-level tensor: does the element feed a bad or a good result
// of a partial operator?
class Marks {
 public:
  explicit Marks(const Graph& g) : g_(g), marks_(g.tensors().size()) {}

  std::vector<uint8_t>& of(TensorId t) {
    auto& m = marks_[t.index];
    if (m.empty()) m.assign(size_t(num_elements(g_.type(t).shape)), 0);
    return m;
  }
  // Carries the marks of an operator's results over to its operands.
  void backward(const Op& op, const std::vector<NDArray>& index_values) {
    bool any = false;
    for (uint32_t r = 0; r < op.num_results; ++r) any = any || !marks_[op.result(r).index].empty();
    if (!any || op.inputs.empty()) return;
    const TensorId result = op.result();
    if (has(op.kind, algebra::Pointwise)) {
      for (TensorId t : op.inputs) spread(t, result);
    } else if (op.kind == OpKind::Gather) {
      movement(op, index_values);
    } else if (has(op.kind, algebra::Movement)) {
      movement(op, {});
    } else if (op.kind == OpKind::Sum || op.kind == OpKind::Mean || op.kind == OpKind::ReduceMax ||
               op.kind == OpKind::ReduceMin) {
      reduction(op);
    } else if (op.kind == OpKind::Matmul) {
      matmul(op.inputs[0], op.inputs[1], result);
    } else if (op.kind == OpKind::ConcatMatmul) {
      matmul(op.inputs[0], op.inputs[2], result);
      matmul(op.inputs[1], op.inputs[3], result);
    } else {  // anything may feed anything
      uint8_t all = 0;
      for (uint32_t r = 0; r < op.num_results; ++r) {
        for (uint8_t m : of(op.result(r))) all |= m;
      }
      for (TensorId t : op.inputs) {
        for (uint8_t& m : of(t)) m |= all;
      }
    }
  }

 private:
  View view(TensorId t) {
    View v;
    v.set_shape(extents(g_.type(t).shape));
    v.set_contiguous_strides();
    v.plane[0] = of(t).data();
    return v;
  }
  static void unite(const View& into, const View& from) {
    Walker<2> walk(into, {&into, &from});
    for (int64_t i = 0, n = into.size(); i < n; ++i) {
      into.as<uint8_t>(0)[walk.offset(0)] |= from.as<uint8_t>(0)[walk.offset(1)];
      if (i + 1 < n) walk.advance(1);
    }
  }
  void spread(TensorId operand, TensorId result) {
    const View r = view(result);
    unite(stretched(view(operand), r.rank, r.shape), r);
  }
  void reduction(const Op& op) {
    const auto& a = g_.attrs<ReduceAttrs>(op);
    View r = view(op.result());
    const View x = view(op.inputs[0]);
    if (!a.keepdims) {
      for (int axis : a.axes) r.insert_axis(axis, 1, 0);
    }
    unite(x, stretched(r, x.rank, x.shape));
  }
  void matmul(TensorId a, TensorId b, TensorId result) {
    const View r = view(result);
    View rows = r, columns = r;  // marks by row and by column, for every batch
    std::vector<uint8_t> by_row(size_t(r.size() / r.shape[size_t(r.rank - 1)]), 0);
    std::vector<uint8_t> by_column(size_t(r.size() / r.shape[size_t(r.rank - 2)]), 0);
    rows.shape[size_t(r.rank - 1)] = columns.shape[size_t(r.rank - 2)] = 1;
    rows.set_contiguous_strides();
    columns.set_contiguous_strides();
    rows.plane[0] = by_row.data();
    columns.plane[0] = by_column.data();
    unite(stretched(rows, r.rank, r.shape), r);
    unite(stretched(columns, r.rank, r.shape), r);
    auto into = [&](TensorId t, const View& marks) {
      const View v = view(t);
      std::array<int64_t, kMaxRank> shape = r.shape;
      shape[size_t(r.rank - 2)] = v.shape[size_t(v.rank - 2)];
      shape[size_t(r.rank - 1)] = v.shape[size_t(v.rank - 1)];
      unite(stretched(v, r.rank, shape), stretched(marks, r.rank, shape));
    };
    into(a, rows);
    into(b, columns);
  }
  // Moves element numbers instead of values and sends each mark to the element's origin.
  void movement(const Op& op, const std::vector<NDArray>& index_values) {
    Graph mover;
    std::vector<TensorId> operands;
    std::vector<NDArray> numbers;
    int64_t offset = 1;  // 0 stands for padding and cleared triangles
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      Type type = g_.type(op.inputs[i]);
      if (op.kind == OpKind::Gather && i == 1) {
        operands.push_back(mover.add_input(type));
        numbers.push_back(index_values[0]);
        continue;
      }
      type.dtype = DType::I64;
      operands.push_back(mover.add_input(type));
      NDArray a = NDArray::zeros(DType::I64, extents(type.shape));
      for (int64_t& x : a.ints) x = offset++;
      numbers.push_back(std::move(a));
    }
    Attrs attrs = op.attrs;
    if (op.kind == OpKind::Pad) std::get<PadAttrs>(attrs).value = Rational(0);
    mover.add_output(mover.add(op.kind, operands, attrs));
    const NDArray from = eval(mover, numbers)[0];
    const std::vector<uint8_t> result = of(op.result());
    std::vector<int64_t> start = {1};
    for (TensorId t : op.inputs) start.push_back(start.back() + int64_t(of(t).size()));
    for (size_t i = 0; i < result.size(); ++i) {
      if (result[i] == 0 || from.ints[i] == 0) continue;
      const size_t k = size_t(std::upper_bound(start.begin(), start.end(), from.ints[i]) - start.begin()) - 1;
      of(op.inputs[k])[size_t(from.ints[i] - start[k])] |= result[i];
    }
  }

  const Graph& g_;
  std::vector<std::vector<uint8_t>> marks_;
};

NDArray ints_of(const View& v) {
  NDArray a;
  a.dtype = v.dtype;
  a.shape.assign(v.shape.begin(), v.shape.begin() + v.rank);
  a.ints.resize(size_t(v.size()));
  View to = v;
  to.plane = {};
  to.plane[0] = a.ints.data();
  to.set_contiguous_strides();
  View from = v;
  from.plane[kFlagPlane] = nullptr;
  copy_view(to, from, 8);
  return a;
}

// The demand restricted to what decides definedness: ancestors of needed partial operators.
Demand definedness_demand(const Graph& g, Demand demand) {
  std::vector<bool> needed(g.tensors().size(), false);
  for (size_t n = g.ops().size(); n-- > 0;) {
    const Op& op = g.ops()[n];
    if (!demand.any(op)) continue;
    bool run = is_partial(op.kind);
    for (uint32_t r = 0; r < op.num_results; ++r) run = run || needed[op.result(r).index];
    for (uint32_t r = 0; r < op.num_results; ++r) {
      if (!run) demand.tensors[op.result(r).index] = 0;
    }
    if (run) {
      for (TensorId t : op.inputs) needed[t.index] = true;
    }
  }
  return demand;
}

template <class W>
RedrawReport redraw(const Graph& g, const FieldModel& model, std::vector<FieldArray>& inputs,
                    int rounds, const FieldOptions& options, const Demand& full) {
  const Demand demand = definedness_demand(g, full);
  RedrawReport report;
  bool everything = false;  // the last round found nothing that feeds bad elements only
  for (report.rounds = 1;; ++report.rounds) {
    Interpreter<FieldDomain<W>> interpreter(FieldDomain<W>(model), options.pool, opaque_function<W>(model));
    std::vector<View> values;
    set_inputs<W>(g, inputs, values);
    std::vector<Arena> arenas;
    Marks marks(g);
    std::vector<NDArray> indices(g.tensors().size());
    report.still_undefined = 0;
    interpreter.run(g, demand, values, arenas, [&](const Op& op, const std::vector<View>& all) {
      if (op.kind == OpKind::Gather) indices[op.inputs[1].index] = ints_of(all[op.inputs[1].index]);
      if (!is_partial(op.kind)) return;
      for (uint32_t r = 0; r < op.num_results; ++r) {
        const View& out = all[op.result(r).index];
        if (demand.of(op.result(r)) == 0) continue;
        // bad: undefined here although the operands are defined there
        std::vector<uint8_t>& m = marks.of(op.result(r));
        std::vector<View> in;
        bool flagged_operand = false;
        for (TensorId t : op.inputs) {
          const View& v = all[t.index];
          flagged_operand = flagged_operand || v.flagged();
          if (has(op.kind, algebra::Pointwise) && v.flagged()) in.push_back(stretched(v, out.rank, out.shape));
        }
        Walker<1> walk(out, {&out});
        std::vector<Walker<1>> operand;
        for (const View& v : in) operand.emplace_back(v, std::array<const View*, 1>{&v});
        for (size_t i = 0; i < m.size(); ++i) {
          const bool bad = out.flagged() && out.as<uint8_t>(kFlagPlane)[walk.offset(0)] == FieldArray::Undefined;
          bool inherited = !has(op.kind, algebra::Pointwise) && flagged_operand;
          for (size_t k = 0; k < in.size(); ++k) {
            inherited = inherited || in[k].as<uint8_t>(kFlagPlane)[operand[k].offset(0)] != 0;
          }
          if (!inherited) {
            m[i] |= bad ? kFeedsBad : kFeedsGood;
            report.still_undefined += bad;
          }
          if (i + 1 < m.size()) {
            walk.advance(1);
            for (Walker<1>& w : operand) w.advance(1);
          }
        }
      }
    });
    if (report.still_undefined == 0 || report.rounds > rounds) return report;
    for (size_t n = g.ops().size(); n-- > 0;) {
      const Op& op = g.ops()[n];
      std::vector<NDArray> index;
      if (op.kind == OpKind::Gather) index.push_back(indices[op.inputs[1].index]);
      if (op.kind == OpKind::Gather && index[0].ints.empty()) continue;
      marks.backward(op, index);
    }
    int64_t redrawn = 0;
    for (int pass = everything ? 1 : 0; pass < 2 && redrawn == 0; ++pass) {
      for (size_t k = 0; k < inputs.size(); ++k) {
        FieldArray& a = inputs[k];
        const std::vector<uint8_t>& m = marks.of(g.inputs()[k]);
        if (!is_float(a.dtype)) continue;
        for (int c = 0; c < 3; ++c) {
          if (a.components[size_t(c)].empty()) continue;
          const CounterRng rng = InputStream{model.seed()}.at(k, c, report.rounds);
          const UniformBelow uniform(model.prime(c));
          W* words = a.components[size_t(c)].template as<W>();
          for (size_t i = 0; i < m.size(); ++i) {
            if (pass == 0 ? m[i] == kFeedsBad : (m[i] & kFeedsBad) != 0) {
              words[i] = W(uniform.at(rng, i));
              ++redrawn;
            }
          }
        }
      }
    }
    report.redrawn += redrawn;
    if (redrawn == 0) return report;
    // what only shared elements feed would never change: every eighth round draws those too
    everything = report.rounds % 8 == 7;
  }
}

void find_modelled(const Graph& g, bool& found) {
  for (const Op& op : g.ops()) {
    switch (op.kind) {
      case OpKind::Abs: case OpKind::Sign: case OpKind::Sqrt: case OpKind::Rsqrt: case OpKind::Log:
      case OpKind::Sin: case OpKind::Cos: case OpKind::Erf: case OpKind::Relu: case OpKind::Gelu:
      case OpKind::Max: case OpKind::Min: case OpKind::Lt: case OpKind::Le: case OpKind::Gt:
      case OpKind::Ge: case OpKind::ReduceMax: case OpKind::ReduceMin: case OpKind::AccumRescale:
      case OpKind::Opaque: found = true; break;
      case OpKind::Pow: found = found || !g.attrs<PowAttrs>(op).exponent.is_integer(); break;
      case OpKind::Cast: found = found || (!op.inputs.empty() && is_float(g.type(op.inputs[0]).dtype) &&
                                           !is_float(g.type(op.result()).dtype)); break;
      case OpKind::Accum: {
        const AccumKind kind = g.attrs<AccumAttrs>(op).kind;
        found = found || kind == AccumKind::Max || kind == AccumKind::Min;
        break;
      }
      case OpKind::Input: case OpKind::Const: case OpKind::Iota: case OpKind::Neg: case OpKind::Sqr:
      case OpKind::Exp: case OpKind::Tanh: case OpKind::Sigmoid: case OpKind::Silu:
      case OpKind::GeluTanh: case OpKind::Not: case OpKind::Add: case OpKind::Sub: case OpKind::Mul:
      case OpKind::Div: case OpKind::And: case OpKind::Or: case OpKind::Eq: case OpKind::Ne:
      case OpKind::Where: case OpKind::Sum: case OpKind::Mean: case OpKind::Cumsum:
      case OpKind::Matmul: case OpKind::ConcatMatmul: case OpKind::Transpose: case OpKind::Reshape:
      case OpKind::Broadcast: case OpKind::Unsqueeze: case OpKind::Squeeze: case OpKind::Repeat:
      case OpKind::Concat: case OpKind::Stack: case OpKind::Slice: case OpKind::Pad:
      case OpKind::Triu: case OpKind::Tril: case OpKind::Gather: case OpKind::Kernel:
      case OpKind::Thread: case OpKind::Iter: case OpKind::Save: break;
    }
  }
  for (const Graph& body : g.bodies()) find_modelled(body, found);
}

}  // namespace

std::vector<FieldArray> draw_inputs(const Graph& graph, const FieldModel& model,
                                    const std::vector<Components>& components, int64_t int_bound,
                                    ThreadPool* pool) {
  CHECK(components.size() == graph.inputs().size()) << "one component set per input";
  std::vector<FieldArray> inputs;
  for (size_t k = 0; k < graph.inputs().size(); ++k) {
    const Type& type = graph.type(graph.inputs()[k]);
    FieldArray a;
    a.dtype = type.dtype;
    a.field = model.size();
    a.shape = extents(type.shape);
    const size_t n = size_t(a.size());
    if (!is_float(type.dtype)) {
      const UniformBelow uniform(type.dtype == DType::Bool ? 2 : uint64_t(int_bound));
      const CounterRng rng = InputStream{model.seed()}.at(k, 3, 0);
      a.ints.resize(n);
      for (size_t i = 0; i < n; ++i) a.ints[i] = wrap_to(type.dtype, int64_t(uniform.at(rng, i)));
    }
    for (int c = 0; is_float(type.dtype) && c < 3; ++c) {
      if (!(components[k] >> c & 1)) continue;
      const UniformBelow uniform(model.prime(c));
      const CounterRng rng = InputStream{model.seed()}.at(k, c, 0);
      with_word(model.size(), [&](auto word) {
        using W = decltype(word);
        a.components[size_t(c)] = Buffer(n * sizeof(W));
        W* to = a.components[size_t(c)].template as<W>();
        parallel_for(pool, int64_t(n), 1 << 16, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) to[i] = W(uniform.at(rng, uint64_t(i)));
        });
      });
    }
    inputs.push_back(std::move(a));
  }
  return inputs;
}

FieldResult eval_field(const Graph& graph, const FieldModel& model,
                       const std::vector<FieldArray>& inputs, const FieldOptions& options) {
  FieldResult result;
  result.unsupported = unsupported_in(graph, model);
  if (!result.ok()) return result;
  const Demand demand = find_demand(graph, options.outputs);
  check_inputs(graph, model, inputs, demand);
  return with_word(model.size(), [&](auto word) {
    return evaluate<decltype(word)>(graph, model, inputs, options, demand);
  });
}

RedrawReport redraw_inputs(const Graph& graph, const FieldModel& model,
                           std::vector<FieldArray>& inputs, int rounds, const FieldOptions& options) {
  RedrawReport report;
  report.unsupported = unsupported_in(graph, model);
  if (!report.unsupported.empty()) return report;
  const Demand demand = find_demand(graph, options.outputs);
  check_inputs(graph, model, inputs, demand);
  return with_word(model.size(), [&](auto word) {
    return redraw<decltype(word)>(graph, model, inputs, rounds, options, demand);
  });
}

FieldComparison compare(const FieldArray& original, const FieldArray& candidate) {
  CHECK(original.shape == candidate.shape && original.field == candidate.field &&
        is_float(original.dtype) == is_float(candidate.dtype)) << "compare: different types";
  FieldComparison r;
  const uint8_t components = original.present() & candidate.present();
  const int64_t n = original.size();
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t mine = original.flag(i), other = candidate.flag(i);
    if (mine == FieldArray::Undefined) {
      ++r.skipped;
      continue;
    }
    ++r.compared;
    bool differs = false;
    if (other == FieldArray::Undefined) {
      ++r.undefined;
      continue;
    }
    if (mine != other) {
      differs = true;
    } else if (mine == FieldArray::Defined) {
      if (!is_float(original.dtype)) differs = original.ints[size_t(i)] != candidate.ints[size_t(i)];
      for (int c = 0; is_float(original.dtype) && c < 3; ++c) {
        if (components >> c & 1) differs = differs || original.word(c, i) != candidate.word(c, i);
      }
    }
    if (!differs) continue;
    if (r.different++ == 0) r.first_difference = i;
  }
  return r;
}

bool has_modelled_operators(const Graph& graph) {
  bool found = false;
  find_modelled(graph, found);
  return found;
}

}  // namespace tessera
