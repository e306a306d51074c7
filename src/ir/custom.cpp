#include "ir/custom.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <tuple>

#include "base/counter_rng.h"
#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr size_t kLongest = 10'000;
constexpr int kDeepest = 64;  // parentheses, and values that wait for their operator
// From the loosest to the tightest; which of them a step names is its place here.
const char* const kOperators[] = {"==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/"};
constexpr int kLevels[] = {0, 2, 6, 8, 10};  // where those of each level begin
constexpr int kComparisons = 6;

// The functions of one number, and those of two.
// clang-format off
#define TESSERA_MATH(ONE, TWO) \
  ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(sqrt) ONE(cbrt) \
  ONE(sin) ONE(cos) ONE(tan) ONE(asin) ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(tanh) \
  ONE(asinh) ONE(acosh) ONE(atanh) ONE(erf) ONE(erfc) ONE(lgamma) ONE(tgamma) ONE(fabs) \
  ONE(floor) ONE(ceil) ONE(trunc) TWO(pow) TWO(atan2) TWO(hypot) TWO(fmod) TWO(fmin) TWO(fmax) \
  TWO(copysign)
// clang-format on
struct Name {
  const char* name;
  int arity;
};
#define ONE(f) Name{#f, 1},
#define TWO(f) Name{#f, 2},
const Name kNames[] = {TESSERA_MATH(ONE, TWO)};
#undef ONE
#undef TWO

template <class T> T called(int which, const T* x) {
  using Function = T (*)(const T*);
#define ONE(f) [](const T* v) -> T { return std::f(v[0]); },
#define TWO(f) [](const T* v) -> T { return std::f(v[0], v[1]); },
  static const Function functions[] = {TESSERA_MATH(ONE, TWO)};
#undef ONE
#undef TWO
  return functions[which](x);
}

template <class T> T applied(int which, T x, T y) {
  switch (which) {
  case 0: return x == y;
  case 1: return x != y;
  case 2: return x <= y;
  case 3: return x >= y;
  case 4: return x < y;
  case 5: return x > y;
  case 6: return x + y;
  case 7: return x - y;
  case 8: return x * y;
  default: return x / y;
  }
}

std::string shown(double x) {
  const std::string text = significant(x, 17);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

[[noreturn]] void refuse(const CustomAttrs& attrs, const std::string& why) {
  const std::string value = attrs.value.substr(0, 80) + (attrs.value.size() > 80 ? " …" : "");
  throw Error(ErrorKind::BadInput, "operator " + attrs.name + " = " + value + ": " + why);
}

}  // namespace

class CustomParser {
 public:
  CustomParser(const CustomAttrs& attrs, CustomFunction& to)
      : attrs_(attrs), text_(attrs.value), to_(to) {
    if (text_.size() > kLongest) fail("it is longer than " + std::to_string(kLongest) + " bytes");
    choice(0);
    if (!eat("") || at_ < text_.size()) fail("'" + text_.substr(at_, 12) + "' is not understood");
  }

 private:
  using Step = CustomFunction::Step;
  [[noreturn]] void fail(const std::string& what) const { refuse(attrs_, what); }
  void add(Step::Kind kind, int takes, int which = 0, double number = 0) {
    if ((waiting_ += 1 - takes) > kDeepest) fail("it is nested too deeply");
    to_.steps_.push_back({kind, takes, which, number});
  }
  bool eat(const std::string& token) {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (text_.compare(at_, token.size(), token) != 0) return false;
    at_ += token.size();
    return true;
  }
  void need(const std::string& token) {
    if (!eat(token)) fail("'" + token + "' is missing");
  }
  void choice(int depth) {
    binary(0, depth);
    if (!eat("?")) return;
    choice(depth + 1);
    need(":");
    choice(depth + 1);
    add(Step::Choice, 3);
  }
  void binary(int level, int depth) {
    if (level + 1 == int(std::size(kLevels))) return operand(depth);
    binary(level + 1, depth);
    for (int i = kLevels[level]; i < kLevels[level + 1]; ++i) {
      if (!eat(kOperators[i])) continue;
      binary(level + 1, depth);
      add(Step::Binary, 2, i);
      i = kLevels[level] - 1;
    }
  }
  void operand(int depth) {
    if (depth > kDeepest) fail("it is nested too deeply");
    if (eat("-")) {
      operand(depth + 1);
      return add(Step::Minus, 1);
    }
    if (eat("(")) {
      choice(depth + 1);
      return need(")");
    }
    const char *const from = text_.data() + at_, *const end = text_.data() + text_.size();
    if (from < end && (std::isdigit(*from) || *from == '.')) {
      double number = 0;
      const auto [behind, error] = std::from_chars(from, end, number);
      if (error != std::errc()) fail("a number is not one");
      at_ += size_t(behind - from);
      return add(Step::Number, 0, 0, number);
    }
    std::string word;
    for (; at_ < text_.size() && std::isalnum(uint8_t(text_[at_])); ++at_) word += text_[at_];
    if (word == "y") to_.arity_ = 2;
    if (word == "x" || word == "y") return add(Step::Argument, 0, word == "y");
    for (int i = 0; i < int(std::size(kNames)); ++i) {
      if (word != kNames[i].name) continue;
      need("(");
      choice(depth + 1);
      if (kNames[i].arity == 2) need(","), choice(depth + 1);
      need(")");
      return add(Step::Call, kNames[i].arity, i);
    }
    fail(word.empty() ? "an operand is missing"
                      : "'" + word + "' is neither x nor y nor a function that is known");
  }

  const CustomAttrs& attrs_;
  const std::string& text_;
  CustomFunction& to_;
  size_t at_ = 0;
  int waiting_ = 0;
};

CustomFunction::CustomFunction(const CustomAttrs& attrs) {
  CustomParser(attrs, *this);
  const char* const laws[] = {"", "odd", "even", "commutative"};
  const auto law = std::ranges::find(laws, attrs.law) - laws;
  if (law == 4) refuse(attrs, "law '" + attrs.law + "' is not odd, even or commutative");
  law_ = Law(law);
  if (law_ != Law::None && (law_ == Law::Commutative) != (arity_ == 2))
    refuse(attrs, "functions of x are odd or even, those of x and y commutative");
  key_ = uint64_t(law);
  for (const char c : attrs.value) key_ = keyed_hash(key_, uint8_t(c));
  std::vector<double> numbers = {0, INFINITY, 0.5};
  for (int k = 1; k <= 12; ++k) numbers.push_back(k);
  for (int k = -80; k <= 80; ++k)
    numbers.push_back(std::ldexp(1 + 0.37 * std::fabs(std::sin(k)), k / 2));
  for (size_t i = 0; i < 2 * numbers.size() && law_ != Law::None; ++i) {
    const double x = i % 2 ? -numbers[i / 2] : numbers[i / 2],
                 y = numbers[(7 * i + 3) % numbers.size()], a = (*this)(x, y),
                 b = law_ == Law::Commutative ? (*this)(y, x)
                     : law_ == Law::Even      ? (*this)(-x, y)
                                              : -(*this)(-x, y);
    if (!(std::fabs(a - b) <= 0x1p-44 * std::fabs(a)) && !(a != a && b != b) && a != b)
      refuse(attrs, "it is not " + attrs.law + ": see x = " + shown(x) +
                        (arity_ == 2 ? ", y = " + shown(y) : ""));
  }
}

template <class V, class F> V CustomFunction::folded(F f) const {
  std::array<V, kDeepest + 1> stack;
  int n = 0;
  for (const Step& s : steps_) {
    n -= s.takes;
    stack[size_t(n)] = f(s, &stack[size_t(n)]);
    ++n;
  }
  return stack[0];
}

template <class T> T CustomFunction::operator()(T x, T y) const {
  return folded<T>([&](const Step& s, const T* v) -> T {
    switch (s.kind) {
    case Step::Number: return T(s.number);
    case Step::Argument: return s.which ? y : x;
    case Step::Minus: return -v[0];
    case Step::Binary: return applied(s.which, v[0], v[1]);
    case Step::Choice: return v[0] != 0 ? v[1] : v[2];
    case Step::Call: return called(s.which, v);
    }
    return 0;
  });
}
template double CustomFunction::operator()(double, double) const;
template <> float CustomFunction::operator()(float x, float y) const {
  return float((*this)(double(x), double(y)));
}
template long double CustomFunction::operator()(long double, long double) const;

bool CustomFunction::is_total() const {
  static const std::set<std::string_view> partial = {"log",    "log2",   "log10", "log1p", "sqrt",
                                                     "tan",    "asin",   "acos",  "acosh", "atanh",
                                                     "lgamma", "tgamma", "pow",   "fmod"};
  return std::ranges::none_of(steps_, [](const Step& s) {
    return (s.kind == Step::Binary && *kOperators[s.which] == '/') ||
           (s.kind == Step::Call && partial.contains(kNames[s.which].name));
  });
}

std::string CustomFunction::text(const std::vector<std::string>& operands,
                                 const std::string& prefix) const {
  return folded<std::string>([&](const Step& s, const std::string* v) -> std::string {
    switch (s.kind) {
    case Step::Number: return shown(s.number);
    case Step::Argument: return operands[size_t(s.which)];
    case Step::Minus: return "(-" + v[0] + ")";
    case Step::Binary:
      return (s.which < kComparisons ? "(double)(" : "(") + v[0] + " " + kOperators[s.which] + " " +
             v[1] + ")";
    case Step::Choice: return "(" + v[0] + " != 0 ? " + v[1] + " : " + v[2] + ")";
    case Step::Call:
      return prefix + kNames[s.which].name + "(" + v[0] + (s.takes == 2 ? ", " + v[1] : "") + ")";
    }
    return "";
  });
}

const CustomFunction& custom_function(const CustomAttrs& attrs) {
  struct ByText {
    bool operator()(const CustomAttrs& a, const CustomAttrs& b) const {
      return std::tie(a.value, a.law) < std::tie(b.value, b.law);
    }
  };
  static std::mutex mutex;
  static std::map<CustomAttrs, CustomFunction, ByText> known;
  const std::lock_guard lock(mutex);
  const auto it = known.find(attrs);
  return it != known.end() ? it->second : known.emplace(attrs, CustomFunction(attrs)).first->second;
}

}  // namespace tessera
