#include "backend/cpu/winograd.h"

#include <algorithm>
#include <set>

#include "backend/cpu/matmul.h"
#include "backend/nest.h"

namespace tessera {
namespace {

std::string n(int64_t i) { return std::to_string(i); }

// Rows of Bᵀ (images), G (weights) and Aᵀ (results); as text, so that fractions stay exact.
struct Transforms {
  std::vector<std::vector<double>> image, weights, result;
};

const Transforms& transforms(int m) {
  static const Transforms two = {{{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}},
                                 {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}},
                                 {{1, 1, 1, 0}, {0, 1, -1, -1}}};
  static const Transforms four = {
      {{4, 0, -5, 0, 1, 0},
       {0, -4, -4, 1, 1, 0},
       {0, 4, -4, -1, 1, 0},
       {0, -2, -1, 2, 1, 0},
       {0, 2, -1, -2, 1, 0},
       {0, 4, 0, -5, 0, 1}},
      {{1 / 4., 0, 0},
       {-1 / 6., -1 / 6., -1 / 6.},
       {-1 / 6., 1 / 6., -1 / 6.},
       {1 / 24., 1 / 12., 1 / 6.},
       {1 / 24., -1 / 12., 1 / 6.},
       {0, 0, 1}},
      {{1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 0}, {0, 1, 1, 4, 4, 0}, {0, 1, -1, 8, -8, 1}}};
  return m == 2 ? two : four;
}

std::string number(double x, const char* suffix) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", x);
  std::string s = text;
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
    text += size == 1 ? x[i] : x[i] + " * " + number(size, suffix);
  }
  return text.empty() ? "0" : text;
}

// How tiles cover a result: of each image, those of one residue modulo the dilation together.
struct Tiling {
  int m, places;           // places: of a tile, (m+2)²
  int64_t residues[2];     // along both axes
  int64_t tiles[2];        // of a residue
  int64_t per_image, all;  // tiles
  Tiling(const ImageGeometry& g, int size) : m(size), places((size + 2) * (size + 2)) {
    per_image = 1;
    for (size_t i = 0; i < 2; ++i) {
      residues[i] = std::min(g.axes[i].dilation, g.axes[i].out);
      tiles[i] = ceil_div(ceil_div(g.axes[i].out, residues[i]), int64_t{m});
      per_image *= residues[i] * tiles[i];
    }
    all = g.batch * per_image;
  }
};

void open_function(Code& code, const std::string& name) {
  code.open("extern \"C\" __attribute__((visibility(\"default\"))) void " + name +
            "(void** args, long begin, long end, char* scratch)");
  code.line("(void)scratch;");
}

// The tile `tile`: its image, and the pixel (y0, x0) its results begin with.
void place_of_tile(Code& code, const ImageGeometry& g, const Tiling& t) {
  code.line("const long image = tile / " + n(t.per_image) + ", at = tile % " + n(t.per_image) +
            ";");
  const int64_t below = t.residues[1] * t.tiles[1];
  code.line("const long y0 = at / " + n(below * t.tiles[0]) + " + at / " + n(below) + " % " +
            n(t.tiles[0]) + " * " + n(t.m * g.axes[0].dilation) + ";");
  code.line("const long x0 = at / " + n(t.tiles[1]) + " % " + n(t.residues[1]) + " + at % " +
            n(t.tiles[1]) + " * " + n(t.m * g.axes[1].dilation) + ";");
}

std::string vector_type(int lanes) {
  return "typedef float v_lanes __attribute__((vector_size(" + n(lanes * 4) +
         "), aligned(4), may_alias));";
}

ImageStage transform_weights(const std::string& name, const ImageGeometry& g, const Tiling& t,
                             const ChannelPanels& panels) {
  const Transforms& by = transforms(t.m);
  ImageStage stage;
  stage.of_weights = true;
  stage.units = g.channels;
  Code code;
  open_function(code, name);
  code.line("const float* const w = (const float*)args[0];");
  code.line("float* const to = (float*)args[1];");
  code.open("for (long c = begin; c < end; ++c)");
  code.line("long first = 0;");
  std::string widths, begins;
  for (size_t p = 0; p < panels.vectors.size(); ++p) {
    widths += (p > 0 ? ", " : "") + n(panels.width(p));
    begins += (p > 0 ? ", " : "") + n(panels.begin(p));
  }
  code.line("static const long widths[] = {" + widths + "}, begins[] = {" + begins + "};");
  code.line("(void)first;");
  code.open("for (long p = 0; p < " + n(int64_t(panels.vectors.size())) + "; ++p)");
  code.open("for (long j = 0; j < widths[p]; ++j)");
  code.line("float* const out = to + begins[p] * " + n(g.channels) + " + c * widths[p] + j;");
  code.line("const long f = begins[p] + j;");
  code.line("double g_[3][3] = {};");
  code.line("if (f < " + n(g.filters) +
            ") for (long i = 0; i < 9; ++i) g_[i / 3][i % 3] = w[(f * " + n(g.channels) +
            " + c) * 9 + i];");
  const int side = t.m + 2;
  code.line("double half[" + n(side) + "][3];");
  for (int j = 0; j < 3; ++j)
    for (int i = 0; i < side; ++i)
      code.line("half[" + n(i) + "][" + n(j) + "] = " +
                combination(by.weights[size_t(i)],
                            {"g_[0][" + n(j) + "]", "g_[1][" + n(j) + "]", "g_[2][" + n(j) + "]"},
                            "") +
                ";");
  for (int i = 0; i < side; ++i)
    for (int j = 0; j < side; ++j) {
      const std::string h = "half[" + n(i) + "]";
      code.line("out[" + n((int64_t{i} * side + j) * g.channels * panels.channels()) +
                "L] = (float)(" +
                combination(by.weights[size_t(j)], {h + "[0]", h + "[1]", h + "[2]"}, "") + ");");
    }
  code.close();
  code.close();
  code.close();
  code.close();
  stage.text = code.text();
  return stage;
}

// Places of transformed images lie a line of the cache more than a power of two apart.
int64_t image_pitch(const ImageGeometry& g, const Tiling& t) { return t.all * g.channels + 16; }
int64_t sums_pitch(const ChannelPanels& panels, const Tiling& t) {
  return t.all * panels.channels() + 16;
}

ImageStage transform_image(const std::string& name, const ImageGeometry& g, const Tiling& t,
                           int lanes) {
  const Transforms& by = transforms(t.m);
  const int side = t.m + 2;
  ImageStage stage;
  stage.units = t.all;
  Code code;
  open_function(code, name);
  code.line(vector_type(lanes));
  code.line("static const float zeros[" + n(g.channels) + "] = {};");
  code.line("const float* const x = (const float*)args[0];");
  code.line("float* const to = (float*)args[1];");
  code.open("for (long tile = begin; tile < end; ++tile)");
  place_of_tile(code, g, t);
  code.line("const float* from[" + n(side) + "][" + n(side) + "];");
  code.open("for (long i = 0; i < " + n(side) + "; ++i)");
  code.line("const long y = y0 + i * " + n(g.axes[0].dilation) + " - " + n(g.axes[0].low) + ";");
  code.open("for (long j = 0; j < " + n(side) + "; ++j)");
  code.line("const long z = x0 + j * " + n(g.axes[1].dilation) + " - " + n(g.axes[1].low) + ";");
  code.line("from[i][j] = y >= 0 && y < " + n(g.axes[0].in) + " && z >= 0 && z < " +
            n(g.axes[1].in) + " ? x + ((image * " + n(g.axes[0].in) + " + y) * " + n(g.axes[1].in) +
            " + z) * " + n(g.channels) + " : zeros;");
  code.close();
  code.close();
  code.open("for (long c = 0; c < " + n(g.channels) + "; c += " + n(lanes) + ")");
  for (int j = 0; j < side; ++j) {
    std::vector<std::string> column;
    for (int i = 0; i < side; ++i) {
      column.push_back("d" + n(i) + n(j));
      code.line("const v_lanes " + column.back() + " = *(const v_lanes*)(from[" + n(i) + "][" +
                n(j) + "] + c);");
    }
    for (int i = 0; i < side; ++i)
      code.line("const v_lanes h" + n(i) + n(j) + " = " +
                combination(by.image[size_t(i)], column, "f") + ";");
  }
  code.line("float* const out = to + tile * " + n(g.channels) + " + c;");
  for (int i = 0; i < side; ++i) {
    std::vector<std::string> row;
    for (int j = 0; j < side; ++j) row.push_back("h" + n(i) + n(j));
    for (int j = 0; j < side; ++j)
      code.line("*(v_lanes*)(out + " + n((int64_t{i} * side + j) * image_pitch(g, t)) +
                "L) = " + combination(by.image[size_t(j)], row, "f") + ";");
  }
  code.close();
  code.close();
  code.close();
  stage.text = code.text();
  return stage;
}

// A unit is a place, a panel of channels and a stretch of tiles.
ImageStage products(const std::string& name, const ImageGeometry& g, const Tiling& t,
                    const ChannelPanels& panels, UnitContext& unit) {
  constexpr int64_t kUnitProducts = int64_t{1} << 21;
  ImageStage stage;
  const int64_t count = static_cast<int64_t>(panels.vectors.size());
  const int64_t per_tile = g.channels * panels.width(0);
  const int64_t stretch =
      std::clamp<int64_t>(kUnitProducts / per_tile, std::min<int64_t>(t.all, 24), t.all);
  const int64_t chunk = ceil_div(t.all, ceil_div(t.all, stretch)), chunks = ceil_div(t.all, chunk);
  stage.units = t.places * count * chunks;
  Code code;
  open_function(code, name);
  code.line("const float* const x = (const float*)args[0];");
  code.line("const float* const w = (const float*)args[1];");
  code.line("float* const sums = (float*)args[2];");
  code.line("static const long none[] = {0};");
  code.open("for (long unit = begin; unit < end; ++unit)");
  code.line("const long from = unit % " + n(chunks) + " * " + n(chunk) + ", panel = unit / " +
            n(chunks) + " % " + n(count) + ", place = unit / " + n(chunks * count) + ";");
  code.line("const long to = from + " + n(chunk) + " < " + n(t.all) + " ? from + " + n(chunk) +
            " : " + n(t.all) + ";");
  size_t p = 0;
  while (p < panels.vectors.size()) {
    size_t next = p;
    while (next < panels.vectors.size() && panels.vectors[next] == panels.vectors[p]) ++next;
    const int vectors = panels.vectors[p], pixels = most_pixels(unit.isa, vectors);
    code.open("if (panel >= " + n(int64_t(p)) + " && panel < " + n(int64_t(next)) + ")");
    code.line("const long column = " + n(panels.begin(p)) + " + (panel - " + n(int64_t(p)) +
              ") * " + n(panels.width(p)) + ";");
    code.line("const float* const ws = w + place * " + n(g.channels * panels.channels()) +
              "L + column * " + n(g.channels) + ";");
    code.open("for (long tile = from; tile < to;)");
    code.line("const long rest = (to - tile + " + n(pixels - 1) + ") / " + n(pixels) +
              ", rows = (to - tile + rest - 1) / rest;");
    code.line("const float* at[" + n(pixels) + "];");
    code.line("for (long i = 0; i < rows; ++i) at[i] = x + place * " + n(image_pitch(g, t)) +
              "L + (tile + i) * " + n(g.channels) + ";");
    code.line("float* const to_ = sums + place * " + n(sums_pitch(panels, t)) + "L + tile * " +
              n(panels.channels()) + " + column;");
    code.open("switch (rows)");
    std::set<int> sizes = tile_sizes(chunk, pixels);
    sizes.merge(tile_sizes(t.all - (chunks - 1) * chunk, pixels));
    for (int rows : sizes)
      code.line("case " + n(rows) + ": " + unit.image_kernels.use(unit.isa, rows, vectors) +
                "(at, ws, none, 1, " + n(g.channels) + ", to_, " + n(panels.channels()) +
                "); break;");
    code.close();
    code.line("tile += rows;");
    code.close();
    code.close();
    p = next;
  }
  code.close();
  code.close();
  stage.text = code.text();
  return stage;
}

ImageStage transform_back(const std::string& name, const ImageGeometry& g, const Tiling& t,
                          const ChannelPanels& panels, const Finish& finish, int lanes) {
  const Transforms& by = transforms(t.m);
  const int side = t.m + 2;
  // Channels at a time: the results of a tile stay in the first-level cache.
  const int64_t most = std::min<int64_t>(panels.channels(), 128);
  ImageStage stage;
  stage.units = t.all;
  stage.scratch_bytes = int64_t{t.m} * t.m * most * 4;
  Code code;
  code.append(finish.text);
  open_function(code, name);
  code.line(vector_type(lanes));
  code.line("const float* const x = (const float*)args[0];");
  code.line("void** const more = args + 1;");
  code.line("float* const out = (float*)args[" + n(1 + int64_t(finish.more)) + "];");
  code.line("float* const results = (float*)scratch;");
  code.open("for (long tile = begin; tile < end; ++tile)");
  place_of_tile(code, g, t);
  code.open("for (long column = 0; column < " + n(g.filters) + "; column += " + n(most) + ")");
  code.line("const long columns = column + " + n(most) + " < " + n(g.filters) + " ? " + n(most) +
            " : " + n(g.filters) + " - column;");
  code.open("for (long c = 0; c < columns; c += " + n(lanes) + ")");
  code.line("const float* const from = x + tile * " + n(panels.channels()) + " + column + c;");
  for (int j = 0; j < side; ++j) {
    std::vector<std::string> column;
    for (int i = 0; i < side; ++i) {
      column.push_back("d" + n(i) + n(j));
      code.line("const v_lanes " + column.back() + " = *(const v_lanes*)(from + " +
                n((int64_t{i} * side + j) * sums_pitch(panels, t)) + "L);");
    }
    for (int i = 0; i < t.m; ++i)
      code.line("const v_lanes h" + n(i) + n(j) + " = " +
                combination(by.result[size_t(i)], column, "f") + ";");
  }
  for (int i = 0; i < t.m; ++i) {
    std::vector<std::string> row;
    for (int j = 0; j < side; ++j) row.push_back("h" + n(i) + n(j));
    for (int j = 0; j < t.m; ++j)
      code.line("*(v_lanes*)(results + " + n((int64_t{i} * t.m + j) * most) +
                " + c) = " + combination(by.result[size_t(j)], row, "f") + ";");
  }
  code.close();
  const int64_t rows = g.axes[0].out, line = g.axes[1].out;
  code.open("for (long i = 0; i < " + n(t.m) + "; ++i)");
  code.line("const long y = y0 + i * " + n(g.axes[0].dilation) + ";");
  code.line("if (y >= " + n(rows) + ") break;");
  code.line("const long pixel = image * " + n(g.pixels) + " + y * " + n(line) + " + x0;");
  const std::string from = "results + i * " + n(t.m * most);
  if (g.axes[1].dilation == 1) {
    code.line("const long count = x0 + " + n(t.m) + " < " + n(line) + " ? " + n(t.m) + " : " +
              n(line) + " - x0;");
    code.line("if (count > 0) " +
              finish.call(from, n(most), "pixel", "column", "count", "columns"));
  } else {
    code.line("for (long j = 0; j < " + n(t.m) + " && x0 + j * " + n(g.axes[1].dilation) + " < " +
              n(line) + "; ++j) " +
              finish.call(from + " + j * " + n(most), n(most),
                          "pixel + j * " + n(g.axes[1].dilation), "column", "1", "columns"));
  }
  code.close();
  code.close();
  code.close();
  code.close();
  stage.text = code.text();
  return stage;
}

}  // namespace

bool winograd_applies(const ImageGeometry& g, CpuIsa isa) {
  const int lanes = lanes_of(isa, DType::F32);
  return g.axes.size() == 2 && g.channels % lanes == 0 && g.filters % lanes == 0 &&
         std::all_of(g.axes.begin(), g.axes.end(),
                     [](const WindowAxis& a) { return a.taps == 3 && a.stride == 1; });
}

double winograd_cost(const ImageGeometry& g, int m, int threads) {
  const Tiling t(g, m);
  // Multiply-adds that take as long as moving an element between caches, and from memory beyond
  // them (measured on a machine with 55 thousand million a second per core).
  constexpr double kCached = 10, kFar = 20;
  const double weights = double(t.places * g.channels * g.filters);
  const double moved = double(t.places * t.all) * double(g.channels + g.filters);
  return double(t.places * t.all) * double(g.channels) * double(g.filters) + kCached * moved +
         kFar * weights * (threads > 1 ? 0.7 * threads : 1);
}

void emit_winograd(const std::string& name, const ImageGeometry& g, int m,
                   const ChannelPanels& panels, const Finish& finish, UnitContext& unit,
                   ImageCode& code) {
  const Tiling t(g, m);
  const int first = code.operands + 1, lanes = lanes_of(unit.isa, DType::F32);
  code.workspace_bytes = {t.places * g.channels * panels.channels() * 4,
                          t.places * image_pitch(g, t) * 4, t.places * sums_pitch(panels, t) * 4};
  const auto add = [&](ImageStage stage, std::vector<int> reads, int writes) {
    stage.reads = std::move(reads);
    stage.writes = {writes};
    code.stages.push_back(std::move(stage));
  };
  add(transform_weights(name, g, t, panels), {1}, first);
  add(transform_image(name, g, t, lanes), {0}, first + 1);
  add(products(name, g, t, panels, unit), {first + 1, first}, first + 2);
  std::vector<int> reads{first + 2};
  for (int i = 2; i < code.operands; ++i) reads.push_back(i);
  add(transform_back(name, g, t, panels, finish, lanes), std::move(reads), code.operands);
}

}  // namespace tessera
