#include "kernel/ir.h"

#include "base/names.h"

namespace tessera::kernel {

const char* name(Space space) {
  return name_of<Space::Stack>(space, {"argument", "weights", "workspace", "stack"});
}
const char* name(LoopKind kind) {
  return name_of<LoopKind::Vector>(kind, {"serial", "parallel", "vector"});
}

Scalar make(DType dtype, ScalarNode node) {
  return {dtype, std::make_shared<const ScalarNode>(std::move(node))};
}
Scalar literal(DType dtype, const Rational& value) { return make(dtype, Literal{value}); }
Scalar apply(OpKind kind, std::vector<Scalar> operands, Attrs attrs) {
  const auto* to = std::get_if<CastAttrs>(&attrs);
  const DType dtype = to ? to->dtype
                      : is_comparison(kind) || has(kind, algebra::Bools)
                          ? DType::Bool
                          : operands[first_value(kind)].dtype;
  return make(dtype, Apply{kind, std::move(attrs), std::move(operands)});
}
Scalar cast(const Scalar& x, DType dtype) {
  return x.dtype == dtype ? x : apply(OpKind::Cast, {x}, CastAttrs{dtype});
}

int64_t Function::bytes(Space space) const {
  int64_t end = 0;
  for (const Buffer& b : buffers)
    if (b.space == space) end = std::max(end, b.offset + b.elements * size_in_bytes(b.dtype));
  return end;
}

// --- for readers

std::string text(const Function& f, const Scalar& scalar) {
  return std::visit(Cases{[](const Literal& x) { return x.value.str(); },
                          [](const Variable& x) { return x.name; },
                          [](const Expr& x) { return "(" + x.text() + ")"; },
                          [&](const Load& x) {
                            return f.buffers[size_t(x.buffer)].name + "[" + x.offset.text() + "]";
                          },
                          [&](const Apply& x) {
                            std::string s =
                                x.kind == OpKind::Cast ? name(scalar.dtype) : name(x.kind);
                            s += "(";
                            for (size_t i = 0; i < x.operands.size(); ++i)
                              s += (i ? ", " : "") + text(f, x.operands[i]);
                            return s + ")";
                          },
                          [&](const Select& x) {
                            return "(" + x.when.text() + " ? " + text(f, x.of[0]) + " : " +
                                   text(f, x.of[1]) + ")";
                          }},
                    *scalar.node);
}

namespace {

void add_lines(const Function& f, const Body& body, int depth, std::string& out) {
  const auto line = [&](const std::string& s) { out += std::string(size_t(2 * depth), ' ') + s; };
  const auto place = [&](int buffer, const Expr& offset) {
    return f.buffers[size_t(buffer)].name + "[" + offset.text() + "]";
  };
  for (const Statement& s : body)
    std::visit(
        Cases{[&](const Block& x) {
                line("{  // " + x.note + "\n");
                add_lines(f, x.body, depth + 1, out);
                line("}\n");
              },
              [&](const Loop& x) {
                line("for " + std::string(name(x.kind)) + " " + x.variable + " in [0, " +
                     x.extent.text() + ") {\n");
                add_lines(f, x.body, depth + 1, out);
                line("}\n");
              },
              [&](const If& x) {
                line("if " + x.when.text() + " {\n");
                add_lines(f, x.then, depth + 1, out);
                if (!x.otherwise.empty()) {
                  line("} else {\n");
                  add_lines(f, x.otherwise, depth + 1, out);
                }
                line("}\n");
              },
              [&](const Let& x) { line("let " + x.name + " = " + text(f, x.value) + "\n"); },
              [&](const Index& x) {
                line("index " + x.name + " in [" + std::to_string(x.range.least) + ", " +
                     std::to_string(x.range.most) + "] = " + text(f, x.value) + "\n");
              },
              [&](const Local& x) { line("local " + f.buffers[size_t(x.buffer)].name + "\n"); },
              [&](const Store& x) {
                line(place(x.buffer, x.offset) + " = " + text(f, x.value) + "\n");
              },
              [&](const Accumulate& x) {
                line(place(x.buffer, x.offset) + " " + name(x.fold) + "= " + text(f, x.value) +
                     "\n");
              }},
        s.is);
}

}  // namespace

std::string text(const Function& f) {
  std::string out = "function " + f.name + "\n";
  for (const Buffer& b : f.buffers)
    out += "  " + std::string(name(b.space)) + (b.written ? " result " : " ") + b.name + ": " +
           name(b.dtype) + "[" + std::to_string(b.elements) + "]\n";
  add_lines(f, f.body, 1, out);
  return out;
}

}  // namespace tessera::kernel
