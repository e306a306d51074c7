#include "backend/cpu/image_stages.h"

#include <algorithm>
#include <set>

#include "backend/cpu/matmul.h"
#include "backend/cpu/tile_text.h"
#include "backend/fmt.h"
#include "backend/nest.h"

namespace tessera {
namespace {

constexpr int64_t kMostPlaces = 4096;  // of a tile's windows in the image, where several share them
constexpr int64_t kChannelBlock =
    256;  // channels whose sums are in the cache when they are finished

// A window's fold over images, channel by channel. Neighbouring pixels of a line are a tile: their
// windows share pixels and weights, each of which is read once for all, and their sums are in
// registers.
class WindowFolds {
 public:
  WindowFolds(const std::string& name, const ImageGeometry& g, WindowFold fold, CpuIsa isa)
      : name_(name), g_(g), fold_(fold), last_(g.axes.back()), lanes_(lanes_of(isa, DType::F32)),
        inner_(last_.taps <= 16 ? last_.taps : 1) {
    if (g.taps / inner_ * span(1) > kMostPlaces) inner_ = 1;
    lines_ = g.taps / inner_;
    // Sums, weights and a pixel in registers.
    const int64_t weights = fold == WindowFold::Products ? inner_ : 0;
    int64_t most = std::clamp<int64_t>(vector_registers(isa) - 2 - weights, 4, 8);
    while (most > 1 && lines_ * span(most) > kMostPlaces) --most;
    tiles_ = ceil_div(last_.out, most);
    sizes_ = {last_.out / tiles_, ceil_div(last_.out, tiles_)};
  }

  ImageStage stage(const Finish& finish) const {
    ImageStage stage;
    const int64_t widest = *sizes_.rbegin(), all = g_.batch * g_.pixels / last_.out * tiles_;
    const int64_t each =
        std::clamp<int64_t>(kUnitElements / (g_.channels * g_.taps * widest), 1, all);
    stage.units = ceil_div(all, each);
    stage.scratch_bytes = (widest + 1) * g_.channels * 4;
    Code& code = stage.code;
    code.append(finish.text);
    code.append(vector_typedef("float", name_ + "_v", int(lanes_) * 4, 4));
    for (int64_t pixels : sizes_)
      for (bool inside : {true, false}) emit_kernel(code, pixels, inside);
    const bool products = fold_ == WindowFold::Products;
    open_stage(code, name_,
               products ? std::vector<std::string>{"x", "w"} : std::vector<std::string>{"x"});
    const int64_t first_operand = products ? 2 : 1;
    code.line(fmt("void** const more = args + $0;", first_operand));
    code.line(fmt("float* const out = (float*)args[$0];", first_operand + finish.more));
    code.line(fmt("float *const sums = (float*)scratch, *const outside = sums + $0;",
                  widest * g_.channels));
    code.line(fmt("for (long c = 0; c < $0; ++c) outside[c] = $1;", g_.channels, neutral()));
    code.line(fmt("const long stop = end * $0 < $1 ? end * $0 : $1;", each, all));
    code.open(fmt("for (long tile = begin * $0; tile < stop; ++tile)", each));
    code.line(fmt("const long line = tile / $0, place = tile % $0;", tiles_));
    code.line(fmt("const long from = place * $0 / $1, pixels = (place + 1) * $0 / $1 - from;",
                  last_.out, tiles_));
    code.line(fmt("const long left = from * $0 - $1;", last_.stride, last_.low));
    std::string inside = fmt("left >= 0 && left + (pixels - 1) * $0 + $1 < $2", last_.stride,
                             (last_.taps - 1) * last_.dilation, last_.in);
    int64_t below = g_.pixels / last_.out;
    for (size_t i = 0; products && i + 1 < g_.axes.size(); ++i) {
      const WindowAxis& a = g_.axes[i];
      below /= a.out;
      const std::string at = fmt("line / $0 % $1 * $2", below, a.out, a.stride);
      inside += fmt(" && $0 >= $1 && $0 < $2", at, a.low, a.in + a.low - (a.taps - 1) * a.dilation);
    }
    code.line(fmt("const bool inside = $0;", inside));
    emit_pointers(code, span(widest), products);
    code.open(fmt("for (long first = 0; first < $0; first += $1)", g_.channels, kChannelBlock));
    code.line(fmt("const long last = $0;", clipped("first", kChannelBlock, num(g_.channels))));
    code.open("switch (pixels)");
    for (int64_t pixels : sizes_)
      code.line(fmt("case $0: (inside ? $1 : $2)(at, by, count, sums, first, last); break;", pixels,
                    kernel(pixels, true), kernel(pixels, false)));
    code.close();
    code.line(finish.call("sums + first", num(g_.channels), fmt("line * $0 + from", last_.out),
                          "first", "pixels", "last - first"));
    code.close(3);
    return stage;
  }

 private:
  // Columns that the windows of so many pixels reach over.
  int64_t span(int64_t pixels) const {
    return (pixels - 1) * last_.stride + (inner_ - 1) * last_.dilation + 1;
  }
  std::string neutral() const { return fold_ == WindowFold::Max ? "-__builtin_inff()" : "0"; }
  std::string kernel(int64_t pixels, bool inside) const {
    return name_ + (inside ? "_in" : "_at") + num(pixels);
  }

  // Where the lines of the tile's windows begin in the image (inside), or each of their columns;
  // lines that are outside of the image add nothing.
  void emit_pointers(Code& code, int64_t columns, bool products) const {
    const size_t rank = g_.axes.size();
    code.line(fmt("const float *at[$0], *by[$1];", lines_ * columns, lines_));
    code.line("long count = 0;");
    std::string place = "line / " + num(g_.pixels / last_.out), tap = "0", column = "left", meets;
    int64_t below = g_.pixels / last_.out, open = 0;
    for (size_t i = 0; i + 1 < rank; ++i, ++open) {
      const WindowAxis& a = g_.axes[i];
      below /= a.out;
      const std::string t = "t" + num(int64_t(i)), y = "y" + num(int64_t(i));
      code.open(fmt("for (long $0 = 0; $0 < $1; ++$0)", t, a.taps));
      code.line(fmt("const long $0 = line / $1 % $2 * $3 + $4 * $5 - $6;", y, below, a.out,
                    a.stride, t, a.dilation, a.low));
      const std::string out = fmt("$0 < 0 || $0 >= $1", y, a.in);
      if (products)  // zeros count: an infinite weight makes them none
        meets += fmt(" && !($0)", out);
      else
        code.line(fmt("if ($0) continue;", out));
      place = fmt("($0) * $1 + $2", place, a.in, y);
      tap = fmt("($0) * $1 + $2", tap, a.taps, t);
    }
    tap = fmt("($0) * $1", tap, last_.taps);
    if (inner_ < last_.taps) {
      code.open(fmt("for (long t = 0; t < $0; ++t)", last_.taps));
      ++open;
      tap += " + t";
      column += " + t * " + num(last_.dilation);
    }
    code.line(fmt("const float* const start = x + ($0) * $1;", place, last_.in * g_.channels));
    code.line(fmt("if (inside) at[count] = start + ($0) * $1;", column, g_.channels));
    code.open(fmt("else for (long j = 0; j < $0; ++j)", columns));
    code.line(fmt("const long y = $0 + j;", column));
    code.line(fmt("at[count * $0 + j] = y >= 0 && y < $1$2 ? start + y * $3 : outside;", columns,
                  last_.in, meets, g_.channels));
    code.close();
    code.line(fmt("by[count++] = $0;",
                  products ? fmt("w + ($0) * $1", tap, g_.channels) : std::string("nullptr")));
    for (; open > 0; --open) code.close();
  }

  // NAME(at, by, count, sums, first, last): the sums of a tile, channels [first, last) of a row of
  // `sums` per pixel. The last vector of channels may be computed twice.
  void emit_kernel(Code& code, int64_t pixels, bool inside) const {
    const bool products = fold_ == WindowFold::Products;
    int64_t vectors = 1;  // enough sums to hide what an addition takes
    while (vectors < 4 && 2 * vectors * pixels <= 8 &&
           2 * vectors * lanes_ <= std::min(g_.channels, kChannelBlock))
      vectors *= 2;
    const int64_t width = vectors * lanes_, row = span(*sizes_.rbegin());
    const std::string v = name_ + "_v";
    const auto s = [](int64_t i, int64_t j) { return fmt("s$0_$1", i, j); };
    code.open(fmt("static __attribute__((noinline)) void $0(const float* const* at, const float* "
                  "const* by, long count, float* sums, long first, long last)",
                  kernel(pixels, inside)));
    code.line("(void)by;");
    code.open(fmt("for (long c = first;; c += $0)", width));
    code.line(fmt("if (c > last - $0) c = last - $0;", width));
    for (int64_t i = 0; i < pixels; ++i)
      for (int64_t j = 0; j < vectors; ++j)
        code.line(fmt("$0 $1 = $0{} + $2;", v, s(i, j), neutral()));
    code.open("for (long r = 0; r < count; ++r)");
    if (products)
      for (int64_t t = 0; t < inner_; ++t)
        for (int64_t j = 0; j < vectors; ++j)
          code.line(fmt("const $0 w$1_$2 = *(const $0*)(by[r] + c + $3);", v, t, j,
                        t * g_.channels + j * lanes_));
    for (int64_t column = 0; column < span(pixels); ++column) {
      std::string text;
      for (int64_t i = 0; i < pixels; ++i) {
        const int64_t reach = column - i * last_.stride;
        if (reach < 0 || reach % last_.dilation != 0 || reach / last_.dilation >= inner_) continue;
        for (int64_t j = 0; j < vectors; ++j) {
          const std::string x = "x" + num(j), sum = s(i, j);
          if (products)
            text += fmt("$0 += $1 * w$2_$3; ", sum, x, reach / last_.dilation, j);
          else if (fold_ == WindowFold::Sum)
            text += fmt("$0 += $1; ", sum, x);
          else  // a number that is none stays, like in the operators' meaning
            text += fmt("$0 = ($0 > $1) | ($0 != $0) ? $0 : $1; ", sum, x);
        }
      }
      if (text.empty()) continue;
      const std::string from = inside ? "at[r] + c + " + num(column * g_.channels)
                                      : fmt("at[r * $0 + $1] + c", row, column);
      std::string read;
      for (int64_t j = 0; j < vectors; ++j)
        read += fmt("const $0 x$1 = *(const $0*)($2 + $3); ", v, j, from, j * lanes_);
      code.line(fmt("{ $0$1}", read, text));
    }
    code.close();
    for (int64_t i = 0; i < pixels; ++i)
      for (int64_t j = 0; j < vectors; ++j)
        code.line(fmt("*($0*)(sums + c + $1) = $2;", v, i * g_.channels + j * lanes_, s(i, j)));
    code.line(fmt("if (c == last - $0) break;", width));
    code.close(2);
  }

  const std::string& name_;
  const ImageGeometry& g_;
  WindowFold fold_;
  const WindowAxis& last_;
  int64_t lanes_, inner_;  // taps of a line that a kernel knows
  int64_t tiles_ = 1, lines_ = 1;
  std::set<int64_t> sizes_;  // of tiles, in pixels
};

}  // namespace

void open_stage(Code& code, const std::string& name, const std::vector<std::string>& arguments) {
  open_kernel(code, name);
  for (size_t i = 0; i < arguments.size(); ++i)
    code.line(fmt("float* const $0 = (float*)args[$1];", arguments[i], i));
  code.line("(void)scratch;");
}

std::string clipped(const std::string& from, int64_t step, const std::string& end) {
  const std::string next = fmt("$0 + $1", from, step);
  return fmt("$0 < $1 ? $0 : $1", next, end);
}

void each_width(Code& code, const ChannelPanels& panels, const std::function<void(size_t)>& body) {
  const std::vector<int>& vectors = panels.vectors;
  for (size_t p = 0, next = 0; p < vectors.size(); p = next) {
    while (next < vectors.size() && vectors[next] == vectors[p]) ++next;
    code.open(fmt("if (panel >= $0 && panel < $1)", p, next));
    code.line(
        fmt("const long column = $0 + (panel - $1) * $2;", panels.begin(p), p, panels.width(p)));
    body(p);
    code.close();
  }
}

void call_kernel(Code& code, UnitContext& unit, int vectors, int64_t all, int64_t chunk,
                 const std::string& arguments) {
  const int pixels = most_pixels(unit.isa, vectors);
  std::set<int> sizes = tile_sizes(chunk, pixels);
  sizes.merge(tile_sizes(all - (ceil_div(all, chunk) - 1) * chunk, pixels));
  code.open("switch (rows)");
  for (int rows : sizes)
    code.line(fmt("case $0: $1($2); break;", rows,
                  image_kernel(unit.shared, unit.isa, rows, vectors), arguments));
  code.close();
}

ImageStage window_stage(const std::string& name, const ImageGeometry& g, WindowFold fold,
                        const Finish& finish, CpuIsa isa) {
  return WindowFolds(name, g, fold, isa).stage(finish);
}

}  // namespace tessera
