#include "search/patterns/learn.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "ir/block.h"
#include "ir/text.h"
#include "search/patterns/check.h"
#include "search/patterns/pattern.h"
#include "search/patterns/region.h"

namespace tessera::patterns {
namespace {

using Symbols = std::map<int64_t, std::string>;  // by extent

// A pattern's element type is written f32; only programs of one type have one.
std::optional<Graph> in_f32(const Graph& g, DType dtype) {
  for (const Op& op : g.ops())
    if (g.type(op.result()).dtype != dtype || op.kind == OpKind::Cast || op.num_results != 1)
      return std::nullopt;
  return with_dtype(g, dtype, DType::F32);
}

std::string words(const std::vector<TensorId>& tensors, const std::vector<std::string>& names) {
  return joined(
      tensors, ", ", [&](TensorId t) { return names[t.index]; });
}

// What stands in braces behind an operator, and the type where it is not inferred.
std::string attributes(const Graph& g, OpId id) {
  const std::string line = print_op(g, id);
  const size_t open = line.find('{');
  return open == std::string::npos ? "" : line.substr(open, line.rfind('}') + 1 - open);
}

// Statements of a program in the text format, under names that no symbol has.
class Writer {
 public:
  Writer(DType dtype, const Symbols& symbols) : dtype_(dtype), symbols_(symbols) {}

  // `inputs`: names of the inputs by position; a kernel graph's own statements and its return.
  std::string statements(const Graph& g, const std::vector<std::string>& inputs, bool with_inputs) {
    std::vector<std::string> names(g.tensors().size());
    taken_.insert(inputs.begin(), inputs.end());
    for (size_t i = 0; i < inputs.size(); i++) names[g.inputs()[i].index] = inputs[i];
    write(g, names, with_inputs);
    line("return " + words(g.outputs(), names));
    return std::move(text_);
  }

 private:
  void line(const std::string& text) { text_ += std::string(indent_, ' ') + text + "\n"; }
  std::string fresh() {
    std::string made = "t" + std::to_string(count_++);
    return taken_.count(made) ? fresh() : made;
  }

  std::string type(const Type& t) const {
    const std::string shape = joined(t.shape, ",", [&](const Dim& d) {
      const auto symbol = symbols_.find(d.extent);
      return symbol == symbols_.end() ? d.str() : symbol->second;
    });
    return std::string(t.dtype == dtype_ ? "f32" : name(t.dtype)) + "[" + shape + "]";
  }
  std::string number(const Rational& r) const {
    for (const auto& [extent, symbol] : symbols_)
      if (r == Rational::ratio(1, extent)) return "1/" + symbol;
    return r.str();
  }
  // So many parts of an extent, as a quotient that keeps the size of a part.
  std::string parts(int64_t count, int64_t extent) const {
    const auto symbol = symbols_.find(extent);
    const int64_t part = ceil_div(extent, count);
    if (symbol == symbols_.end() || ceil_div(extent, part) != count) return std::to_string(count);
    return symbol->second + (part == 1 ? "" : "/" + std::to_string(part));
  }
  // The extent that a grid dimension or a loop of a block graph splits; 1 where none.
  static int64_t split_extent(const Graph& block, size_t at, bool loop) {
    int64_t extent = 1;
    const auto look = [&](const auto& map, const Shape& shape) {
      if (at < map.size() && map[at] >= 0 && extent == 1) extent = shape[size_t(map[at])].extent;
    };
    for (const Op& op : block.ops()) {
      if (is_load(op.kind)) {
        const IterAttrs& a = block.attrs<IterAttrs>(op);
        const Shape& shape = block.type(op.inputs[0]).shape;
        loop ? look(a.fmap, shape) : look(a.imap, shape);
      } else if (is_store(op.kind)) {
        const SaveAttrs& a = block.attrs<SaveAttrs>(op);
        loop ? look(a.fmap, a.type.shape) : look(a.omap, a.type.shape);
      }
    }
    return extent;
  }
  std::string counts(const Graph& block) const {
    const auto list = [&](const std::vector<int64_t>& all, const std::string& letters, bool loop) {
      std::string text;
      for (size_t i = 0; i < all.size(); i++)
        text += (i ? ", " : "") + std::string(1, letters[i]) + "=" +
                parts(all[i], split_extent(block, i, loop));
      return text;
    };
    return "grid[" + list(block.grid(), "xyz", false) + "]" +
           (block.loops().empty() ? "" : " loops[" + list(block.loops(), "ijkl", true) + "]");
  }

  // Operators of thread graphs are written as the block's own: back ends fuse them again.
  void write(const Graph& g, std::vector<std::string>& names, bool with_inputs) {
    for (uint32_t i = 0; i < g.ops().size(); i++) {
      const Op& op = g.op(OpId(i));
      if (is_input(op.kind)) {
        if (names[op.result().index].empty()) names[op.result().index] = fresh();
        if (with_inputs) line(names[op.result().index] + " = input : " + type(g.type(op.result())));
        continue;
      }
      if (is_thread(op.kind)) {
        const Graph& inner = g.body(op);
        std::vector<std::string> of(inner.tensors().size());
        for (size_t k = 0; k < op.inputs.size(); k++)
          of[inner.inputs()[k].index] = names[op.inputs[k].index];
        write(inner, of, false);
        for (uint32_t r = 0; r < op.num_results; r++)
          names[op.result(r).index] = of[inner.outputs()[r].index];
        continue;
      }
      std::vector<TensorId> results;
      for (uint32_t r = 0; r < op.num_results; r++) {
        results.push_back(op.result(r));
        names[op.result(r).index] = fresh();
      }
      const std::string head = words(results, names) + " = " + name(op.kind) +
                               (op.inputs.empty() ? "" : " " + words(op.inputs, names));
      if (is_kernel(op.kind)) {
        const Graph& block = g.body(op);
        line(head + " " + counts(block) + " {");
        indent_ += 2;
        std::vector<std::string> of(block.tensors().size());
        write(block, of, true);
        line("return " + words(block.outputs(), of));
        indent_ -= 2;
        line("}");
      } else if (op.constant()) {
        line(head + " {value=" + number(*op.constant()) + "} : " + type(g.type(op.result())));
      } else {
        const std::string own = attributes(g, OpId(i));
        line(head + (own.empty() ? "" : " " + own) +
             (is_store(op.kind) ? " : " + type(g.type(op.result())) : ""));
      }
    }
  }

  const DType dtype_;
  const Symbols& symbols_;
  std::string text_;
  std::set<std::string> taken_;
  size_t indent_ = 4, count_ = 0;
};

}  // namespace

std::optional<std::string> meaning(const Graph& spec, const std::vector<std::string>& inputs,
                                   const Symbols& symbols) {
  if (spec.outputs().size() != 1) return std::nullopt;
  const std::optional<Graph> plain = in_f32(spec, spec.type(spec.outputs()[0]).dtype);
  std::map<int64_t, Dim> sizes;
  for (const auto& [extent, symbol] : symbols) sizes[extent] = Dim(symbol);
  const std::optional<Graph> open = plain ? with_sizes(*plain, sizes) : std::nullopt;
  if (!open) return std::nullopt;
  return Writer(DType::F32, {}).statements(*open, inputs, true);
}

std::optional<std::string> learnt_pattern(const std::string& name, const Graph& spec,
                                          const Graph& kernels, const SemanticKey& key,
                                          double seconds, const std::atomic<bool>* cancel) {
  const WallClock clock;
  const DType dtype = spec.type(spec.outputs()[0]).dtype;
  if (kernels.outputs().size() != 1) return std::nullopt;
  std::vector<std::string> inputs(spec.inputs().size());
  for (size_t i = 0; i < key.order.size(); i++) inputs[key.order[i]] = "x" + std::to_string(i);
  const bool into_kernel = is_kernel(kernels.producer(kernels.outputs()[0]).kind);
  for (const bool any_size : {true, false}) {
    Symbols symbols;
    for (size_t i = 0; i < key.sizes.size() && any_size; i++)
      symbols[key.sizes[i]] = "N" + std::to_string(i);
    const std::optional<std::string> def = meaning(spec, inputs, symbols);
    if (!def) continue;
    for (const bool epilogue : {true, false}) {
      if (epilogue && !into_kernel) continue;
      const std::string text = "pattern " + name + "\n  def {\n" + *def + "  }\n" +
                               (epilogue ? "  epilogue\n" : "") + "  when dtype in " +
                               tessera::name(dtype) + "\n  body {\n" +
                               Writer(dtype, symbols).statements(kernels, inputs, true) + "  }\n";
      try {
        const Pattern p = parse_pattern(text, name);
        CheckOptions options;
        options.cancel = cancel;
        options.sizes = any_size ? 2 : 1;
        options.seconds = std::max(0.0, seconds - clock.seconds());
        if (check(p, options).ok()) return text;
      } catch (const Error&) {  // it does not hold in this form
      }
    }
  }
  return std::nullopt;
}

}  // namespace tessera::patterns
