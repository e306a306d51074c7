#include "backend/nest.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/interruption.h"
#include "base/names.h"
#include "base/text.h"
#include "ir/axis_reads.h"
#include "ir/custom.h"

namespace tessera {

// --- text --------------------------------------------------------------------------------------

void Code::line(const std::string& text) {
  text_ += std::string(size_t(2 * indent_), ' ') + text + "\n";
}
void Code::open(const std::string& text) {
  line(text.empty() ? "{" : text + " {");
  ++indent_;
}
void Code::close(const std::string& after) {
  --indent_;
  line("}" + after);
}

void Code::close(int levels) {
  for (int i = 0; i < levels; ++i) close();
}

void Code::open_if(const Condition& condition) {
  if (!condition.always()) open("if (" + condition.text() + ")");
}
void Code::close_if(const Condition& condition) {
  if (!condition.always()) close();
}
void Code::otherwise() {
  close(" else {");
  ++indent_;
}

const char* storage_type(DType dtype, Dialect dialect) {
  const bool cuda = dialect == Dialect::Cuda;
  return name_of<DType::Bool>(dtype, {"double", "float", cuda ? "ts::f16" : "unsigned short",
                                      cuda ? "ts::bf16" : "unsigned short", "long", "int",
                                      "signed char", "unsigned char", "unsigned char"});
}

DType compute_dtype(DType dtype) { return is_sixteen(dtype) ? DType::F32 : dtype; }
const char* compute_type(DType dtype) { return storage_type(compute_dtype(dtype)); }

std::string literal(const Rational& value, DType dtype, Dialect dialect) {
  if (!is_float(dtype)) {
    if (dtype == DType::Bool) return value.is_zero() ? "0" : "1";
    return "(" + std::string(compute_type(dtype)) + ")" + std::to_string(value.num()) + "L";
  }
  const bool wide = dtype == DType::F64;
  const double x = value.to_double();
  const bool cuda = dialect == Dialect::Cuda;
  if (std::isnan(x) && cuda) return "ts::as_float(0x7fffffffu)";
  if (std::isnan(x)) return wide ? "__builtin_nan(\"\")" : "__builtin_nanf(\"\")";
  const double held = wide ? x : double(float(x));
  if (std::isinf(held) && cuda)
    return held < 0 ? "ts::as_float(0xff800000u)" : "ts::as_float(0x7f800000u)";
  if (std::isinf(held))
    return std::string(held < 0 ? "-" : "") + (wide ? "__builtin_inf()" : "__builtin_inff()");
  std::string result = significant(held, wide ? 17 : 9);
  if (result.find_first_of(".e") == std::string::npos) result += ".0";
  if (!wide) result += "f";
  return held < 0 ? "(" + result + ")" : result;
}

namespace {

std::string extreme(DType dtype, bool low, Dialect dialect) {
  if (is_float(dtype)) return literal(Rational::infinity(low), dtype, dialect);
  if (dtype == DType::I64) return low ? "(-0x7fffffffffffffffL - 1)" : "0x7fffffffffffffffL";
  if (dtype == DType::I32) return low ? "(-0x7fffffff - 1)" : "0x7fffffff";
  if (dtype == DType::I8) return low ? "-128" : "127";
  return low ? "0" : dtype == DType::U8 ? "255" : "1";
}

// Text of a float as memory holds one of `dtype` (`to`), or of the float that is held there.
std::string held(const std::string& x, DType dtype, bool to, bool device,
                 std::set<std::string>& prelude) {
  if (!is_sixteen(dtype)) return x;
  const std::string name = dtype == DType::F16 ? "f16" : "bf16";
  if (!device) prelude.insert("t_" + name);
  const std::string type = storage_type(dtype, Dialect::Cuda);
  return (!device ? (to ? "t_to_" : "t_from_") + name
          : to    ? "ts::from_float<" + type + ">"
                  : "ts::to_float") +
         "(" + x + ")";
}

}  // namespace

std::string element_address(const Memory& memory, const Expr& offset) {
  if (offset.is(0)) return memory.pointer;
  std::string place = offset.text();
  if (memory.swizzle_mask != 0 && memory.box_columns > memory.swizzle_mask + 8)
    place = "ts::boxed<" + std::to_string(memory.box_rows) + ", " +
            std::to_string(memory.box_columns) + ", " + std::to_string(memory.swizzle_mask + 8) +
            ">(" + place + ")";
  else if (memory.swizzle_mask != 0)
    place = "ts::swizzled<" + std::to_string(memory.swizzle_shift) + ", " +
            std::to_string(memory.swizzle_mask) + ">(" + place + ")";
  return memory.pointer + " + " + place;
}

std::string lowest(DType dtype, Dialect dialect) { return extreme(dtype, true, dialect); }
std::string highest(DType dtype, Dialect dialect) { return extreme(dtype, false, dialect); }

std::string load(const Memory& memory, const Expr& offset, std::set<std::string>& prelude) {
  if (memory.space == Space::Plain)
    return held(memory.pointer + "[" + offset.text() + "]", memory.storage, false, false, prelude);
  const char* from = memory.space == Space::Global ? "ts::load_global(" : "ts::load_shared(";
  return held(from + element_address(memory, offset) + ")", memory.storage, false, true, prelude);
}

std::string store(const Memory& memory, const Expr& offset, const std::string& value,
                  std::set<std::string>& prelude) {
  const bool device = memory.space != Space::Plain;
  std::string stored = held(value, memory.storage, true, device, prelude);
  if (!device) return memory.pointer + "[" + offset.text() + "] = " + stored + ";";
  if (!is_sixteen(memory.storage))
    stored = std::string("static_cast<") + storage_type(memory.storage, Dialect::Cuda) + ">(" +
             value + ")";
  const char* to = memory.space == Space::Global ? "ts::store_global(" : "ts::store_shared(";
  return to + element_address(memory, offset) + ", " + stored + ");";
}

Expr Nest::offset(const std::vector<Expr>& index, const std::vector<int64_t>& strides) {
  Expr result;
  for (size_t i = 0; i < index.size(); ++i) result += index[i] * strides[i];
  return result;
}

namespace {

// An index that is clamped, so that the load is always allowed.
Expr clamped(const Expr& i, int64_t low, int64_t high) { return least(greatest(i, low), high); }

}  // namespace

// --- the nest ----------------------------------------------------------------------------------

std::string Nest::builtin(const std::string& function) const {
  return (dialect_ == Dialect::Cpp ? "__builtin_" : "") + function;
}

void Nest::known(int id, const std::vector<Expr>& index, const std::string& name) {
  std::string at = std::to_string(id);
  for (const Expr& i : index) at += "," + i.text();
  given_[at] = name;
}

Expr Nest::loop(const Expr& to, const Expr& from, int64_t step) {
  if (to.is(1) && from.is(0)) return 0;
  const int level = int(loops_.size());
  const std::string variable = "i" + std::to_string(level);
  loops_.push_back({variable, from, to, step});
  statements_.emplace_back();
  after_.emplace_back();
  return Expr::variable(variable, {from.range().least, to.range().most - 1}, level);
}

void Nest::statement(int level, const std::string& text) {
  statements_[size_t(level + 1)].push_back(text);
}
void Nest::after(int level, const std::string& text) { after_[size_t(level + 1)].push_back(text); }

void Nest::emit(Code& code) const {
  code.open("");
  for (const std::string& s : statements_[0]) code.line(s);
  for (size_t l = 0; l < loops_.size(); ++l) {
    const Loop& loop = loops_[l];
    const bool innermost = l + 1 == loops_.size();
    if (innermost && lanes_ > 0) {
      emit_lanes(code, loop, statements_[l + 1]);
      break;
    }
    if (innermost && unroll_ > 1) code.line("#pragma unroll " + std::to_string(unroll_));
    if (innermost && vectorise_) code.line("#pragma omp simd" + (simd_.empty() ? "" : " " + simd_));
    code.open("for (" + std::string(index_type()) + " " + loop.variable + " = " + loop.from.text() +
              "; " + loop.variable + " < " + loop.to.text() + "; " +
              (loop.step == 1 ? "++" + loop.variable
                              : loop.variable + " += " + std::to_string(loop.step)) +
              ")");
    for (const std::string& s : statements_[l + 1]) code.line(s);
  }
  for (size_t l = loops_.size(); l-- > 0;) {
    if (l + 1 == loops_.size() && lanes_ > 0) continue;
    for (const std::string& s : after_[l + 1]) code.line(s);
    code.close();
  }
  for (const std::string& s : after_[0]) code.line(s);
  code.close();
}

void Nest::emit_lanes(Code& code, const Loop& loop, const std::vector<std::string>& body) const {
  const std::string lanes = std::to_string(lanes_), first = loop.variable + "v";
  const auto vector = [&](const std::string& count) {
    if (!before_vector_.empty()) code.open("");
    if (!before_vector_.empty()) code.line(before_vector_);
    code.line("#pragma omp simd");
    code.open("for (long lane = 0; lane < " + count + "; ++lane)");
    code.line("const long " + loop.variable + " = " + first + " + lane;");
    for (const std::string& s : body) code.line(s);
    code.close();
    if (before_vector_.empty()) return;
    code.line("const long " + loop.variable + " = " + first + ", count = " + count + ";");
    code.line(after_vector_);
    code.close();
  };
  const auto n = loop.from.is(0) ? loop.to.constant() : std::nullopt;
  const bool several = loop.step != 1;  // vectors, of which the body names each
  const std::string at_once = several ? std::to_string(loop.step) : lanes;
  code.line("long " + first + " = " + loop.from.text() + ";");
  code.open("for (; " + first + " + " + at_once + " <= " + loop.to.text() + "; " + first +
            " += " + at_once + ")");
  vector(lanes);
  code.close();
  if (several) return;  // what is left is a loop of its own
  if (!n || *n % lanes_ != 0)
    vector(n ? std::to_string(*n % lanes_) : loop.to.text() + " - " + first);
}

Expr Nest::declared(const Expr& index) {
  if (index.constant() || index.text().find(' ') == std::string::npos) return index;
  return Expr::variable(named(index_type(), index.text(), index.level()).text, index.range(),
                        index.level());
}

Scalar Nest::named(const char* type, const std::string& expression, int level) {
  const auto [known, fresh] = known_.try_emplace(std::to_string(level) + expression);
  if (fresh) {
    known->second = {"t" + std::to_string(names_++), level};
    statement(level,
              "const " + std::string(type) + " " + known->second.text + " = " + expression + ";");
  }
  return known->second;
}

Scalar Nest::load(const Value& value, const std::vector<Expr>& index) {
  const Memory& memory = value.memory;
  CHECK(memory.panel == 0) << memory.pointer << " lies in panels, which only products read";
  for (size_t i = 0; i < index.size(); ++i) {
    const Range r = index[i].range();
    CHECK(r.least >= 0 && r.most < std::max<int64_t>(value.extents[i].nominal, 1))
        << memory.pointer << " has no element " << index[i].text() << " along axis " << i
        << ", which is one of " << r.least << " to " << r.most;
  }
  const Expr at = offset(index, memory.strides);
  return named(compute_type(value.dtype), tessera::load(memory, at, prelude_), at.level());
}

std::string Nest::element(int id, const std::vector<Expr>& index) { return scalar(id, index).text; }

Scalar Nest::scalar(int id, const std::vector<Expr>& index) {
  interruption_point();
  const Value& value = kernel_.values[size_t(id)];
  CHECK(index.size() == value.extents.size());
  std::string at = std::to_string(id);
  int level = -1;
  for (const Expr& i : index) at += "," + i.text(), level = std::max(level, i.level());
  if (const auto it = given_.find(at); it != given_.end()) {
    touched_.push_back(id);
    return {it->second, level};
  }
  if (value.in_memory) {
    touched_.push_back(id);
    return load(value, index);
  }
  // Each once: the operands of what is read twice would be asked for four times.
  if (const auto it = made_.find(at); it != made_.end()) return it->second;
  const Scalar made =
      has(value.kind, algebra::Pointwise) ? pointwise(value, index) : movement(id, value, index);
  return made_[at] = made;
}

// --- pointwise operators -----------------------------------------------------------------------

bool Nest::below_maximum(int id) const {
  const auto at = [&](int i) -> const Value& { return kernel_.values[size_t(i)]; };
  if (at(id).kind == OpKind::Mul) {  // scaled by something positive
    for (size_t i : {0, 1}) {
      const Value& scale = at(at(id).inputs[i]);
      if (scale.kind == OpKind::Const && std::get<ConstAttrs>(scale.attrs).value.num() > 0)
        return below_maximum(at(id).inputs[1 - i]);
    }
  }
  const Value& difference = at(id);
  if (difference.kind != OpKind::Sub) return false;
  // Down to the maximum itself; a larger bound is one as well.
  std::vector<int> todo{difference.inputs[1]};
  while (!todo.empty()) {
    const Value& m = at(todo.back());
    todo.pop_back();
    if (m.kind == OpKind::ReduceMax && m.inputs[0] == difference.inputs[0])
      return std::get<ReduceAttrs>(m.attrs).keepdims;  // then its axes are those of x
    if (m.kind == OpKind::Max || m.kind == OpKind::Broadcast)
      todo.insert(todo.end(), m.inputs.begin(), m.inputs.end());
  }
  return false;
}

// A float of 16 bits as it would be stored.
std::string Nest::rounded(const std::string& x, DType as) {
  const bool cuda = dialect_ == Dialect::Cuda;
  const std::string bits = held(x, as, true, cuda, prelude_);
  return as == DType::BF16 && !cuda ? "t_as_bf16(" + x + ")"
                                    : held(bits, as, false, cuda, prelude_);
}

// Whether a value's elements are rounded as their dtype says where they are read.
bool Nest::is_held(int id) const {
  const Value& v = kernel_.values[size_t(id)];
  return v.in_memory && v.memory.storage == v.dtype && given_.empty();
}

// Whether every operator rounds: what adds up keeps the digits that it has, the constants of its
// means too.
bool Nest::rounds_each() const {
  return kernel_.rounds &&
         std::ranges::none_of(
             kernel_.values, [](const Value& v) { return is_sum(v.kind) || is_product(v.kind); });
}

Scalar Nest::pointwise(const Value& value, const std::vector<Expr>& index) {
  const bool each = rounds_each();
  std::vector<Scalar> x;
  int level = -1;
  for (int input : value.inputs) {
    const Value& operand = kernel_.values[size_t(input)];
    const size_t skip = index.size() - operand.extents.size();
    std::vector<Expr> at;
    for (size_t i = 0; i < operand.extents.size(); ++i) {
      const bool repeated = operand.extents[i].nominal == 1 && value.extents[skip + i].nominal != 1;
      at.push_back(repeated ? Expr() : index[skip + i]);
    }
    x.push_back(scalar(input, at));
    if (kernel_.rounds && !is_held(input) &&
        (has(value.kind, algebra::Jumps) || (each && !has(operand.kind, algebra::Pointwise))))
      x.back().text = rounded(x.back().text, operand.dtype);
    level = std::max(level, x.back().level);
  }
  std::string e = expression(value, x);
  const std::string type = compute_type(value.dtype);
  const bool apart = kernel_.rounds && is_float(value.dtype);
  if (apart && dialect_ == Dialect::Cpp &&
      (value.kind == OpKind::Mul || value.kind == OpKind::Sqr || value.kind == OpKind::Pow)) {
    prelude_.insert("t_zero");
    e += " - " + named(type.c_str(), "t_zero", -1).text;
  }
  if (apart && each) e = rounded(e, value.dtype);
  return named(type.c_str(), e, level);
}

// Where rounding counts nothing is fused with a product.
std::string Nest::product(DType dtype, const std::string& a, const std::string& b) const {
  return by_function(dtype) ? "ts::product(" + a + ", " + b + ")" : a + " * " + b;
}

// x^n for n >= 1 by squaring.
std::string Nest::power(DType dtype, const std::string& x, int64_t n) const {
  if (n == 1) return x;
  const auto times = [&](const std::string& a, const std::string& b) {
    return by_function(dtype) ? product(dtype, a, b) : "(" + product(dtype, a, b) + ")";
  };
  const std::string half = power(dtype, x, n / 2), square = times(half, half);
  return n % 2 == 0 ? square : times(square, x);
}

std::string Nest::power(const Value& value, const std::string& x) {
  const Rational exponent = std::get<PowAttrs>(value.attrs).exponent;
  const bool real = is_float(value.dtype), wide = value.dtype == DType::F64;
  const std::string one = real ? (wide ? "1.0" : "1.0f") : "1";
  const std::string root = builtin(wide ? "sqrt" : "sqrtf") + "(" + x + ")";
  const int64_t n = exponent.is_integer() ? exponent.num() : 0;
  if (exponent.is_zero()) return one;
  if (n > 0 && (n <= 8 || !real)) return power(value.dtype, x, n);
  if (n < 0 && n >= -4) return one + " / (" + power(value.dtype, x, -n) + ")";
  if (exponent == Rational::ratio(1, 2)) return root;
  if (exponent == Rational::ratio(-1, 2)) return one + " / " + root;
  prelude_.insert("t_pow");
  return "t_pow(" + x + ", " + constant(exponent, DType::F64) + ")";
}

std::string Nest::cast(const Value& value, std::string x) {
  const int operand = value.inputs[0];
  const DType from = kernel_.values[size_t(operand)].dtype;
  const std::string type = compute_type(value.dtype);
  if (!is_held(operand)) x = rounded(x, from);
  if (value.dtype == DType::Bool) return x + " != 0";
  if (is_float(from) && !is_float(value.dtype)) {
    prelude_.insert("t_truncate");
    return "(" + type + ")" + (value.dtype == DType::I64 ? "t_truncate_long(" : "t_truncate(") + x +
           ")";
  }
  if (from == DType::Bool && is_float(value.dtype))  // compilers convert no vectors of bytes
    return x + " ? (" + type + ")1 : (" + type + ")0";
  return "(" + type + ")" + x;
}

std::string Nest::expression(const Value& value, const std::vector<Scalar>& operands) {
  const DType dtype = value.dtype;
  const std::string type = compute_type(dtype);
  const bool real = is_float(dtype), wide = dtype == DType::F64;
  const std::string f = wide ? "" : "f";  // suffix of the builtins
  // NVRTC takes it that signed integers never overflow. Unsigned ones wrap around.
  const char* wraps = dialect_ == Dialect::Cpp || real ? ""
                      : dtype == DType::I64            ? "(unsigned long)"
                                                       : "(unsigned)";
  std::vector<std::string> x;
  for (const Scalar& operand : operands)
    x.push_back((has(value.kind, algebra::Ring) || value.kind == OpKind::Pow ? wraps : "") +
                operand.text);
  const auto call = [&](const std::string& function, const std::string& group) {
    prelude_.insert(group);
    return function + "(" + x[0] + ")";
  };
  const auto call2 = [&](const std::string& function, const std::string& group) {
    prelude_.insert(group);
    const char* as = real ? "" : dtype == DType::I64 ? "(long)" : "(int)";
    return function + "(" + as + x[0] + ", " + as + x[1] + ")";
  };
  switch (value.kind) {
  case OpKind::Neg: return "-" + x[0];
  case OpKind::Abs:
    return real ? builtin("fabs" + f) + "(" + x[0] + ")"
                : x[0] + " < 0 ? -" + wraps + x[0] + " : " + x[0];
  case OpKind::Sign:
    prelude_.insert("t_sign");
    return std::string("t_sign(") + (real || dtype == DType::I64 ? "" : "(int)") + x[0] + ")";
  case OpKind::Sqr: return product(dtype, x[0], x[0]);
  case OpKind::Sqrt: return builtin("sqrt" + f) + "(" + x[0] + ")";
  case OpKind::Rsqrt:
    return std::string(wide ? "1.0" : "1.0f") + " / " + builtin("sqrt" + f) + "(" + x[0] + ")";
  case OpKind::Exp: {
    const char* function = !below_maximum(value.inputs[0]) ? "t_exp"
                           : is_sixteen(dtype)             ? "t_exp_down16"
                                                           : "t_exp_down";
    return call(function, function);
  }
  case OpKind::Sin: return call("t_sin", "t_trig");
  case OpKind::Cos: return call("t_cos", "t_trig");
  case OpKind::Silu: return x[0] + " * " + call("t_sigmoid", "t_sigmoid");
  case OpKind::Relu: return x[0] + " < 0 ? (" + type + ")0 : " + x[0];
  case OpKind::Gelu: return call("t_gelu", "t_erf");
  case OpKind::Floor: return builtin("floor" + f) + "(" + x[0] + ")";
  case OpKind::Round: return builtin("nearbyint" + f) + "(" + x[0] + ")";
  case OpKind::Expm1: return call("t_expm1", "t_expm1");
  case OpKind::Pow: return power(value, x[0]);
  case OpKind::Custom: {
    for (std::string& operand : x) operand = "(double)(" + operand + ")";
    return "(" + type + ")" +
           custom_function(std::get<CustomAttrs>(value.attrs))
               .text(x, dialect_ == Dialect::Cpp ? "__builtin_" : "");
  }
  case OpKind::Not: return "!" + x[0];
  case OpKind::Cast: return cast(value, x[0]);
  case OpKind::Mul: return product(dtype, x[0], x[1]);
  case OpKind::Div: {
    const int level = operands[1].level;
    if (!real || wide || level >= operands[0].level || kernel_.rounds) return x[0] + " / " + x[1];
    // One reciprocal for many elements; k keeps it finite where the divisor is subnormal.
    const Scalar k =
        named("float", builtin("fabsf") + "(" + x[1] + ") < 0x1p-100f ? 0x1p64f : 1.0f", level);
    const Scalar r = named("float", "1.0f / (" + x[1] + " * " + k.text + ")", level);
    return x[0] + " * " + r.text + " * " + k.text;
  }
  case OpKind::Where: return x[0] + " ? " + x[1] + " : " + x[2];
  default: break;
  }
  // Narrow integers are computed as int; the assignment to `type` wraps.
  if (const char* sign = symbol(value.kind)) return x[0] + " " + sign + " " + x[1];
  if (const auto fold = fold_of(value.kind))
    return call2(fold == AccumKind::Max ? "t_max" : "t_min", "t_max");
  const std::string function = std::string("t_") + name(value.kind);
  return x.size() == 1 ? call(function, function) : call2(function, function);
}

// --- data movement -----------------------------------------------------------------------------

Scalar Nest::reshape(const Value& value, const std::vector<Expr>& index) {
  const int input = value.inputs[0];
  const Value& x = kernel_.values[size_t(input)];
  // Walk both shapes from the left; each group of axes with equal products is mapped on its own.
  std::vector<Expr> at(x.extents.size());
  size_t i = 0, j = 0;
  while (i < x.extents.size() || j < index.size()) {
    size_t i_end = i, j_end = j;
    int64_t from = 1, to = 1;
    do {
      if (i_end < x.extents.size() && (from <= to || j_end == index.size()))
        from *= x.extents[i_end++].nominal;
      else
        to *= value.extents[j_end++].nominal;
    } while (from != to);
    // Flat index within the group, then taken apart again.
    Expr flat;
    int64_t stride = 1;
    for (size_t k = j_end; k-- > j;) {
      flat += index[k] * stride;
      stride *= value.extents[k].nominal;
    }
    int64_t below = 1;
    for (size_t k = i_end; k-- > i;) {
      const int64_t n = x.extents[k].nominal;
      if (n > 0) at[k] = flat / below % n;
      below *= std::max<int64_t>(n, 1);
    }
    i = i_end, j = j_end;
  }
  return scalar(input, at);
}

Scalar Nest::movement(int id, const Value& value, const std::vector<Expr>& index) {
  const char* type = compute_type(value.dtype);
  // clang-format off
  if (value.kind == OpKind::Const)
    return {constant(std::get<ConstAttrs>(value.attrs).value, value.dtype), -1};
  // clang-format on
  if (value.kind == OpKind::Iota) {
    const Expr& i = index[size_t(std::get<IotaAttrs>(value.attrs).axis)];
    return named(type, "(" + std::string(type) + ")(" + i.text() + ")", i.level());
  }
  if (value.kind == OpKind::Reshape) return reshape(value, index);
  const int rank = value.inputs.empty() ? 0 : operand(value, 0).rank();
  if (const auto reads = axis_reads(value.kind, value.attrs, rank, value.rank()))
    return scalar(value.inputs[0], read_axes(value, *reads, index));
  if (value.kind == OpKind::Pad) return padded(value, index);
  if (is_triangle(value.kind)) {
    const int64_t k = std::get<DiagonalAttrs>(value.attrs).k;
    const Expr above = index[index.size() - 1] - index[index.size() - 2];
    const Scalar x = scalar(value.inputs[0], index);
    const char* keep = value.kind == OpKind::Triu ? " >= " : " <= ";
    return named(type,
                 above.text() + keep + std::to_string(k) + "L ? " + x.text + " : (" + type + ")0",
                 std::max(x.level, above.level()));
  }
  if (value.kind == OpKind::Concat || value.kind == OpKind::Stack) return piece(value, index);
  if (value.kind == OpKind::Gather) {
    const size_t axis = size_t(std::get<AxisAttrs>(value.attrs).axis);
    const size_t inner = operand(value, 1).extents.size();
    const auto begin = index.begin() + long(axis);
    const Scalar which = scalar(value.inputs[1], {begin, begin + long(inner)});
    const Extent& from = operand(value, 0).extents[axis];
    prelude_.insert("t_index");
    std::vector<Expr> at(index.begin(), begin);
    const Scalar place =
        named(index_type(), "t_index(" + which.text + ", " + from.text() + ")", which.level);
    at.push_back(Expr::variable(place.text, {0, from.nominal - 1}, place.level));
    at.insert(at.end(), begin + long(inner), index.end());
    return scalar(value.inputs[0], at);
  }
  CHECK(false) << "value " << id << " (" << name(value.kind) << ") has no memory";
  unreachable("movement");
}

std::vector<Expr> Nest::read_axes(const Value& value, const std::vector<AxisRead>& reads,
                                  const std::vector<Expr>& index) const {
  std::vector<Expr> at;
  for (size_t i = 0; i < reads.size(); ++i) {
    const AxisRead& r = reads[i];
    const int64_t n = operand(value, 0).extents[i].nominal;
    if (r.axis < 0 || (r.wraps && n == 1))
      at.emplace_back(0);
    else if (r.wraps)
      at.push_back(index[size_t(r.axis)] % n);
    else
      at.push_back(index[size_t(r.axis)] * r.step + r.start);
  }
  return at;
}

Scalar Nest::padded(const Value& value, const std::vector<Expr>& index) {
  const auto& a = std::get<PadAttrs>(value.attrs);
  std::vector<Expr> at = index;
  std::string inside;  // without a jump, so that loops over it vectorise
  int level = -1;
  for (size_t i = 0; i < index.size(); ++i) {
    if (a.low[i] == 0 && a.high[i] == 0) continue;
    // The selection below discards what lies outside.
    const Expr shifted = declared(index[i] - a.low[i]);
    at[i] = declared(clamped(shifted, 0, operand(value, 0).extents[i].nominal - 1));
    const Condition same = equal(shifted, at[i]);
    if (!same.always()) inside += (inside.empty() ? "(" : " & (") + same.text() + ")";
    level = std::max(level, shifted.level());
  }
  const Scalar x = scalar(value.inputs[0], at);
  if (inside.empty()) return x;
  return named(compute_type(value.dtype),
               inside + " ? " + x.text + " : " + constant(a.value, value.dtype),
               std::max(level, x.level));
}

// Of arrays that are joined.
Scalar Nest::piece(const Value& value, const std::vector<Expr>& index) {
  const size_t axis = size_t(std::get<AxisAttrs>(value.attrs).axis);
  const bool stack = value.kind == OpKind::Stack;
  const Expr& along = index[axis];
  std::string text;
  int level = along.level();
  int64_t start = 0;
  for (size_t i = 0; i < value.inputs.size(); ++i) {
    const int64_t n = stack ? 1 : operand(value, i).extents[axis].nominal;
    std::vector<Expr> piece = index;
    if (stack)
      piece.erase(piece.begin() + long(axis));
    else  // the selection below takes the right one
      piece[axis] = declared(clamped(along, start, start + n - 1) - start);
    const Scalar x = scalar(value.inputs[i], piece);
    level = std::max(level, x.level);
    start += n;
    text += i + 1 == value.inputs.size()
                ? x.text
                : along.text() + " < " + std::to_string(start) + "L ? " + x.text + " : ";
  }
  return named(compute_type(value.dtype), text, level);
}

}  // namespace tessera
