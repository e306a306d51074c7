#include "backend/cpu/emit_windows.h"

#include <algorithm>
#include <limits>

#include "backend/fmt.h"
#include "backend/nest.h"
#include "base/check.h"
#include "ir/window.h"

namespace tessera {
namespace {

constexpr int64_t kUnitProducts = int64_t{1} << 20;  // work worth handing to a thread
constexpr int64_t kUnitElements = 8192;

std::string n(int64_t i) { return std::to_string(i); }

std::string array(const std::string& name, const std::vector<int64_t>& values) {
  std::string text = "static const long " + name + "[] = {";
  for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? ", " : "") + n(values[i]);
  return text + "};";
}

std::string loaded(DType storage, const std::string& x, std::set<std::string>& prelude) {
  if (storage == DType::F16) {
    prelude.insert("t_f16");
    return "t_from_f16(" + x + ")";
  }
  if (storage == DType::BF16) {
    prelude.insert("t_bf16");
    return "t_from_bf16(" + x + ")";
  }
  return x;
}

std::string head(const std::string& name) {
  return "extern \"C\" __attribute__((visibility(\"default\"))) void " + name +
         "(void** args, long begin, long end, char* scratch)";
}

// --- convolutions

class Convolution {
 public:
  Convolution(const std::string& name, const Graph& graph, const Op& op, UnitContext& unit)
      : name_(name), graph_(graph), op_(op), unit_(unit), axes_(window_axes(graph, op)) {
    const std::vector<int64_t> x = extents(graph.type(op.inputs[0]).shape);
    const std::vector<int64_t> out = extents(graph.type(op.result()).shape);
    dtype_ = graph.type(op.result()).dtype;
    groups_ = graph.attrs<ConvAttrs>(op).groups;
    batch_ = x[0];
    channels_ = x[1] / groups_;
    filters_ = out[1] / groups_;
    const bool wide = dtype_ == DType::F64 || dtype_ == DType::I64;
    type_ = is_float(dtype_) ? (wide ? "double" : "float") : wide ? "unsigned long" : "unsigned";
    bytes_ = wide ? 8 : 4;
    stage_weights_ = size_in_bytes(dtype_) != bytes_;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const WindowAxis& a = axes_[i];
      strides_.push_back(a.stride);
      plane_.push_back(a.out + (a.taps - 1) * a.dilation / a.stride);
      taps_ *= a.taps;
      in_ *= a.in;
      out_ *= a.out;
      size_ *= plane_.back();
      residues_ *= a.stride;
    }
    int64_t step = 1, phase = size_;
    last_ = 0;
    std::vector<int64_t> along(axes_.size()), residue(axes_.size());
    for (size_t i = axes_.size(); i-- > 0;) {
      last_ += (axes_[i].out - 1) * step;
      along[i] = step;
      residue[i] = phase;
      step *= plane_[i];
      phase *= strides_[i];
    }
    for (int64_t t = 0; t < taps_; ++t) {
      int64_t at = t, offset = 0;
      for (size_t i = axes_.size(); i-- > 0;) {
        const int64_t p = at % axes_[i].taps * axes_[i].dilation;
        offset += p / strides_[i] * along[i] + p % strides_[i] * residue[i];
        at /= axes_[i].taps;
      }
      offsets_.push_back(offset);
    }
    tile_ = choose_tile(unit.isa, wide ? DType::F64 : DType::F32, filters_, last_ + 1);
    pitch_ = size_ * residues_;  // of a channel
    const bool as_it_is =
        size_in_bytes(dtype_) == bytes_ && residues_ == 1 && size_ == in_ &&
        columns() * tile_.columns() + *std::ranges::max_element(offsets_) <= size_ &&
        std::ranges::all_of(axes_, [](const WindowAxis& a) { return a.low == 0 && a.high == 0; });
    stage_x_ = !as_it_is;
  }

  WindowText emit() {
    WindowText text;
    const int64_t planes = stage_x_ ? batch_ * groups_ * channels_ : 0;
    // The last tile may reach beyond the last plane.
    const int64_t x_elements = stage_x_ ? (planes * pitch_ + tile_.columns() + 15) / 16 * 16 : 0;
    const int64_t rows = stage_weights_ ? groups_ * filters_ : 0;
    text.workspace_bytes = (x_elements + rows * channels_ * taps_) * bytes_;
    text.staging_units = planes + rows;
    Code code;
    if (text.workspace_bytes > 0) {
      code.open(head(name_ + "_once"));
      operands(code, x_elements);
      code.open("for (long unit = begin; unit < end; ++unit)");
      if (stage_x_) {
        code.open("if (unit < " + n(planes) + ")");
        stage_plane(code);
        code.line("continue;");
        code.close();
      }
      if (stage_weights_) stage_filter(code, planes);
      code.close(2);
    }
    const std::string kernel = "tile_" + name_;
    const int64_t whole = filters_ / tile_.rows * tile_.rows;
    code.append(micro_kernel(kernel, tile_.rows));
    if (whole < filters_) code.append(micro_kernel(kernel + "_rest", int(filters_ - whole)));
    const int64_t tiles = ceil_div(filters_, int64_t{tile_.rows}), across = columns();
    const int64_t products = int64_t{tile_.rows} * tile_.columns() * channels_ * taps_;
    const int64_t chunk =
        std::clamp<int64_t>(kUnitProducts / std::max<int64_t>(1, products), 1, across);
    const int64_t chunks = ceil_div(across, chunk);
    text.units = batch_ * groups_ * tiles * chunks;
    code.open(head(name_));
    operands(code, x_elements);
    const std::string stored = storage_type(dtype_);
    code.line(array("offsets", offsets_));
    code.open("for (long unit = begin; unit < end; ++unit)");
    code.line(fmt("const long part = unit % $0, f = unit / $0 % $1 * $2, image = unit / $3;",
                  chunks, tiles, tile_.rows, chunks * tiles));
    code.line("const long group = image % " + n(groups_) + ";");
    code.line(fmt("const $0* const xs = x + image * $1;", type_, channels_ * pitch_));
    code.line(
        fmt("const $0* const ws = w + (group * $1 + f) * $2;", type_, filters_, channels_ * taps_));
    code.line(fmt("$0* const to = out + (image * $1 + f) * $2;", stored, filters_, out_));
    code.line(fmt("const long last = part * $0 + $0 < $1 ? part * $0 + $0 : $1;", chunk, across));
    code.open("for (long tile = part * " + n(chunk) + "; tile < last; ++tile)");
    const std::string columns = n(tile_.columns());
    code.line(fmt("$0 sums[$1];", type_, int64_t{tile_.rows} * tile_.columns()));
    code.line("long rows = " + n(tile_.rows) + ";");
    if (whole < filters_) {
      code.open("if (f < " + n(whole) + ")");
      code.line(fmt("$0(ws, xs + tile * $1, offsets, sums);", kernel, columns));
      code.close(" else {");
      code.set_indent(code.indent() + 1);
      code.line("rows = " + n(filters_ - whole) + ";");
      code.line(fmt("$0_rest(ws, xs + tile * $1, offsets, sums);", kernel, columns));
      code.close();
    } else {
      code.line(fmt("$0(ws, xs + tile * $1, offsets, sums);", kernel, columns));
    }
    write_lines(code);
    code.close(3);
    text.text = code.text();
    return text;
  }

 private:
  int64_t columns() const { return ceil_div(last_ + 1, int64_t{tile_.columns()}); }

  void operands(Code& code, int64_t x_elements) {
    const std::string stored = storage_type(dtype_);
    code.line(fmt("const $0* const given = (const $0*)args[0];", stored));
    code.line(fmt("const $0* const weights = (const $0*)args[1];", stored));
    code.line(fmt("$0* const out = ($0*)args[2];", stored));
    const bool workspace = stage_x_ || stage_weights_;
    code.line(fmt("$0* const x = ($0*)$1;", type_, stage_x_ ? "args[3]" : "given"));
    code.line(fmt("$0* const w = $1;", type_,
                  stage_weights_ ? fmt("($0*)args[3] + $1", type_, x_elements)
                                 : "(" + type_ + "*)weights"));
    code.line("(void)given, (void)weights, (void)out, (void)x, (void)w, (void)scratch;");
    (void)workspace;
  }

  // Element by element of the staged plane: what lies there, or zero.
  void stage_plane(Code& code) {
    const std::string stored = storage_type(dtype_);
    code.line(fmt("$0* const plane = x + unit * $1;", type_, pitch_));
    code.line(fmt("const $0* const from = given + unit * $1;", stored, in_));
    const size_t rank = axes_.size();
    // Residues, then places; `inside` says whether the line is one of x's.
    std::string residue = "0", place = "0", row = "0", inside;
    for (size_t i = 0; i < rank; ++i)
      if (strides_[i] > 1) {
        code.open(fmt("for (long r$0 = 0; r$0 < $1; ++r$0)", i, strides_[i]));
        residue = fmt("($0 * $1 + r$2)", residue, strides_[i], i);
      }
    for (size_t i = 0; i + 1 < rank; ++i) {
      const std::string q = "q" + n(int64_t(i)), y = "y" + n(int64_t(i));
      code.open(fmt("for (long $0 = 0; $0 < $1; ++$0)", q, plane_[i]));
      code.line(fmt("const long $0 = $1;", y, position(i, q)));
      place = fmt("($0 + $1) * $2", place, q, plane_[i + 1]);
      row = fmt("($0 + $1) * $2", row, y, axes_[i + 1].in);
      inside += (inside.empty() ? "" : " && ") + within(i, y);
    }
    const size_t last = rank - 1;
    code.line(fmt("$0* const line = plane + $1 * $2 + $3;", type_, residue, size_, place));
    if (!inside.empty()) {
      code.open("if (!(" + inside + "))");
      code.line("for (long q = 0; q < " + n(plane_[last]) + "; ++q) line[q] = 0;");
      code.line("continue;");
      code.close();
    }
    code.line(fmt("const $0* const source = from + $1;", stored, row));
    const std::string value = fmt("($0)$1", type_, loaded(dtype_, "source[y]", unit_.prelude));
    if (strides_[last] == 1) {
      // zeros, a piece of x, zeros
      const int64_t before = std::clamp<int64_t>(axes_[last].low, 0, plane_[last]);
      const int64_t end =
          std::clamp<int64_t>(axes_[last].in + axes_[last].low, before, plane_[last]);
      code.line("for (long q = 0; q < " + n(before) + "; ++q) line[q] = 0;");
      code.line("#pragma omp simd");
      code.open(fmt("for (long q = $0; q < $1; ++q)", before, end));
      code.line("const long y = q + " + n(-axes_[last].low) + ";");
      code.line("line[q] = " + value + ";");
      code.close();
      code.line(fmt("for (long q = $0; q < $1; ++q) line[q] = 0;", end, plane_[last]));
    } else {
      code.open("for (long q = 0; q < " + n(plane_[last]) + "; ++q)");
      code.line("const long y = " + position(last, "q") + ";");
      code.line(fmt("line[q] = $0 ? $1 : ($2)0;", within(last, "y"), value, type_));
      code.close();
    }
    for (size_t i = 0; i + 1 < rank; ++i) code.close();
    for (size_t i = 0; i < rank; ++i)
      if (strides_[i] > 1) code.close();
  }
  std::string position(size_t i, const std::string& q) const {
    std::string p = q;
    if (strides_[i] > 1) p += fmt(" * $0 + r$1", strides_[i], i);
    return p + " + " + n(-axes_[i].low);
  }
  std::string within(size_t i, const std::string& y) const {
    return fmt("$0 >= 0 && $0 < $1", y, axes_[i].in);
  }

  // Weights as [G·F, C, T].
  void stage_filter(Code& code, int64_t first) {
    code.line("const long f = unit - " + n(first) + ";");
    code.open("for (long c = 0; c < " + n(channels_) + "; ++c)");
    code.open("for (long t = 0; t < " + n(taps_) + "; ++t)");
    const std::string from = fmt("(f * $0 + c) * $1 + t", channels_, taps_);
    code.line(fmt("w[$0] = ($1)$2;", from, type_,
                  loaded(dtype_, "weights[" + from + "]", unit_.prelude)));
    code.close(2);
  }

  // sums[i][j] = Σ over channels and taps of w[i] · x at the tap's offset + j, in registers.
  std::string micro_kernel(const std::string& name, int rows) const {
    const int vectors = tile_.vectors;
    const std::string v = "v_" + name;
    const auto acc = [](int i, int j) { return fmt("c$0_$1", i, j); };
    std::string out =
        fmt("typedef $0 $1 __attribute__((vector_size($2), aligned($3), may_alias));\n", type_, v,
            int64_t{tile_.lanes} * bytes_, bytes_);
    out += fmt("static __attribute__((noinline)) void $0(const $1* w, const $1* x, const long* "
               "offsets, $1* sums) {\n  $2",
               name, type_, v);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < vectors; ++j) out += (i + j > 0 ? ", " : " ") + acc(i, j) + " = {}";
    out += fmt(";\n  for (long c = 0; c < $0; ++c, x += $1)\n    for (long t = 0; t < $2; ++t, "
               "++w) {\n      const $3* const b = x + offsets[t];\n      const $4",
               channels_, pitch_, taps_, type_, v);
    for (int j = 0; j < vectors; ++j)
      out += fmt("$0$1 = *(const $2*)(b + $3)", j > 0 ? ", " : " ", "b" + n(j), v,
                 int64_t{j} * tile_.lanes);
    out += ";\n";
    for (int i = 0; i < rows; ++i) {
      out += "     ";
      for (int j = 0; j < vectors; ++j)
        out += fmt(" $0 += w[$1] * b$2;", acc(i, j), i * channels_ * taps_, j);
      out += "\n";
    }
    out += "    }\n";
    for (int i = 0; i < rows; ++i) {
      out += " ";
      for (int j = 0; j < vectors; ++j)
        out += fmt(" *($0*)(sums + $1) = $2;", v,
                   int64_t{i} * tile_.columns() + int64_t{j} * tile_.lanes, acc(i, j));
      out += "\n";
    }
    return out + "}\n";
  }

  // Copies what a tile holds of each line of the result.
  void write_lines(Code& code) {
    const size_t rank = axes_.size(), last = rank - 1;
    const std::string columns = n(tile_.columns()), line = n(plane_[last]);
    code.line("long at = tile * " + columns + ";");
    code.line(fmt("const long stop = at + $0 < $1 ? at + $0 : $1;", columns, last_ + 1));
    code.open("while (at < stop)");
    code.line(fmt("const long row = at / $0, o = at % $0, begin_ = at;", line));
    code.line(fmt("const long next = (row + 1) * $0 < stop ? (row + 1) * $0 : stop;", line));
    code.line("at = next;");
    code.line(
        fmt("const long keep = next - begin_ < $0 - o ? next - begin_ : $0 - o;", axes_[last].out));
    // The row's place in the result, unless it lies between planes.
    std::string place = "0", skip = "keep <= 0";
    int64_t below = 1;
    for (size_t i = 1; i < rank; ++i) below *= plane_[i - 1];
    for (size_t i = 0; i + 1 < rank; ++i) {
      below /= plane_[i];
      const std::string o = fmt("row / $0 % $1", below, plane_[i]);
      place = fmt("($0 + $1) * $2", place, o, axes_[i + 1].out);
      skip += fmt(" || $0 >= $1", o, axes_[i].out);
    }
    code.line("if (" + skip + ") continue;");
    const Memory memory{"line", dtype_, {}};
    code.open("for (long i = 0; i < rows; ++i)");
    code.line(fmt("$0* const line = to + i * $1 + $2 + o;", storage_type(dtype_), out_, place));
    code.line(fmt("const $0* const from = sums + i * $1 + (begin_ - tile * $1);", type_, columns));
    const std::string value =
        is_float(dtype_) ? "from[j]" : "(" + std::string(storage_type(dtype_)) + ")from[j]";
    code.line("#pragma omp simd");
    code.line("for (long j = 0; j < keep; ++j) " + store(memory, "j", value, unit_.prelude));
    code.close(2);
  }

  const std::string name_;
  const Graph& graph_;
  const Op& op_;
  UnitContext& unit_;
  const std::vector<WindowAxis> axes_;
  DType dtype_ = DType::F32;
  std::string type_;  // computed in
  int64_t bytes_ = 4;
  bool stage_x_ = true, stage_weights_ = false;
  int64_t groups_ = 1, batch_ = 1, channels_ = 1, filters_ = 1;  // the latter two of a group
  int64_t taps_ = 1, in_ = 1, out_ = 1;                          // elements of a channel
  std::vector<int64_t> strides_, plane_, offsets_;               // offsets_: by tap
  int64_t size_ = 1, residues_ = 1, pitch_ = 1;                  // of a plane
  int64_t last_ = 0;                                             // place of the last result
  RegisterTile tile_;
};

// --- pooling

// A line of the result at a time: each tap adds a strided piece of a line of x to it.
WindowText emit_pooling(const std::string& name, const Graph& graph, const Op& op,
                        UnitContext& unit) {
  const std::vector<WindowAxis> axes = window_axes(graph, op);
  const Type& result = graph.type(op.result());
  const DType dtype = result.dtype;
  const bool maximum = op.kind == OpKind::PoolMax, real = is_float(dtype);
  const size_t rank = axes.size(), last = rank - 1;
  const std::string stored = storage_type(dtype);
  const std::string type = real || dtype == DType::I64 ? compute_type(dtype) : "int";
  int64_t in = 1, out = 1;
  for (const WindowAxis& a : axes) in *= a.in, out *= a.out;
  const int64_t planes = num_elements(result.shape) / out;
  const WindowAxis& line = axes[last];
  const int64_t lines = out / line.out;
  std::string start = "0";
  if (maximum) {
    unit.prelude.insert("t_max");
    const int64_t lowest =
        dtype == DType::U8 ? 0
                           : std::numeric_limits<int64_t>::min() >> (64 - 8 * size_in_bytes(dtype));
    start = real                  ? literal(Rational::infinity(true), compute_dtype(dtype))
            : dtype == DType::I64 ? "(-0x7fffffffffffffffL - 1)"
                                  : "(int)" + n(lowest) + "L";
  }
  WindowText text;
  text.scratch_bytes = line.out * 8;
  const int64_t per_unit = std::max<int64_t>(1, kUnitElements / std::max(in, out));
  text.units = ceil_div(planes, per_unit);
  Code code;
  code.open(head(name));
  code.line(fmt("const $0* const x = (const $0*)args[0];", stored));
  code.line(fmt("$0* const out = ($0*)args[1];", stored));
  code.line(fmt("$0* const sums = ($0*)scratch;", type));
  code.line(fmt("const long stop = end * $0 < $1 ? end * $0 : $1;", per_unit, planes));
  code.open("for (long plane = begin * " + n(per_unit) + "; plane < stop; ++plane)");
  code.open("for (long row = 0; row < " + n(lines) + "; ++row)");
  code.line(fmt("for (long o = 0; o < $0; ++o) sums[o] = $1;", line.out, start));
  std::string row = "plane";
  int64_t below = lines;
  for (size_t i = 0; i < last; ++i) {
    const WindowAxis& a = axes[i];
    below /= a.out;
    const std::string t = "t" + n(int64_t(i)), y = "y" + n(int64_t(i));
    code.open(fmt("for (long $0 = 0; $0 < $1; ++$0)", t, a.taps));
    code.line(fmt("const long $0 = row / $1 % $2 * $3 + $4 * $5 - $6;", y, below, a.out, a.stride,
                  t, a.dilation, a.low));
    code.line(fmt("if ($0 < 0 || $0 >= $1) continue;", y, a.in));
    row = fmt("($0) * $1 + $2", row, a.in, y);
  }
  code.line(fmt("const $0* const from = x + ($1) * $2;", stored, row, line.in));
  code.open("for (long t = 0; t < " + n(line.taps) + "; ++t)");
  // first <= o < behind: the tap lies in x
  code.line(fmt("const long shift = t * $0 - $1;", line.dilation, line.low));
  code.line(
      fmt("const long first = shift >= 0 ? 0 : (-shift + $0) / $1;", line.stride - 1, line.stride));
  code.line("const long room = " + n(line.in - 1) + " - shift;");
  code.line("long behind = room < 0 ? 0 : room / " + n(line.stride) + " + 1;");
  code.line(fmt("if (behind > $0) behind = $0;", line.out));
  const std::string value =
      fmt("($0)$1", type, loaded(dtype, "from[o * " + n(line.stride) + " + shift]", unit.prelude));
  code.line("#pragma omp simd");
  code.line("for (long o = first; o < behind; ++o) sums[o] = " +
            (maximum ? "t_max(sums[o], " + value + ");" : "sums[o] + " + value + ";"));
  for (size_t i = 0; i < last; ++i) code.close();
  code.close();
  code.line(fmt("$0* const to = out + (plane * $1 + row) * $2;", stored, lines, line.out));
  const Memory memory{"to", dtype, {}};
  code.line(fmt("for (long o = 0; o < $0; ++o) $1", line.out,
                store(memory, "o", real ? "sums[o]" : "(" + stored + ")sums[o]", unit.prelude)));
  code.close(3);
  text.text = code.text();
  return text;
}

}  // namespace

WindowText emit_windows(const std::string& name, const Graph& graph, const Op& op,
                        UnitContext& unit) {
  if (is_convolution(op.kind)) return Convolution(name, graph, op, unit).emit();
  return emit_pooling(name, graph, op, unit);
}

}  // namespace tessera
