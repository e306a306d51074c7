// Kernel-level operators whose output elements are expressions of operands in memory.
#include <algorithm>
#include <map>
#include <optional>

#include "backend/cpu/emit_kernel.h"
#include "backend/fmt.h"
#include "backend/nest.h"
#include "base/check.h"

namespace tessera {
namespace {

constexpr int64_t kLeastUnit = 512;  // elements

// Units start at multiples of this in the innermost axis, so that each writes cache lines of its
// own.
constexpr int64_t kLineElements = 64;

// Elements of a unit where there are `all`: fine enough for even shares.
int64_t unit_elements(int64_t all) {
  return std::clamp(all / 64 / kLineElements * kLineElements, kLeastUnit, kUnitElements);
}

// Loops over f32 whose quotients and roots are better computed by hand: dividers take several times
// as long as the same in products.
class WideQuotients {
 public:
  WideQuotients(const KernelValues& values, const std::vector<Expr>& index, UnitContext& unit)
      : values_(values), index_(index), unit_(unit) {}

  // Statements that write a value's 16 elements from `index` on to a place; none where they cannot,
  // or that is not worth it.
  std::optional<std::string> text(int id, const std::string& place) {
    if (unit_.isa < CpuIsa::Avx512 || unit_.rounds) return std::nullopt;
    const std::string x = vector(id);
    if (x.empty() || !worth_) return std::nullopt;
    unit_.prelude.insert("t_wide");
    return fmt("$0*(t_wide*)($1) = $2;", text_, place, x);
  }

 private:
  const Value& value(int id) const { return values_.values[size_t(id)]; }
  // Whether a value changes from element to element.
  bool varies(int id) {
    const auto known = varies_.find(id);
    if (known != varies_.end()) return known->second;
    const Value& v = value(id);
    if (v.in_memory)
      return !v.extents.empty() && v.extents.back().nominal != 1 && v.memory.strides.back() != 0;
    const bool any = std::ranges::any_of(v.inputs, [&](int i) { return varies(i); });
    return varies_[id] = any;
  }
  // How a value comes of its operands; "" where that is not known.
  static std::string_view pattern(const Value& v) {
    static const std::map<OpKind, std::string_view> patterns = {
        {OpKind::Neg, "-$0"},         {OpKind::Sqr, "$0 * $0"},
        {OpKind::Add, "$0 + $1"},     {OpKind::Sub, "$0 - $1"},
        {OpKind::Mul, "$0 * $1"},     {OpKind::Div, "t_divide($0, $1)"},
        {OpKind::Sqrt, "t_root($0)"}, {OpKind::Rsqrt, "t_divide(t_all(1), t_root($0))"}};
    OpKind kind = v.kind;
    if (kind == OpKind::Pow) {
      const Rational n = std::get<PowAttrs>(v.attrs).exponent;
      if (n == Rational(-1)) return "t_divide(t_all(1), $0)";
      if (n == Rational::ratio(1, 2)) kind = OpKind::Sqrt;
      if (n == Rational::ratio(-1, 2)) kind = OpKind::Rsqrt;
    }
    const auto known = patterns.find(kind);
    return known != patterns.end() ? known->second : "";
  }
  // A value as a vector; "" where there is none.
  std::string vector(int id) {
    const auto known = vectors_.find(id);
    if (known != vectors_.end()) return known->second;
    const std::string made = make_vector(id);
    return vectors_[id] = made;
  }
  std::string make_vector(int id) {
    const Value& v = value(id);
    if (v.dtype != DType::F32) return "";
    if (v.in_memory) return loaded(id);
    if (v.kind == OpKind::Const)
      return fmt("t_all($0)", literal(std::get<ConstAttrs>(v.attrs).value, v.dtype));
    const std::string_view how = pattern(v);
    if (how.empty()) return "";
    worth_ |= how.find("t_") != how.npos && varies(v.inputs.back());
    std::vector<std::string> x;
    for (int input : v.inputs) {
      x.push_back(vector(input));
      if (x.back().empty()) return "";
    }
    return named(x.size() > 1 ? fmt(how, x[0], x[1]) : fmt(how, x[0]));
  }
  std::string loaded(int id) {
    const Value& v = value(id);
    if (v.memory.storage != DType::F32 || v.memory.panel > 0 ||
        (varies(id) && v.memory.strides.back() != 1))
      return "";
    std::vector<Expr> at = index_;
    at.erase(at.begin(), at.end() - long(v.extents.size()));
    for (size_t i = 0; i < at.size(); ++i)
      if (v.extents[i].nominal == 1) at[i] = 0;
    return named(fmt(varies(id) ? "*(const t_wide*)($0 + $1)" : "t_all(*($0 + $1))",
                     v.memory.pointer, Nest::offset(at, v.memory.strides)));
  }
  std::string named(const std::string& expression) {
    const auto [known, fresh] = names_.try_emplace(expression, fmt("w$0", names_.size()));
    if (fresh) text_ += fmt("const t_wide $0 = $1; ", known->second, expression);
    return known->second;
  }

  const KernelValues& values_;
  const std::vector<Expr>& index_;
  UnitContext& unit_;
  bool worth_ = false;
  // By value, each found out once.
  std::map<int, bool> varies_;
  std::map<int, std::string> vectors_;
  std::string text_;
  std::map<std::string, std::string> names_;
};

// A transpose that exchanges the two innermost axes of words of 16 bits and more, or runs of axes
// that stay side by side (pixels and channels): tiles instead of single elements. A unit is some
// rows of the result.
std::optional<KernelText> emit_transpose(const std::string& name, const Graph& graph, const Op& op,
                                         UnitContext& unit) {
  const Type& type = graph.type(op.result());
  if (size_in_bytes(type.dtype) == 1) return std::nullopt;
  const std::vector<int64_t> shape = extents(type.shape);
  struct Run {  // of axes that follow each other in operand and result
    int first, last;
    int64_t extent;
  };
  std::vector<Run> runs;
  const auto& perm = std::get<PermAttrs>(op.attrs).perm;
  for (size_t i = 0; i < perm.size(); ++i) {
    if (!runs.empty() && perm[i] == runs.back().last + 1) {
      runs.back().last = perm[i];
      runs.back().extent *= shape[i];
    } else {
      runs.push_back({perm[i], perm[i], shape[i]});
    }
  }
  const size_t n_runs = runs.size();
  if (n_runs < 2 || n_runs > 3) return std::nullopt;
  const Run &row_run = runs[n_runs - 2], &column_run = runs[n_runs - 1];
  if (column_run.last + 1 != row_run.first || (n_runs == 3 && runs[0].first != 0))
    return std::nullopt;
  const int64_t rows = row_run.extent, columns = column_run.extent;
  if (rows < 8 || columns < 8) return std::nullopt;
  const int64_t matrices = num_elements(type.shape) / (rows * columns);
  // Whole lines of the operand.
  const int64_t step = std::min(rows, std::max<int64_t>(16, kUnitElements / columns / 8 * 8));
  const int64_t slabs = ceil_div(rows, step);
  unit.prelude.insert("t_transpose");
  Code code;
  open_kernel(code, name);
  const std::string t = storage_type(type.dtype);
  code.line(fmt("const $0* const a0 = (const $0*)args[0];", t));
  code.line(fmt("$0* const out = ($0*)args[1];", t));
  code.open("for (long unit = begin; unit < end; ++unit)");
  code.line(fmt("const long matrix = unit / $0 * $1, row = unit % $0 * $2;", slabs, rows * columns,
                step));
  code.line(fmt("const long rows = row + $0 < $1 ? $0 : $1 - row;", step, rows));
  code.line(fmt("t_transpose<$0>(a0 + matrix + row, $1, out + matrix + row * $2, $2, rows, $2);", t,
                rows, columns));
  code.close(2);
  return KernelText{code.text(), matrices * slabs};
}

// A concatenation of arrays whose axes from `axis` on lie side by side: runs are copied. A unit is
// some rows of the result (whatever is before the axis), or a stretch of one.
std::optional<KernelText> emit_concat(const std::string& name, const Graph& graph, const Op& op,
                                      const std::vector<Layout>& layouts) {
  constexpr int64_t kLeastRun = 8;  // elements; shorter ones are better chosen one by one
  const Type& type = graph.type(op.result());
  const std::vector<int64_t> shape = extents(type.shape);
  const size_t axis = size_t(std::get<AxisAttrs>(op.attrs).axis);
  int64_t rows = 1, row = 1;
  for (size_t i = 0; i < shape.size(); ++i) (i < axis ? rows : row) *= shape[i];
  struct Piece {
    int64_t run, pitch;
  };
  std::vector<Piece> pieces;
  std::vector<DType> dtypes;
  for (size_t p = 0; p < op.inputs.size(); ++p) {
    const std::vector<int64_t> own = extents(graph.type(op.inputs[p]).shape);
    const std::vector<int64_t> strides =
        p < layouts.size() && layouts[p].view() ? layouts[p].strides : contiguous_strides(own);
    Piece piece{1, 0};
    int64_t next = 0;  // stride of the next real axis outwards, if all rows are evenly spaced
    for (size_t i = own.size(); i-- > 0;) {
      if (i + 1 == axis) next = 0;
      if (own[i] == 1) continue;
      if (i >= axis ? strides[i] != piece.run : next != 0 && strides[i] != next)
        return std::nullopt;
      if (i >= axis)
        piece.run *= own[i];
      else if (next == 0)
        piece.pitch = strides[i];
      next = strides[i] * own[i];
    }
    pieces.push_back(piece);
    dtypes.push_back(type.dtype);
  }
  if (row == 0 || rows == 0 || row / int64_t(pieces.size()) < kLeastRun) return std::nullopt;
  dtypes.push_back(type.dtype);
  const auto n = [](int64_t i) { return std::to_string(i); };
  const int64_t most = unit_elements(rows * row);
  const bool whole = row <= most;  // a unit has whole rows
  const int64_t step = whole ? most / row : most, parts = whole ? 1 : ceil_div(row, step);
  KernelText out;
  out.units = whole ? ceil_div(rows, step) : rows * parts;
  Code code;
  open_function(code, name, dtypes, op.inputs.size(), layouts);
  const std::string to = "a" + n(int64_t(pieces.size()));
  code.open("for (long unit = begin; unit < end; ++unit)");
  if (whole) {
    code.line(
        fmt("const long first = unit * $0, last = first + $0 < $1 ? first + $0 : $1;", step, rows));
    code.open("for (long row = first; row < last; ++row)");
  } else {
    code.line(fmt("const long row = unit / $0, lo = unit % $0 * $1, hi = lo + $1;", parts, step));
  }
  int64_t start = 0;
  for (size_t p = 0; p < pieces.size(); start += pieces[p++].run) {
    const int64_t run = pieces[p].run;
    if (run == 0) continue;
    const std::string from = n(start), behind = n(start + run);
    code.open("");
    if (!whole)
      code.line(fmt("const long from = lo > $0 ? lo : $0, to = hi < $1 ? hi : $1;", from, behind));
    code.line("#pragma omp simd");
    code.line(fmt("for (long i = $0; i < $1; ++i) $2[row * $3 + i] = a$4[row * $5 + (i - $6)];",
                  whole ? from : "from", whole ? behind : "to", to, row, p, pieces[p].pitch, from));
    code.close();
  }
  if (whole) code.close();
  code.close(2);
  out.text = code.text();
  return out;
}

}  // namespace

KernelText emit_elementwise(const std::string& name, const Graph& graph, const Op& op,
                            UnitContext& unit, const std::vector<Layout>& layouts) {
  if (op.kind == OpKind::Transpose) {
    if (std::optional<KernelText> text = emit_transpose(name, graph, op, unit)) return *text;
  }
  if (op.kind == OpKind::Concat) {
    if (std::optional<KernelText> text = emit_concat(name, graph, op, layouts)) return *text;
  }
  CHECK(!rearranges(op.kind) || std::ranges::none_of(layouts, &Layout::view));
  KernelValues kernel = operator_values(graph, op, layouts);
  kernel.rounds = unit.rounds;
  kernel.argument_layouts = layouts;
  const std::vector<int64_t> shape = kernel.values.back().shape();
  std::vector<DType> dtypes = mapped(kernel.values, &Value::dtype);
  const int last = int(op.inputs.size());
  return emit_map(name, kernel, shape, {{last, last}}, dtypes, op.inputs.size(), unit);
}

void open_kernel(Code& code, const std::string& name) {
  code.open(
      fmt("extern \"C\" __attribute__((visibility(\"default\"))) void $0(void** args, long begin, "
          "long end, char* scratch)",
          name));
}

void open_function(Code& code, const std::string& name, const std::vector<DType>& argument_dtypes,
                   size_t operands, const std::vector<Layout>& layouts,
                   const std::string& workspace_type) {
  open_kernel(code, name);
  for (size_t i = 0; i < argument_dtypes.size(); ++i) {
    const std::string t =
        (i < operands ? "const " : "") + std::string(storage_type(argument_dtypes[i]));
    const int64_t offset = i < layouts.size() ? layouts[i].offset : 0;
    code.line(fmt("$0* const a$1 = ($0*)args[$1]$2;", t, i,
                  offset > 0 ? " + " + std::to_string(offset) : ""));
  }
  if (!workspace_type.empty())
    code.line(fmt("$0* const workspace = ($0*)args[$1];", workspace_type, argument_dtypes.size()));
}

KernelText emit_map(const std::string& name, const KernelValues& values,
                    const std::vector<int64_t>& extents,
                    const std::vector<std::pair<int, int>>& results,
                    const std::vector<DType>& argument_dtypes, size_t operands, UnitContext& unit) {
  // A unit is a slab of axis `split`, whole in the axes after it.
  size_t split = extents.size();
  int64_t inner = 1;
  const int64_t all = product_of(extents), most = unit_elements(all);
  while (split > 0 && inner * extents[split - 1] <= most) inner *= extents[--split];
  KernelText out;
  int64_t slab = 0, slabs = 1;
  if (split > 0) {
    slab = std::max<int64_t>(1, most / inner);
    if (inner == 1) slab = ceil_div(slab, kLineElements) * kLineElements;
    slabs = ceil_div(extents[split - 1], slab);
    out.units = slabs;
    for (size_t i = 0; i + 1 < split; ++i) out.units *= extents[i];
  }
  Code code;
  open_function(code, name, argument_dtypes, operands, values.argument_layouts);
  std::vector<int> touched;
  Nest nest(values, unit.prelude, touched);
  std::vector<Expr> index;
  const std::string n = split > 0 ? std::to_string(extents[split - 1]) : "",
                    step = std::to_string(slab);
  if (split == 1) {  // neighbouring units are one piece
    code.line(fmt("const long lo = begin * $0;", step));
    code.line(fmt("const long hi = end * $0 < $1 ? end * $0 : $1;", step, n));
  } else {
    code.open("for (long unit = begin; unit < end; ++unit)");
  }
  for (size_t i = 0; i + 1 < split; ++i) {
    int64_t stride = slabs;
    for (size_t j = i + 1; j + 1 < split; ++j) stride *= extents[j];
    const std::string variable = "u" + std::to_string(i);
    code.line(fmt("const long $0 = unit / $1 % $2;", variable, stride, extents[i]));
    index.push_back(Expr::variable(variable, {0, extents[i] - 1}));
  }
  if (split > 1) {
    code.line(fmt("const long lo = unit % $0 * $1;", slabs, step));
    code.line(fmt("const long hi = lo + $0 < $1 ? lo + $0 : $1;", step, n));
  }
  const auto place_of = [&](int argument) {
    return fmt("a$0 + $1", argument, Nest::offset(index, contiguous_strides(extents)));
  };
  for (size_t i = split > 0 ? split - 1 : 0; i < extents.size(); ++i) {
    const bool sliced = i + 1 == split;
    const Range places{0, extents[i]};
    const Expr from = sliced ? Expr::variable("lo", places) : 0,
               to = sliced ? Expr::variable("hi", places) : extents[i];
    if (i + 1 < extents.size() || extents[i] < 16 || results.size() != 1 ||
        argument_dtypes[size_t(results[0].second)] != DType::F32) {
      index.push_back(nest.loop(to, from));
      continue;
    }
    index.push_back(Expr::variable("wide", {0, extents[i] - 16}, nest.depth() - 1));
    WideQuotients quotients(values, index, unit);
    if (const auto text = quotients.text(results[0].first, place_of(results[0].second))) {
      nest.statement(nest.depth() - 1, fmt("long wide = $0;", from));
      nest.statement(nest.depth() - 1,
                     fmt("for (; wide + 16 <= $0; wide += 16) { $1 }", to, *text));
      index.back() = nest.loop(to, Expr::variable("wide", places));
    } else {
      index.back() = nest.loop(to, from);
    }
  }
  for (const auto& [id, argument] : results) {
    const std::string x = nest.element(id, index);
    const Memory to{"a" + std::to_string(argument), argument_dtypes[size_t(argument)],
                    contiguous_strides(extents)};
    nest.statement(nest.depth() - 1, store(to, Nest::offset(index, to.strides), x, unit.prelude));
  }
  nest.emit(code);
  if (split != 1) code.close();
  code.close();
  out.text = code.text();
  return out;
}

}  // namespace tessera
