#include "backend/cpu/emit_images.h"

#include <algorithm>
#include <set>

#include "backend/cpu/image_finish.h"
#include "backend/cpu/image_stages.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/winograd.h"
#include "backend/fmt.h"
#include "backend/nest.h"
#include "base/check.h"
#include "base/names.h"
#include "base/text.h"
#include "ir/window.h"

namespace tessera {

const char* name(ConvAlgorithm algorithm) {
  return name_of<ConvAlgorithm::OneDnn>(algorithm, {"direct", "winograd2", "winograd4", "onednn"});
}

std::optional<ConvAlgorithm> conv_algorithm_from(std::string_view text) {
  for (ConvAlgorithm a : {ConvAlgorithm::Direct, ConvAlgorithm::Winograd2, ConvAlgorithm::Winograd4,
                          ConvAlgorithm::OneDnn})
    if (text == name(a)) return a;
  return std::nullopt;
}

double normwise(ConvAlgorithm algorithm) {
  switch (algorithm) {
  case ConvAlgorithm::Direct:
  case ConvAlgorithm::OneDnn: return 0;
  case ConvAlgorithm::Winograd2: return 4;
  case ConvAlgorithm::Winograd4: return 16;
  }
  unreachable("ConvAlgorithm");
}

namespace {

// Along an axis.
int results_per_tile(ConvAlgorithm a) { return a == ConvAlgorithm::Winograd4 ? 4 : 2; }

constexpr int64_t kUnitProducts = int64_t{1} << 22;  // work worth handing to a thread

// Zeros around the image, so that every tap is an offset. A unit is a line of pixels.
ImageStage padded(const std::string& name, const ImageGeometry& g) {
  ImageStage stage;
  Code& code = stage.code;
  open_stage(code, name, {"x", "to"});
  const size_t last = g.axes.size() - 1;
  const int64_t line = g.padded[last] * g.channels;
  int64_t below = 1;
  for (size_t i = 0; i < last; ++i) below *= g.padded[i];
  stage.units = g.batch * below;
  code.open("for (long unit = begin; unit < end; ++unit)");
  code.line(fmt("float* const out = to + unit * $0;", line));
  std::string inside = "1", row = fmt("unit / $0", below);
  for (size_t i = 0; i < last; ++i) {
    below /= g.padded[i];
    code.line(fmt("const long y$0 = unit / $1 % $2 - $3;", i, below, g.padded[i], g.axes[i].low));
    inside += fmt(" && y$0 >= 0 && y$0 < $1", i, g.axes[i].in);
    row = fmt("($0) * $1 + y$2", row, g.axes[i].in, i);
  }
  const int64_t before = g.axes[last].low * g.channels;
  const int64_t kept = std::min(g.axes[last].in * g.channels, line - before);
  Names names("inside", inside, "row", row, "in", g.axes[last].in * g.channels, "before", before,
              "behind", before + kept, "line", line);
  names.write(code, R"(
    const long inside = $inside;
    const float* const from = x + (($row) * $in);
    const long first = inside ? $before : $line;
    const long behind = inside ? $behind : $line;
    for (long i = 0; i < first; ++i) out[i] = 0;
    for (long i = first; i < behind; ++i) out[i] = from[i - first];
    for (long i = behind; i < $line; ++i) out[i] = 0;)");
  code.close(2);
  return stage;
}

// A convolution's groups, and the panels that the filters of each are cut into.
struct Groups {
  int64_t count = 1, channels = 1, filters = 1;  // the latter of one
  ChannelPanels panels;
  int64_t weights(int64_t taps) const { return taps * channels * panels.channels(); }
};
Groups groups_of(const ImageGeometry& g, CpuIsa isa) {
  const int64_t filters = g.filters / g.groups;
  return {g.groups, g.channels / g.groups, filters, channel_panels(isa, filters)};
}

// [F, C of a group, taps…], for each group as panels of [taps, C, columns of the panel]. A unit is
// a tap.
ImageStage packed_weights(const std::string& name, int64_t taps, const Groups& groups) {
  const ChannelPanels& panels = groups.panels;
  ImageStage stage;
  stage.of_weights = true;
  stage.units = taps;
  Code& code = stage.code;
  open_stage(code, name, {"w", "to"});
  code.open("for (long t = begin; t < end; ++t)");
  for (size_t p = 0; p < panels.vectors.size(); ++p) {
    const int64_t first = panels.begin(p), width = panels.width(p);
    const int64_t real = std::min(width, groups.filters - first);
    Names names("groups", groups.count, "weights", groups.weights(taps), "filters", groups.filters,
                "begin", first * taps * groups.channels, "channels", groups.channels, "first",
                first, "width", width, "real", real, "taps", taps);
    names.write(code, R"(
      for (long group = 0; group < $groups; ++group) {
        for (long c = 0; c < $channels; ++c) {
          float* const out = to + group * $weights + $begin + (t * $channels + c) * $width;
          for (long j = 0; j < $real; ++j) out[j] = w[((group * $filters + $first + j) * $channels + c) * $taps + t];
          for (long j = $real; j < $width; ++j) out[j] = 0;
        }
      })");
  }
  code.close(2);
  return stage;
}

// Where `taps` pieces of a window lie in the padded image, each `piece` taps long.
std::string tap_offsets(const ImageGeometry& g, int64_t taps, int64_t piece) {
  std::vector<int64_t> offsets;
  for (int64_t t = 0; t < taps; ++t) {
    int64_t at = t * piece, offset = 0, step = g.channels;
    for (size_t i = g.axes.size(); i-- > 0;) {
      offset += at % g.axes[i].taps * g.axes[i].dilation * step;
      at /= g.axes[i].taps;
      step *= g.padded[i];
    }
    offsets.push_back(offset);
  }
  return joined(offsets, ", ");
}

// NAME_x<vectors>, for a stretch of pixels and a panel of so many vectors: up to where a tile of
// pixels is known.
void open_stretch(Code& code, const ImageGeometry& g, Names& names) {
  std::string left = "from", advance, address = fmt("o0 * $0", g.axes[0].stride);
  for (size_t i = 1; i < g.axes.size(); ++i)
    address = fmt("($0) * $1 + o$2 * $3", address, g.padded[i], i, g.axes[i].stride);
  names.set("address", address);
  names.write(code, R"(
    static void ${name}_x$vectors(const float* x, const float* w, float* out, void** more, float* sums, long base, long column, long columns, long from, long to) {
      static const long offsets[] = {$offsets};
      const long tiles = (to - from + $up) / $most;)");
  for (size_t i = g.axes.size(); i-- > 0;) {  // the place of the next pixel
    code.line(fmt(i > 0 ? "long o$0 = $1 % $2;" : "long o$0 = $1;", i, left, g.axes[i].out));
    left = fmt("($0) / $1", left, g.axes[i].out);
    if (i > 0) advance += fmt("if (++o$0 == $1) { o$0 = 0; ", i, g.axes[i].out);
  }
  advance += "++o0;";
  for (size_t i = 1; i < g.axes.size(); ++i) advance += " }";
  names.set("advance", advance);
  names.write(code, R"(
    for (long tile = 0; tile < tiles; ++tile) {
      const long pass = tile, rest = tiles - tile, rows = (to - from + rest - 1) / rest;
      const float* at[$most];
      for (long i = 0; i < rows; ++i) {
        at[i] = x + ($address) * $channels;
        $advance
      })");
}

// Every product. A unit is a stretch of pixels of one image and a panel of channels of a group.
ImageStage direct(const std::string& name, const ImageGeometry& g, const Groups& groups,
                  const Finish& finish, UnitContext& unit) {
  ImageStage stage;
  const ChannelPanels& panels = groups.panels;
  const WindowAxis& last = g.axes.back();
  // Neighbouring taps of the innermost axis and their channels lie side by side.
  const int64_t piece = last.dilation == 1 && groups.count == 1 ? last.taps : 1;
  const int64_t k = groups.channels * piece, taps = g.taps / piece;
  const int64_t widest = *std::ranges::max_element(panels.vectors);
  const int64_t per_pixel = groups.channels * g.taps * widest * panels.lanes;
  const int most = most_pixels(unit.isa, int(widest));
  const int64_t most_chunks =
      ceil_div(g.pixels, std::clamp<int64_t>(kUnitProducts / per_pixel, int64_t{most} * 2,
                                             std::max<int64_t>(g.pixels, most * 2)));
  const int64_t chunk = ceil_div(g.pixels, most_chunks), chunks = ceil_div(g.pixels, chunk);
  const int64_t each = int64_t(panels.vectors.size()), count = each * groups.count;
  stage.units = g.batch * count * chunks;
  stage.scratch_bytes = int64_t{most_pixels(unit.isa, 1)} * widest * panels.lanes * 4;
  Code& code = stage.code;
  code.append(finish.text);
  for (int vectors : std::set<int>(panels.vectors.begin(), panels.vectors.end())) {
    const int pixels = most_pixels(unit.isa, vectors);
    const int64_t columns = int64_t{vectors} * panels.lanes;
    Names names("name", name, "vectors", vectors, "offsets", tap_offsets(g, taps, piece), "most",
                pixels, "up", pixels - 1, "channels", g.channels);
    open_stretch(code, g, names);
    call_kernel(code, unit, vectors, g.pixels, chunk,
                fmt("at, w, offsets, $0, $1, sums, $2, $3", taps, k, columns,
                    ahead("w", taps * k * columns, vectors)));
    code.line(finish.call("sums", num(columns), "base + from", "column", "rows", "columns"));
    code.line("from += rows;");
    code.close(2);
  }
  open_stage(code, name, {"x", "w"});
  Names names("result", 2 + finish.more, "chunks", chunks, "chunk", chunk, "images", chunks * count,
              "each", each, "panels", chunks * each, "groups", groups.count, "to",
              clipped("from", chunk, num(g.pixels)), "image", g.padded_pixels * g.channels,
              "channels", groups.channels, "weights", groups.weights(g.taps), "pixels", g.pixels);
  names.write(code, R"(
    void** const more = args + 2;
    float* const out = (float*)args[$result];
    for (long unit = begin; unit < end; ++unit) {
      const long from = unit % $chunks * $chunk, image = unit / $images, panel = unit / $chunks % $each, group = unit / $panels % $groups;
      const long to = $to;
      const float* const xs = x + image * $image + group * $channels;
      const float* const ws = w + group * $weights;
      const long base = image * $pixels;)");
  // Wider panels come first.
  each_width(code, panels, [&](size_t p) {
    code.line(fmt("const long columns = ($0) - column;",
                  clipped("column", panels.width(p), num(groups.filters))));
    code.line(fmt("$0_x$1(xs, ws + column * $2, out, more, (float*)scratch, base, group * $3 + "
                  "column, columns, from, to);",
                  name, panels.vectors[p], groups.channels * g.taps, groups.filters));
  });
  code.close(2);
  return stage;
}

// The library's weights, and its sums with what follows, a slice at a time while it is in the
// cache.
void emit_onednn(const std::string& name, const ImageGeometry& g,
                 std::shared_ptr<const OneDnnCall> call, const Finish& finish, bool finishes,
                 ImageCode& code) {
  const int packed = code.operands + 1;
  code.workspace_bytes.push_back(call->weight_bytes);
  ImageStage weights;
  weights.of_weights = true;
  weights.library = [call](void** args, int64_t, char*) { call->pack(args[0], args[1]); };
  code.add(std::move(weights), {1}, packed);
  ImageStage stage;
  stage.units = call->units;
  stage.scratch_bytes = call->scratch_bytes;
  std::vector<int> reads = {0, packed};
  for (int i = 0; i < finish.more; ++i) reads.push_back(2 + i);
  const size_t result = reads.size();
  stage.library = [call, result](void** args, int64_t unit, char* scratch) {
    void* const arguments[] = {args[0], args[1], args[result]};
    call->run(arguments, unit, scratch);
  };
  if (finishes) {
    const int64_t chunk = call->rows * (g.pixels / g.axes[0].out);
    const int64_t slices = ceil_div(g.pixels, chunk);
    Code& text = stage.code;
    text.append(finish.text);
    open_stage(text, name, {});
    Names names("result", result, "slices", slices, "chunk", chunk, "pixels", g.pixels, "finish",
                finish.call(fmt("out + from * $0", g.filters), num(g.filters), "from", "0",
                            fmt("left < $0 ? left : $0", chunk), num(g.filters)));
    names.write(text, R"(
      void** const more = args + 2;
      float* const out = (float*)args[$result];
      for (long unit = begin; unit < end; ++unit) {
        const long at = unit % $slices * $chunk, left = $pixels - at, from = unit / $slices * $pixels + at;
        $finish)");
    text.close(2);
  }
  code.add(std::move(stage), std::move(reads), code.operands);
}

}  // namespace

ImageGeometry geometry_of(const Graph& graph, const ImageStep& step) {
  ImageGeometry g;
  const Op& op = graph.op(step.window);
  g.axes = window_axes(graph, op);
  const std::vector<int64_t> x = extents(graph.type(op.inputs[0]).shape);
  g.batch = x[0];
  g.channels = x[1];
  g.filters = extents(graph.type(op.result()).shape)[1];
  if (const auto* conv = std::get_if<ConvAttrs>(&op.attrs)) g.groups = conv->groups;
  for (const WindowAxis& a : g.axes) {
    g.taps *= a.taps;
    g.pixels *= a.out;
    g.padded.push_back(
        std::max(a.in + a.low, (a.out - 1) * a.stride + (a.taps - 1) * a.dilation + 1));
    g.padded_pixels *= g.padded.back();
    g.pads = g.pads || a.low > 0 || g.padded.back() > a.in;
  }
  if (!g.pads) {  // read in place
    g.padded_pixels = 1;
    for (size_t i = 0; i < g.axes.size(); ++i) g.padded_pixels *= g.padded[i] = g.axes[i].in;
  }
  return g;
}

std::vector<ConvAlgorithm> algorithms_of(const Graph& graph, const ImageStep& step, CpuIsa isa) {
  if (graph.op(step.window).kind != OpKind::Conv) return {};
  std::vector<ConvAlgorithm> found{ConvAlgorithm::Direct};
  const ImageGeometry g = geometry_of(graph, step);
  for (ConvAlgorithm a : {ConvAlgorithm::Winograd2, ConvAlgorithm::Winograd4})
    if (g.groups == 1 && winograd_applies(g, results_per_tile(a), isa)) found.push_back(a);
  // The library takes what instructions there are.
  if (isa == runnable_isas().back() && onednn().problem.empty())
    found.push_back(ConvAlgorithm::OneDnn);
  return found;
}

bool may_use(ConvAlgorithm algorithm, const PlanOptions& options,
             const std::vector<WindowAxis>& axes) {
  switch (algorithm) {
  case ConvAlgorithm::Direct: return true;
  case ConvAlgorithm::Winograd2: return may_transform(options.transforms, axes);
  case ConvAlgorithm::Winograd4:
    return options.transforms != Transforms::Small && may_transform(options.transforms, axes);
  case ConvAlgorithm::OneDnn: return options.libraries;
  }
  unreachable("ConvAlgorithm");
}

std::string signature(const Graph& graph, const ImageStep& step) {
  const Op& op = graph.op(step.window);
  std::string text = fmt("$0 * $1", graph.type(op.inputs[0]).str(), graph.type(op.inputs[1]).str());
  for (const WindowAxis& a : window_axes(graph, op))
    text += fmt(" / $0 $1 $2 $3", a.stride, a.dilation, a.low, a.high);
  return text;
}

ConvAlgorithm choose_algorithm(const Graph& graph, const ImageStep& step, CpuIsa isa, int threads,
                               const PlanOptions& options) {
  std::vector<ConvAlgorithm> all = algorithms_of(graph, step, isa);
  if (all.size() < 2) return ConvAlgorithm::Direct;
  const std::vector<WindowAxis> axes = window_axes(graph, graph.op(step.window));
  std::erase_if(all, [&](ConvAlgorithm a) { return !may_use(a, options, axes); });
  for (const std::string& key : {signature(graph, step), std::string()}) {
    const auto it = options.algorithms.find(key);
    const auto named =
        it == options.algorithms.end() ? std::nullopt : conv_algorithm_from(it->second);
    if (named && std::ranges::find(all, *named) != all.end()) return *named;
  }
  const ImageGeometry g = geometry_of(graph, step);
  ConvAlgorithm best = ConvAlgorithm::Direct;
  double least = double(g.batch * g.pixels * g.taps) * double(g.channels * g.filters);
  for (ConvAlgorithm a : all) {
    if (a == ConvAlgorithm::Direct || a == ConvAlgorithm::OneDnn) continue;
    const double cost = winograd_cost(g, results_per_tile(a), threads);
    if (cost >= least) continue;
    best = a;
    least = cost;
  }
  return best;
}

ImageCode emit_image_step(const std::string& name, const Graph& graph, const ImageStep& step,
                          ConvAlgorithm algorithm, UnitContext& unit, int threads) {
  const ImageGeometry g = geometry_of(graph, step);
  const Finish finish = make_finish(name, graph, step, unit);
  ImageCode code;
  const Op& op = graph.op(step.window);
  const bool conv = op.kind == OpKind::Conv;
  const int more = conv ? 2 : 1;
  code.operands = more + finish.more;
  // The stage that ends the step also reads the operands of what follows.
  const auto add_last = [&](ImageStage stage, std::vector<int> reads) {
    for (int i = 0; i < finish.more; ++i) reads.push_back(more + i);
    code.add(std::move(stage), std::move(reads), code.operands);
  };
  if (!conv) {
    const WindowFold fold = op.kind == OpKind::PoolMax ? WindowFold::Max : WindowFold::Sum;
    add_last(window_stage(name, g, fold, finish, unit.isa), {0});
    return code;
  }
  if (algorithm == ConvAlgorithm::OneDnn) {
    if (std::shared_ptr<const OneDnnCall> call = OneDnnCall::convolution(g, threads)) {
      emit_onednn(name, g, std::move(call), finish, step.after.size() > 1, code);
      return code;
    }
    algorithm = ConvAlgorithm::Direct;  // it has no way
  }
  if (algorithm != ConvAlgorithm::Direct) {
    emit_winograd(name, g, results_per_tile(algorithm), channel_panels(unit.isa, g.filters), finish,
                  unit, code);
    return code;
  }
  const int first = code.operands + 1;
  if (g.depthwise()) {
    code.workspace_bytes.push_back(g.taps * g.channels * 4);
    // The weights lie as those of one filter of so many channels.
    code.add(packed_weights(name, g.taps, {1, g.channels, 1, {1, {1}}}), {1}, first);
    add_last(window_stage(name, g, WindowFold::Products, finish, unit.isa), {0, first});
    return code;
  }
  const Groups groups = groups_of(g, unit.isa);
  code.workspace_bytes.push_back(groups.count * groups.weights(g.taps) * 4);
  code.add(packed_weights(name, g.taps, groups), {1}, first);
  int image = 0;
  if (g.pads) {
    image = first + 1;
    // Windows that are wider than they need be read a little beyond.
    code.workspace_bytes.push_back(g.batch * g.padded_pixels * g.channels * 4);
    code.add(padded(name, g), {0}, image);
  }
  add_last(direct(name, g, groups, finish, unit), {image, first});
  return code;
}

}  // namespace tessera
