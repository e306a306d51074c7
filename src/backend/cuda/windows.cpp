#include "backend/cuda/windows.h"

#include <algorithm>

#include "backend/nest.h"
#include "base/error.h"
#include "base/text.h"
#include "ir/build.h"
#include "ir/window.h"

namespace tessera {
namespace {

constexpr int kWindowThreads = 256;
// Filters of a thread: each element that it reads counts for so many sums.
constexpr int64_t kMostFilters = 8;
// Below so many threads, threads matter more than that.
constexpr int64_t kFewWindowThreads = 16384;
// Products below that are too small for tiles.
constexpr int64_t kLeastFilters = 8, kLeastDepth = 16;

// Geometry that the kernels share.
struct Windows {
  Windows(const Graph& graph, const Op& op)
      : axes(window_axes(graph, op)), convolution(is_convolution(op.kind)),
        transposed(op.kind == OpKind::ConvTranspose), x(graph.type(op.inputs[0])),
        result(graph.type(op.result())) {
    for (const WindowAxis& a : axes) {
      taps *= a.taps;
      inside *= a.in;
      windows *= a.out;
    }
    if (!convolution) {
      images = num_elements(x.shape) / std::max<int64_t>(inside, 1);
      return;
    }
    groups = graph.attrs<ConvAttrs>(op).groups;
    images = x.shape[0].extent;
    channels = x.shape[1].extent / groups;
    filters = result.shape[1].extent / groups;
  }
  int64_t depth() const { return channels * taps; }

  std::vector<WindowAxis> axes;
  bool convolution, transposed;
  Type x, result;
  int64_t images = 1, groups = 1, channels = 1, filters = 1;  // the last two of a group
  int64_t taps = 1, inside = 1, windows = 1;                  // of all axes
};

// Lines of one kernel of a thread per element.
class WindowCode {
 public:
  WindowCode(const Windows& w, std::set<std::string>& prelude) : w_(w), prelude_(prelude) {}

  BlockText reduce(const std::string& name, OpKind kind) {
    int64_t several = 1;
    if (w_.convolution)
      while (several * 2 <= kMostFilters && w_.filters % (several * 2) == 0 &&
             w_.images * w_.groups * w_.filters * w_.windows / (several * 2) >= kFewWindowThreads)
        several *= 2;
    const int64_t blocks_of_filters = w_.filters / several;
    const int64_t threads = w_.images * w_.groups * blocks_of_filters * w_.windows;
    begin(name, threads, {w_.result.dtype}, w_.convolution ? 2 : 1);
    const Expr i = Expr::variable("i", {0, threads - 1});
    const std::vector<Expr> at = indices("o", i, w_.windows);
    const Expr p = declare("p", i / w_.windows);
    Expr f, g, n, c;
    if (w_.convolution) {
      f = declare("f", p % blocks_of_filters * several);
      g = declare("g", p / blocks_of_filters % w_.groups);
      n = declare("n", p / (blocks_of_filters * w_.groups));
      c = Expr::variable("c", {0, w_.channels - 1});
    }
    const std::string type = compute_type(w_.x.dtype);
    const bool most = kind == OpKind::PoolMax;
    const std::string start = most ? lowest(compute_dtype(w_.x.dtype), Dialect::Cuda) : "0";
    for (int64_t s = 0; s < several; ++s) line(type + " s" + num(s) + " = " + start + ";");
    if (w_.convolution) code_.open("for (" + wide_ + " c = 0; c < " + num(w_.channels) + "; ++c)");
    open_taps(at);
    const Expr image = w_.convolution ? (n * w_.groups + g) * w_.channels + c : p;
    line("const " + type + " v = " + load(memory("a0", w_.x.dtype), element(image), prelude_) +
         ";");
    if (most) {
      prelude_.insert("t_max");
      const char* as = is_float(w_.x.dtype) ? "" : w_.x.dtype == DType::I64 ? "(long)" : "(int)";
      line("s0 = t_max(" + std::string(as) + "s0, " + as + "v);");
    } else if (!w_.convolution) {
      line("s0 += v;");
    } else {
      const Expr tap = flat("t", &WindowAxis::taps);
      const int64_t next = (w_.transposed ? 1 : w_.channels) * w_.taps;
      const Expr first = w_.transposed ? (g * w_.channels + c) * w_.filters + f
                                       : (g * w_.filters + f) * w_.channels + c;
      for (int64_t s = 0; s < several; ++s)
        line("s" + num(s) + " += v * " +
             load(memory("a1", w_.x.dtype), first * w_.taps + tap + s * next, prelude_) + ";");
    }
    for (size_t k = 0; k < w_.axes.size() + (w_.convolution ? 1 : 0); ++k) code_.close();
    const Expr place = flat("o", &WindowAxis::out);
    const Expr row = w_.convolution ? (n * w_.groups + g) * w_.filters + f : p;
    for (int64_t s = 0; s < several; ++s)
      line(store(memory("out", w_.result.dtype), (row + s) * w_.windows + place, "s" + num(s),
                 prelude_));
    return finish(threads);
  }

  BlockText columns(const std::string& name) {
    const int64_t threads = w_.images * w_.groups * w_.depth() * w_.windows;
    begin(name, threads, {w_.x.dtype}, 1);
    const Expr i = Expr::variable("i", {0, threads - 1});
    const std::vector<Expr> at = indices("o", i, w_.windows);
    const Expr p = declare("p", i / w_.windows);
    int64_t below = w_.taps;
    for (size_t k = 0; k < w_.axes.size(); ++k) {
      below /= w_.axes[k].taps;
      declare("t" + num(int64_t(k)), p / below % w_.axes[k].taps);
    }
    const std::string type = compute_type(w_.x.dtype);
    line(type + " v = 0;");
    Condition within;
    for (size_t k = 0; k < w_.axes.size(); ++k)
      within = within && bounds(k, declare("y" + num(int64_t(k)), met(k, at[k])));
    const std::string read =
        "v = " + load(memory("a0", w_.x.dtype), element(p / w_.taps), prelude_) + ";";
    line(within.always() ? read : "if (" + within.text() + ") " + read);
    line(store(memory("out", w_.x.dtype), i, "v", prelude_));
    return finish(threads);
  }

 private:
  void line(const std::string& s) { code_.line(s); }
  static Memory memory(const char* pointer, DType dtype) {
    Memory m{pointer, dtype, {}};
    m.space = Space::Global;
    return m;
  }

  // `i` is the thread's element; offsets that an int cannot count are long long.
  void begin(const std::string& name, int64_t threads, DType out, int operands) {
    if ((threads + kWindowThreads - 1) / kWindowThreads > 0x7fffffffLL)
      throw Error(ErrorKind::Unsupported, "windows of " + num(threads) + " elements in one kernel");
    const int64_t most = std::max(
        {threads + kWindowThreads, num_elements(w_.x.shape), num_elements(w_.result.shape)});
    wide_ = most > 0x7fffffffLL ? "long long" : "int";
    std::string head =
        "extern \"C\" __global__ void __launch_bounds__(" + num(kWindowThreads) + ") " + name + "(";
    for (int k = 0; k < operands; ++k)
      head += std::string("const ") + storage_type(w_.x.dtype, Dialect::Cuda) + "* __restrict__ a" +
              num(k) + ", ";
    code_.open(head + storage_type(out, Dialect::Cuda) + "* __restrict__ out)");
    const std::string block =
        wide_ == "int" ? "ts::block(0)" : "static_cast<long long>(ts::block(0))";
    line("const " + wide_ + " i = " + block + " * " + num(kWindowThreads) + " + ts::thread();");
    line("if (i >= " + num(threads) + (wide_ == "int" ? "" : "LL") + ") return;");
  }
  BlockText finish(int64_t threads) {
    code_.close();
    BlockText out;
    out.text = code_.text();
    out.threads = kWindowThreads;
    out.grid[0] = int((threads + kWindowThreads - 1) / kWindowThreads);
    return out;
  }

  Expr declare(const std::string& name, const Expr& value) {
    line("const " + wide_ + " " + name + " = " + value.text() + ";");
    return Expr::variable(name, value.range());
  }
  // The window of the thread, an index per axis.
  std::vector<Expr> indices(const std::string& prefix, const Expr& thread, int64_t below) {
    std::vector<Expr> all;
    for (size_t k = 0; k < w_.axes.size(); ++k) {
      const int64_t n = std::max<int64_t>(w_.axes[k].out, 1);
      below /= n;
      all.push_back(declare(prefix + num(int64_t(k)), thread / below % n));
    }
    return all;
  }
  // Where the tap meets the operand along an axis; of a transposed one, times the stride.
  Expr met(size_t k, const Expr& o) const {
    const WindowAxis& a = w_.axes[k];
    const Expr tap = Expr::variable("t" + num(int64_t(k)), {0, a.taps - 1}) * a.dilation;
    return w_.transposed ? o + a.low - tap : o * a.stride + tap - a.low;
  }
  // What y of an axis must be.
  Condition bounds(size_t k, const Expr& y) const {
    return Expr(-1) < y && y < Expr(w_.axes[k].in);
  }
  void open_taps(const std::vector<Expr>& at) {
    for (size_t k = 0; k < w_.axes.size(); ++k) {
      const WindowAxis& a = w_.axes[k];
      const std::string t = "t" + num(int64_t(k)), y = "y" + num(int64_t(k));
      code_.open("for (int " + t + " = 0; " + t + " < " + num(a.taps) + "; ++" + t + ")");
      if (w_.transposed) {
        const std::string u = declare("u" + num(int64_t(k)), met(k, at[k])).text(),
                          s = num(a.stride);
        const std::string element = a.stride == 1 ? u : u + " / " + s;
        line("if (" + u + " < 0 || " + (a.stride == 1 ? "" : u + " % " + s + " != 0 || ") +
             element + " >= " + num(a.in) + ") continue;");
        line("const int " + y + " = " + element + ";");
      } else {
        const Condition in = bounds(k, declare(y, met(k, at[k])));
        if (!in.always()) line("if (!(" + in.text() + ")) continue;");
      }
    }
  }
  // Indices of all axes as one.
  Expr flat(const std::string& prefix, int64_t WindowAxis::*extent) const {
    Expr all;
    for (size_t k = 0; k < w_.axes.size(); ++k) {
      const int64_t n = w_.axes[k].*extent;
      all = all * n + Expr::variable(prefix + num(int64_t(k)), {0, n - 1});
    }
    return all;
  }
  // Offset of the operand's element that the tap meets, in an image of one channel.
  Expr element(const Expr& image) const { return image * w_.inside + flat("y", &WindowAxis::in); }

  const Windows& w_;
  std::set<std::string>& prelude_;
  std::string wide_;
  Code code_;
};

}  // namespace

BlockText emit_windows(const std::string& name, const Graph& graph, const Op& op,
                       std::set<std::string>& prelude) {
  const Windows w(graph, op);
  return WindowCode(w, prelude).reduce(name, op.kind);
}

BlockText emit_columns(const std::string& name, const Graph& graph, const Op& op,
                       std::set<std::string>& prelude) {
  const Windows w(graph, op);
  return WindowCode(w, prelude).columns(name);
}

std::optional<ConvolutionProduct> convolution_as_product(const Graph& graph, const Op& op,
                                                         const Lowering& lowering,
                                                         int64_t most_bytes) {
  if (op.kind != OpKind::Conv || !is_float(graph.type(op.result()).dtype)) return std::nullopt;
  const Windows w(graph, op);
  const int64_t depth = w.depth();
  if (w.filters < kLeastFilters || depth < kLeastDepth) return std::nullopt;
  const DType dtype = w.x.dtype;
  ConvolutionProduct out;
  out.columns = {dtype, {Dim(w.images), Dim(w.groups * depth), Dim(w.windows)}};
  out.is_view = std::ranges::all_of(w.axes, [](const WindowAxis& a) {
    return a.taps == 1 && a.stride == 1 && a.low == 0 && a.high == 0;
  });
  if (!out.is_view && out.columns.bytes() > most_bytes) return std::nullopt;

  // The grid: images, then groups or parts of the filters, then parts of the windows.
  ProductTiles t = lowering.split(dtype, w.images * w.groups, w.filters, w.windows, depth);
  const bool grouped = w.groups > 1;
  if (grouped) t.row_blocks = w.groups;
  // Parts of whole pieces of 16 bytes, where there are such.
  const int64_t piece = 16 / size_in_bytes(dtype);
  for (int64_t n = t.column_blocks; n <= 2 * t.column_blocks; ++n)
    if (w.windows % n == 0 && w.windows / n % piece == 0) {
      t.column_blocks = n;
      break;
    }
  out.block =
      Graph::block({w.images, t.row_blocks, t.column_blocks},
                   t.iterations > 1 ? std::vector<int64_t>{t.iterations} : std::vector<int64_t>{});
  Graph& b = out.block;
  const Shape weights = grouped ? Shape{Dim(w.groups), Dim(w.filters), Dim(depth)}
                                : Shape{Dim(w.filters), Dim(depth)};
  const auto with_batch = [&](int64_t rows) {
    Shape s{Dim(w.images)};
    if (grouped) s.push_back(Dim(w.groups));
    s.push_back(Dim(rows));
    s.push_back(Dim(w.windows));
    return s;
  };
  const TensorId left = b.add_input({dtype, weights});
  const TensorId right = b.add_input({dtype, with_batch(depth)});
  const int rank = grouped ? 4 : 3;
  IterAttrs of_left, of_right;
  SaveAttrs save;
  save.type = {dtype, with_batch(w.filters)};
  if (w.images > 1) of_right.imap[0] = save.omap[0] = 0;
  if (t.row_blocks > 1) {
    of_left.imap[1] = 0;
    save.omap[1] = 1;
    if (grouped) of_right.imap[1] = 1;
  }
  if (t.column_blocks > 1) of_right.imap[2] = save.omap[2] = int8_t(rank - 1);
  if (t.iterations > 1) {
    of_left.fmap[0] = int8_t(weights.size() - 1);
    of_right.fmap[0] = int8_t(rank - 2);
  }
  TensorId product =
      build::matmul(b, {build::iter(b, left, of_left), build::iter(b, right, of_right)});
  if (t.iterations > 1) {
    AccumAttrs accum;
    accum.loops = {0};
    product = build::accum(b, product, accum);
  }
  b.add_output(build::save(b, product, save));
  return out;
}

}  // namespace tessera
