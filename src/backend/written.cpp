#include "backend/written.h"

#include <algorithm>
#include <sstream>

#include "backend/nest.h"
#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

using patterns::Body;
using patterns::CodeText;
using patterns::Language;
using patterns::Pattern;
using patterns::Values;

// A written kernel with all that its text is translated with.
struct Resolved {
  const Pattern* pattern = nullptr;
  const Body* body = nullptr;
  Values values;
  DType dtype = DType::F32;
  std::vector<Rational> numbers;
};

Resolved resolve(const Graph& block, const WrittenKernel& attrs, const WrittenSources& sources) {
  const auto known = sources.find(attrs.source);
  if (known == sources.end()) bad_input("the body of " + attrs.pattern + " is not checked here");
  Resolved r;
  r.pattern = &known->second;
  const Pattern& p = *r.pattern;
  r.body = &p.bodies.at(0);
  if (attrs.operands.size() != p.def.inputs().size()) bad_input("a body with other operands");
  r.dtype = block.type(TensorId(uint32_t(attrs.result))).dtype;
  for (size_t i = 0; i < attrs.operands.size(); i++) {
    const TensorId t{uint32_t(attrs.operands[i])};
    const Shape &mine = block.type(t).shape, &its = p.def.type(p.def.inputs()[i]).shape;
    if (mine.size() != its.size()) bad_input("a body with an operand of other axes");
    for (size_t d = 0; d < mine.size(); d++)
      if (its[d].symbolic()) r.values[its[d].symbol] = mine[d].extent;
    const Op& op = block.producer(t);
    if (p.is_number(i) != (op.constant() && mine.empty())) bad_input("a body's numbers");
    r.numbers.push_back(p.is_number(i) ? *op.constant() : Rational());
  }
  std::istringstream settings(attrs.values);
  for (std::string one; settings >> one;) {
    const size_t equals = one.find('=');
    const std::string name = one.substr(0, equals), text = one.substr(std::min(equals, one.size()));
    bool found = false;
    for (const auto& [tuned, choices] : p.tune)
      for (int64_t v : choices)
        if (tuned == name && text == "=" + num(v)) r.values[name] = v, found = true;
    if (!found) bad_input("'" + one + "' is no setting of " + p.name);
  }
  for (const auto* all : {&p.when, &r.body->when})
    for (const patterns::Condition& c : *all)
      if (!c.holds(r.values, r.dtype)) bad_input("'" + c.str() + "' does not hold");
  Values symbols = r.values;
  if (!(patterns::meaning_of(block, attrs) == patterns::meaning_of(p, symbols, r.dtype, r.numbers)))
    bad_input("the kernel does not mean what the def of " + p.name + " says");
  return r;
}

// --- filling holes ------------------------------------------------------------------------------

// The values of a block graph of whole tensors, operands in memory at a0, a1, …
KernelValues whole_values(const Graph& block, Space space, std::vector<int>& argument_of) {
  KernelValues k;
  std::vector<int> arguments(block.tensors().size(), -1);
  for (size_t i = 0; i < block.inputs().size(); i++) arguments[block.inputs()[i].index] = int(i);
  argument_of.assign(block.tensors().size(), -1);
  for (size_t t = 0; t < block.tensors().size(); t++) {
    const TensorId id{uint32_t(t)};
    const Op& op = block.producer(id);
    Value v{.kind = op.kind, .attrs = op.attrs, .dtype = block.type(id).dtype};
    const std::vector<int64_t> shape = extents(block.type(id).shape);
    for (int64_t n : shape) v.extents.push_back({n, "", 0});
    for (TensorId in : op.inputs) v.inputs.push_back(int(in.index));
    if (is_load(op.kind)) {
      argument_of[t] = arguments[op.inputs[0].index];
      v.in_memory = true;
      v.memory = {"a" + num(argument_of[t]), v.dtype, contiguous_strides(shape)};
      v.memory.space = space;
    }
    k.values.push_back(std::move(v));
  }
  return k;
}

// Indices i0, i1, …; along axes of one element 0.
std::vector<Expr> indices(const Shape& shape) {
  std::vector<Expr> index;
  for (size_t d = 0; d < shape.size(); d++)
    index.push_back(shape[d].is_one()
                        ? Expr()
                        : Expr::variable("i" + num(int64_t(d)), {0, shape[d].extent - 1}));
  return index;
}

class KernelWriter {
 public:
  KernelWriter(const Graph& block, const WrittenKernel& attrs, const WrittenSources& sources,
               bool cuda, std::set<std::string>& prelude, bool watched)
      : block_(block), attrs_(attrs), r_(resolve(block, attrs, sources)), cuda_(cuda),
        watched_(watched), prelude_(prelude),
        values_(whole_values(block, cuda ? Space::Global : Space::Plain, argument_of_)),
        real_(compute_type(r_.dtype)), index_(cuda ? "int" : "long") {
    std::map<std::string, std::string> numbers;
    for (size_t i = 0; i < r_.numbers.size(); i++)
      if (r_.pattern->is_number(i))
        numbers[r_.pattern->def.tensor(r_.pattern->def.inputs()[i]).name] =
            literal(r_.numbers[i], r_.dtype, dialect());
    text_ = patterns::expand_code(*r_.pattern, *r_.body, r_.values, numbers, real_);
    for (const auto& [name, n] : text_.units) units_ *= n;
  }

  const CodeText& code() const { return text_; }
  int64_t units() const { return units_; }
  const std::string& real() const { return real_; }
  DType dtype() const { return r_.dtype; }
  const Body& body() const { return *r_.body; }
  Dialect dialect() const { return cuda_ ? Dialect::Cuda : Dialect::Cpp; }

  std::string title() const {
    return "// The body of pattern " + r_.pattern->name + " (" + attrs_.source.substr(0, 12) +
           "): written by a person, checked by running it\n";
  }
  // Of a CUDA function.
  std::string arguments() const {
    std::string text;
    for (size_t i = 0; i < block_.inputs().size(); i++)
      text += std::string("const ") +
              storage_type(block_.type(block_.inputs()[i]).dtype, dialect()) + "* __restrict__ a" +
              num(int64_t(i)) + ", ";
    return text;
  }

  // The parallel names, from the number of a unit.
  std::string unit_names() const {
    std::string text;
    int64_t below = units_;
    for (const auto& [name, n] : text_.units) {
      below /= n;
      text += std::string("  const ") + index_ + " b_" + name + " = unit" +
              (below > 1 ? " / " + num(below) : "") + (n * below < units_ ? " % " + num(n) : "") +
              ";\n";
    }
    return text;
  }

  // What load, store and the like call, as functions in a unit.
  std::string holes() {
    std::string text;
    for (const std::string& name : text_.loads) {
      const size_t i = *r_.pattern->input(name);
      const TensorId t{uint32_t(attrs_.operands[i])};
      text += open("h_" + name, t, "", real_);
      text += watch(block_.type(t).shape, false, int(i));
      Nest nest(values_, prelude_, touched_, dialect());
      const std::string x = nest.element(int(t.index), indices(block_.type(t).shape));
      nest.statement(-1, "return " + x + ";");
      text += lines(nest) + "  };\n";
      if (text_.vectors && !block_.type(t).shape.empty()) text += vector_load(name, t);
    }
    const TensorId result{uint32_t(attrs_.result)};
    const std::string name = r_.pattern->def.tensor(r_.pattern->def.outputs()[0]).name;
    const std::vector<Expr> index = indices(block_.type(result).shape);
    text += open("h_" + name, result, std::string(real_) + " v", "void");
    text += watch(block_.type(result).shape, true, -1);
    const Op& save = block_.producer(block_.outputs()[0]);
    const TensorId last = save.inputs[0];
    const Type& type = block_.attrs<SaveAttrs>(save).type;
    Memory to{"out", type.dtype, contiguous_strides(extents(type.shape))};
    to.space = cuda_ ? Space::Global : Space::Plain;
    Nest nest(values_, prelude_, touched_, dialect());
    nest.known(int(result.index), index, "v");
    const std::string x = nest.element(int(last.index), index);
    nest.statement(-1, tessera::store(to, Nest::offset(index, to.strides), x, prelude_));
    text += lines(nest) + "  };\n";
    if (text_.vectors && !index.empty()) text += vector_store(name, result);
    return text;
  }

 private:
  std::string lines(const Nest& nest) const {
    Code code;
    code.set_indent(2);
    nest.emit(code);
    return code.text();
  }
  // "const auto NAME = [&](long i0, long i1, float v, int line) -> TYPE {".
  std::string open(const std::string& name, TensorId t, const std::string& more,
                   const std::string& returns) const {
    std::string text = "  const auto " + name + " = [&](";
    for (size_t d = 0; d < block_.type(t).shape.size(); d++)
      text += index_ + " i" + num(int64_t(d)) + ", ";
    return text + (more.empty() ? "" : more + ", ") + "int line) " +
           (cuda_ ? "" : "__attribute__((always_inline)) ") + "-> " + returns + " {\n";
  }
  std::string outside(const Shape& shape) const {
    std::string text;
    for (size_t d = 0; d < shape.size(); d++) {
      const std::string i = "i" + num(int64_t(d));
      text += (text.empty() ? "" : " || ") + i + " < 0 || " + i + " >= " + num(shape[d].extent);
    }
    return text;
  }
  std::string watch(const Shape& shape, bool writes, int tensor) const {
    if (!watched_ || shape.empty()) return "";
    std::string at, all;
    for (size_t d = 0; d < shape.size(); d++) all += ", i" + num(int64_t(d));
    if (cuda_)
      return "    if (" + outside(shape) + ") ts::host::api->access(ts::host::Access::" +
             (writes ? "WriteGlobal" : "ReadGlobal") + ", nullptr, 4, line);\n";
    std::string text = "    if (" + outside(shape) + ") { h_fault(" + (writes ? "2" : "1") + ", " +
                       num(tensor) + ", line" + all + "); return" + (writes ? "" : " 0") + "; }\n";
    if (!writes) return text;
    const std::string offset =
        Nest::offset(indices(shape), contiguous_strides(extents(shape))).text();
    return text + "    if (t_owner[" + offset + "] != 0 && t_owner[" + offset +
           "] != unit + 1) { h_fault(3, -1, line" + all + "); return; }\n    t_owner[" + offset +
           "] = int(unit + 1);\n";
  }
  std::string call(const std::string& name, const Shape& shape, const std::string& more) const {
    std::string text = "h_" + name + "(";
    for (size_t d = 0; d < shape.size(); d++)
      text += "i" + num(int64_t(d)) + (d + 1 == shape.size() ? " + l, " : ", ");
    return text + more + "line)";
  }
  std::string vector_load(const std::string& name, TensorId t) const {
    const Shape& shape = block_.type(t).shape;
    const std::string last = "i" + num(int64_t(shape.size()) - 1), n = num(shape.back().extent);
    return open("h_v_" + name, t, std::string(real_) + " other", "t_vec") +
           "    t_vec r;\n    if (" + last + " + h_lanes <= " + n +
           ") {\n#pragma omp simd\n      for (int l = 0; l < h_lanes; ++l) r[l] = " +
           call(name, shape, "") +
           ";\n    } else {\n      for (int l = 0; l < h_lanes; ++l) r[l] = " + last + " + l < " +
           n + " ? " + call(name, shape, "") + " : other;\n    }\n" + "    return r;\n  };\n";
  }
  std::string vector_store(const std::string& name, TensorId t) const {
    const Shape& shape = block_.type(t).shape;
    const std::string last = "i" + num(int64_t(shape.size()) - 1), n = num(shape.back().extent);
    return open("h_v_" + name, t, "t_vec v", "void") + "    if (" + last + " + h_lanes <= " + n +
           ") {\n#pragma omp simd\n      for (int l = 0; l < h_lanes; ++l) " +
           call(name, shape, "v[l], ") +
           ";\n    } else {\n      for (int l = 0; l < h_lanes; ++l)" + " if (" + last + " + l < " +
           n + ") " + call(name, shape, "v[l], ") + ";\n    }\n  };\n";
  }

  const Graph& block_;
  const WrittenKernel& attrs_;
  const Resolved r_;
  const bool cuda_, watched_;
  std::set<std::string>& prelude_;
  std::vector<int> argument_of_;
  const KernelValues values_;
  const std::string real_, index_;
  std::vector<int> touched_;
  CodeText text_;
  int64_t units_ = 1;
};

// --- functions that bodies call -----------------------------------------------------------------

struct BodyFunction {
  const char* name;
  const char* prelude;  // of the generated code's own functions
  const char* text;     // REAL: float or double, F: its builtins' suffix, T: what declares it
  bool lanes;           // each lane of a vec on its own
};

const std::vector<BodyFunction> kBodyFunctions = {
    {"sqrt", "", "T REAL f_sqrt(REAL x) { return __builtin_sqrtF(x); }\n", true},
    {"exp", "t_exp", "T REAL f_exp(REAL x) { return t_exp(x); }\n", true},
    {"log", "t_log", "T REAL f_log(REAL x) { return t_log(x); }\n", true},
    {"tanh", "t_tanh", "T REAL f_tanh(REAL x) { return t_tanh(x); }\n", true},
    {"sigmoid", "t_sigmoid", "T REAL f_sigmoid(REAL x) { return t_sigmoid(x); }\n", true},
    {"erf", "t_erf", "T REAL f_erf(REAL x) { return t_erf(x); }\n", true},
    {"abs", "", "T REAL f_abs(REAL x) { return __builtin_fabsF(x); }\n", true},
    {"floor", "", "T REAL f_floor(REAL x) { return __builtin_floorF(x); }\n", true},
    {"max", "",
     "template <class A, class B> T auto f_max(A x, B y) {\n  typedef decltype(x + y) V;\n"
     "  const V a = x - V{}, b = y - V{};\n  return (a > b) | (a != a) ? a : b;\n}\n",
     false},
    {"min", "",
     "template <class A, class B> T auto f_min(A x, B y) {\n  typedef decltype(x + y) V;\n"
     "  const V a = x - V{}, b = y - V{};\n  return (a < b) | (a != a) ? a : b;\n}\n",
     false},
    {"fma", "", "template <class V> T V f_fma(V a, V b, V c) { return a * b + c; }\n", false},
};

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

bool uses(const CodeText& code, const std::string& function) {
  return std::ranges::find(code.functions, function) != code.functions.end();
}

std::string body_functions(const KernelWriter& w, std::set<std::string>& prelude) {
  const bool cuda = w.dialect() == Dialect::Cuda;
  std::string text;
  for (const BodyFunction& f : kBodyFunctions) {
    if (!uses(w.code(), f.name)) continue;
    if (*f.prelude) prelude.insert(f.prelude);
    std::string one = replaced(f.text, "REAL", w.real());
    if (cuda) one = replaced(one, "__builtin_", "");
    one = replaced(one, "F(x)", w.real() == "float" ? "f(x)" : "(x)");
    text +=
        replaced(one, "T ", cuda ? "TS_DEVICE " : "static inline __attribute__((always_inline)) ");
    if (f.lanes && w.code().vectors)
      text += "static inline __attribute__((always_inline)) t_vec f_" + std::string(f.name) +
              "(t_vec v) {\n  t_vec r;\n#pragma omp simd\n  for (int l = 0; l < h_lanes; ++l) "
              "r[l] = f_" +
              f.name + "(" + w.real() + "(v[l]));\n  return r;\n}\n";
  }
  return text;
}

const char* const kVectorFunctions = R"(T t_vec f_fill(REAL x) { return x - t_vec{}; }
T REAL f_add_lanes(t_vec v) {
  REAL a[h_lanes];
  __builtin_memcpy(a, &v, sizeof v);
  for (int s = h_lanes / 2; s > 0; s /= 2)
    for (int l = 0; l < s; ++l) a[l] += a[l + s];
  return a[0];
}
T REAL f_max_lanes(t_vec v) {
  REAL m = v[0];
  for (int l = 1; l < h_lanes; ++l) m = (v[l] > m) | (v[l] != v[l]) ? v[l] : m;
  return m;
}
)";

const char* const kCudaShared = R"(template <class V, int n> struct h_shared {
  char* at_;
  struct Ref {
    V* p;
    int line;
    TS_DEVICE operator V() const { return ts::load_shared(static_cast<const V*>(p) TS_HERE); }
    TS_DEVICE void operator=(V x) const { ts::store_shared(p, x TS_HERE); }
    TS_DEVICE void operator=(const Ref& r) const { *this = V(r); }
    TS_DEVICE void operator+=(V x) const { *this = V(*this) + x; }
    TS_DEVICE void operator*=(V x) const { *this = V(*this) * x; }
  };
  TS_DEVICE Ref at(int i, int line) const {
    OUTSIDE
    return {reinterpret_cast<V*>(at_) + i, line};
  }
};
)";

const char* const kCudaMeetings = R"(template <class V> TS_DEVICE V f_warp_sum(V v TS_WHERE) {
  for (int o = 16; o > 0; o /= 2) v += ts::shuffle_xor(v, o TS_HERE);
  return v;
}
template <class V> TS_DEVICE V f_warp_max(V v TS_WHERE) {
  for (int o = 16; o > 0; o /= 2) {
    const V w = ts::shuffle_xor(v, o TS_HERE);
    v = (v > w) | (v != v) ? v : w;
  }
  return v;
}
// Of all threads; `at` has room for one V of each warp.
template <int threads, class V> TS_DEVICE V h_block_sum(V v, V* at TS_WHERE) {
  v = f_warp_sum(v TS_HERE);
  if (ts::lane() == 0) ts::store_shared(at + ts::warp(), v TS_HERE);
  ts::sync(TS_FIRST);
  V s = 0;
  for (int w = 0; w < threads / 32; ++w) s += ts::load_shared(static_cast<const V*>(at) + w TS_HERE);
  ts::sync(TS_FIRST);
  return s;
}
template <int threads, class V> TS_DEVICE V h_block_max(V v, V* at TS_WHERE) {
  v = f_warp_max(v TS_HERE);
  if (ts::lane() == 0) ts::store_shared(at + ts::warp(), v TS_HERE);
  ts::sync(TS_FIRST);
  V s = ts::load_shared(static_cast<const V*>(at) TS_HERE);
  for (int w = 1; w < threads / 32; ++w) {
    const V x = ts::load_shared(static_cast<const V*>(at) + w TS_HERE);
    s = (s > x) | (s != s) ? s : x;
  }
  ts::sync(TS_FIRST);
  return s;
}
)";

// The text of a body, whose lines are the file's where faults are to be told.
std::string placed(const KernelWriter& w, bool watched) {
  if (!watched) return w.code().text + "\n";
  return "\n#line " + num(w.body().line) + " \"body\"\n" + w.code().text +
         "\n#line 2000000 \"generated\"\n";
}

}  // namespace

WrittenText emit_written(const std::string& name, const Graph& block, const WrittenKernel& attrs,
                         const WrittenSources& sources, UnitContext& unit, bool watched) {
  KernelWriter w(block, attrs, sources, false, unit.prelude, watched);
  if (w.body().language != Language::Cpp) bad_input("a body for GPUs on a CPU");
  const std::string real = w.real(), inlined = "static inline __attribute__((always_inline)) ";
  const int bytes = real == "float" ? 4 : 8, lanes = vector_bytes(unit.isa) / bytes;
  const std::string holes = w.holes();  // tells the prelude what it needs
  std::string text =
      w.title() + "namespace " + name + "_body {\nconst int h_lanes = " + num(lanes) + ";\n";
  if (w.code().vectors)
    text +=
        "typedef " + real + " t_vec __attribute__((vector_size(" + num(lanes * bytes) + ")));\n";
  if (watched) {
    text += "extern \"C\" __attribute__((visibility(\"default\"))) long t_fault[8] = {};\n"
            "extern \"C\" __attribute__((visibility(\"default\"))) int* t_owner = 0;\n"
            "static void h_fault(long kind, long tensor, long line, long i0 = 0, long i1 = 0, "
            "long i2 = 0, long i3 = 0, long = 0, long = 0, long = 0, long = 0) {\n"
            "  if (t_fault[0] != 0) return;\n"
            "  const long f[8] = {kind, tensor, line, i0, i1, i2, i3, 0};\n"
            "  for (int i = 0; i < 8; ++i) t_fault[i] = f[i];\n}\n";
  }
  text +=
      "template <class V, int n> struct h_local {\n  V v[n] = {};\n  V& at(long i, int line) {\n" +
      std::string(watched ? "    if (i < 0 || i >= n) { h_fault(4, n, line, i); return v[0]; }\n"
                          : "") +
      "    return v[i];\n  }\n};\n";
  if (w.code().vectors) text += replaced(replaced(kVectorFunctions, "T ", inlined), "REAL", real);
  text += body_functions(w, unit.prelude);
  text += "extern \"C\" __attribute__((visibility(\"default\"))) void " + name +
          "(void** args, long begin, long end, char*) {\n";
  const size_t operands = block.inputs().size();
  for (size_t i = 0; i <= operands; i++) {
    const DType dtype = i < operands
                            ? block.type(block.inputs()[i]).dtype
                            : block.attrs<SaveAttrs>(block.producer(block.outputs()[0])).type.dtype;
    const std::string t = (i < operands ? "const " : "") + std::string(storage_type(dtype));
    const std::string a = i < operands ? "a" + num(int64_t(i)) : "out";
    text += "  " + t + "* const " + a + " = (" + t + "*)args[" + num(int64_t(i)) + "];\n";
  }
  text += "  const " + real + " h_lowest = -" +
          (real == "float" ? "__builtin_inff()" : "__builtin_inf()") + ";\n";
  text += "  for (long unit = begin; unit < end; ++unit) {\n" + w.unit_names() + holes + "  {" +
          placed(w, watched) + "  }\n  }\n}\n}\n";
  return {text, w.units()};
}

BlockText emit_written_cuda(const std::string& name, const Graph& block, const WrittenKernel& attrs,
                            const WrittenSources& sources, std::set<std::string>& prelude,
                            bool watched) {
  for (const Tensor& t : block.tensors())
    if (num_elements(t.type.shape) > 0x7fffffff)
      throw Error(ErrorKind::Unsupported, "a body's tensor has more elements than an int counts");
  KernelWriter w(block, attrs, sources, true, prelude, watched);
  if (w.body().language == Language::Cpp) bad_input("a body for CPUs on a GPU");
  if (w.units() > 0x7fffffff) throw Error(ErrorKind::Unsupported, "more than 2^31 blocks");
  const CodeText& code = w.code();
  const std::string real = w.real();
  const std::string holes = w.holes();
  BlockText out;
  out.threads = int(code.threads);
  out.grid[0] = int(w.units());
  out.shared_bytes = code.shared_bytes;
  const int64_t meeting = out.shared_bytes;
  const bool meets = uses(code, "block_sum") || uses(code, "block_max");
  if (meets) out.shared_bytes += 32 * 8;
  std::string text = w.title() + (watched ? "#line 1000000 \"generated\"\n" : "") + "namespace " +
                     name + "_body {\n";
  text += "#if defined(__CUDACC__) || defined(__CUDACC_RTC__)\n#define TS_FIRST\n#else\n"
          "#define TS_FIRST line\n#endif\n";
  if (code.text.find("h_shared<") != std::string::npos)
    text += replaced(kCudaShared, "OUTSIDE",
                     watched ? "if (i < 0 || i >= n) ts::host::api->access("
                               "ts::host::Access::ReadShared, nullptr, 4, line);"
                             : "");
  text +=
      "template <class V, int n> struct h_local {\n  V v[n];\n  TS_DEVICE V& at(int i, int line)"
      " {\n" +
      std::string(watched ? "    if (i < 0 || i >= n) ts::host::api->access("
                            "ts::host::Access::ReadShared, nullptr, 4, line);\n"
                          : "") +
      "    return v[i];\n  }\n};\n" + kCudaMeetings + body_functions(w, prelude) +
      "#undef TS_FIRST\n";
  text += "extern \"C\" __global__ void __launch_bounds__(" + num(code.threads) + ") " + name +
          "(" + w.arguments() +
          storage_type(block.attrs<SaveAttrs>(block.producer(block.outputs()[0])).type.dtype,
                       Dialect::Cuda) +
          "* __restrict__ out) {\n  const int unit = ts::block(0);\n" + w.unit_names() +
          "  const int h_thread = ts::thread(), h_threads = " + num(code.threads) + ";\n  const " +
          real + " h_lowest = " + literal(Rational::infinity(true), w.dtype(), Dialect::Cuda) +
          ";\n" + holes;
  text += "#define f_sync ts::sync\n#define f_shuffle_xor ts::shuffle_xor\n";
  for (const char* kind : {"sum", "max"})
    if (uses(code, std::string("block_") + kind))
      text += "#define f_block_" + std::string(kind) + "(v) h_block_" + kind + "<" +
              num(code.threads) + ">(" + real + "(v), reinterpret_cast<" + real +
              "*>(ts::shared() + " + num(meeting) + "))\n";
  text += "  {" + placed(w, watched) +
          "  }\n#undef f_sync\n#undef f_shuffle_xor\n#undef f_block_sum\n"
          "#undef f_block_max\n}\n}\nusing " +
          name + "_body::" + name + ";\n";
  out.text = text;
  return out;
}

bool is_call(const WrittenKernel& attrs, const WrittenSources& sources) {
  const auto known = sources.find(attrs.source);
  return known != sources.end() && known->second.bodies.at(0).called();
}

WrittenCall written_call(const Graph& block, const WrittenKernel& attrs,
                         const WrittenSources& sources, bool packed, int threads) {
  const Resolved r = resolve(block, attrs, sources);
  WrittenCall call;
  call.step.host = name(r.body->language);
  if (r.body->language == Language::Torch)
    call.step.text = patterns::call_text(*r.pattern, *r.body, r.values, r.numbers);
  else
    call.product = OneDnnCall::product(patterns::meaning_of(block, attrs), packed, threads);
  for (size_t i = 0; i < attrs.operands.size(); i++) {
    const TensorId t{uint32_t(attrs.operands[i])};
    const auto first = std::ranges::find(attrs.operands, int(t.index));
    if (r.pattern->is_number(i)) continue;
    // The program of the meaning has each of its inputs once.
    if (call.product && first - attrs.operands.begin() < std::ptrdiff_t(i)) continue;
    const Op& op = block.producer(t);
    if (!is_load(op.kind)) bad_input("a call of something that is computed in its kernel");
    const auto& all = block.inputs();
    call.operands.push_back(size_t(std::ranges::find(all, op.inputs[0]) - all.begin()));
    call.step.operands.push_back(block.type(t));
  }
  call.step.results = {block.type(TensorId(uint32_t(attrs.result)))};
  if (block.producer(block.outputs()[0]).inputs[0] != TensorId(uint32_t(attrs.result)))
    bad_input("a call behind which its kernel computes more");
  return call;
}

std::vector<std::pair<size_t, int64_t>>
written_alignment(const Graph& block, const WrittenKernel& attrs, const WrittenSources& sources) {
  const auto known = sources.find(attrs.source);
  if (known == sources.end()) bad_input("the body of " + attrs.pattern + " is not checked here");
  const Pattern& p = known->second;
  std::vector<std::pair<size_t, int64_t>> found;
  for (const auto* all : {&p.when, &p.bodies.at(0).when})
    for (const patterns::Condition& c : *all) {
      if (c.comparison != "align") continue;
      const TensorId t{uint32_t(attrs.operands[*p.input(c.operand)])};
      const Op& op = block.producer(t);
      if (!is_load(op.kind)) continue;  // made in the kernel
      const auto& in = block.inputs();
      found.emplace_back(size_t(std::ranges::find(in, op.inputs[0]) - in.begin()), c.bytes);
    }
  return found;
}

Graph with_checked_bodies(const Graph& graph, Cache& cache, bool cuda, CpuIsa isa,
                          const std::string& device, WrittenSources& sources) {
  if (std::ranges::none_of(graph.ops(),
                           [&](const Op& op) { return written_kernel(graph, op).has_value(); }))
    return graph;
  const BodyRecords records(cache);
  const auto usable = [&](const Op& op) {
    const WrittenKernel a = *written_kernel(graph, op);
    for (Language language : languages_of(cuda)) {
      const auto record = records.find(a.source, body_machine(language, isa, device));
      if (!record || record->state != BodyRecord::State::Checked) continue;
      try {
        Pattern p = patterns::parse_pattern(record->text, record->pattern);
        if (p.bodies.size() != 1 || p.bodies[0].language != language ||
            source_of(p, p.bodies[0]) != a.source)
          continue;
        sources.insert_or_assign(a.source, std::move(p));
        if (is_call(a, sources)) {
          const WrittenCall call = written_call(graph.body(op), a, sources);
          if (call.product || host_problem(call.step).empty()) return true;
          continue;  // the record is another process's, which had imported the operator
        }
        (void)resolve(graph.body(op), a, sources);
        return true;
      } catch (const Error&) {
      }
    }
    return false;
  };
  return without_written(graph, usable);
}

}  // namespace tessera
