#include "search/patterns/code.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"
#include "ir/block.h"
#include "ir/build.h"

namespace tessera::patterns {
namespace {

constexpr size_t kMaxBodyBytes = 64 << 10;
constexpr int64_t kMaxArray = 48 << 10;  // bytes of the arrays of a body

struct Token {
  enum Kind { Name, Number, Mark, End } kind = End;
  std::string text;
  int line = 0, col = 0;
  size_t at = 0;  // in the body's text
};

// What a body may say: statements and types of C++, and functions by their number of arguments.
const std::set<std::string> kStatements = {"if",    "else", "for",   "while", "do",
                                           "break", "true", "false", "const", "continue"};
const std::set<std::string> kTypes = {"float", "int", "long", "bool", "vec"};
const std::map<std::string, int> kFunctions = {{"sqrt", 1},    {"exp", 1}, {"log", 1}, {"tanh", 1},
                                               {"sigmoid", 1}, {"erf", 1}, {"abs", 1}, {"floor", 1},
                                               {"max", 2},     {"min", 2}, {"fma", 3}};
const std::map<std::string, int> kCpuFunctions = {{"fill", 1}, {"add_lanes", 1}, {"max_lanes", 1}};
const std::map<std::string, int> kCudaFunctions = {{"sync", 0},      {"shuffle_xor", 2},
                                                   {"warp_sum", 1},  {"warp_max", 1},
                                                   {"block_sum", 1}, {"block_max", 1}};
// Of raw CUDA: what would leave the kernel, or reach the compiler rather than the device.
const std::set<std::string> kRawForbidden = {
    "asm",        "__asm",     "__asm__",      "goto",     "extern", "static",       "template",
    "using",      "namespace", "typedef",      "operator", "printf", "malloc",       "free",
    "new",        "delete",    "__pragma",     "_Pragma",  "assert", "__assertfail", "__trap",
    "trap",       "sizeof",    "typeid",       "throw",    "try",    "catch",        "__device__",
    "__global__", "__host__",  "__attribute__"};

class Translator {
 public:
  Translator(const Pattern& p, const Body& b, const Values& values,
             const std::map<std::string, std::string>& numbers, const std::string& real)
      : p_(p), b_(b), values_(values), numbers_(numbers), real_(real), line_(b.line), col_(b.col),
        cuda_(b.language != Language::Cpp), raw_(b.language == Language::Raw) {}

  CodeText run() {
    if (b_.text.size() > kMaxBodyBytes) fail_at({}, "a body of more than 64 KiB");
    result_ = p_.def.tensor(p_.def.outputs()[0]).name;
    for (const auto& [name, term] : b_.units) {
      Token here;
      here.line = b_.line, here.col = b_.col;
      declare(name, here);
      out_.units.emplace_back(name, count(term));
    }
    if (cuda_) {
      out_.threads = count(b_.threads);
      if (out_.threads % 32 != 0 || out_.threads > 1024)
        fail_at({}, "a block has 32, 64, … or 1024 threads, not " + std::to_string(out_.threads) +
                        at_sizes(std::ranges::any_of(b_.threads.factors, [](const Term::Factor& f) {
                          return !f.name.empty();
                        })));
    }
    for (next(); token_.kind != Token::End; next()) statement_token();
    if (!open_.empty()) fail("'(' is not closed");
    if (!stores_) fail("the body stores nothing: store(" + result_ + ", …, v) writes its result");
    return std::move(out_);
  }

 private:
  struct Paren {
    std::string hole;  // load, store, …; empty: none
    int rank = 0, extra = 0, commas = 0, line = 0;
  };

  [[noreturn]] void fail_at(Token t, const std::string& what) const {
    if (t.line == 0) t.line = b_.line, t.col = 1;
    throw Error(ErrorKind::BadInput, what, SourceLocation{p_.file, t.line, t.col});
  }
  [[noreturn]] void fail(const std::string& what) const { fail_at(token_, what); }

  // What sizes bring about may be otherwise at others.
  static std::string at_sizes(bool named) { return named ? " at these sizes" : ""; }
  // How many, rounded up.
  int64_t count(const Term& term) const {
    int64_t n = 1;
    for (const Term::Factor& f : term.factors) {
      const auto known = values_.find(f.name);
      const int64_t v = f.name.empty() ? f.number : known == values_.end() ? 0 : known->second;
      if (v < 1) fail_at({}, "'" + term.str() + "' is not at least 1 here");
      if (f.op == '%') fail_at({}, "'" + term.str() + "': counts are products and quotients");
      if (f.op == '*' && n > kMaxElements / v) fail_at({}, "more than 2^40 iterations");
      n = f.op == '*' ? n * v : ceil_div(n, v);
    }
    return n;
  }

  Token read() {
    const std::string& t = b_.text;
    while (at_ < t.size()) {
      if (t[at_] == '\n')
        line_++, col_ = 1, at_++;
      else if (t[at_] == ' ' || t[at_] == '\t' || t[at_] == '\r')
        col_++, at_++;
      else if (t.compare(at_, 2, "//") == 0)
        while (at_ < t.size() && t[at_] != '\n') at_++;
      else
        break;
    }
    Token token;
    token.line = line_, token.col = col_, token.at = at_;
    if (at_ >= t.size()) return token;
    const size_t from = at_;
    if (is_alpha(t[at_])) {
      token.kind = Token::Name;
      while (at_ < t.size() && (is_alpha(t[at_]) || is_digit(t[at_]))) at_++;
      if (at_ - from > 60) fail_at(token, "a name of more than 60 characters");
    } else if (is_digit(t[at_])) {
      token.kind = Token::Number;
      while (at_ < t.size() && is_digit(t[at_])) at_++;
      if (at_ < t.size() && t[at_] == '.') {
        at_++;
        while (at_ < t.size() && is_digit(t[at_])) at_++;
      }
      if (at_ < t.size() && t[at_] == 'e') {
        at_++;
        if (at_ < t.size() && (t[at_] == '-' || t[at_] == '+')) at_++;
        if (at_ >= t.size() || !is_digit(t[at_])) fail_at(token, "a number without its exponent");
        while (at_ < t.size() && is_digit(t[at_])) at_++;
      }
      while (raw_ && at_ < t.size() && (is_alpha(t[at_]) || is_digit(t[at_]))) at_++;
      if (at_ < t.size() && (is_alpha(t[at_]) || t[at_] == '.') && !raw_)
        fail_at(token, "numbers are written as 12, 0.5 or 1e-6");
      if (at_ - from > 40) fail_at(token, "a number of more than 40 characters");
    } else {
      token.kind = Token::Mark;
      static const std::vector<std::string> marks = {
          "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "++",
          "--", "+",  "-",  "*",  "/",  "%",  "=",  "<",  ">",  "!",  "?",
          ":",  ";",  ",",  "(",  ")",  "{",  "}",  "[",  "]"};
      static const std::string more = "&|^~.";
      for (const std::string& m : marks)
        if (t.compare(at_, m.size(), m) == 0) {
          at_ += m.size();
          break;
        }
      if (at_ == from && raw_ && more.find(t[at_]) != std::string::npos) at_++;
      if (at_ == from) {
        const std::string shown = t.substr(at_, (t[at_] & 0x80) != 0 ? 0 : 1);
        fail_at(token,
                (shown.empty() ? std::string("a character outside ASCII") : "'" + shown + "'") +
                    " has no place in a body: " + why_not(t[at_]));
      }
    }
    token.text = t.substr(from, at_ - from);
    col_ += int(at_ - from);
    return token;
  }
  static std::string why_not(char c) {
    if (c == '#') return "there is no preprocessor";
    if (c == '"' || c == '\'') return "there are no strings and characters";
    if (c == '&') return "there are no addresses; 'and' is &&";
    if (c == '.') return "there are no members, and numbers begin with a digit";
    return "it is made of numbers, names and operators of arithmetic";
  }

  // The next token, which keeps the text's lines.
  void next() {
    token_ = read();
    while (made_line_ < token_.line) {
      out_.text += '\n';
      made_line_++;
    }
  }
  Token peek() {
    const size_t at = at_;
    const int line = line_, col = col_;
    Token t = read();
    at_ = at, line_ = line, col_ = col;
    return t;
  }
  void put(const std::string& text) { out_.text += text + " "; }
  void expect(const char* mark) {
    next();
    if (token_.text != mark) fail("expected '" + std::string(mark) + "'");
  }

  void declare(const std::string& name, const Token& where) {
    if (kTypes.count(name) || kStatements.count(name) || is_function(name) || is_hole(name) ||
        is_fixed(name))
      fail_at(where, "'" + name + "' is a word of bodies and cannot be a name");
    if (values_.count(name) || numbers_.count(name) || p_.input(name) || name == result_)
      fail_at(where, "'" + name + "' is a name of the def");
    declared_.insert(name);
  }
  bool is_function(const std::string& name) const {
    return kFunctions.count(name) || (cuda_ ? kCudaFunctions : kCpuFunctions).count(name);
  }
  bool is_hole(const std::string& name) const {
    return name == "load" || name == "store" || (!cuda_ && (name == "vload" || name == "vstore"));
  }
  bool is_fixed(const std::string& name) const {
    return name == "lowest" || (cuda_ ? name == "thread" || name == "threads" : name == "lanes");
  }

  void statement_token() {
    if (token_.kind == Token::Number) {
      const bool real = token_.text.find_first_of(".e") != std::string::npos;
      if (!real && token_.text.size() > 18) fail("a number beyond 10^18");
      return put(token_.text + (real && real_ == "float" && !raw_ ? "f" : ""));
    }
    if (token_.kind == Token::Mark) return mark();
    const std::string name = token_.text;
    if (is_hole(name)) return hole(name);
    if (const auto n = numbers_.find(name); n != numbers_.end()) return put(n->second);
    if (const auto v = values_.find(name); v != values_.end())
      return put(std::to_string(v->second));
    if (name == "lowest") return put("h_lowest");
    if (raw_) {
      if (kRawForbidden.count(name))
        fail("'" + name + "' has no place in a body: it would reach beyond the kernel");
      return put(declared_.count(name) ? "b_" + name : name);
    }
    if (is_fixed(name)) return put("h_" + name);
    if (name == "local" || (cuda_ && name == "shared")) return array(name);
    if (kStatements.count(name)) return put(name);
    if (kTypes.count(name)) return declaration(name);
    if (is_function(name)) {
      if (peek().text != "(") fail("'" + name + "' is a function: " + name + "(…)");
      if (std::ranges::find(out_.functions, name) == out_.functions.end())
        out_.functions.push_back(name);
      return put("f_" + name);
    }
    if (!declared_.count(name)) {
      if (p_.input(name) || name == result_)
        fail("'" + name + "' is a tensor: " + (name == result_ ? "store(" : "load(") + name +
             ", …)");
      fail("'" + name + "' is neither declared here nor a name of the def or of bodies" +
           (name == "goto" || name == "asm" || name == "return" ? " (there is no " + name + ")"
                                                                : ""));
    }
    if (peek().text == "(") fail("'" + name + "' is a variable and cannot be called");
    put("b_" + name);
    after_array_ = arrays_.count(name) > 0;
    if (after_array_ && peek().text != "[")
      fail("an array is used by its elements: " + name + "[i]");
  }

  void mark() {
    const std::string& m = token_.text;
    if (raw_ && (m == "[" || m == "]")) return put(m);
    if (m == "[") {
      if (!after_array_) fail("'[' follows the name of an array; arrays are local<float, 8> a;");
      after_array_ = false;
      open_.push_back({"[", 0, 0, 0, token_.line});
      return put(".at(");
    }
    if (m == "(") {
      open_.push_back({});
      return put("(");
    }
    if (m == "]" || m == ")") {
      if (open_.empty() || (open_.back().hole == "[") != (m == "]")) fail("nothing ends here");
      const Paren p = open_.back();
      open_.pop_back();
      if (p.hole == "[") return put(", " + std::to_string(p.line) + ")");
      if (!p.hole.empty()) {
        const int given = p.commas;
        if (given < p.rank + p.extra - (p.hole == "vload") || given > p.rank + p.extra)
          fail(p.hole + " takes " + std::to_string(p.rank) + " indices" +
               (p.extra ? p.hole == "vload" ? " and perhaps a value" : " and a value" : "") +
               " here");
        if (p.hole == "vload" && given == p.rank) out_.text += ", 0";
        return put((p.rank + p.extra > 0 ? ", " : "") + std::to_string(p.line) + ")");
      }
      return put(")");
    }
    if (m == ",") {
      if (!open_.empty()) open_.back().commas++;
      if (!open_.empty() && open_.back().hole == "[") fail("an array has one index");
    }
    if (m == ";" && std::ranges::any_of(open_, [](const Paren& p) { return !p.hole.empty(); }))
      fail("')' is missing before ';'");
    if (m == "{" || m == "}") {
      depth_ += m == "{" ? 1 : -1;
      if (depth_ < 0 || !open_.empty()) fail("this '" + m + "' has no other");
    }
    put(m);
  }

  // load(x, …: the tensor is part of the name of what is called.
  void hole(const std::string& name) {
    const Token at = token_;
    expect("(");
    next();
    const bool writes = name == "store" || name == "vstore";
    const auto input = p_.input(token_.text);
    if (writes ? token_.text != result_ : !input || p_.is_number(*input))
      fail("'" + token_.text + "' is no " + (writes ? "result" : "tensor input") + " of the def; " +
           name + "(" + (writes ? result_ : "x") + ", …)");
    const TensorId t = writes ? p_.def.outputs()[0] : p_.def.inputs()[*input];
    Paren paren{name, p_.def.tensor(t).type.rank(), writes || name == "vload" ? 1 : 0, 0, at.line};
    if (!writes && std::ranges::find(out_.loads, token_.text) == out_.loads.end())
      out_.loads.push_back(token_.text);
    if (name[0] == 'v') {
      out_.vectors = true;
      if (paren.rank == 0) fail("a tensor without axes has no lanes");
    }
    stores_ = stores_ || writes;
    const std::string called = "h_" + std::string(name[0] == 'v' ? "v_" : "") + token_.text;
    if (paren.rank > 0 || writes) {
      expect(",");
      paren.commas = 1;
    }
    put(called + "(");
    open_.push_back(paren);
  }

  // A type and the names that are declared with it; or a conversion.
  void declaration(const std::string& type) {
    if (type == "vec" && cuda_) fail("there is no vec on GPUs: threads are the lanes");
    out_.vectors = out_.vectors || type == "vec";
    const std::string shown = type == "float" ? real_ : type == "vec" ? "t_vec" : type;
    if (peek().text == "(") {
      if (type == "vec") fail("fill(v) makes a vec of a number");
      return put(shown);  // float(n)
    }
    put(shown);
    next();
    if (token_.kind != Token::Name) fail("expected a name or '(' behind the type");
    declare(token_.text, token_);
    put("b_" + token_.text);
    const std::string then = peek().text;
    if (then != "=" && then != ";" && then != ",")
      fail("'" + token_.text + "' is declared as " + type + " " + token_.text + " = …");
    if (then == ",") fail("one declaration for each name");
    if (then == ";" && type != "vec")
      fail("'" + token_.text + "' needs a value: " + type + " " + token_.text + " = …");
    if (then == ";") fail("'" + token_.text + "' needs a value: vec " + token_.text + " = fill(0)");
  }

  // local<float, 8> a;
  void array(const std::string& where) {
    expect("<");
    next();
    const std::string type = token_.text;
    if (type != "float" && type != "int" && !(type == "vec" && where == "local" && !cuda_))
      fail("arrays are of float or int" + std::string(cuda_ ? "" : ", or of vec"));
    out_.vectors = out_.vectors || type == "vec";
    expect(",");
    int64_t n = 1;
    bool named = false;
    for (char op = '*'; op != 0;) {
      next();
      const auto known = values_.find(token_.text);
      int64_t v = 0;
      named = named || known != values_.end();
      if (known != values_.end())
        v = known->second;
      else if (token_.kind == Token::Number && token_.text.size() < 10 &&
               token_.text.find_first_not_of("0123456789") == std::string::npos)
        v = std::stoll(token_.text);
      if (v < 1) fail("expected a number, a symbol or a tuned name: an array's length is known");
      if (n > kMaxArray / v && op == '*') fail("arrays of more than 48 KiB" + at_sizes(named));
      n = op == '*' ? n * v : ceil_div(n, v);
      next();
      op = token_.text == "*" || token_.text == "/" ? token_.text[0] : char(0);
    }
    if (token_.text != ">") fail("expected '>'");
    const int64_t size = type == "float" && real_ == "double" ? 8 : type == "vec" ? 64 : 4;
    array_bytes_ += n * size;
    if (array_bytes_ > kMaxArray) fail("arrays of more than 48 KiB" + at_sizes(named));
    next();
    if (token_.kind != Token::Name) fail("expected the array's name");
    declare(token_.text, token_);
    arrays_.insert(token_.text);
    const std::string element = type == "float" ? real_ : type == "vec" ? "t_vec" : type;
    std::string text =
        "h_" + where + "<" + element + ", " + std::to_string(n) + "> b_" + token_.text;
    if (where == "shared") {
      if (depth_ > 0) fail("shared arrays are declared at the beginning of a body");
      text += "{ts::shared() + " + std::to_string(out_.shared_bytes) + "}";
      out_.shared_bytes += ceil_div(n * size, int64_t{16}) * 16;
    }
    expect(";");
    put(text + ";");
  }

  const Pattern& p_;
  const Body& b_;
  const Values& values_;
  const std::map<std::string, std::string>& numbers_;
  const std::string real_;
  std::string result_;
  CodeText out_;
  Token token_;
  size_t at_ = 0;
  int line_, col_, made_line_ = line_;
  const bool cuda_, raw_;
  bool stores_ = false, after_array_ = false;
  int depth_ = 0;
  int64_t array_bytes_ = 0;
  std::vector<Paren> open_;
  std::set<std::string> declared_, arrays_;
};

// The tuned names that a body's text, counts or guards use.
std::string used_settings(const Pattern& p, const Body& b, const Values& values) {
  std::set<std::string> words;
  for (size_t at = 0; at < b.text.size();) {
    const size_t from = at;
    while (at < b.text.size() && (is_alpha(b.text[at]) || (at > from && is_digit(b.text[at]))))
      at++;
    if (at > from)
      words.insert(b.text.substr(from, at - from));
    else
      at++;
  }
  for (const auto& [name, term] : b.units)
    for (const Term::Factor& f : term.factors) words.insert(f.name);
  for (const Term::Factor& f : b.threads.factors) words.insert(f.name);
  std::string text;
  for (const auto& [name, choices] : p.tune)
    if (words.count(name))
      if (const auto v = values.find(name); v != values.end())
        text += (text.empty() ? "" : " ") + name + "=" + std::to_string(v->second);
  return text;
}

}  // namespace

CodeText expand_code(const Pattern& p, const Body& b, const Values& values,
                     const std::map<std::string, std::string>& numbers, const std::string& real) {
  return Translator(p, b, values, numbers, real).run();
}

std::string call_text(const Pattern& p, const Body& b, const Values& values,
                      const std::vector<Rational>& numbers) {
  std::map<std::string, std::string> meant = {{"none", "null"}};
  for (const auto& [name, value] : values) meant[name] = std::to_string(value);
  int tensors = 0;
  for (size_t i = 0; i < p.def.inputs().size(); i++) {
    const Tensor& t = p.def.tensor(p.def.inputs()[i]);
    const std::string number = significant(p.is_number(i) ? numbers.at(i).to_double() : 0, 17);
    if (t.type.rank() > 0)
      meant[t.name] = "{\"operand\": " + std::to_string(tensors++) + "}";
    else
      meant[t.name] = number[0] == 'i' ? "Infinity" : number[1] == 'i' ? "-Infinity" : number;
  }
  const std::function<std::string(const CallArgument&)> text = [&](const CallArgument& a) {
    if (!a.word.empty()) {
      const auto known = meant.find(a.word);
      return known == meant.end() ? a.word : known->second;
    }
    return "[" + joined(a.list, ", ", text) + "]";
  };
  std::string args, named;
  for (const CallArgument& a : b.arguments) {
    std::string& to = a.key.empty() ? args : named;
    to += (to.empty() ? "" : ", ") + (a.key.empty() ? "" : "\"" + a.key + "\": ") + text(a);
  }
  return "{\"op\": \"" + b.operator_name + "\", \"args\": [" + args + "], \"kwargs\": {" + named +
         "}}";
}

void check_code(const Pattern& p, const Body& b) {
  const Values values = p.example_values();
  std::map<std::string, std::string> numbers;
  for (const std::string& n : p.numbers) numbers[n] = "0.5f";
  // Arrays and counts are judged where sizes are known.
  try {
    (void)expand_code(p, b, values, numbers, "float");
  } catch (const Error& e) {
    if (e.message().find("at these sizes") == std::string::npos) throw;
  }
}

Graph written_body(const Pattern& p, const Body& b, const Values& values, DType dtype) {
  const Graph def = bound_def(p, values, dtype);
  Graph g(p.name_for_graph());
  Graph block = Graph::block({1}, {});
  std::vector<TensorId> arguments, inner(def.tensors().size());
  for (TensorId t : def.inputs()) {
    arguments.push_back(g.add_input(def.type(t), def.tensor(t).name));
    inner[t.index] = block.add_input(def.type(t), def.tensor(t).name);
  }
  WrittenKernel attrs;
  attrs.pattern = p.name;
  attrs.source = source_of(p, b);
  attrs.values = used_settings(p, b, values);
  for (TensorId t : def.inputs()) {
    inner[t.index] = build::iter(block, inner[t.index], {}, def.tensor(t).name);
    attrs.operands.push_back(int(inner[t.index].index));
  }
  try {
    copy_ops(def, block, inner);
  } catch (const Error& e) {
    throw Error(ErrorKind::BadInput, "a def with code is one kernel: " + e.message(),
                SourceLocation{p.file, p.def_line, 1});
  }
  const TensorId result = def.outputs()[0];
  attrs.result = int(inner[result.index].index);
  SaveAttrs save;
  save.type = def.type(result);
  block.add_op(OpKind::Save, {inner[result.index]}, save, {def.tensor(result).name});
  block.add_output(TensorId(uint32_t(block.tensors().size() - 1)));
  block.set_name(attrs.name());
  const OpId kernel =
      g.add_graph_op(OpKind::Kernel, arguments, std::move(block), {def.tensor(result).name});
  g.add_output(g.op(kernel).result());
  return g;
}

Graph meaning_of(const Graph& block, const WrittenKernel& attrs) {
  Graph g("meaning");
  std::vector<TensorId> map(block.tensors().size());
  std::vector<bool> needed(block.tensors().size(), false);
  needed.at(size_t(attrs.result)) = true;
  std::set<uint32_t> known;
  for (int operand : attrs.operands) {
    const TensorId t{uint32_t(operand)};
    if (map[t.index].valid()) continue;
    const Op& op = block.producer(t);
    map[t.index] = op.constant() && block.type(t).rank() == 0
                       ? g.add_const(*op.constant(), block.type(t))
                       : g.add_input(block.type(t));
  }
  for (size_t i = block.ops().size(); i-- > 0;) {
    const Op& op = block.ops()[i];
    if (op.num_results != 1 || !needed[op.result().index] || map[op.result().index].valid())
      continue;
    known.insert(uint32_t(i));
    for (TensorId t : op.inputs) needed[t.index] = true;
  }
  for (uint32_t i : known) {
    const Op& op = block.op(OpId(i));
    if (is_tile(op.kind) || is_input(op.kind))
      bad_input("the kernel computes something else than its body's def");
    copy_op(block, op, g, map);
  }
  g.add_output(map[size_t(attrs.result)]);
  return g;
}

Graph meaning_of(const Pattern& p, const Values& symbols, DType dtype,
                 const std::vector<Rational>& numbers) {
  const Graph def = without_dead_code(bound_def(p, symbols, dtype));
  Graph g("meaning");
  std::vector<TensorId> inputs;
  for (size_t i = 0; i < def.inputs().size(); i++) {
    const Type& type = def.type(def.inputs()[i]);
    inputs.push_back(p.is_number(i) ? g.add_const(numbers.at(i), type) : g.add_input(type));
  }
  g.set_outputs(build::graph(g, def, inputs));
  return g;
}

std::string recorded_text(const Pattern& p, const Body& b) {
  Pattern alone = p;
  alone.bodies = {b};
  return print(alone);
}

std::string source_of(const Pattern& p, const Body& b) {
  return Sha256().field("body 1").field(recorded_text(p, b)).hex();
}

}  // namespace tessera::patterns
