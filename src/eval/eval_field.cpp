// Evaluation over finite fields: inputs, outputs, comparison.
#include "eval/field_eval.h"
#include "ir/walk.h"

namespace tessera {

template class Interpreter<FieldDomain<uint32_t>>;
template class Interpreter<FieldDomain<uint64_t>>;

std::string unsupported_in(const Graph& g, const FieldModel& model) {
  auto constant = [&](const Rational& value, DType dtype, const char* what) -> std::string {
    if (!is_float(dtype)) return "";
    if (!value.finite())
      return value.negative() ? ""
                              : std::string(what) + " " + value.str() + " has no field meaning";
    for (int c = 0; c < 3; ++c)
      if (value.den() % int64_t(model.prime(c)) == 0)
        return "a constant's denominator is divisible by the prime";
    return "";
  };
  if (g.level() == Level::Kernel) {
    for (const Tensor& t : g.tensors())
      if (!is_static(t.type.shape)) return "symbolic shapes";
  }
  for (const Op& op : g.ops()) {
    std::string why;
    if (is_opaque(op.kind)) return "an opaque operator";
    if (op.constant()) {
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

View view_of(const FieldArray& a) {
  View v;
  v.dtype = a.dtype;
  v.set_shape(a.shape);
  v.set_contiguous_strides();
  auto* self = const_cast<FieldArray*>(&a);  // inputs are only read
  if (is_float(a.dtype))
    for (size_t c = 0; c < 3; ++c) v.plane[c] = self->components[c].as<void>();
  else
    v.plane[0] = self->ints.data();
  v.plane[kFlagPlane] = self->flags.as<void>();
  return v;
}

void check_field_inputs(const Graph& g, const FieldModel& model,
                        const std::vector<FieldArray>& inputs, const Demand& demand) {
  auto bad = [](const std::string& what) { bad_input("eval_field: " + what); };
  if (g.level() != Level::Kernel) bad("only kernel graphs can be evaluated");
  if (inputs.size() != g.inputs().size()) bad("wrong number of inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorId t = g.inputs()[i];
    const Type& type = g.type(t);
    const FieldArray& a = inputs[i];
    if (a.dtype != type.dtype || a.shape != extents(type.shape))
      bad("input " + std::to_string(i) + " must be " + type.str());
    if (a.field != model.size()) bad("input " + std::to_string(i) + " is of another field");
    if (is_float(type.dtype) && (demand.of(t) & ~a.present()) != 0)
      bad("input " + std::to_string(i) + " lacks a component that is needed");
  }
}

std::vector<View> input_views(const Graph& g, const std::vector<FieldArray>& inputs) {
  std::vector<View> values(g.tensors().size());
  for (size_t i = 0; i < inputs.size(); ++i) values[g.inputs()[i].index] = view_of(inputs[i]);
  return values;
}

namespace {

FieldArray array_of(const View& v, const FieldModel& model, Components components) {
  FieldArray a;
  a.dtype = v.dtype;
  a.field = model.size();
  a.shape.assign(v.shape.begin(), v.shape.begin() + v.rank);
  const size_t n = size_t(v.size()), word = model.size() == FieldSize::Bits61 ? 8 : 4;
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

template <class W>
FieldResult evaluate(const Graph& g, const FieldModel& model, const std::vector<FieldArray>& inputs,
                     const FieldOptions& options, const Demand& demand) {
  FieldDomain<W> domain(model);
  domain.shared.deemed = options.deemed;
  domain.shared.characters = options.characters;
  Interpreter<FieldDomain<W>> interpreter(domain, options.pool);
  interpreter.set_sample_blocks(options.sample_blocks);
  std::vector<View> values = input_views(g, inputs);
  std::vector<Arena> arenas;
  interpreter.run(g, demand, values, arenas);
  FieldResult result;
  for (TensorId t : g.outputs())
    result.outputs.push_back(array_of(values[t.index], model, options.outputs));
  return result;
}

bool is_modelled(const Graph& g, const Op& op) {
  const auto* power = std::get_if<PowAttrs>(&op.attrs);
  if (power) return !power->exponent.is_integer();
  if (op.kind == OpKind::Cast)
    return is_float(g.type(op.inputs[0]).dtype) && !is_float(g.type(op.result()).dtype);
  return op.kind == OpKind::Accum ? decides(op) : !has(op.kind, algebra::InField);
}
// Whether exponentials are nested deeper than the chain of primes: the last component of one is
// a keyed function.
bool exceeds_chain(const Graph& g, const Demand& demand) {
  for (const Op& op : g.ops()) {
    if (op.body.valid()) {
      if (demand.any(op) && exceeds_chain(g.body(op), demand.bodies[op.body.index])) return true;
      continue;
    }
    if (has(op.kind, algebra::Exponential) && (demand.of(op.result()) & 4)) return true;
  }
  return false;
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
  check_field_inputs(graph, model, inputs, demand);
  return with_word(model.size(), [&](auto word) {
    return evaluate<decltype(word)>(graph, model, inputs, options, demand);
  });
}

FieldComparison compare(const FieldArray& original, const FieldArray& candidate) {
  CHECK(original.shape == candidate.shape && original.field == candidate.field &&
        is_float(original.dtype) == is_float(candidate.dtype))
      << "compare: different types";
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
      if (!is_float(original.dtype))
        differs = original.ints[size_t(i)] != candidate.ints[size_t(i)];
      for (int c = 0; is_float(original.dtype) && c < 3; ++c)
        if (components >> c & 1) differs = differs || original.word(c, i) != candidate.word(c, i);
    }
    if (!differs) continue;
    if (r.different++ == 0) r.first_difference = i;
  }
  return r;
}

bool has_modelled_operators(const Graph& graph) {
  return any_op(graph, is_modelled) || exceeds_chain(graph, find_demand(graph, Components(1)));
}

}  // namespace tessera
