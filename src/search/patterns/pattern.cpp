#include "search/patterns/pattern.h"

#include <algorithm>

#include "base/error.h"
#include "base/names.h"
#include "base/text.h"
#include "ir/block.h"
#include "ir/text.h"
#include "search/patterns/code.h"

namespace tessera::patterns {
namespace {

// Replaces names in the statements of a body, and remembers for messages where characters came
// from. Lines stay lines.
class Expander {
 public:
  Expander(const Pattern& p, const Body& body, const Values& values, DType dtype)
      : p_(p), body_(body), values_(values), dtype_(dtype) {}

  std::string run() {
    const std::string& t = body_.text;
    // The graph begins on the line of the brace.
    out_ = std::string(size_t(body_.line - 1), '\n');
    line_ = body_.line;
    emit("graph " + p_.name_for_graph() + " {", 1);
    bool arguments_due = body_.kernel;
    if (body_.kernel) emit(arguments() + " " + result() + " = kernel " + names() + " ", 1);
    int col = body_.col;
    for (size_t at = 0; at < t.size();) {
      if (t[at] == '\n') {
        out_ += '\n';
        line_++;
        at++;
        col = 1;
      } else if (t.compare(at, 2, "//") == 0) {
        while (at < t.size() && t[at] != '\n') at++;
      } else if (is_alpha(t[at])) {
        const size_t from = at;
        while (at < t.size() && (is_alpha(t[at]) || is_digit(t[at]))) at++;
        const std::string word = t.substr(from, at - from);
        if ((word == "grid" || word == "loops") && at < t.size() && t[at] == '[')
          at = counts(from, at, col);
        else
          emit(replaced(word), col);
        col += int(at - from);
      } else if (is_digit(t[at])) {
        const size_t from = at;
        while (at < t.size() && (is_alpha(t[at]) || is_digit(t[at]))) at++;
        emit(t.substr(from, at - from), col);
        col += int(at - from);
      } else {
        emit(std::string(1, t[at]), col++);
        if (t[at++] == '{' && arguments_due) {
          emit(arguments(), col);
          arguments_due = false;
        }
      }
    }
    emit(body_.kernel ? " return " + result() + " }" : "}", col);
    return out_;
  }

  // The place in the file of a place in the text made.
  SourceLocation origin(const SourceLocation& l) const {
    SourceLocation found{p_.file, l.line, 1};
    for (const auto& [line, made, col] : pieces_)
      if (line == l.line && made <= l.col) found.col = col;
    return found;
  }

 private:
  struct Piece {
    int line, made, col;
  };

  std::string result() const { return p_.def.tensor(p_.def.outputs()[0]).name; }
  std::string names() const {
    return joined(
        p_.def.inputs(), ", ", [&](TensorId t) { return p_.def.tensor(t).name; });
  }
  // The inputs of the def, as statements.
  std::string arguments() const {
    std::string text;
    for (TensorId t : p_.def.inputs()) {
      const std::string shape = joined(p_.def.tensor(t).type.shape, ",", [&](const Dim& d) {
        return d.symbolic() ? replaced(d.symbol) : d.str();
      });
      text += " " + p_.def.tensor(t).name + " = input : " + name(dtype_) + "[" + shape + "]";
    }
    return text;
  }

  void emit(const std::string& text, int col) {
    const size_t start = out_.rfind('\n');
    pieces_.push_back(
        {line_, int(out_.size() - (start == std::string::npos ? 0 : start + 1)) + 1, col});
    out_ += text;
  }
  std::string replaced(const std::string& word) const {
    if (word == "f32") return name(dtype_);
    const auto found = values_.find(word);
    return found == values_.end() ? word : std::to_string(found->second);
  }
  // "grid[x=M/R, y=N/64]": numbers of blocks, each quotient rounded up.
  size_t counts(size_t from, size_t at, int col) {
    const std::string& t = body_.text;
    std::string made = t.substr(from, at - from);
    const auto fail = [&](const std::string& what, size_t where) {
      throw Error(ErrorKind::BadInput, what,
                  SourceLocation{p_.file, line_, col + int(where - from)});
    };
    const auto blanks = [&] {
      while (at < t.size() && t[at] == ' ') at++;
    };
    while (at < t.size() && t[at] != ']' && t[at] != '\n') {
      made += t[at];
      if (t[at++] != '=') continue;
      std::optional<int64_t> value;
      for (char op = '*'; op != 0;) {
        blanks();
        const size_t begin = at;
        while (at < t.size() && (is_alpha(t[at]) || is_digit(t[at]))) at++;
        const std::string word = t.substr(begin, at - begin);
        int64_t n = 0;
        if (const auto known = values_.find(word); known != values_.end())
          n = known->second;
        else if (!word.empty() && word.size() < 16 && std::ranges::all_of(word, is_digit))
          n = std::stoll(word);
        else
          fail("expected a number, a symbol of the def or a tuned name, not '" + word + "'", begin);
        if (n < 1) fail("counts of blocks and iterations are at least 1", begin);
        if (op == '*' && value && *value > kMaxElements / n) fail("more than 2^40 blocks", begin);
        value = !value ? n : op == '*' ? *value * n : ceil_div(*value, n);
        blanks();
        op = at < t.size() && (t[at] == '/' || t[at] == '*') ? t[at++] : char(0);
      }
      made += std::to_string(*value);
    }
    emit(made, col);
    return at;
  }

  const Pattern& p_;
  const Body& body_;
  const Values& values_;
  DType dtype_;
  std::string out_;
  int line_ = 1;
  std::vector<Piece> pieces_;
};

}  // namespace

std::string str(const Values& values) {
  return joined(
      values, " ", [](const auto& v) { return v.first + "=" + num(v.second); });
}

std::optional<int64_t> Term::value(const Values& values) const {
  int64_t v = 1;
  for (const Factor& f : factors) {
    int64_t n = f.number;
    if (!f.name.empty()) {
      const auto found = values.find(f.name);
      if (found == values.end()) return std::nullopt;
      n = found->second;
    }
    if (f.op == '*') {
      if (__builtin_mul_overflow(v, n, &v)) return std::nullopt;
    } else if (n == 0) {
      return std::nullopt;
    } else {
      v = f.op == '/' ? v / n : v % n;
    }
  }
  return v;
}

std::string Term::str() const {
  std::string text;
  for (size_t i = 0; i < factors.size(); i++) {
    const Factor& f = factors[i];
    if (i > 0) text += std::string(" ") + f.op + " ";
    text += f.name.empty() ? std::to_string(f.number) : f.name;
  }
  return text;
}

bool Condition::holds(const Values& values, DType dtype) const {
  if (comparison.empty()) return std::ranges::find(dtypes, dtype) != dtypes.end();
  if (comparison == "layout") return true;
  const auto a = left.value(values), b = right.value(values);
  if (comparison == "align") return a && *a * size_in_bytes(dtype) % bytes == 0;
  if (!a || !b) return false;
  if (comparison == "<=") return *a <= *b;
  if (comparison == "<") return *a < *b;
  if (comparison == ">=") return *a >= *b;
  if (comparison == ">") return *a > *b;
  return comparison == "==" ? *a == *b : *a != *b;
}

std::string Condition::str() const {
  if (comparison == "layout") return "layout " + operand + (transposed ? " transposed" : " rows");
  if (comparison == "align") return "align " + operand + " " + std::to_string(bytes);
  if (!comparison.empty()) return left.str() + " " + comparison + " " + right.str();
  std::string text = "dtype in";
  for (DType d : dtypes) text += std::string(" ") + name(d);
  return text;
}

const char* name(Language language) {
  return name_of<Language::OneDnn>(language, {"", "cpp", "cuda", "raw", "torch", "onednn"});
}

std::string CallArgument::str() const {
  const std::string text = key.empty() ? "" : key + "=";
  if (!word.empty()) return text + word;
  return text + "[" + joined(list, ", ", [](const CallArgument& a) { return a.str(); }) + "]";
}

std::optional<size_t> Pattern::input(const std::string& wanted) const {
  for (size_t i = 0; i < def.inputs().size(); i++)
    if (def.tensor(def.inputs()[i]).name == wanted) return i;
  return std::nullopt;
}
bool Pattern::is_number(size_t i) const {
  return std::ranges::count(numbers, def.tensor(def.inputs()[i]).name) > 0;
}
bool Pattern::has_prologue(size_t i) const {
  return std::ranges::count(prologues, def.tensor(def.inputs()[i]).name) > 0;
}

Values Pattern::example_values() const {
  Values values = settings(*this)[0];
  int64_t size = 16;
  for (const std::string& s : symbols()) values[s] = size += 8;
  return values;
}

std::vector<std::string> Pattern::symbols() const {
  std::vector<std::string> found;
  for (TensorId t : def.inputs())
    for (const Dim& d : def.tensor(t).type.shape)
      if (d.symbolic() && std::ranges::count(found, d.symbol) == 0) found.push_back(d.symbol);
  return found;
}

std::string Pattern::name_for_graph() const {
  std::string text = name;
  for (char& c : text)
    if (!is_alpha(c) && !is_digit(c)) c = '_';
  return text;
}

Graph with_dtype(const Graph& g, DType from, DType to) {
  if (from == to) return g;
  const auto changed = [&](Type t) {
    if (t.dtype == from) t.dtype = to;
    return t;
  };
  return rewritten(g, [&](const Op& op, Graph& out, std::vector<TensorId>& map) {
    const Tensor& result = g.tensor(op.result());
    TensorId& made = map[op.result().index];
    if (op.kind == OpKind::Input)
      made = out.add_input(changed(result.type), result.name, g.is_weight(op.result()));
    else if (op.constant())
      made = out.add_const(*op.constant(), changed(result.type), result.name);
    else if (op.kind == OpKind::Iota)
      made = out.add(op.kind, {}, IotaAttrs{g.attrs<IotaAttrs>(op).axis, changed(result.type)},
                     result.name);
    else
      return false;
    return true;
  });
}

Graph bound_def(const Pattern& p, const Values& symbols, DType dtype) {
  std::vector<std::pair<std::string, int64_t>> values;
  for (const std::string& s : p.symbols())
    if (const auto found = symbols.find(s); found != symbols.end()) values.push_back(*found);
  return with_dtype(bind_symbols(p.def, values), DType::F32, dtype);
}

Graph bound_body(const Pattern& p, const Body& body, const Values& values, DType dtype) {
  if (body.written()) return written_body(p, body, values, dtype);
  Expander expander(p, body, values, dtype);
  const std::string text = expander.run();
  try {
    return parse(text, p.file);
  } catch (const Error& e) {
    if (!e.location()) throw Error(e.kind(), e.message(), SourceLocation{p.file, body.line, 1});
    throw Error(e.kind(), e.message(), expander.origin(*e.location()));
  }
}

std::vector<Values> settings(const Pattern& p) {
  std::vector<Values> all = {{}};
  for (const auto& [name, values] : p.tune) {
    std::vector<Values> more;
    for (const Values& before : all) {
      for (int64_t v : values) {
        more.push_back(before);
        more.back()[name] = v;
      }
    }
    all = std::move(more);
  }
  return all;
}

std::string print(const Pattern& p) {
  const auto list = [](const std::vector<std::string>& words) {
    return " " +
           joined(
               words, ", ", [](const std::string& w) { return w; }) +
           "\n";
  };
  const auto guard = [&](const std::vector<Condition>& all) -> std::string {
    if (all.empty()) return "";
    return " when " + joined(all, ", ", [](const Condition& c) { return c.str(); });
  };
  std::string text = "pattern " + p.name + "\n  def {" + p.def_text + "}\n";
  if (!p.numbers.empty()) text += "  numbers" + list(p.numbers);
  if (!p.prologues.empty()) text += "  prologue" + list(p.prologues);
  if (p.epilogue) text += "  epilogue\n";
  if (!p.when.empty()) text += " " + guard(p.when) + "\n";
  if (!p.loops_text.empty()) text += "  loops {" + p.loops_text + "}\n";
  for (const auto& [name, values] : p.tune)
    text += "  tune " + name + " = " + joined(values, " ") + "\n";
  for (const Body& b : p.bodies) {
    if (!b.library.empty() || b.called()) {
      text += "  call " + (b.library.empty() ? name(b.language) : b.library) +
              (b.language == Language::Torch ? " " + b.text : "") + guard(b.when) + "\n";
      continue;
    }
    if (b.written()) {
      text += std::string("  code ") + b.target + (b.language == Language::Raw ? " raw" : "");
      for (size_t i = 0; i < b.units.size(); i++)
        text += (i ? ", " : " for ") + b.units[i].first + " = " + b.units[i].second.str();
      if (!b.threads.factors.empty()) text += " threads " + b.threads.str();
      text += guard(b.when) + " {" + b.text + "}\n";
      continue;
    }
    text += std::string(b.kernel ? "  kernel" : "  body") +
            (b.target.empty() ? "" : " for " + b.target) + guard(b.when);
    text += b.kernel ? " " + b.text + "\n" : " {" + b.text + "}\n";
  }
  return text;
}

}  // namespace tessera::patterns
