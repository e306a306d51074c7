#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "ir/text.h"
#include "ir/window.h"
#include "search/patterns/code.h"
#include "search/patterns/pattern.h"

namespace tessera::patterns {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 20, kMaxSettings = 512;
constexpr int64_t kMaxNumber = int64_t(1) << 40;

// As JSON writes numbers, with bounded digits and no '+' or 'E'.
bool is_number(std::string_view text) {
  const auto accept = [&](char c) {
    const bool there = text.starts_with(c);
    if (there) text.remove_prefix(1);
    return there;
  };
  const auto digits = [&](size_t most) {
    const size_t n = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(n);
    return n > 0 && n <= most;
  };
  accept('-');
  const bool whole = accept('0') || digits(31);
  return whole && (!accept('.') || digits(30)) && (!accept('e') || (accept('-'), digits(3))) &&
         text.empty();
}

class Parser : Scanner {
 public:
  Parser(std::string_view text, const std::string& file) : Scanner(text, file) { p_.file = file; }

  Pattern run() {
    if (text().size() > kMaxPatternBytes) fail("more than 1 MiB; a pattern is a page or two");
    skip_lines();
    if (word("'pattern' and its name") != "pattern") fail("expected 'pattern' and its name", 0);
    p_.name = word("the name of the pattern", "-.");
    end_of_line();
    for (skip_lines(); at() < text().size(); skip_lines()) statement();
    if (p_.def.outputs().empty()) fail("no 'def { … }': say what the kernel computes");
    if (p_.bodies.empty()) fail("no 'kernel grid[…] { … }' or 'call': say how it is computed");
    finish();
    return std::move(p_);
  }

 private:
  [[noreturn]] void fail_in_line(int line, const std::string& what) const {
    throw Error(ErrorKind::BadInput, what, SourceLocation{p_.file, line, 1});
  }
  // From behind a '{' to before its '}'; comments (// of the text format, # of loops) hold none.
  std::string_view block(char comment) {
    const size_t open = skip();
    expect("{");
    const size_t from = at();
    size_t here = from;
    for (int depth = 1; here < text().size(); here++) {
      const char c = text()[here];
      if (c == comment && (comment == '#' || text().substr(here, 2) == "//")) {
        here = text().find('\n', here) - 1;
        if (here > text().size()) break;
      } else if (c == '{') {
        depth++;
      } else if (c == '}' && --depth == 0) {
        go_to(here + 1);
        end_of_line();
        block_line_ = line_of(from);
        block_col_ = column_of(from);
        return text().substr(from, here - from);
      }
    }
    fail("this '{' is not closed", open);
  }

  void statement() {
    const size_t from = at();
    const std::string what =
        word("def, numbers, prologue, epilogue, when, loops, tune, kernel, body, code or call");
    if (what == "def") {
      if (!p_.def.outputs().empty()) fail("a second def", from);
      def();
    } else if (what == "numbers") {
      names(p_.numbers, true);
    } else if (what == "prologue") {
      names(p_.prologues, false);
    } else if (what == "epilogue") {
      p_.epilogue = true;
      end_of_line();
    } else if (what == "when") {
      conditions(p_.when);
      end_of_line();
    } else if (what == "loops") {
      if (!p_.loops_text.empty()) fail("loops a second time", from);
      p_.loops_text = block('#');
      p_.loops_line = block_line_;
      p_.loops = {parse_loops(p_.loops_text, p_.file, p_.loops_line)};
    } else if (what == "tune") {
      tune();
    } else if (what == "kernel" || what == "body") {
      body(what == "kernel");
    } else if (what == "call") {
      call();
    } else if (what == "code") {
      code();
    } else {
      fail("expected def, numbers, prologue, epilogue, when, loops, tune, kernel, body, code or "
           "call, not '" +
               what + "'",
           from);
    }
  }

  void def() {
    p_.def_text = block('/');
    p_.def_line = block_line_;
    const std::string header = "graph " + p_.name_for_graph() + " {";
    p_.def =
        parse(std::string(size_t(p_.def_line - 1), '\n') + header + p_.def_text + "}", p_.file);
    if (p_.def.level() != Level::Kernel || p_.def.outputs().size() != 1)
      fail("a def returns one tensor; make a pattern of each");
    if (p_.def.inputs().empty()) fail("a def without inputs");
    for (const Op& op : p_.def.ops()) {
      if (is_kernel(op.kind) || is_opaque(op.kind))
        fail(std::string("a def is made of plain operators, not of ") + name(op.kind));
      for (uint32_t i = 0; i < op.num_results; i++) {
        const DType dtype = p_.def.tensor(op.result(i)).type.dtype;
        const bool inside = !is_input(op.kind) && !(op.result(i) == p_.def.outputs()[0]);
        // Positions and their comparisons are what they are.
        if (dtype != DType::F32 && (is_float(dtype) || !inside))
          fail("a def is written in f32, which stands for the element type of the program");
      }
    }
  }

  // Inputs of the def.
  void names(std::vector<std::string>& list, bool numbers) {
    do {
      const size_t from = skip();
      const std::string name = word("the name of an input of the def");
      const auto input = p_.input(name);
      if (!input) fail("the def has no input '" + name + "'; put the def first", from);
      const int rank = p_.def.tensor(p_.def.inputs()[*input]).type.rank();
      if (numbers && rank != 0) fail("'" + name + "' is no number: it has axes", from);
      if (!numbers && rank == 0) fail("'" + name + "' is a number, which has no prologue", from);
      if (std::ranges::count(list, name)) fail("'" + name + "' twice", from);
      list.push_back(name);
    } while (take(","));
    end_of_line();
  }

  Term term() {
    Term t;
    char op = '*';
    do {
      const size_t from = skip();
      Term::Factor f;
      f.op = op;
      if (const auto n = number(kMaxNumber)) {
        f.number = *n;
      } else {
        f.name = word("a number, a symbol of the def or a tuned name");
        used_.push_back({f.name, from});
      }
      t.factors.push_back(std::move(f));
      if (t.factors.size() > 16) fail("more than 16 factors");
      op = take("*") ? '*' : take("/") ? '/' : take("%") ? '%' : char(0);
    } while (op != 0);
    return t;
  }

  // Reads the name of an operand that a condition is on; its axes.
  const Shape& operand(Condition& c) {
    const size_t from = skip();
    c.operand = word("the name of an input of the def");
    const auto input = p_.input(c.operand);
    if (!input) fail("the def has no input '" + c.operand + "'; put the def first", from);
    const Shape& shape = p_.def.type(p_.def.inputs()[*input]).shape;
    if (shape.empty()) fail("'" + c.operand + "' is a number, which has no rows", from);
    return shape;
  }

  void conditions(std::vector<Condition>& list) {
    do {
      Condition c;
      if (take("layout")) {
        c.comparison = "layout";
        const Shape& shape = operand(c);
        const size_t from = skip();
        const std::string how = word("rows or transposed");
        if (how != "rows" && how != "transposed")
          fail("no layout '" + how + "'; there are rows and transposed", from);
        c.transposed = how == "transposed";
        if (c.transposed && shape.size() < 2) fail("'" + c.operand + "' has only one axis", from);
      } else if (take("align")) {
        c.comparison = "align";
        const Dim last = operand(c).back();
        c.left.factors = {{'*', last.extent, last.symbol}};
        const size_t from = skip();
        c.bytes = number(kMaxNumber).value_or(0);
        if (c.bytes < 2 || c.bytes > 64 || (c.bytes & (c.bytes - 1)) != 0)
          fail("expected a number of bytes: 2, 4, 8, 16, 32 or 64, where arrays of programs begin",
               from);
      } else if (take("dtype")) {
        if (!take("in")) fail("expected 'in' and element types, as in 'dtype in f32 bf16'");
        while (true) {
          const size_t from = skip();
          if (!is_alpha(peek())) break;
          const std::string dtype = word("an element type");
          const auto known = dtype_from_name(dtype);
          if (!known || !is_float(*known))
            fail("no element type '" + dtype + "'; there are f64 f32 f16 bf16", from);
          c.dtypes.push_back(*known);
        }
        if (c.dtypes.empty()) fail("expected an element type");
      } else {
        c.left = term();
        for (const char* op : {"<=", ">=", "==", "!=", "<", ">"})
          if (c.comparison.empty() && take(op)) c.comparison = op;
        if (c.comparison.empty()) fail("expected <=, <, >=, >, == or !=");
        c.right = term();
      }
      list.push_back(std::move(c));
    } while (take(","));
  }

  void tune() {
    const size_t from = skip();
    const std::string name = word("a name");
    const std::vector<std::string> symbols = p_.symbols();
    if (std::ranges::count(symbols, name)) fail("'" + name + "' is a symbol of the def", from);
    for (const auto& known : p_.tune)
      if (known.first == name) fail("'" + name + "' is tuned twice", from);
    expect("=");
    std::vector<int64_t> values;
    for (auto n = number(kMaxNumber); n; n = number(kMaxNumber)) {
      if (*n < 1) fail("values of what is tuned are at least 1");
      values.push_back(*n);
    }
    if (values.empty()) fail("expected values, as in 'tune R = 1 2 4'");
    end_of_line();
    p_.tune.emplace_back(name, std::move(values));
    size_t product = product_of<size_t>(p_.tune, [&](const auto& t) { return t.second.size(); });
    if (product > kMaxSettings) fail("more than 512 settings to try", from);
  }

  std::string target() {
    const size_t from = skip();
    const std::string name = word("cpu or cuda");
    if (name != "cpu" && name != "cuda")
      fail("no target '" + name + "'; there are cpu and cuda", from);
    return name;
  }

  void body(bool kernel) {
    if (p_.def.outputs().empty()) fail("put the def before what computes it");
    Body b;
    b.kernel = kernel;
    if (take("for")) b.target = target();
    if (take("when")) conditions(b.when);
    const size_t from = skip();
    if (kernel) {
      if (!take("grid")) fail("expected 'grid[…]', how many blocks there are");
      go_to(std::min(text().find_first_of("{\n", at()), text().size()));
    }
    b.text = block('/');
    b.line = block_line_;
    if (kernel) {
      // With its counts and braces.
      const size_t open = text().find('{', from);
      b.text = std::string(text().substr(from, open - from)) + "{" + b.text + "}";
      b.line = line_of(from);
      b.col = column_of(from);
    }
    p_.bodies.push_back(std::move(b));
  }

  // What a person wrote for a kind of machine: "code cpu for m = M when … { … }".
  void code() {
    if (p_.def.outputs().empty()) fail("put the def before what computes it");
    Body b;
    b.target = target();
    const bool cuda = b.target == "cuda";
    b.language = !cuda ? Language::Cpp : take("raw") ? Language::Raw : Language::Cuda;
    if (!take("for")) fail("expected 'for' and what runs in parallel, as in 'for m = M'");
    do {
      const std::string name = word("a name");
      expect("=");
      b.units.emplace_back(name, term());
      if (b.units.size() > 3) fail("more than three names; put loops into the code");
    } while (take(","));
    if (cuda) {
      if (!take("threads")) fail("expected 'threads' and how many a block has");
      b.threads = term();
    }
    if (take("when")) conditions(b.when);
    b.text = block('/');
    b.line = block_line_;
    b.col = block_col_;
    b.unusable = "its body in line " + std::to_string(b.line) + " has not been checked here";
    p_.bodies.push_back(std::move(b));
  }

  // A library computes what the def says.
  void call() {
    if (p_.def.outputs().empty()) fail("put the def before what computes it");
    const size_t from = skip();
    Body b;
    b.library = word("torch, onednn, cublaslt, cudnn or packed");
    if (b.library != "cublaslt" && b.library != "cudnn" && b.library != "packed" &&
        b.library != "torch" && b.library != "onednn")
      fail("no library '" + b.library +
               "'; there are cublaslt and cudnn on GPUs, and on CPUs torch (an operator of "
               "PyTorch), onednn and packed (products of packed panels)",
           from);
    if (b.library == "torch") return call_torch(std::move(b));
    const auto products = [](const Op& op) {
      return op.kind == OpKind::Matmul || is_windowed(op.kind);
    };
    if (std::ranges::none_of(p_.def.ops(), products))
      fail("the def has no product or convolution for " + b.library + " to compute", from);
    b.target = b.library == "packed" || b.library == "onednn" ? "cpu" : "cuda";
    if (take("when")) conditions(b.when);
    b.text = p_.def_text;
    b.line = p_.def_line;
    if (b.library == "onednn" &&
        std::ranges::none_of(p_.def.ops(), [](const Op& o) { return is_windowed(o.kind); })) {
      b.library.clear();
      b.language = Language::OneDnn;
      b.text.clear();
      b.line = line_of(from);
      b.unusable = "its call in line " + std::to_string(b.line) + " has not been checked here";
    }
    end_of_line();
    p_.bodies.push_back(std::move(b));
  }

  // "call torch aten.gelu(approximate=\"tanh\")": an operator that is registered with PyTorch.
  // Without one that is named among the arguments, the def's tensors come first, in order.
  void call_torch(Body b) {
    b.library.clear();
    b.language = Language::Torch;
    b.target = "cpu";
    b.line = line_of(at());
    const size_t from = skip();
    const std::string what = "the operator's name, as in aten.gelu or mine.norm";
    b.operator_name = word(what);
    while (take(".")) b.operator_name += "." + word(what);
    const auto dots = std::ranges::count(b.operator_name, '.');
    if (dots < 1 || dots > 2 || b.operator_name.compare(0, 6, "torch.") == 0)
      fail("expected " + what + ": namespace, name and perhaps an overload, as torch.ops has them",
           from);
    std::vector<std::string> tensors, named;
    for (size_t i = 0; i < p_.def.inputs().size(); i++)
      if (p_.def.type(p_.def.inputs()[i]).rank() > 0)
        tensors.push_back(p_.def.tensor(p_.def.inputs()[i]).name);
    for (const std::string& t : tensors)
      if (t.find('.') != std::string::npos)
        fail("a call cannot name '" + t + "': it has a dot", from);
    if (take("(") && !take(")")) {
      do {
        b.arguments.push_back(argument(0, named));
        const bool keyword = !b.arguments.back().key.empty();
        if (!keyword && b.arguments.size() > 1 && !b.arguments[b.arguments.size() - 2].key.empty())
          fail("an argument by position behind one by name");
      } while (take(","));
      if (!take(")")) fail("expected ',' or ')'");
    }
    for (const std::string& t : tensors)
      if (!named.empty() && !std::ranges::count(named, t))
        fail("the call does not say what '" + t + "' is for", from);
    if (named.empty()) {
      auto first = mapped(tensors, [&](const std::string& t) { return CallArgument{"", t, {}}; });
      b.arguments.insert(b.arguments.begin(), first.begin(), first.end());
    }
    for (const CallArgument& a : b.arguments)
      b.text += (b.text.empty() ? b.operator_name + "(" : ", ") + a.str();
    b.text += ")";
    if (take("when")) conditions(b.when);
    end_of_line();
    b.unusable = "its call in line " + std::to_string(b.line) + " has not been checked here";
    p_.bodies.push_back(std::move(b));
  }

  // `named`: inputs with axes that it has met.
  CallArgument argument(int depth, std::vector<std::string>& named) {
    CallArgument a;
    const size_t from = skip();
    if (depth == 0 && is_alpha(peek())) {
      a.key = word("a name");
      if (!take("=")) a.key.clear(), go_to(from);
    }
    const size_t at = skip();
    const char c = peek();
    if (take("[")) {
      if (depth > 1) fail("a list in a list in a list", at);
      if (take("]")) return a;
      do a.list.push_back(argument(depth + 1, named));
      while (take(","));
      if (a.list.size() > 64) fail("a list of more than 64", at);
      if (!take("]")) fail("expected ',' or ']'");
    } else if (c == '"') {
      const size_t end = text().find('"', at + 1);
      if (end == std::string_view::npos) fail("this text is not closed", at);
      a.word = std::string(text().substr(at, end + 1 - at));
      if (std::ranges::any_of(a.word, [](char x) { return x < ' ' || x > '~' || x == '\\'; }))
        fail("text is of letters, digits and signs on one line, without '\\'");
      go_to(end + 1);
    } else if (is_digit(c) || c == '-') {
      while (is_alpha(peek()) || is_digit(peek()) || peek() == '.' || peek() == '-')
        go_to(this->at() + 1);
      a.word = std::string(text().substr(at, this->at() - at));
      if (!is_number(a.word)) fail("this is no number, as in 12, -0.5 or 1e-6", at);
    } else {
      a.word = word("an input of the def, a number, a symbol, a text, true, false, none or a list");
      if (const auto input = p_.input(a.word)) {
        if (p_.def.type(p_.def.inputs()[*input]).rank() > 0) named.push_back(a.word);
      } else if (a.word != "true" && a.word != "false" && a.word != "none") {
        used_.push_back({a.word, at});
      }
    }
    return a;
  }

  // What can be said only when all is known.
  void finish() {
    const std::vector<std::string> symbols = p_.symbols();
    std::set<std::string> known(symbols.begin(), symbols.end());
    for (const auto& t : p_.tune) known.insert(t.first);
    for (const auto& [name, at] : used_)
      if (!known.count(name))
        fail("'" + name + "' is neither a symbol of the def nor a tuned name", at);
    for (const Op& op : p_.def.ops())
      for (const Dim& d : p_.def.tensor(op.result()).type.shape)
        if (d.symbolic() && !known.count(d.symbol))
          fail_in_line(p_.def_line, "no input of the def has an axis " + d.symbol);
    derive_loops();
    const Values values = p_.example_values();
    const Graph def = bound_def(p_, values, DType::F32);
    for (const Body& b : p_.bodies) {
      if (b.written() && !b.called()) check_code(p_, b);
      const Graph g = bound_body(p_, b, values, DType::F32);
      if (g.inputs().size() != def.inputs().size() || g.outputs().size() != 1)
        fail_in_line(b.line, "a body has the inputs of the def and one result");
      for (size_t i = 0; i < def.inputs().size(); i++) {
        const Tensor &mine = g.tensor(g.inputs()[i]), &its = def.tensor(def.inputs()[i]);
        if (mine.name != its.name || !(mine.type == its.type))
          fail_in_line(b.line, "input " + std::to_string(i + 1) + " is " + mine.name + " : " +
                                   mine.type.str() + ", but the def's is " + its.name + " : " +
                                   its.type.str() + " at the same sizes");
      }
      if (!(g.tensor(g.outputs()[0]).type == def.tensor(def.outputs()[0]).type))
        fail_in_line(b.line, "the body's result is " + g.tensor(g.outputs()[0]).type.str() +
                                 ", the def's " + def.tensor(def.outputs()[0]).type.str());
    }
  }

  static void keep_keys(LoopGraph& loops) {
    for (Loop& l : loops) {
      std::erase_if(l.ops, [](const std::string& op) { return !is_key(op); });
      l.inputs.clear();
      l.outputs.clear();
      keep_keys(l.children);
    }
  }

  // Of the def, and with a pointwise operator in its holes, which adds a loop where it has to wait
  // for a reduction or stands in one.
  void derive_loops() {
    if (p_.loops.empty()) {
      for (int holes = 0; holes < 4; holes++) {
        if ((holes & 1 && !p_.epilogue) || (holes & 2 && p_.prologues.empty())) continue;
        Graph g(p_.def.name());
        std::vector<TensorId> map(p_.def.tensors().size());
        for (size_t i = 0; i < p_.def.ops().size(); i++) {
          const Op& op = p_.def.op(OpId(uint32_t(i)));
          copy_op(p_.def, op, g, map);
          if (!is_input(op.kind) || !(holes & 2)) continue;
          const std::string& name = p_.def.tensor(op.result()).name;
          if (std::ranges::count(p_.prologues, name))
            map[op.result().index] = g.add(OpKind::Neg, {map[op.result().index]});
        }
        TensorId y = map[p_.def.outputs()[0].index];
        if (holes & 1) y = g.add(OpKind::Neg, {y});
        g.add_output(y);
        Derived d = derive(g);
        if (!d.ok()) fail_in_line(p_.def_line, "the def has no +Graph: " + d.why);
        keep_keys(d.loops);
        p_.loops.push_back(std::move(d.loops));
      }
    }
    p_.keys = keys(p_.loops[0]);
  }

  int block_line_ = 0, block_col_ = 1;
  Pattern p_;
  std::vector<std::pair<std::string, size_t>> used_;  // names in conditions, and where
};

}  // namespace

Pattern parse_pattern(std::string_view text, const std::string& file) {
  return Parser(text, file).run();
}

}  // namespace tessera::patterns
