#include "backend/cpu/image_finish.h"

#include <map>

#include "backend/fmt.h"
#include "backend/nest.h"
#include "base/check.h"

namespace tessera {

Finish make_finish(const std::string& name, const Graph& graph, const ImageStep& step,
                   UnitContext& unit) {
  const Type& type = graph.type(step.result);
  const std::vector<int64_t> shape = extents(type.shape);
  const int64_t channels = shape.back(), pixels = num_elements(type.shape) / channels;
  const std::string c = std::to_string(channels);
  Finish finish;
  finish.name = name;
  finish.more = int(step.more.size());
  Code code;
  code.open(fmt("static void $0_finish(const float* sums, long pitch, float* out, void** more, "
                "long pixel, long column, long rows, long columns)",
                name));
  code.line(fmt("float* const to = out + pixel * $0 + column;", c));
  code.line("(void)more;");
  KernelValues kernel;
  kernel.rounds = unit.rounds;
  const auto add = [&](Value v, bool whole_rows, bool whole_columns) {
    v.extents = {{whole_rows ? pixels : 1, "", 0}, {whole_columns ? channels : 1, "", 0}};
    kernel.values.push_back(std::move(v));
    return int(kernel.values.size()) - 1;
  };
  const auto memory = [&](const std::string& pointer, std::vector<int64_t> strides) {
    Value v;
    v.in_memory = true;
    v.memory = {pointer, DType::F32, std::move(strides)};
    return v;
  };
  // The loop over rows moves the pointers, so that any pitch will do.
  std::map<uint32_t, int> value_of;
  code.open("for (long row = 0; row < rows; ++row)");
  const TensorId sums = graph.op(step.after[0]).result();
  code.line("const float* const s = sums + row * pitch;");
  value_of[sums.index] = add(memory("s", {0, 1}), true, true);
  for (size_t i = 0; i < step.more.size(); ++i) {
    const std::string e = "e" + std::to_string(i);
    const std::string given = fmt("(const float*)more[$0]", i);
    const Meets how = meets(graph.type(step.more[i]), type);
    std::string offset;
    if (how == Meets::Elements) offset = fmt(" + (pixel + row) * $0 + column", c);
    if (how == Meets::Channels) offset = " + column";
    if (how == Meets::Pixels) offset = " + (pixel + row)";
    const bool columns = how == Meets::Elements || how == Meets::Channels;
    CHECK(how != Meets::Otherwise);
    code.line(fmt("const float* const $0 = $1$2;", e, given, offset));
    value_of[step.more[i].index] = add(memory(e, {0, columns ? 1 : 0}), true, columns);
  }
  std::vector<int> made{value_of[sums.index]};
  for (size_t i = 1; i < step.after.size(); ++i) {
    const Op& op = graph.op(step.after[i]);
    Value v{.kind = op.kind, .attrs = op.attrs};
    for (TensorId t : op.inputs) {
      if (value_of.count(t.index) == 0) {
        const Op& constant = graph.producer(t);
        CHECK(constant.kind == OpKind::Const);
        const Value x{.kind = OpKind::Const, .attrs = constant.attrs};
        value_of[t.index] = add(x, false, false);
      }
      v.inputs.push_back(value_of[t.index]);
    }
    made.push_back(value_of[op.result().index] = add(v, true, true));
  }
  std::vector<int> touched;
  Nest nest(kernel, unit.prelude, touched);
  const Expr j = nest.loop(Expr::variable("columns", {0, channels}));
  std::string x;
  for (const int id : made) {  // each once, however many want it
    x = nest.element(id, {Expr(), j});
    nest.known(id, {Expr(), j}, x);
  }
  nest.statement(nest.depth() - 1,
                 store({fmt("(to + row * $0)", c), DType::F32, {}}, j, x, unit.prelude));
  nest.emit(code);
  code.close(2);
  finish.text = code.text();
  return finish;
}

}  // namespace tessera
