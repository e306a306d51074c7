#include "kernel/print_c.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/names.h"
#include "base/text.h"
#include "eval/ndarray.h"
#include "ir/custom.h"

namespace tessera::kernel {
namespace {

const char* c_type(DType dtype) {
  return name_of<DType::Bool>(dtype, {"double", "float", "uint16_t", "uint16_t", "int64_t",
                                      "int32_t", "int8_t", "uint8_t", "bool"});
}
// What elements are computed in: 16-bit floats in float.
const char* c_value_type(DType dtype) { return is_sixteen(dtype) ? "float" : c_type(dtype); }

std::string replaced(std::string s, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = s.find(what, at)) != s.npos; at += by.size())
    s.replace(at, what.size(), by);
  return s;
}

// Functions that libm lacks: $T the type, $U the unsigned type that wraps as it does, $f the suffix
// of libm's functions.
struct CHelper {
  const char *name, *parameters, *body;
};
const CHelper kOfFloats[] = {
    {"square", "$T x", "return x * x;"},
    {"sign", "$T x", "return x != x ? x : ($T)((x > 0) - (x < 0));"},
    {"relu", "$T x", "return x > 0 || x != x ? x : 0;"},
    {"larger", "$T x, $T y", "return x > y || x != x ? x : y;"},
    {"smaller", "$T x, $T y", "return x < y || x != x ? x : y;"},
    {"sigmoid", "$T x", "return 1 / (1 + exp$f(-x));"},
    {"silu", "$T x", "return x / (1 + exp$f(-x));"},
    {"gelu", "$T x", "return x * (1 + erf$f(x * ($T)0.70710678118654752)) * ($T)0.5;"},
    {"gelu_tanh", "$T x",
     "return x * (1 + tanh$f(($T)0.7978845608028654 * (x + ($T)0.044715 * (x * x * x)))) * "
     "($T)0.5;"},
    {"floored_mod", "$T x, $T y",
     "const $T r = fmod$f(x, y);\n  if (r == 0) return copysign$f(0, y);\n"
     "  return (r < 0) != (y < 0) ? r + y : r;"},
    {"power_of", "$T x, int n",
     "$T r = 1;\n  for (; n != 0; n >>= 1, x *= x)\n    if (n & 1) r *= x;\n  return r;"},
};
const CHelper kOfIntegers[] = {
    {"square", "$T x", "return ($T)(($U)x * ($U)x);"},
    {"larger", "$T x, $T y", "return x > y ? x : y;"},
    {"smaller", "$T x, $T y", "return x < y ? x : y;"},
    {"power_of", "$T x, int n",
     "$U r = 1, b = ($U)x;\n  for (; n != 0; n >>= 1, b *= b)\n    if (n & 1) r *= b;\n"
     "  return ($T)r;"},
};
const CHelper kOfSigned[] = {
    {"absolute", "$T x", "return x < 0 ? ($T)(0 - ($U)x) : x;"},
    {"sign", "$T x", "return ($T)((x > 0) - (x < 0));"},
    {"relu", "$T x", "return x > 0 ? x : 0;"},
    {"floored_mod", "$T x, $T y",
     "if (y == 0 || y == -1) return 0;\n  const $T r = ($T)(x % y);\n"
     "  return r != 0 && (r < 0) != (y < 0) ? ($T)(r + y) : r;"},
};
const CHelper kOfUnsigned[] = {
    {"absolute", "$T x", "return x;"},
    {"sign", "$T x", "return x > 0;"},
    {"relu", "$T x", "return x;"},
    {"floored_mod", "$T x, $T y", "return y == 0 ? 0 : ($T)(x % y);"},
};
// Conversions: what they are called, from and to.
const std::map<std::string, std::string> kConversions = {
    {"truncated_i64", "// What int64_t does not hold, and NaN, is the least one.\n"
                      "static inline int64_t truncated_i64(double x) {\n"
                      "  return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;\n}\n"},
    {"truncated_i32", "// What int32_t does not hold, and NaN, is the least one.\n"
                      "static inline int32_t truncated_i32(double x) {\n"
                      "  return x > -0x1p31 - 1 && x < 0x1p31 ? (int32_t)x : INT32_MIN;\n}\n"},
    {"from_bf16",
     "static inline float from_bf16(uint16_t x) {\n  const uint32_t bits = (uint32_t)x << 16;\n"
     "  float r;\n  memcpy(&r, &bits, sizeof r);\n  return r;\n}\n"},
    {"to_bf16", "static inline uint16_t to_bf16(float x) {\n  uint32_t bits;\n"
                "  memcpy(&bits, &x, sizeof bits);\n"
                "  if (x != x) return (uint16_t)(bits >> 16 | 0x40);\n"
                "  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);\n}\n"},
    {"from_f16",
     "static inline float from_f16(uint16_t x) {\n"
     "  const int exponent = x >> 10 & 31, digits = x & 1023;\n"
     "  const float size = exponent == 31 ? (digits ? NAN : INFINITY)\n"
     "                     : exponent     ? ldexpf((float)(digits + 1024), exponent - 25)\n"
     "                                    : ldexpf((float)digits, -24);\n"
     "  return x >> 15 ? -size : size;\n}\n"},
    {"to_f16",
     "static inline uint16_t to_f16(float x) {\n"
     "  const uint16_t sign = signbit(x) ? 0x8000 : 0;\n  const float size = fabsf(x);\n"
     "  if (x != x) return sign | 0x7e00;\n  if (size >= 65520) return sign | 0x7c00;\n"
     "  if (size < 0x1p-14f) return sign | (uint16_t)nearbyintf(size * 0x1p24f);\n"
     "  int exponent;\n  const float digits = nearbyintf(frexpf(size, &exponent) * 2048);\n"
     "  return sign | (uint16_t)(((exponent + 13) << 10) + (int)digits);\n}\n"},
};

// Text with how tightly it binds.
enum Binds { kLoose, kSum, kProduct, kUnary, kWhole };
struct CText {
  std::string text;
  Binds binding = kWhole;
  std::string at(Binds least) const { return binding >= least ? text : "(" + text + ")"; }
};

class CPrinter {
 public:
  CPrinter(const Function& f, const std::string& name) : f_(f), name_(name) {}
  CSource print(const std::string& notes);

 private:
  CText scalar(const Scalar& x);
  CText literal(DType dtype, const Rational& value) const;
  CText load(const Load& l);
  CText apply(const Scalar& x, const Apply& a);
  std::optional<CText> library(const Scalar& x, const Apply& a, const std::vector<CText>& in);
  CText arithmetic(const Scalar& x, const Apply& a, const std::vector<CText>& in);
  CText integer_arithmetic(DType dtype, const char* sign, const CText& a, const CText& b) const;
  CText power(DType dtype, const Rational& e, const CText& x);
  CText conversion(const Scalar& from, DType to, CText x);
  CText call(const std::string& function, const std::vector<CText>& in) const;
  CText helper(const std::string& function, DType dtype, const std::vector<CText>& in);
  std::string place(int buffer, const Expr& offset);
  // Of 16-bit floats: as they are stored.
  CText rounded(const Scalar& from, CText x);
  std::string stored(DType dtype, const CText& x);

  void line(const std::string& text) { out_ += std::string(size_t(2 * depth_), ' ') + text + "\n"; }
  void open(const std::string& text) { line(text), ++depth_; }
  void close() { --depth_, line("}"); }
  void body(const Body& body);
  void statement(const Statement& s);
  void accumulate(const Accumulate& a);
  void block(const Block& b);
  void pointer(int buffer, const char* base);
  std::string signature() const;
  std::string header(const std::string& notes) const;
  std::string macro(const std::string& suffix) const;

  const Function& f_;
  const std::string& name_;
  std::string out_;
  int depth_ = 1;
  std::map<std::string, std::string> helpers_;  // definitions by name
  std::set<int> used_;                          // buffers
  bool vectors_ = false;
};

// --- scalars

CText CPrinter::literal(DType dtype, const Rational& value) const {
  if (dtype == DType::Bool) return {value.is_zero() ? "false" : "true"};
  if (!is_float(dtype)) {
    const int64_t n = wrap_to(dtype, value.num());
    if (n == INT64_MIN) return {"INT64_MIN"};
    if (n == INT32_MIN) return {"INT32_MIN"};
    const std::string digits = std::to_string(n);
    if (n > INT32_MAX || n < INT32_MIN) return {"INT64_C(" + digits + ")", kUnary};
    return {digits, n < 0 ? kUnary : kWhole};
  }
  const bool wide = dtype == DType::F64;
  const double x = round_to(dtype, value.to_double());
  if (std::isnan(x)) return {"NAN"};
  if (std::isinf(x)) return x < 0 ? CText{"-INFINITY", kUnary} : CText{"INFINITY"};
  std::string digits;
  for (int n = 1; n <= 17; ++n) {
    digits = significant(x, n);
    const double back = std::strtod(digits.c_str(), nullptr);
    if (back == x || (!wide && float(back) == float(x))) break;
  }
  if (digits.find_first_of(".e") == digits.npos) digits += ".0";
  return {digits + (wide ? "" : "f"), x < 0 ? kUnary : kWhole};
}

std::string CPrinter::place(int buffer, const Expr& offset) {
  used_.insert(buffer);
  const Buffer& b = f_.buffers[size_t(buffer)];
  if (b.space == Space::Stack && b.elements == 1) return b.name;
  return b.name + "[" + offset.text() + "]";
}

CText CPrinter::load(const Load& l) {
  const DType dtype = f_.buffers[size_t(l.buffer)].dtype;
  CText x{place(l.buffer, l.offset)};
  if (!is_sixteen(dtype) || f_.buffers[size_t(l.buffer)].space == Space::Stack) return x;
  const std::string from = std::string("from_") + name(dtype);
  helpers_[from] = kConversions.at(from);
  return call(from, {x});
}

CText CPrinter::call(const std::string& function, const std::vector<CText>& in) const {
  std::string s = function + "(";
  for (size_t i = 0; i < in.size(); ++i) s += (i ? ", " : "") + in[i].text;
  return {s + ")"};
}

CText CPrinter::helper(const std::string& function, DType dtype, const std::vector<CText>& in) {
  const DType as = is_sixteen(dtype) ? DType::F32 : dtype;
  const std::string own = function + "_" + name(as);
  using Helpers = std::span<const CHelper>;
  const CHelper* found = nullptr;
  for (const Helpers all : {is_float(as) ? Helpers(kOfFloats) : Helpers(kOfIntegers),
                            as == DType::U8 ? Helpers(kOfUnsigned) : Helpers(kOfSigned)})
    for (const CHelper& h : all)
      if (found == nullptr && function == h.name) found = &h;
  CHECK(found != nullptr) << function;
  std::string text = std::string("static inline $T ") + own + "(" + found->parameters + ") {\n  " +
                     found->body + "\n}\n";
  text = replaced(text, "$T", c_type(as));
  text = replaced(text, "$U", as == DType::I64 ? "uint64_t" : "uint32_t");
  helpers_[own] = replaced(text, "$f", as == DType::F64 ? "" : "f");
  return call(own, in);
}

CText CPrinter::rounded(const Scalar& from, CText x) {
  if (!is_sixteen(from.dtype) || std::holds_alternative<Load>(*from.node)) return x;
  const std::string type = name(from.dtype);
  for (const std::string& f : {"to_" + type, "from_" + type}) helpers_[f] = kConversions.at(f);
  return call("from_" + type, {call("to_" + type, {std::move(x)})});
}

std::string CPrinter::stored(DType dtype, const CText& x) {
  if (!is_sixteen(dtype)) return x.text;
  const std::string to = std::string("to_") + name(dtype);
  helpers_[to] = kConversions.at(to);
  return call(to, {x}).text;
}

CText CPrinter::conversion(const Scalar& from, DType to, CText x) {
  x = rounded(from, std::move(x));
  if (to == DType::Bool) return {x.at(kSum) + " != 0", kLoose};
  if (!is_float(from.dtype) || is_float(to)) {
    if (std::string(c_value_type(to)) == c_value_type(from.dtype)) return x;
    return {std::string("(") + c_value_type(to) + ")" + x.at(kUnary), kUnary};
  }
  const std::string own = to == DType::I64 ? "truncated_i64" : "truncated_i32";
  helpers_[own] = kConversions.at(own);
  x = call(own, {x});
  if (to == DType::I64 || to == DType::I32) return x;
  return {std::string("(") + c_type(to) + ")" + x.text, kUnary};
}

CText CPrinter::power(DType dtype, const Rational& e, const CText& x) {
  const bool half = e.den() == 2 && e.exp2() == 0;
  const std::string f = dtype == DType::F64 ? "" : "f";
  if (!is_float(dtype)) return helper("power_of", dtype, {x, {std::to_string(e.num())}});
  if (!(e.is_integer() || half) || std::abs(e.num()) > 64)
    return call("pow" + f, {x, literal(dtype, e)});
  const int64_t n = std::abs(e.num());
  CText r = half ? call("sqrt" + f, {x}) : x;
  if (n == 2) r = helper("square", dtype, {r});
  if (n == 0 || n > 2) r = helper("power_of", dtype, {r, {std::to_string(n)}});
  if (!e.negative()) return r;
  return {literal(dtype, 1).text + " / " + r.at(kUnary), kProduct};
}

// Functions of libm, and those written out above.
std::optional<CText> CPrinter::library(const Scalar& x, const Apply& a,
                                       const std::vector<CText>& in) {
  using K = OpKind;
  static const std::map<OpKind, const char*> of_libm = {
      {K::Sqrt, "sqrt"},   {K::Exp, "exp"},         {K::Log, "log"},     {K::Sin, "sin"},
      {K::Cos, "cos"},     {K::Erf, "erf"},         {K::Erfc, "erfc"},   {K::Tanh, "tanh"},
      {K::Floor, "floor"}, {K::Round, "nearbyint"}, {K::Log1p, "log1p"}, {K::Expm1, "expm1"},
      {K::Power, "pow"},   {K::Atan2, "atan2"}};
  static const std::map<OpKind, const char*> own = {
      {K::Sign, "sign"},          {K::Sqr, "square"},      {K::Relu, "relu"}, {K::Max, "larger"},
      {K::Min, "smaller"},        {K::Sigmoid, "sigmoid"}, {K::Silu, "silu"}, {K::Gelu, "gelu"},
      {K::GeluTanh, "gelu_tanh"}, {K::Mod, "floored_mod"}};
  const std::string f = x.dtype == DType::F64 ? "" : "f";
  if (const auto it = of_libm.find(a.kind); it != of_libm.end()) return call(it->second + f, in);
  if (const auto it = own.find(a.kind); it != own.end()) return helper(it->second, x.dtype, in);
  if (a.kind == K::Abs && is_float(x.dtype)) return call("fabs" + f, in);
  if (a.kind == K::Abs) return helper("absolute", x.dtype, in);
  if (a.kind == K::Rsqrt)
    return CText{literal(x.dtype, 1).text + " / " + call("sqrt" + f, in).text, kProduct};
  if (a.kind == K::Custom) {
    std::vector<std::string> operands;
    for (const CText& operand : in) operands.push_back("(double)" + operand.at(kWhole));
    const std::string value = custom_function(std::get<CustomAttrs>(a.attrs)).text(operands, "");
    return CText{std::string("(") + c_value_type(x.dtype) + ")(" + value + ")", kUnary};
  }
  if (a.kind == K::Pow) return power(x.dtype, std::get<PowAttrs>(a.attrs).exponent, in[0]);
  return std::nullopt;
}

// Modulo 2^w, which signed types of C are not.
CText CPrinter::integer_arithmetic(DType dtype, const char* sign, const CText& a,
                                   const CText& b) const {
  const std::string wraps = dtype == DType::I64 ? "(uint64_t)" : "(uint32_t)";
  return {std::string("(") + c_type(dtype) + ")(" + wraps + a.at(kUnary) + " " + sign + " " +
              wraps + b.at(kUnary) + ")",
          kUnary};
}

CText CPrinter::arithmetic(const Scalar& x, const Apply& a, const std::vector<CText>& in) {
  using K = OpKind;
  const bool real = is_float(x.dtype);
  switch (a.kind) {
  case K::Neg:
    if (!real) return integer_arithmetic(x.dtype, "-", {"0"}, in[0]);
    return {"-" + in[0].at(kWhole), kUnary};
  case K::Add:
    if (!real) return integer_arithmetic(x.dtype, "+", in[0], in[1]);
    return {in[0].at(kSum) + " + " + in[1].at(kProduct), kSum};
  case K::Sub:
    if (!real) return integer_arithmetic(x.dtype, "-", in[0], in[1]);
    return {in[0].at(kSum) + " - " + in[1].at(kProduct), kSum};
  case K::Mul:
    if (!real) return integer_arithmetic(x.dtype, "*", in[0], in[1]);
    return {in[0].at(kProduct) + " * " + in[1].at(kUnary), kProduct};
  case K::Div: return {in[0].at(kProduct) + " / " + in[1].at(kUnary), kProduct};
  case K::Not: return {"!" + in[0].at(kWhole), kUnary};
  case K::And: return {in[0].at(kSum) + " && " + in[1].at(kSum), kLoose};
  case K::Or: return {in[0].at(kSum) + " || " + in[1].at(kSum), kLoose};
  case K::Where: return {in[0].at(kSum) + " ? " + in[1].at(kSum) + " : " + in[2].at(kSum), kLoose};
  default: break;
  }
  if (!is_comparison(a.kind))
    throw Error(ErrorKind::Unsupported, std::string(name(a.kind)) + " is not exported to C");
  return {in[0].at(kSum) + " " + symbol(a.kind) + " " + in[1].at(kSum), kLoose};
}

CText CPrinter::apply(const Scalar& x, const Apply& a) {
  std::vector<CText> in;
  for (const Scalar& y : a.operands) {
    in.push_back(scalar(y));
    if (is_comparison(a.kind)) in.back() = rounded(y, in.back());
  }
  if (a.kind == OpKind::Cast) return conversion(a.operands[0], x.dtype, in[0]);
  if (auto r = library(x, a, in)) return *r;
  return arithmetic(x, a, in);
}

CText CPrinter::scalar(const Scalar& x) {
  return std::visit(Cases{[&](const Literal& l) { return literal(x.dtype, l.value); },
                          [&](const Variable& v) { return CText{v.name}; },
                          [&](const Expr& e) { return CText{e.operand()}; },
                          [&](const Load& l) { return load(l); },
                          [&](const Apply& a) { return apply(x, a); },
                          [&](const Select& s) {
                            return CText{"(" + s.when.text() + ") ? " + scalar(s.of[0]).at(kSum) +
                                             " : " + scalar(s.of[1]).at(kSum),
                                         kLoose};
                          }},
                    *x.node);
}

// --- statements

void CPrinter::body(const Body& body) {
  for (const Statement& s : body) statement(s);
}

void CPrinter::accumulate(const Accumulate& a) {
  const DType dtype = f_.buffers[size_t(a.buffer)].dtype;
  const CText x = load({a.buffer, a.offset}), y = scalar(a.value);
  const std::string to = place(a.buffer, a.offset);
  if (a.fold != AccumKind::Sum)
    line(to + " = " +
         stored(dtype, helper(a.fold == AccumKind::Max ? "larger" : "smaller", dtype, {x, y})) +
         ";");
  else if (is_sixteen(dtype))
    line(to + " = " + stored(dtype, {x.text + " + " + y.at(kProduct)}) + ";");
  else if (is_float(dtype))
    line(to + " += " + y.text + ";");
  else
    line(to + " = " + integer_arithmetic(dtype, "+", x, y).text + ";");
}

// The workspace's buffers that it uses have names in it alone: others may lie where they lie.
void CPrinter::block(const Block& b) {
  line("// " + b.note);
  open("{");
  const std::string before = std::exchange(out_, "");
  const std::set<int> used = std::exchange(used_, {});
  body(b.body);
  const std::string inside = std::exchange(out_, before);
  for (const int i : used_)
    if (f_.buffers[size_t(i)].space == Space::Workspace) pointer(i, "workspace");
  used_.insert(used.begin(), used.end());
  out_ += inside;
  close();
}

void CPrinter::pointer(int buffer, const char* base) {
  const Buffer& b = f_.buffers[size_t(buffer)];
  const std::string type = std::string(b.space == Space::Weights ? "const " : "") + c_type(b.dtype),
                    bytes = b.space == Space::Weights ? "const char" : "char";
  line(type + " *restrict const " + b.name + " = (" + type + " *)((" + bytes + " *)" + base +
       " + " + std::to_string(b.offset) + ");");
}

void CPrinter::statement(const Statement& s) {
  std::visit(Cases{[&](const Block& x) { block(x); },
                   [&](const Loop& x) {
                     if (x.kind == LoopKind::Vector) line("VECTOR_LOOP");
                     vectors_ |= x.kind == LoopKind::Vector;
                     open("for (int64_t " + x.variable + " = 0; " + x.variable + " < " +
                          x.extent.text() + "; ++" + x.variable + ") {");
                     body(x.body);
                     close();
                   },
                   [&](const If& x) {
                     open("if (" + x.when.text() + ") {");
                     body(x.then);
                     close();
                     if (x.otherwise.empty()) return;
                     open("else {");
                     body(x.otherwise);
                     close();
                   },
                   [&](const Let& x) {
                     line("const " + std::string(c_value_type(x.value.dtype)) + " " + x.name +
                          " = " + scalar(x.value).text + ";");
                   },
                   [&](const Index& x) {
                     line("const int64_t " + x.name + " = " + scalar(x.value).text + ";");
                     line("if (" + x.name + " < " + std::to_string(x.range.least) + " || " +
                          x.name + " > " + std::to_string(x.range.most) + ") return 1;");
                   },
                   [&](const Local& x) {
                     const Buffer& b = f_.buffers[size_t(x.buffer)];
                     const std::string type = c_value_type(b.dtype);
                     line(b.elements == 1 ? type + " " + b.name + ";"
                                          : "_Alignas(64) " + type + " " + b.name + "[" +
                                                std::to_string(b.elements) + "];");
                   },
                   [&](const Store& x) {
                     const Buffer& b = f_.buffers[size_t(x.buffer)];
                     const CText value = scalar(x.value);
                     line(place(x.buffer, x.offset) + " = " +
                          (b.space == Space::Stack ? value.text : stored(b.dtype, value)) + ";");
                   },
                   [&](const Accumulate& x) { accumulate(x); }},
             s.is);
}

// --- files

std::string CPrinter::macro(const std::string& suffix) const {
  std::string s = f_.name + "_" + suffix;
  std::ranges::transform(s, s.begin(), [](unsigned char c) { return char(std::toupper(c)); });
  return s;
}

std::string CPrinter::signature() const {
  std::string s = "int " + f_.name + "(";
  bool first = true;
  const auto add = [&](const std::string& parameter) {
    s += (first ? "" : ", ") + parameter;
    first = false;
  };
  for (const Buffer& b : f_.buffers)
    if (b.space == Space::Argument)
      add((b.written ? "" : "const ") + std::string(c_type(b.dtype)) + " *restrict " + b.name);
  if (f_.bytes(Space::Weights) > 0) add("const void *restrict weights");
  if (f_.bytes(Space::Workspace) > 0) add("void *restrict workspace");
  return s + ")";
}

std::string CPrinter::header(const std::string& notes) const {
  std::string h = "/*\n";
  for (size_t at = 0, end; at < notes.size(); at = end + 1) {
    end = std::min(notes.find('\n', at), notes.size());
    const std::string l = replaced(notes.substr(at, end - at), "*/", "* /");
    h += l.empty() ? " *\n" : " * " + l + "\n";
  }
  const std::string guard = macro("H");
  h += " */\n#ifndef " + guard + "\n#define " + guard +
       "\n\n#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n\n"
       "#define " +
       macro("WEIGHTS_BYTES") + " " + std::to_string(f_.bytes(Space::Weights)) + "\n#define " +
       macro("WORKSPACE_BYTES") + " " + std::to_string(f_.bytes(Space::Workspace)) +
       "\n\n#ifdef __cplusplus\n#define restrict __restrict\nextern \"C\" {\n#endif\n\n" +
       signature() + ";\n\n#ifdef __cplusplus\n}\n#undef restrict\n#endif\n\n#endif\n";
  return h;
}

CSource CPrinter::print(const std::string& notes) {
  body(f_.body);
  line("return 0;");
  const std::string statements = std::exchange(out_, "");
  bool weights = false;
  for (size_t i = 0; i < f_.buffers.size(); ++i) {
    const Buffer& b = f_.buffers[i];
    const bool is_used = used_.contains(int(i));
    if (b.space == Space::Weights && is_used) weights = true, pointer(int(i), "weights");
    if (b.space == Space::Argument && !is_used) line("(void)" + b.name + ";");
  }
  if (!weights && f_.bytes(Space::Weights) > 0) line("(void)weights;");
  std::string s =
      "// " + name_ + ".h says what this is and how to call it.\n#include \"" + name_ +
      ".h\"\n\n#include <math.h>\n#include <string.h>\n\n"
      "#if !defined(__GNUC__) || defined(__clang__)  // GCC warns of it; -std=c11 is enough there\n"
      "#pragma STDC FP_CONTRACT OFF\n#endif\n"
      "#ifdef __GNUC__  // what a program compares may be decided by its types\n"
      "#pragma GCC diagnostic ignored \"-Wtype-limits\"\n#endif\n";
  if (vectors_)
    s += "#ifdef _OPENMP\n#define VECTOR_LOOP _Pragma(\"omp simd\")\n#else\n"
         "#define VECTOR_LOOP\n#endif\n";
  for (const auto& [_, text] : helpers_) s += "\n" + text;
  return {s + "\n" + signature() + " {\n" + out_ + statements + "}\n", header(notes)};
}

}  // namespace

std::string c_name(const std::string& name) {
  static const std::set<std::string> taken = [] {
    const std::string words =
        " alignas auto bool break case char const continue default do double else enum extern "
        "false float for goto if inline int long register restrict return short signed sizeof "
        "static struct switch true typedef union unsigned void volatile while main weights "
        "workspace abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc "
        "exp exp2 expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb j0 j1 jn ldexp "
        "lgamma log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter pow remainder "
        "remquo rint round scalbn signbit signgam sin sinh sqrt tan tanh tgamma trunc y0 y1 yn "
        "gamma INFINITY NAN memcpy memset memmove index div exit free malloc read write time "
        "asm typeof linux unix NULL INT64_MIN INT32_MIN VECTOR_LOOP abort and bitand bitor calloc "
        "catch class compl concept constexpr decltype delete explicit export friend mutable "
        "namespace new noexcept not nullptr operator or printf private protected public putchar "
        "puts realloc requires scanf static_assert template this throw try typename using virtual "
        "xor ";
    std::set<std::string> all;
    for (size_t at = 1, end; (end = words.find(' ', at)) != words.npos; at = end + 1)
      all.insert(words.substr(at, end - at));
    for (const auto& [conversion, _] : kConversions) all.insert(conversion);
    using Helpers = std::span<const CHelper>;
    for (const Helpers helpers : {Helpers(kOfFloats), Helpers(kOfIntegers), Helpers(kOfSigned)})
      for (const CHelper& h : helpers)
        for (size_t t = 0; t < kNumDTypes; ++t)
          all.insert(std::string(h.name) + "_" + tessera::name(DType(t)));
    return all;
  }();
  std::string s;
  for (unsigned char c : name) s += (c < 128 && std::isalnum(c)) || c == '_' ? char(c) : '_';
  if (s.empty() || std::isdigit(static_cast<unsigned char>(s[0])) || s[0] == '_') s = "v" + s;
  // Functions of the library are there for float and long double, too.
  const bool narrow = s.size() > 1 && (s.back() == 'f' || s.back() == 'l');
  const bool is_taken = taken.contains(s) || s.ends_with("_t") ||
                        (narrow && taken.contains(s.substr(0, s.size() - 1)));
  return is_taken ? s + "_" : s;
}

CSource print_c(const Function& function, const std::string& name, const std::string& notes) {
  return CPrinter(function, name).print(notes);
}

}  // namespace tessera::kernel
