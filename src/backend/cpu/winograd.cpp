#include "backend/cpu/winograd.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/image_stages.h"
#include "backend/cpu/tile_text.h"
#include "backend/fmt.h"
#include "backend/nest.h"
#include "base/check.h"
#include "base/text.h"

namespace tessera {
namespace {

// Rows of Bᵀ (images), G (weights) and Aᵀ (results) of F(m, taps).
struct WinogradRows {
  std::vector<std::vector<double>> image, weights, result;
};

// Toom and Cook's: a tile and a window are polynomials, multiplied at m + taps − 2 points and at
// infinity; then transposed. With p = Π (x − points), the rows of Bᵀ are the coefficients of
// p / (x − point), and p itself for infinity.
WinogradRows make_transforms(int m, int64_t taps) {
  static constexpr double kPoints[] = {0, 1, -1, 2, -2, 0.5, -0.5};
  const size_t finite = size_t(m + taps - 2), r = size_t(taps);
  CHECK(finite <= std::size(kPoints));
  WinogradRows t;
  t.result.assign(size_t(m), std::vector<double>(finite + 1, 0));
  if (finite == 0) return {{{1}}, {{1}}, {{1}}};
  const auto all_but = [&](size_t left_out) {
    std::vector<double> product{1};
    for (size_t k = 0; k < finite; ++k) {
      if (k == left_out) continue;
      product.push_back(0);
      for (size_t i = product.size(); i-- > 0;)
        product[i] = (i > 0 ? product[i - 1] : 0) - kPoints[k] * product[i];
    }
    product.resize(finite + 1);
    return product;
  };
  for (size_t j = 0; j < finite; ++j) {
    double scale = 1, power = 1;
    for (size_t k = 0; k < finite; ++k)
      if (k != j) scale *= kPoints[j] - kPoints[k];
    std::vector<double> row = all_but(j), weights;
    // Signs as published.
    for (double& x : row) x *= scale < 0 ? -1 : 1;
    for (size_t k = 0; k < r; ++k, power *= kPoints[j]) weights.push_back(power / std::fabs(scale));
    power = 1;
    for (size_t i = 0; i < t.result.size(); ++i, power *= kPoints[j]) t.result[i][j] = power;
    t.image.push_back(std::move(row));
    t.weights.push_back(std::move(weights));
  }
  t.image.push_back(all_but(finite));
  t.weights.push_back(std::vector<double>(r, 0));
  t.weights.back().back() = t.result.back()[finite] = 1;
  return t;
}

std::string number(double x, const char* suffix) {
  std::string s = significant(x, 17);
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  return s + suffix;
}

// Σ coefficient · operand, as an expression.
std::string combination(const std::vector<double>& row, const std::vector<std::string>& x,
                        const char* suffix) {
  std::string text;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] == 0) continue;
    const double size = row[i] < 0 ? -row[i] : row[i];
    text += row[i] < 0 ? (text.empty() ? "-" : " - ") : (text.empty() ? "" : " + ");
    text += size == 1 ? x[i] : fmt("$0 * $1", x[i], number(size, suffix));
  }
  return text.empty() ? "0" : text;
}

// How tiles cover a result: of each image (each frame of a film), those of one residue modulo the
// dilation together. Windows of several frames are sums over frames, of products of tiles.
struct Tiling {
  WindowAxis axes[2];  // that tiles lie along
  WindowAxis frames;   // one where images have two axes
  int64_t padded = 1;  // frames with the zeros around
  int m[2], side[2];   // results and elements of a tile along both axes
  int64_t residues[2];
  int64_t tiles[2];                            // of a residue
  int64_t per_frame = 1, images = 0, all = 0;  // tiles: of a frame, of images, of results
  int places = 1;                              // of a tile
  bool fits = false;                           // there is something to transform

  Tiling(const ImageGeometry& g, int wanted) {
    const size_t rank = g.axes.size();
    for (size_t i = rank > 1 ? 0 : 1; i < 2; ++i) axes[i] = g.axes[rank + i - 2];
    if (rank == 3) {
      frames = g.axes[0];
      padded = g.padded[0];
    }
    fits = rank <= 3;
    for (size_t i = 0; i < 2; ++i) {
      m[i] = transform_tile(axes[i], wanted);
      fits = fits && m[i] > 0;
      m[i] = std::max(m[i], 1);
      side[i] = int(m[i] + axes[i].taps - 1);
      residues[i] = std::min(axes[i].dilation, axes[i].out);
      tiles[i] = ceil_div(ceil_div(axes[i].out, residues[i]), int64_t{m[i]});
      per_frame *= residues[i] * tiles[i];
      places *= side[i];
    }
    fits = fits && places > 1 && places <= kMostTransformed;
    images = g.batch * padded * per_frame;
    all = g.batch * frames.out * per_frame;
  }
  WinogradRows transforms(size_t axis) const { return make_transforms(m[axis], axes[axis].taps); }
};

// The tile `tile`: its frame, and the pixel (y0, x0) of that its results begin with.
void place_of_tile(Code& code, const Tiling& t) {
  code.line(fmt("const long frame = tile / $0, at = tile % $0;", t.per_frame));
  const int64_t below = t.residues[1] * t.tiles[1];
  code.line(fmt("const long y0 = at / $0 + at / $1 % $2 * $3;", below * t.tiles[0], below,
                t.tiles[0], t.m[0] * t.axes[0].dilation));
  code.line(fmt("const long x0 = at / $0 % $1 + at % $0 * $2;", t.tiles[1], t.residues[1],
                t.m[1] * t.axes[1].dilation));
}

// [F, C, frames, taps…] as panels of [frames, C, columns of the panel] for each place.
ImageStage transform_weights(const std::string& name, const ImageGeometry& g, const Tiling& t,
                             const ChannelPanels& panels) {
  const WinogradRows down = t.transforms(0), right = t.transforms(1);
  ImageStage stage;
  stage.of_weights = true;
  stage.units = g.channels;
  const int64_t rows = t.axes[0].taps, columns = t.axes[1].taps, depth = t.frames.taps;
  Code& code = stage.code;
  open_stage(code, name, {"w", "to"});
  code.open("for (long c = begin; c < end; ++c)");
  std::string widths, begins;
  for (size_t p = 0; p < panels.vectors.size(); ++p) {
    widths += (p > 0 ? ", " : "") + num(panels.width(p));
    begins += (p > 0 ? ", " : "") + num(panels.begin(p));
  }
  code.line(fmt("static const long widths[] = {$0}, begins[] = {$1};", widths, begins));
  code.open(fmt("for (long p = 0; p < $0; ++p)", int64_t(panels.vectors.size())));
  code.open(fmt("for (long z = 0; z < $0; ++z)", depth));
  code.open("for (long j = 0; j < widths[p]; ++j)");
  code.line(fmt("float* const out = to + begins[p] * $0 + (z * $1 + c) * widths[p] + j;",
                depth * g.channels, g.channels));
  code.line("const long f = begins[p] + j;");
  code.line(fmt("double g_[$0][$1] = {};", rows, columns));
  code.line(fmt("if (f < $0) for (long i = 0; i < $1; ++i) g_[i / $2][i % $2] = w[((f * $3 + c) * "
                "$4 + z) * $1 + i];",
                g.filters, rows * columns, columns, g.channels, depth));
  code.line(fmt("double half[$0][$1];", t.side[0], columns));
  for (int64_t j = 0; j < columns; ++j) {
    std::vector<std::string> column;
    for (int64_t i = 0; i < rows; ++i) column.push_back(fmt("g_[$0][$1]", i, j));
    for (int i = 0; i < t.side[0]; ++i)
      code.line(fmt("half[$0][$1] = $2;", i, j, combination(down.weights[size_t(i)], column, "")));
  }
  for (int i = 0; i < t.side[0]; ++i) {
    std::vector<std::string> row;
    for (int64_t j = 0; j < columns; ++j) row.push_back(fmt("half[$0][$1]", i, j));
    for (int j = 0; j < t.side[1]; ++j)
      code.line(fmt("out[$0L] = (float)($1);",
                    (int64_t{i} * t.side[1] + j) * depth * g.channels * panels.channels(),
                    combination(right.weights[size_t(j)], row, "")));
  }
  code.close(5);
  return stage;
}

// Places of transformed images lie a line of the cache more than a power of two apart.
int64_t image_pitch(const ImageGeometry& g, const Tiling& t) { return t.images * g.channels + 16; }
int64_t sums_pitch(const ChannelPanels& panels, const Tiling& t) {
  return t.all * panels.channels() + 16;
}

// down · tile · rightᵀ of each channel; `from` and `to` are places of elements.
template <class From, class To>
void transformed(Code& code, const Tiling& t, const std::vector<std::vector<double>>& down,
                 const std::vector<std::vector<double>>& right, From from, To to) {
  const auto named = [](const char* what, int i, int j) { return fmt("$0$1_$2", what, i, j); };
  for (int j = 0; j < t.side[1]; ++j) {
    std::vector<std::string> column;
    for (int i = 0; i < t.side[0]; ++i) {
      column.push_back(named("d", i, j));
      code.line(fmt("const v_lanes $0 = *(const v_lanes*)($1);", column.back(), from(i, j)));
    }
    for (int i = 0; i < int(down.size()); ++i)
      code.line(fmt("const v_lanes $0 = $1;", named("h", i, j),
                    combination(down[size_t(i)], column, "f")));
  }
  for (int i = 0; i < int(down.size()); ++i) {
    std::vector<std::string> row = mapped(t.side[1], [&](int j) { return named("h", i, j); });
    for (int j = 0; j < int(right.size()); ++j)
      code.line(fmt("*(v_lanes*)($0) = $1;", to(i, j), combination(right[size_t(j)], row, "f")));
  }
}

ImageStage transform_image(const std::string& name, const ImageGeometry& g, const Tiling& t,
                           int lanes) {
  const WinogradRows down = t.transforms(0), right = t.transforms(1);
  ImageStage stage;
  stage.units = t.images;
  Code& code = stage.code;
  code.append(vector_typedef("float", "v_lanes", lanes * 4, 4));
  open_stage(code, name, {"x", "to"});
  code.line(fmt("static const float zeros[$0] = {};", g.channels));
  code.open("for (long tile = begin; tile < end; ++tile)");
  place_of_tile(code, t);
  code.line(fmt("const long z = frame % $0 - $1;", t.padded, t.frames.low));
  code.line(fmt("const long inside = z >= 0 && z < $0;", t.frames.in));
  code.line(fmt("const float* const whole = x + (frame / $0 * $1 + z) * $2;", t.padded, t.frames.in,
                t.axes[0].in * t.axes[1].in * g.channels));
  code.line(fmt("const float* from[$0][$1];", t.side[0], t.side[1]));
  code.open(fmt("for (long i = 0; i < $0; ++i)", t.side[0]));
  code.line(fmt("const long y = y0 + i * $0 - $1;", t.axes[0].dilation, t.axes[0].low));
  code.open(fmt("for (long j = 0; j < $0; ++j)", t.side[1]));
  code.line(fmt("const long u = x0 + j * $0 - $1;", t.axes[1].dilation, t.axes[1].low));
  code.line(fmt("from[i][j] = inside && y >= 0 && y < $0 && u >= 0 && u < $1 ? whole + (y * $1 + "
                "u) * $2 : zeros;",
                t.axes[0].in, t.axes[1].in, g.channels));
  code.close(2);
  code.open(fmt("for (long c = 0; c < $0; c += $1)", g.channels, lanes));
  code.line(fmt("float* const out = to + tile * $0 + c;", g.channels));
  const auto place = [&](int i, int j) { return int64_t{i} * t.side[1] + j; };
  transformed(
      code, t, down.image, right.image, [&](int i, int j) { return fmt("from[$0][$1] + c", i, j); },
      [&](int i, int j) { return fmt("out + $0L", place(i, j) * image_pitch(g, t)); });
  code.close(3);
  return stage;
}

// A unit is a place, a panel of channels and a stretch of tiles.
ImageStage products(const std::string& name, const ImageGeometry& g, const Tiling& t,
                    const ChannelPanels& panels, UnitContext& unit) {
  constexpr int64_t kUnitProducts = int64_t{1} << 21;
  ImageStage stage;
  const int64_t count = int64_t(panels.vectors.size());
  const int64_t depth = t.frames.taps, per_tile = depth * g.channels * panels.width(0);
  const int64_t stretch =
      std::clamp<int64_t>(kUnitProducts / per_tile, std::min<int64_t>(t.all, 24), t.all);
  const int64_t chunk = ceil_div(t.all, ceil_div(t.all, stretch)), chunks = ceil_div(t.all, chunk);
  stage.units = t.places * count * chunks;
  Code& code = stage.code;
  open_stage(code, name, {"x", "w", "sums"});
  std::string offsets;
  for (int64_t z = 0; z < depth; ++z)
    offsets += (z > 0 ? ", " : "") + num(z * t.frames.dilation * t.per_frame * g.channels);
  code.line(fmt("static const long offsets[] = {$0};", offsets));
  code.open("for (long unit = begin; unit < end; ++unit)");
  code.line(fmt("const long from = unit % $0 * $1, panel = unit / $0 % $2, place = unit / $3;",
                chunks, chunk, count, chunks * count));
  code.line(fmt("const long to = $0;", clipped("from", chunk, num(t.all))));
  each_width(code, panels, [&](size_t p) {
    const int vectors = panels.vectors[p], pixels = most_pixels(unit.isa, vectors);
    code.line(fmt("const float* const ws = w + place * $0L + column * $1;",
                  depth * g.channels * panels.channels(), depth * g.channels));
    const int64_t panel = depth * g.channels * vectors * panels.lanes;
    code.line("long pass = 0;");
    code.open("for (long tile = from; tile < to; ++pass)");
    code.line(fmt("const long rest = (to - tile + $0) / $1, rows = (to - tile + rest - 1) / rest;",
                  pixels - 1, pixels));
    code.line(fmt("const float* at[$0];", pixels));
    // Where the tile of a result begins among those of the images.
    const bool film = t.padded > 1;
    const std::string frame = "(tile + i) / " + num(t.per_frame);
    const std::string first =
        !film ? "tile + i"
              : fmt("($0 / $1 * $2 + $0 % $1 * $3) * $4 + (tile + i) % $4", frame, t.frames.out,
                    t.padded, t.frames.stride, t.per_frame);
    code.line(fmt("for (long i = 0; i < rows; ++i) at[i] = x + place * $0L + ($1) * $2;",
                  image_pitch(g, t), first, g.channels));
    code.line(fmt("float* const to_ = sums + place * $0L + tile * $1 + column;",
                  sums_pitch(panels, t), panels.channels()));
    call_kernel(code, unit, vectors, t.all, chunk,
                fmt("at, ws, offsets, $0, $1, to_, $2, $3", depth, g.channels, panels.channels(),
                    ahead("ws", panel, vectors)));
    code.line("tile += rows;");
    code.close();
  });
  code.close(2);
  return stage;
}

ImageStage transform_back(const std::string& name, const ImageGeometry& g, const Tiling& t,
                          const ChannelPanels& panels, const Finish& finish, int lanes) {
  const WinogradRows down = t.transforms(0), right = t.transforms(1);
  // Channels at a time: the results of a tile stay in the first-level cache.
  const int64_t most = std::min<int64_t>(panels.channels(), 128);
  ImageStage stage;
  stage.units = t.all;
  stage.scratch_bytes = int64_t{t.m[0]} * t.m[1] * most * 4;
  Code& code = stage.code;
  code.append(finish.text);
  code.append(vector_typedef("float", "v_lanes", lanes * 4, 4));
  open_stage(code, name, {"x"});
  code.line("void** const more = args + 1;");
  code.line(fmt("float* const out = (float*)args[$0];", 1 + int64_t(finish.more)));
  code.line("float* const results = (float*)scratch;");
  code.open("for (long tile = begin; tile < end; ++tile)");
  place_of_tile(code, t);
  code.open(fmt("for (long column = 0; column < $0; column += $1)", g.filters, most));
  code.line(fmt("const long columns = ($0) - column;", clipped("column", most, num(g.filters))));
  code.open(fmt("for (long c = 0; c < columns; c += $0)", lanes));
  code.line(fmt("const float* const from = x + tile * $0 + column + c;", panels.channels()));
  transformed(
      code, t, down.result, right.result,
      [&](int i, int j) {
        return fmt("from + $0L", (int64_t{i} * t.side[1] + j) * sums_pitch(panels, t));
      },
      [&](int i, int j) { return fmt("results + $0 + c", (int64_t{i} * t.m[1] + j) * most); });
  code.close();
  const int64_t rows = t.axes[0].out, line = t.axes[1].out;
  code.open(fmt("for (long i = 0; i < $0; ++i)", t.m[0]));
  code.line(fmt("const long y = y0 + i * $0;", t.axes[0].dilation));
  code.line(fmt("if (y >= $0) break;", rows));
  code.line(fmt("const long pixel = (frame * $0 + y) * $1 + x0;", rows, line));
  const std::string from = "results + i * " + num(t.m[1] * most);
  if (t.axes[1].dilation == 1) {
    code.line(fmt("const long count = ($0) - x0;", clipped("x0", t.m[1], num(line))));
    code.line("if (count > 0) " +
              finish.call(from, num(most), "pixel", "column", "count", "columns"));
  } else {
    code.line(fmt("for (long j = 0; j < $0 && x0 + j * $1 < $2; ++j) $3", t.m[1],
                  t.axes[1].dilation, line,
                  finish.call(fmt("$0 + j * $1", from, most), num(most),
                              "pixel + j * " + num(t.axes[1].dilation), "column", "1", "columns")));
  }
  code.close(4);
  return stage;
}

}  // namespace

bool winograd_applies(const ImageGeometry& g, int m, CpuIsa isa) {
  const int lanes = lanes_of(isa, DType::F32);
  return g.channels % lanes == 0 && g.filters % lanes == 0 && Tiling(g, m).fits;
}

double winograd_cost(const ImageGeometry& g, int m, int threads) {
  const Tiling t(g, m);
  // Multiply-adds that take as long as moving an element between caches, and from memory beyond
  // them (measured on a machine with 55 thousand million a second per core).
  constexpr double kCached = 10, kFar = 20;
  const double depth = double(g.channels * t.frames.taps);
  const double weights = double(t.places * g.filters) * depth;
  const double moved = double(t.places) * double(t.images * g.channels + t.all * g.filters);
  return double(t.places * t.all) * depth * double(g.filters) + kCached * moved +
         kFar * weights * (threads > 1 ? 0.7 * threads : 1);
}

void emit_winograd(const std::string& name, const ImageGeometry& g, int m,
                   const ChannelPanels& panels, const Finish& finish, UnitContext& unit,
                   ImageCode& code) {
  const Tiling t(g, m);
  const int first = code.operands + 1, lanes = lanes_of(unit.isa, DType::F32);
  code.workspace_bytes = {t.places * t.frames.taps * g.channels * panels.channels() * 4,
                          t.places * image_pitch(g, t) * 4, t.places * sums_pitch(panels, t) * 4};
  code.add(transform_weights(name, g, t, panels), {1}, first);
  code.add(transform_image(name, g, t, lanes), {0}, first + 1);
  code.add(products(name, g, t, panels, unit), {first + 1, first}, first + 2);
  std::vector<int> reads{first + 2};
  for (int i = 2; i < code.operands; ++i) reads.push_back(i);
  code.add(transform_back(name, g, t, panels, finish, lanes), std::move(reads), code.operands);
}

}  // namespace tessera
