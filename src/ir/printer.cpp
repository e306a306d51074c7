#include <set>

#include "base/interruption.h"
#include "base/text.h"
#include "ir/text.h"
#include "ir/written.h"

namespace tessera {
namespace {

constexpr const char* kGridNames = "xyz";
constexpr const char* kLoopNames = "ijkl";

bool is_identifier(const std::string& s) {
  if (s.empty() || (s[0] >= '0' && s[0] <= '9')) return false;
  for (char c : s)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
          c == '.'))
      return false;
  return s[0] != '.' && s != "return";
}

// Every tensor gets a unique identifier: its own name where it can have it.
std::vector<std::string> unique_names(const Graph& g) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const Tensor& t : g.tensors())
    if (is_identifier(t.name)) taken.insert(t.name);
  std::set<std::string> used;
  for (size_t i = 0; i < g.tensors().size(); i++) {
    std::string n = g.tensors()[i].name;
    if (!is_identifier(n) || used.count(n)) {
      n = "t" + std::to_string(i);
      while (taken.count(n)) n += "_";
      taken.insert(n);
    }
    used.insert(n);
    names.push_back(n);
  }
  return names;
}

std::string quoted(const std::string& s) {
  static const char* hex = "0123456789abcdef";
  std::string r = "\"";
  for (unsigned char c : s)
    if (c == '"' || c == '\\')
      r += '\\', r += char(c);
    else if (c >= 0x20 && c < 0x7f)
      r += char(c);
    else
      r += "\\x", r += hex[c >> 4], r += hex[c & 15];
  return r + "\"";
}

std::string text(bool b) { return b ? "true" : "false"; }
std::string text(int i) { return std::to_string(i); }
std::string text(int64_t i) { return std::to_string(i); }
std::string text(const Rational& r) { return r.str(); }
std::string text(DType d) { return name(d); }
std::string text(AccumKind k) { return name(k); }
std::string text(const std::string& s) { return quoted(s); }
std::string text(const Shape& s) { return str(s); }
std::string text(const std::vector<int>& v) { return "[" + joined(v) + "]"; }
std::string text(const std::vector<int64_t>& v) { return "[" + joined(v) + "]"; }
template <class Map> std::string map_text(const Map& map, const char* names) {
  std::string s = "{";
  for (size_t i = 0; i < map.size(); i++)
    if (map[i] >= 0)
      s += (s.size() > 1 ? ", " : "") + std::string(1, names[i]) + ":" + std::to_string(map[i]);
  return s + "}";
}
std::string text(const GridMap& m) { return map_text(m, kGridNames); }
std::string text(const LoopMap& m) { return map_text(m, kLoopNames); }

// "{axes=[1], keepdims=true}"; fields that have their default value are left out.
std::string attrs_text(const Op& op) {
  std::string s;
  std::visit(
      [&](const auto& a) {
        using A = std::decay_t<decltype(a)>;
        const A defaults{};
        std::vector<std::string> default_texts;
        A::fields(defaults, [&](const char*, const auto& v) { default_texts.push_back(text(v)); });
        size_t i = 0;
        A::fields(a, [&](const char* key, const auto& v) {
          std::string t = text(v);
          if (t != default_texts[i++]) s += (s.empty() ? "" : ", ") + std::string(key) + "=" + t;
        });
      },
      op.attrs);
  return s.empty() ? s : " {" + s + "}";
}

std::string dims_text(const std::vector<int64_t>& dims, const char* names) {
  std::string s = "[";
  for (size_t i = 0; i < dims.size(); i++)
    s += (i ? ", " : "") + std::string(1, names[i]) + "=" + std::to_string(dims[i]);
  return s + "]";
}

class Printer {
 public:
  std::string out;

  void body(const Graph& g, int indent) {
    auto names = unique_names(g);
    std::string pad(size_t(indent), ' ');
    for (const Op& op : g.ops()) out += pad + statement(g, op, names, indent) + "\n";
    out += pad + "return";
    for (size_t i = 0; i < g.outputs().size(); i++)
      out += (i ? ", " : " ") + names[g.outputs()[i].index];
    out += "\n";
  }

  std::string statement(const Graph& g, const Op& op, const std::vector<std::string>& names,
                        int indent) {
    interruption_point();
    std::string s;
    for (uint32_t i = 0; i < op.num_results; i++) s += (i ? ", " : "") + names[op.result(i).index];
    s += " = ";
    s += name(op.kind);
    for (size_t i = 0; i < op.inputs.size(); i++) s += (i ? ", " : " ") + names[op.inputs[i].index];
    s += attrs_text(op);
    if (op.body.valid()) {
      const Graph& b = g.body(op);
      if (b.level() == Level::Block) {
        if (read_written(b.name())) s += " {" + quoted(b.name()) + "}";
        s += " grid" + dims_text(b.grid(), kGridNames);
        if (!b.loops().empty()) s += " loops" + dims_text(b.loops(), kLoopNames);
      }
      if (indent >= 0) {
        Printer inner;
        inner.body(b, indent + 2);
        s += " {\n" + inner.out + std::string(size_t(indent), ' ') + "}";
      }
    }
    s += " : ";
    for (uint32_t i = 0; i < op.num_results; i++) s += (i ? ", " : "") + g.type(op.result(i)).str();
    return s;
  }
};

}  // namespace

std::string print(const Graph& g) {
  Printer p;
  p.out = "graph " + (is_identifier(g.name()) ? g.name() : quoted(g.name()));
  if (g.level() != Level::Kernel) {
    p.out += std::string(" ") + name(g.level());
    if (g.level() == Level::Block) {
      p.out += " grid" + dims_text(g.grid(), kGridNames);
      if (!g.loops().empty()) p.out += " loops" + dims_text(g.loops(), kLoopNames);
    }
  }
  p.out += " {\n";
  p.body(g, 2);
  p.out += "}\n";
  return p.out;
}

std::string print_op(const Graph& g, OpId id) {
  Printer p;
  return p.statement(g, g.op(id), unique_names(g), -1);
}

std::vector<std::string> print_ops(const Graph& g) {
  const auto names = unique_names(g);
  Printer p;
  return mapped(g.ops(), [&](const Op& op) { return p.statement(g, op, names, -1); });
}

namespace {

// What these tensors are computed from, and their names in it.
std::string print_nameless(const Graph& g, const std::vector<TensorId>& of) {
  std::vector<std::string> names(g.tensors().size());
  for (size_t i = 0; i < g.inputs().size(); ++i)
    names[g.inputs()[i].index] = "in" + std::to_string(i);
  std::vector<bool> wanted(g.ops().size(), false);
  for (TensorId t : of) wanted[g.tensor(t).producer.index] = true;
  for (size_t i = g.ops().size(); i-- > 0;)
    if (wanted[i])
      for (TensorId t : g.ops()[i].inputs) wanted[g.tensor(t).producer.index] = true;
  std::string lines, results;
  size_t made = 0;
  Printer p;
  for (size_t i = 0; i < g.ops().size(); ++i) {
    if (!wanted[i]) continue;
    const Op& op = g.ops()[i];
    if (!is_input(op.kind))
      for (uint32_t r = 0; r < op.num_results; ++r)
        names[op.result(r).index] = "t" + std::to_string(made++);
    lines += p.statement(g, op, names, 0) + "\n";
  }
  for (TensorId t : of) results += (results.empty() ? "" : ", ") + names[t.index];
  return lines + results;
}

}  // namespace

std::string print_cone(const Graph& g, TensorId of) { return print_nameless(g, {of}); }

std::string print_canonical(const Graph& g) {
  std::string inputs;
  for (TensorId t : g.inputs()) inputs += g.type(t).str() + (g.is_weight(t) ? " weight\n" : "\n");
  return inputs + print_nameless(g, g.outputs());
}

}  // namespace tessera
