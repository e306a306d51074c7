#include "backend/cpu/emit_windows.h"

#include <algorithm>
#include <limits>

#include "backend/cpu/tile_text.h"
#include "backend/fmt.h"
#include "ir/window.h"

namespace tessera {
namespace {

constexpr int64_t kUnitProducts = int64_t{1} << 20;  // work worth handing to a thread

// An element as it is computed with.
std::string loaded_element(DType storage, const std::string& pointer, const Expr& offset,
                           UnitContext& unit) {
  return load({pointer, storage, {}}, offset, unit.prelude);
}

// --- convolutions

class ConvolutionEmitter {
 public:
  ConvolutionEmitter(const std::string& name, const Graph& graph, const Op& op, UnitContext& unit)
      : name_(name), unit_(unit), axes_(window_axes(graph, op)) {
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
    names_.set("name", name, "stored", storage_type(dtype_), "type", type_, "columns",
               tile_.columns(), "groups", groups_, "filters", filters_, "channels", channels_,
               "taps", taps_, "terms", channels_ * taps_, "pitch", pitch_, "size", size_, "in", in_,
               "out", out_, "end", last_ + 1, "line", plane_.back(), "kept", axes_.back().out);
  }

  KernelText emit() {
    KernelText text;
    const int64_t planes = stage_x_ ? batch_ * groups_ * channels_ : 0;
    // The last tile may reach beyond the last plane.
    const int64_t x_elements = stage_x_ ? (planes * pitch_ + tile_.columns() + 15) / 16 * 16 : 0;
    const int64_t rows = stage_weights_ ? groups_ * filters_ : 0;
    text.workspace_bytes = (x_elements + rows * channels_ * taps_) * bytes_;
    text.first_units = planes + rows;
    Code code;
    if (text.workspace_bytes > 0) {
      open_kernel(code, name_ + "_once");
      operands(code, x_elements);
      code.open("for (long unit = begin; unit < end; ++unit)");
      if (stage_x_) {
        code.open(fmt("if (unit < $0)", planes));
        stage_plane(code);
        code.line("continue;");
        code.close();
      }
      if (stage_weights_) stage_filter(code, planes);
      code.close(2);
    }
    const int64_t whole = filters_ / tile_.rows * tile_.rows;
    code.append(micro_kernel("", tile_.rows));
    if (whole < filters_) code.append(micro_kernel("_rest", int(filters_ - whole)));
    const int64_t tiles = ceil_div(filters_, int64_t{tile_.rows}), across = columns();
    const int64_t products = int64_t{tile_.rows} * tile_.columns() * channels_ * taps_;
    const int64_t chunk =
        std::clamp<int64_t>(kUnitProducts / std::max<int64_t>(1, products), 1, across);
    const int64_t chunks = ceil_div(across, chunk);
    text.units = batch_ * groups_ * tiles * chunks;
    open_kernel(code, name_);
    operands(code, x_elements);
    names_.set("chunks", chunks, "tiles", tiles, "rows", tile_.rows, "images", chunks * tiles,
               "image", channels_ * pitch_, "chunk", chunk, "across", across, "sums",
               tile_.rows * tile_.columns(), "whole", whole, "rest", filters_ - whole, "offsets",
               joined(offsets_, ", "));
    names_.write(code, R"(
      static const long offsets[] = {$offsets};
      for (long unit = begin; unit < end; ++unit) {
        const long part = unit % $chunks, f = unit / $chunks % $tiles * $rows, image = unit / $images;
        const long group = image % $groups;
        const $type* const xs = x + image * $image;
        const $type* const ws = w + (group * $filters + f) * $terms;
        $stored* const to = out + (image * $filters + f) * $out;
        const long last = part * $chunk + $chunk < $across ? part * $chunk + $chunk : $across;
        for (long tile = part * $chunk; tile < last; ++tile) {
          $type sums[$sums];
          long rows = $rows;)");
    if (whole < filters_)
      names_.write(code, R"(
        if (f < $whole) {
          tile_$name(ws, xs + tile * $columns, offsets, sums);
        } else {
          rows = $rest;
          tile_${name}_rest(ws, xs + tile * $columns, offsets, sums);
        })");
    else
      names_.write(code, R"(
        tile_$name(ws, xs + tile * $columns, offsets, sums);)");
    write_lines(code);
    code.close(3);
    text.text = code.text();
    return text;
  }

 private:
  int64_t columns() const { return ceil_div(last_ + 1, int64_t{tile_.columns()}); }

  void operands(Code& code, int64_t x_elements) {
    names_.set("x", stage_x_ ? "args[3]" : "given");
    names_.set("w", fmt(stage_weights_ ? "($0*)args[3] + $1" : "($0*)weights", type_, x_elements));
    names_.write(code, R"(
      const $stored* const given = (const $stored*)args[0];
      const $stored* const weights = (const $stored*)args[1];
      $stored* const out = ($stored*)args[2];
      $type* const x = ($type*)$x;
      $type* const w = $w;
      (void)given, (void)weights, (void)out, (void)x, (void)w, (void)scratch;)");
  }

  // Element by element of the staged plane: what lies there, or zero.
  void stage_plane(Code& code) {
    names_.write(code, R"(
      $type* const plane = x + unit * $pitch;
      const $stored* const from = given + unit * $in;)");
    const size_t rank = axes_.size(), last = rank - 1;
    // Residues, then places; `inside` says whether the line is one of x's.
    std::string residue = "0", place = "0", row = "0", inside;
    for (size_t i = 0; i < rank; ++i)
      if (strides_[i] > 1) {
        code.open(fmt("for (long r$0 = 0; r$0 < $1; ++r$0)", i, strides_[i]));
        residue = fmt("($0 * $1 + r$2)", residue, strides_[i], i);
      }
    for (size_t i = 0; i < last; ++i) {
      code.open(fmt("for (long q$0 = 0; q$0 < $1; ++q$0)", i, plane_[i]));
      code.line(fmt("const long y$0 = $1;", i, position(i, fmt("q$0", i))));
      place = fmt("($0 + q$1) * $2", place, i, plane_[i + 1]);
      row = fmt("($0 + y$1) * $2", row, i, axes_[i + 1].in);
      inside += (inside.empty() ? "" : " && ") + within(i, fmt("y$0", i));
    }
    const WindowAxis& a = axes_[last];
    // zeros, a piece of x, zeros
    const int64_t before = std::clamp<int64_t>(a.low, 0, plane_[last]);
    Names names("type", type_, "stored", storage_type(dtype_), "residue", residue, "size", size_,
                "place", place, "row", row, "inside", inside, "line", plane_[last], "position",
                position(last, "q"), "within", within(last, "y"), "before", before, "end",
                std::clamp<int64_t>(a.in + a.low, before, plane_[last]), "shift", -a.low, "value",
                loaded_element(dtype_, "source", Expr::variable("y", {0, size_ - 1}), unit_));
    names.write(code, R"(
      $type* const line = plane + $residue * $size + $place;)");
    if (!inside.empty())
      names.write(code, R"(
        if (!($inside)) {
          for (long q = 0; q < $line; ++q) line[q] = 0;
          continue;
        })");
    names.write(code, R"(
      const $stored* const source = from + $row;)");
    if (strides_[last] == 1)
      names.write(code, R"(
        for (long q = 0; q < $before; ++q) line[q] = 0;
        #pragma omp simd
        for (long q = $before; q < $end; ++q) {
          const long y = q + $shift;
          line[q] = ($type)$value;
        }
        for (long q = $end; q < $line; ++q) line[q] = 0;)");
    else
      names.write(code, R"(
        for (long q = 0; q < $line; ++q) {
          const long y = $position;
          line[q] = $within ? ($type)$value : ($type)0;
        })");
    code.close(
        int(last + size_t(std::ranges::count_if(strides_, [](int64_t s) { return s > 1; }))));
  }
  std::string position(size_t i, const std::string& q) const {
    if (strides_[i] == 1) return fmt("$0 + $1", q, -axes_[i].low);
    return fmt("$0 * $1 + r$2 + $3", q, strides_[i], i, -axes_[i].low);
  }
  std::string within(size_t i, const std::string& y) const {
    return fmt("$0 >= 0 && $0 < $1", y, axes_[i].in);
  }

  // Weights as [G·F, C, T].
  void stage_filter(Code& code, int64_t first) {
    names_.set("first", first);
    names_.set("value",
               loaded_element(dtype_, "weights",
                              (Expr::variable("f", {0, groups_ * filters_ - 1}) * channels_ +
                               Expr::variable("c", {0, channels_ - 1})) *
                                      taps_ +
                                  Expr::variable("t", {0, taps_ - 1}),
                              unit_));
    names_.write(code, R"(
      const long f = unit - $first;
      for (long c = 0; c < $channels; ++c) {
        for (long t = 0; t < $taps; ++t) {
          w[(f * $channels + c) * $taps + t] = ($type)$value;
        }
      })");
  }

  // sums[i][j] = Σ over channels and taps of w[i] · x at the tap's offset + j, in registers.
  std::string micro_kernel(const std::string& suffix, int rows) const {
    const int vectors = tile_.vectors;
    const std::string name = fmt("tile_$0$1", name_, suffix), v = "v_" + name;
    std::string out = vector_typedef(type_, v, tile_.lanes * int(bytes_), int(bytes_));
    out += fmt("static __attribute__((noinline)) void $0(const $1* w, const $1* x, const long* "
               "offsets, $1* sums) {\n  $2",
               name, type_, v);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < vectors; ++j)
        out += fmt("$0$1 = {}", i + j > 0 ? ", " : " ", sum_at(i, j));
    out +=
        fmt(";\n  for (long c = 0; c < $0; ++c, x += $1)\n    for (long t = 0; t < $2; ++t, ++w) "
            "{\n      const $3* const b = x + offsets[t];\n",
            channels_, pitch_, taps_, type_);
    out += declare_vectors("      const ", v, "b", vectors,
                           [&](int j) { return fmt("*(const $0*)(b + $1)", v, j * tile_.lanes); });
    for (int i = 0; i < rows; ++i)
      out += multiply_row("     ", i, vectors, fmt("w[$0]", i * channels_ * taps_));
    out += "    }\n";
    for (int i = 0; i < rows; ++i)
      out += each_vector(" ", vectors, [&](int j) {
        return fmt("*($0*)(sums + $1) = $2;", v, i * tile_.columns() + j * tile_.lanes,
                   sum_at(i, j));
      });
    return out + "}\n";
  }

  // Copies what a tile holds of each line of the result.
  void write_lines(Code& code) {
    // The row's place in the result, unless it lies between planes.
    std::string place = "0", skip = "keep <= 0";
    int64_t below = 1;
    for (size_t i = 1; i < axes_.size(); ++i) below *= plane_[i - 1];
    for (size_t i = 0; i + 1 < axes_.size(); ++i) {
      below /= plane_[i];
      const std::string o = fmt("row / $0 % $1", below, plane_[i]);
      place = fmt("($0 + $1) * $2", place, o, axes_[i + 1].out);
      skip += fmt(" || $0 >= $1", o, axes_[i].out);
    }
    names_.set("skip", skip);
    names_.set("place", place);
    names_.set("store", store({"line", dtype_, {}}, Expr::variable("j", {0, tile_.columns() - 1}),
                              is_float(dtype_) ? "from[j]" : names_.fill("($stored)from[j]"),
                              unit_.prelude));
    names_.write(code, R"(
      long at = tile * $columns;
      const long stop = at + $columns < $end ? at + $columns : $end;
      while (at < stop) {
        const long row = at / $line, o = at % $line, begin_ = at;
        const long next = (row + 1) * $line < stop ? (row + 1) * $line : stop;
        at = next;
        const long keep = next - begin_ < $kept - o ? next - begin_ : $kept - o;
        if ($skip) continue;
        for (long i = 0; i < rows; ++i) {
          $stored* const line = to + i * $out + $place + o;
          const $type* const from = sums + i * $columns + (begin_ - tile * $columns);
          #pragma omp simd
          for (long j = 0; j < keep; ++j) $store
        }
      })");
  }

  const std::string name_;
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
  Names names_;
};

// --- pooling

// A line of the result at a time: each tap adds a strided piece of a line of x to it.
KernelText emit_pooling(const std::string& name, const Graph& graph, const Op& op,
                        UnitContext& unit) {
  const std::vector<WindowAxis> axes = window_axes(graph, op);
  const Type& result = graph.type(op.result());
  const DType dtype = result.dtype;
  const bool maximum = op.kind == OpKind::PoolMax, real = is_float(dtype);
  const size_t last = axes.size() - 1;
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
    start = real ? lowest(compute_dtype(dtype)) : lowest(dtype);
  }
  KernelText text;
  text.scratch_bytes = line.out * 8;
  const int64_t per_unit = std::max<int64_t>(1, kUnitElements / std::max(in, out));
  text.units = ceil_div(planes, per_unit);
  const Expr element = Expr::variable("o", {0, line.out - 1});
  const std::string x =
      fmt("($0)$1", type,
          loaded_element(dtype, "from",
                         element * line.stride +
                             Expr::variable("shift", {-line.low, line.dilation * line.taps}),
                         unit));
  Names names("stored", stored, "type", type, "start", start, "each", per_unit, "planes", planes,
              "lines", lines, "out", line.out, "in", line.in, "room", line.in - 1, "taps",
              line.taps, "dilation", line.dilation, "low", line.low, "stride", line.stride, "up",
              line.stride - 1, "fold", fmt(maximum ? "t_max(sums[o], $0)" : "sums[o] + $0", x),
              "store",
              store({"to", dtype, {}}, element, real ? "sums[o]" : fmt("($0)sums[o]", stored),
                    unit.prelude));
  Code code;
  open_kernel(code, name);
  names.write(code, R"(
    const $stored* const x = (const $stored*)args[0];
    $stored* const out = ($stored*)args[1];
    $type* const sums = ($type*)scratch;
    const long stop = end * $each < $planes ? end * $each : $planes;
    for (long plane = begin * $each; plane < stop; ++plane) {
      for (long row = 0; row < $lines; ++row) {
        for (long o = 0; o < $out; ++o) sums[o] = $start;)");
  std::string row = "plane";
  int64_t below = lines;
  for (size_t i = 0; i < last; ++i) {
    const WindowAxis& a = axes[i];
    below /= a.out;
    code.open(fmt("for (long t$0 = 0; t$0 < $1; ++t$0)", i, a.taps));
    code.line(fmt("const long y$0 = row / $1 % $2 * $3 + t$0 * $4 - $5;", i, below, a.out, a.stride,
                  a.dilation, a.low));
    code.line(fmt("if (y$0 < 0 || y$0 >= $1) continue;", i, a.in));
    row = fmt("($0) * $1 + y$2", row, a.in, i);
  }
  names.set("row", row);
  names.write(code, R"(
    const $stored* const from = x + ($row) * $in;
    for (long t = 0; t < $taps; ++t) {
      const long shift = t * $dilation - $low;
      const long first = shift >= 0 ? 0 : (-shift + $up) / $stride;
      const long room = $room - shift;
      long behind = room < 0 ? 0 : room / $stride + 1;
      if (behind > $out) behind = $out;
      #pragma omp simd
      for (long o = first; o < behind; ++o) sums[o] = $fold;)");  // where the tap lies in x
  code.close(int(last) + 1);
  names.write(code, R"(
    $stored* const to = out + (plane * $lines + row) * $out;
    for (long o = 0; o < $out; ++o) $store)");
  code.close(3);
  text.text = code.text();
  return text;
}

}  // namespace

KernelText emit_windows(const std::string& name, const Graph& graph, const Op& op,
                        UnitContext& unit) {
  if (is_convolution(op.kind)) return ConvolutionEmitter(name, graph, op, unit).emit();
  return emit_pooling(name, graph, op, unit);
}

}  // namespace tessera
