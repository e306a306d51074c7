#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "ir/extent.h"
#include "ir/infer.h"
#include "ir/text.h"
#include "ir/validate.h"
#include "ir/written.h"

namespace tessera {
namespace {

struct Token {
  enum Kind { Name, Number, String, Punct, End } kind = End;
  std::string text;
  int line = 1, col = 1;
};

std::string shown(const Token& t) {
  if (t.kind == Token::End) return "the end of the file";
  return "'" + (t.text.size() > 40 ? t.text.substr(0, 40) + "…" : t.text) + "'";
}

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  [[noreturn]] void fail(int line, int col, const std::string& what) const {
    throw Error(ErrorKind::BadInput, what, SourceLocation{file_, line, col});
  }

  Token next() {
    skip_space();
    Token t;
    t.line = line_;
    t.col = col_;
    if (at_ >= text_.size()) return t;
    char c = text_[at_];
    if (is_alpha(c)) {
      t.kind = Token::Name;
      while (at_ < text_.size() &&
             (is_alpha(text_[at_]) || is_digit(text_[at_]) || text_[at_] == '.'))
        t.text += take();
    } else if (is_digit(c) || (c == '-' && at_ + 1 < text_.size() &&
                               (is_digit(text_[at_ + 1]) || text_[at_ + 1] == 'i'))) {
      t.kind = Token::Number;
      t.text += take();
      while (at_ < text_.size() && continues_number(t.text.back(), text_[at_])) t.text += take();
    } else if (c == '"') {
      t.kind = Token::String;
      string_body(t);
    } else if (std::string_view("{}[]():,=*+").find(c) != std::string_view::npos) {
      t.kind = Token::Punct;
      t.text = std::string(1, take());
    } else {
      unsigned char u = static_cast<unsigned char>(c);
      fail(line_, col_,
           u >= 0x20 && u < 0x7f ? "unexpected character '" + std::string(1, c) + "'"
                                 : "unexpected byte " + std::to_string(int(u)));
    }
    return t;
  }

 private:
  static bool continues_number(char last, char c) {
    if (is_digit(c) || c == '.' || c == 'e' || c == 'E' || c == '/' || c == '*' || c == '^')
      return true;
    if (c == 'i' || c == 'n' || c == 'f') return last == '-' || last == 'i' || last == 'n';
    return (c == '-' || c == '+') && (last == 'e' || last == 'E' || last == '^');
  }
  char take() {
    char c = text_[at_++];
    if (c == '\n')
      line_++, col_ = 1;
    else
      col_++;
    return c;
  }
  void skip_space() {
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (c == ' ' || c == '\t' || c == '\r' || c == '\n')
        take();
      else if (c == '/' && at_ + 1 < text_.size() && text_[at_ + 1] == '/')
        while (at_ < text_.size() && text_[at_] != '\n') take();
      else
        return;
    }
  }
  void string_body(Token& t) {
    take();
    auto hex = [&](char c) -> int {
      if (is_digit(c)) return c - '0';
      if (c >= 'a' && c <= 'f') return c - 'a' + 10;
      fail(line_, col_, "\\x needs two lower-case hexadecimal digits");
    };
    while (true) {
      if (at_ >= text_.size() || text_[at_] == '\n') fail(t.line, t.col, "unterminated string");
      char c = take();
      if (c == '"') return;
      if (c != '\\') {
        t.text += c;
        continue;
      }
      char e = at_ < text_.size() ? take() : '\0';
      if (e == '"' || e == '\\') {
        t.text += e;
      } else if (e == 'x' && at_ + 2 <= text_.size()) {
        int high = hex(take());
        t.text += char(high * 16 + hex(take()));
      } else {
        fail(line_, col_, "unknown escape in a string");
      }
    }
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1, col_ = 1;
};

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) row[j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = row[j];
      row[j] = next;
    }
  }
  return row[b.size()];
}

template <class Names> std::string suggestion(const std::string& name, const Names& names) {
  std::string best;
  size_t best_distance = 3;
  if (name.size() > 40) return "";
  for (const auto& candidate : names)
    if (size_t d = edit_distance(name, candidate); d < best_distance)
      best_distance = d, best = candidate;
  return best.empty() ? "" : "; did you mean " + best + "?";
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& file, const ParseLimits& limits)
      : lexer_(text, file), file_(file), limits_(limits) {
    token_ = lexer_.next();
  }

  Graph file() {
    expect_word("graph");
    std::string name = "g";
    if (token_.kind == Token::Name || token_.kind == Token::String)
      name = take().text;
    else
      fail("expected the graph's name, got " + shown(token_));
    Graph g(name);
    if (token_.kind == Token::Name) {
      Token level = take();
      if (level.text == "block") {
        g = block_header(level);
        g.set_name(name);
      } else if (level.text == "thread") {
        g = Graph(name, Level::Thread);
      } else if (level.text != "kernel") {
        fail_at(level, "expected block, thread or '{', got " + shown(level));
      }
    }
    Token start = token_;
    body(g);
    if (token_.kind != Token::End) fail("expected the end of the file, got " + shown(token_));
    at_operator(closed_, start, [&] { validate(g); });
    return g;
  }

 private:
  [[noreturn]] void fail_at(const Token& t, const std::string& what) const {
    throw Error(ErrorKind::BadInput, what, SourceLocation{file_, t.line, t.col});
  }
  [[noreturn]] void fail(const std::string& what) const { fail_at(token_, what); }
  // Runs `f`; errors it throws without a place get the place of `t`.
  template <class F> auto at(const Token& t, F f) const -> decltype(f()) {
    try {
      return f();
    } catch (const Error& e) {
      if (e.location()) throw;
      throw Error(e.kind(), e.message(), SourceLocation{file_, t.line, t.col});
    }
  }
  Token take() {
    Token t = std::move(token_);
    token_ = lexer_.next();
    return t;
  }
  // The same for the checks of whole bodies, whose messages begin with "OPERATOR RESULT:".
  using Places = std::map<std::string, Token>;
  template <class F> void at_operator(const Places& places, const Token& otherwise, F f) const {
    try {
      f();
    } catch (const Error& e) {
      if (e.location()) throw;
      auto it = places.find(e.message().substr(0, e.message().find(':')));
      const Token& t = it == places.end() ? otherwise : it->second;
      throw Error(e.kind(), e.message(), SourceLocation{file_, t.line, t.col});
    }
  }
  bool is(const char* punct) const { return token_.kind == Token::Punct && token_.text == punct; }
  bool accept(const char* punct) {
    if (!is(punct)) return false;
    take();
    return true;
  }
  void expect(const char* punct) {
    if (!accept(punct)) fail("expected '" + std::string(punct) + "', got " + shown(token_));
  }
  void expect_word(const char* word) {
    if (token_.kind != Token::Name || token_.text != word)
      fail("expected '" + std::string(word) + "', got " + shown(token_));
    take();
  }

  // --- values
  int64_t integer() {
    if (token_.kind != Token::Number) fail("expected an integer, got " + shown(token_));
    Token t = take();
    int64_t v = 0;
    auto end = t.text.data() + t.text.size();
    auto [p, ec] = std::from_chars(t.text.data(), end, v);
    if (ec != std::errc() || p != end) fail_at(t, shown(t) + " is not a 64-bit integer");
    return v;
  }
  void value(int64_t& v) { v = integer(); }
  void value(int& v) {
    Token t = token_;
    int64_t n = integer();
    if (n != int(n)) fail_at(t, "the number is out of range");
    v = int(n);
  }
  void value(bool& v) {
    if (token_.kind == Token::Name && (token_.text == "true" || token_.text == "false"))
      v = take().text == "true";
    else
      fail("expected true or false, got " + shown(token_));
  }
  void value(Rational& v) {
    auto r = token_.kind == Token::Number || token_.kind == Token::Name
                 ? Rational::parse(token_.text)
                 : std::nullopt;
    if (!r) fail("expected a number, got " + shown(token_));
    take();
    v = *r;
  }
  void value(std::string& v) {
    if (token_.kind != Token::String) fail("expected a string, got " + shown(token_));
    v = take().text;
  }
  void value(DType& v) {
    auto d = token_.kind == Token::Name ? dtype_from_name(token_.text) : std::nullopt;
    if (!d) fail("expected a dtype (f64 f32 f16 bf16 i64 i32 i8 u8 bool), got " + shown(token_));
    take();
    v = *d;
  }
  void value(AccumKind& v) {
    for (AccumKind k : {AccumKind::Sum, AccumKind::Max, AccumKind::Min, AccumKind::Concat})
      if (token_.kind == Token::Name && token_.text == name(k)) {
        take();
        v = k;
        return;
      }
    fail("expected sum, max, min or concat, got " + shown(token_));
  }
  void value(Shape& v) {
    v.clear();
    expect("[");
    while (!accept("]")) {
      if (!v.empty()) expect(",");
      if (v.size() > size_t(kMaxRank)) fail("a shape has at most 8 dimensions");
      const Token start = token_;
      std::string text;
      const auto joins = [](char c) { return c == '+' || c == '-' || c == '*'; };
      while (token_.kind != Token::End && token_.kind != Token::String && token_.text != "," &&
             token_.text != "]" && (text.empty() || joins(text.back()) || joins(token_.text[0])))
        text += take().text;
      at(start, [&] { v.push_back(SymbolicExtent::parse(text).dim()); });
    }
  }
  template <class I> void integers(std::vector<I>& v) {
    v.clear();
    expect("[");
    while (!accept("]")) {
      if (!v.empty()) expect(",");
      if (v.size() >= 64) fail("the list is too long");
      I i{};
      value(i);
      v.push_back(i);
    }
  }
  void value(std::vector<int>& v) { integers(v); }
  void value(std::vector<int64_t>& v) { integers(v); }
  template <class Map> void map(Map& v, const char* names) {
    v.fill(-1);
    expect("{");
    bool first = true;
    while (!accept("}")) {
      if (!first) expect(",");
      first = false;
      size_t i = dimension(names);
      if (i >= v.size()) fail("no such dimension");
      expect(":");
      Token t = token_;
      int64_t axis = integer();
      if (axis < 0 || axis >= kMaxRank)
        fail_at(t, "axis " + std::to_string(axis) + " is out of range");
      v[i] = int8_t(axis);
    }
  }
  void value(GridMap& v) { map(v, "xyz"); }
  void value(LoopMap& v) { map(v, "ijkl"); }
  size_t dimension(const std::string& names) {
    size_t i = token_.kind == Token::Name && token_.text.size() == 1 ? names.find(token_.text)
                                                                     : std::string::npos;
    if (i == std::string::npos) fail("expected one of " + names + ", got " + shown(token_));
    take();
    return i;
  }
  std::vector<int64_t> dims(const char* names) {
    std::vector<int64_t> v;
    expect("[");
    while (!accept("]")) {
      if (!v.empty()) expect(",");
      Token t = token_;
      if (dimension(names) != v.size())
        fail_at(t, "dimensions are named " + std::string(names) + " in order");
      expect("=");
      v.push_back(integer());
    }
    return v;
  }
  Type type() {
    Type t;
    Token start = token_;
    value(t.dtype);
    value(t.shape);
    at(start, [&] { check_type(t, "type"); });
    return t;
  }

  // --- statements
  Graph block_header(const Token& where) {
    expect_word("grid");
    auto grid = dims("xyz");
    std::vector<int64_t> loops;
    if (token_.kind == Token::Name && token_.text == "loops") {
      take();
      loops = dims("ijkl");
    }
    return at(where, [&] { return Graph::block(grid, loops); });
  }

  void body(Graph& g) {
    if (++depth_ > 4) fail("graphs are nested too deeply");
    expect("{");
    std::map<std::string, TensorId> names;
    scopes_.emplace_back();
    auto tensor = [&] {
      if (token_.kind != Token::Name) fail("expected a tensor's name, got " + shown(token_));
      auto it = names.find(token_.text);
      if (it == names.end()) {
        std::vector<std::string> known;
        for (const auto& [n, id] : names) known.push_back(n);
        fail("unknown tensor " + token_.text + suggestion(token_.text, known));
      }
      take();
      return it->second;
    };
    while (true) {
      if (is("}") || token_.kind == Token::End)
        fail("expected a statement or return, got " + shown(token_));
      if (token_.kind == Token::Name && token_.text == "return") break;
      statement(g, names, tensor);
    }
    take();
    do g.add_output(tensor());
    while (accept(","));
    expect("}");
    closed_ = std::move(scopes_.back());
    scopes_.pop_back();
    depth_--;
  }

  template <class TensorF>
  void statement(Graph& g, std::map<std::string, TensorId>& names, TensorF tensor) {
    if (++ops_ > limits_.ops) fail("more than " + std::to_string(limits_.ops) + " operators");
    std::vector<Token> results;
    do {
      if (token_.kind != Token::Name) fail("expected a result's name, got " + shown(token_));
      if (names.count(token_.text)) fail(token_.text + " is already defined");
      for (const Token& r : results)
        if (r.text == token_.text) fail(token_.text + " is already defined");
      results.push_back(take());
    } while (accept(","));
    expect("=");
    Token op_token = token_;
    if (token_.kind != Token::Name) fail("expected an operator, got " + shown(token_));
    auto kind = op_from_name(take().text);
    if (!kind) {
      std::vector<std::string> known;
      for (OpKind k : all_op_kinds()) known.push_back(name(k));
      fail_at(op_token, "unknown operator " + op_token.text + suggestion(op_token.text, known));
    }
    std::vector<TensorId> inputs;
    if (token_.kind == Token::Name && token_.line == op_token.line &&
        !((is_kernel(*kind) || is_thread(*kind)) && token_.text == "grid"))
      do inputs.push_back(tensor());
      while (accept(","));
    Attrs attrs = info(*kind).default_attrs;
    bool has_body = is_kernel(*kind) || is_thread(*kind);
    if (!has_body && is("{")) attributes(op_token, attrs);
    std::optional<Graph> inner;
    std::string written;
    if (is_kernel(*kind) && is("{")) {
      const Token brace = take(), name = token_;
      if (name.kind != Token::String) fail_at(brace, "expected 'grid', got '{'");
      value(written);
      if (!read_written(written)) fail_at(name, "expected who wrote the kernel's code");
      expect("}");
    }
    if (has_body) {
      inner = is_kernel(*kind) ? block_header(op_token) : Graph::thread();
      body(*inner);
      inner->set_name(written);
    }
    std::vector<Type> types;
    Token type_token = token_;
    if (accept(":")) {
      type_token = token_;
      do types.push_back(type());
      while (accept(","));
    }
    scopes_.back().emplace(op_token.text + " " + results[0].text, op_token);
    const Places places = has_body ? std::move(closed_) : Places();
    add(g, op_token, *kind, inputs, attrs, std::move(inner), types, type_token, results);
    const Op& op = g.ops().back();
    if (has_body && depth_ == 1) at_operator(places, op_token, [&] { validate_body(g, op); });
    for (size_t i = 0; i < results.size(); i++)
      names.emplace(results[i].text, op.result(uint32_t(i)));
  }

  void attributes(const Token& op_token, Attrs& attrs) {
    expect("{");
    std::vector<std::string> seen;
    while (!accept("}")) {
      if (!seen.empty()) expect(",");
      if (token_.kind != Token::Name) fail("expected an attribute, got " + shown(token_));
      Token key = take();
      if (std::ranges::find(seen, key.text) != seen.end())
        fail_at(key, "attribute " + key.text + " is given twice");
      seen.push_back(key.text);
      bool found = false;
      std::vector<std::string> known;
      std::visit(
          [&](auto& a) {
            a.fields(a, [&](const char* field, auto& v) {
              known.push_back(field);
              if (key.text != field) return;
              found = true;
              expect("=");
              value(v);
            });
          },
          attrs);
      if (!found)
        fail_at(key, op_token.text + " has no attribute " + key.text + suggestion(key.text, known));
    }
  }

  void add(Graph& g, const Token& op_token, OpKind kind, const std::vector<TensorId>& inputs,
           Attrs attrs, std::optional<Graph> inner, const std::vector<Type>& types,
           const Token& type_token, const std::vector<Token>& results) {
    bool needs_type = is_leaf(kind) || is_store(kind) || is_opaque(kind);
    if (needs_type && types.empty())
      fail_at(type_token, std::string(name(kind)) + " needs its type, as in ': f32[16,1024]'");
    std::vector<std::string> names = mapped(results, &Token::text);
    at(op_token, [&] {
      if (is_input(kind)) {
        if (!inputs.empty())
          bad_input("input takes 0 operands, not " + std::to_string(inputs.size()));
        g.add_input(types[0], names[0], std::get<InputAttrs>(attrs).weight);
        return;
      }
      if (auto* a = std::get_if<ConstAttrs>(&attrs)) a->type = types[0];
      if (auto* a = std::get_if<IotaAttrs>(&attrs)) a->type = types[0];
      if (auto* a = std::get_if<SaveAttrs>(&attrs)) a->type = types[0];
      if (auto* a = std::get_if<OpaqueAttrs>(&attrs)) a->results = types;
      if (inner)
        g.add_graph_op(kind, inputs, std::move(*inner), names);
      else
        g.add_op(kind, inputs, std::move(attrs), names);
    });
    const Op& op = g.ops().back();
    if (op.num_results != results.size())
      fail_at(results[0], op_token.text + " has " + std::to_string(op.num_results) +
                              " results, not " + std::to_string(results.size()));
    if (types.empty()) return;
    if (types.size() != results.size())
      fail_at(type_token, std::to_string(types.size()) + " types for " +
                              std::to_string(results.size()) + " results");
    for (size_t i = 0; i < types.size(); i++)
      if (const Type& real = g.type(op.result(uint32_t(i))); !(types[i] == real))
        fail_at(type_token, results[i].text + " is " + real.str() + ", not " + types[i].str());
  }

  Lexer lexer_;
  const std::string& file_;
  ParseLimits limits_;
  Token token_;
  int depth_ = 0;
  std::vector<Places> scopes_;  // of the bodies being read: where each operator is
  Places closed_;               // of the body that was read last
  size_t ops_ = 0;
};

}  // namespace

Graph parse(std::string_view text, const std::string& file, const ParseLimits& limits) {
  if (text.size() > limits.bytes)
    throw Error(ErrorKind::BadInput,
                "the file has more than " + std::to_string(limits.bytes) + " bytes",
                SourceLocation{file, 0, 0});
  return Parser(text, file, limits).file();
}

}  // namespace tessera
