#include "backend/cpu/image_stages.h"

#include <algorithm>

#include "backend/cpu/matmul.h"
#include "backend/nest.h"

namespace tessera {
namespace {

constexpr int64_t kUnitElements = 8192;

std::string n(int64_t i) { return std::to_string(i); }

// Loops over the taps that meet the image at `pixel`; `from` is the image's pixel, t0, t1, … the
// tap.
void open_taps(Code& code, const ImageGeometry& g) {
  std::string place = "pixel / " + n(g.pixels);
  int64_t below = g.pixels;
  for (size_t i = 0; i < g.axes.size(); ++i) {
    const WindowAxis& a = g.axes[i];
    below /= a.out;
    const std::string t = "t" + n(int64_t(i)), y = "y" + n(int64_t(i));
    code.open("for (long " + t + " = 0; " + t + " < " + n(a.taps) + "; ++" + t + ")");
    code.line("const long " + y + " = pixel / " + n(below) + " % " + n(a.out) + " * " +
              n(a.stride) + " + " + t + " * " + n(a.dilation) + " - " + n(a.low) + ";");
    code.line("if (" + y + " < 0 || " + y + " >= " + n(a.in) + ") continue;");
    place = "(" + place + ") * " + n(a.in) + " + " + y;
  }
  code.line("const float* const from = x + (" + place + ") * " + n(g.channels) + ";");
}

}  // namespace

void open_stage(Code& code, const std::string& name, const std::vector<std::string>& arguments) {
  code.open("extern \"C\" __attribute__((visibility(\"default\"))) void " + name +
            "(void** args, long begin, long end, char* scratch)");
  for (size_t i = 0; i < arguments.size(); ++i)
    code.line("float* const " + arguments[i] + " = (float*)args[" + n(int64_t(i)) + "];");
  code.line("(void)scratch;");
}

// Each channel by itself. A unit is some pixels of the result.
ImageStage depthwise_stage(const std::string& name, const ImageGeometry& g, const Finish& finish,
                           CpuIsa isa) {
  ImageStage stage;
  const int64_t pixels = g.batch * g.pixels, lanes = lanes_of(isa, DType::F32);
  const int64_t chunk = std::clamp<int64_t>(kUnitElements / (g.channels * g.taps), 1, pixels);
  stage.units = ceil_div(pixels, chunk);
  stage.scratch_bytes = g.channels * 4;
  Code code;
  code.append(finish.text);
  open_stage(code, name, {"x", "w"});
  code.line("typedef float v __attribute__((vector_size(" + n(lanes * 4) +
            "), aligned(4), may_alias));");
  code.line("void** const more = args + 2;");
  code.line("float* const out = (float*)args[" + n(2 + int64_t(finish.more)) + "];");
  code.line("float* const sums = (float*)scratch;");
  code.line("const long stop = end * " + n(chunk) + " < " + n(pixels) + " ? end * " + n(chunk) +
            " : " + n(pixels) + ";");
  code.open("for (long pixel = begin * " + n(chunk) + "; pixel < stop; ++pixel)");
  code.line("const float *at[" + n(g.taps) + "], *by[" + n(g.taps) + "];");
  code.line("long taps = 0;");
  open_taps(code, g);
  std::string tap = "t0";
  for (size_t i = 1; i < g.axes.size(); ++i)
    tap = "(" + tap + ") * " + n(g.axes[i].taps) + " + t" + n(int64_t(i));
  code.line("at[taps] = from;");
  code.line("by[taps++] = w + (" + tap + ") * " + n(g.channels) + ";");
  for (size_t i = 0; i < g.axes.size(); ++i) code.close();
  code.line("long c = 0;");
  for (int64_t vectors : {4, 1}) {
    code.open("for (; c + " + n(vectors * lanes) + " <= " + n(g.channels) +
              "; c += " + n(vectors * lanes) + ")");
    code.line("v sum[" + n(vectors) + "] = {};");
    code.line("for (long t = 0; t < taps; ++t)");
    code.line("#pragma GCC unroll 4");
    code.line("  for (int j = 0; j < " + n(vectors) +
              "; ++j) sum[j] += *(const v*)(at[t] + c + j * " + n(lanes) +
              ") * *(const v*)(by[t] + c + j * " + n(lanes) + ");");
    code.line("#pragma GCC unroll 4");
    code.line("for (int j = 0; j < " + n(vectors) + "; ++j) *(v*)(sums + c + j * " + n(lanes) +
              ") = sum[j];");
    code.close();
  }
  code.open("for (; c < " + n(g.channels) + "; ++c)");
  code.line("float sum = 0;");
  code.line("for (long t = 0; t < taps; ++t) sum += at[t][c] * by[t][c];");
  code.line("sums[c] = sum;");
  code.close();
  code.line(finish.call("sums", n(g.channels), "pixel", "0", "1", n(g.channels)));
  code.close();
  code.close();
  stage.text = code.text();
  return stage;
}

// A unit is some pixels of the result.
ImageStage pooling_stage(const std::string& name, const ImageGeometry& g, bool maximum,
                         const Finish& finish) {
  ImageStage stage;
  const size_t rank = g.axes.size();
  const int64_t pixels = g.batch * g.pixels;
  const int64_t chunk = std::clamp<int64_t>(kUnitElements / (g.channels * g.taps), 1, pixels);
  stage.units = ceil_div(pixels, chunk);
  stage.scratch_bytes = g.channels * 4;
  Code code;
  code.append(finish.text);
  open_stage(code, name, {"x"});
  code.line("void** const more = args + 1;");
  code.line("float* const out = (float*)args[" + n(1 + int64_t(finish.more)) + "];");
  code.line("float* const sums = (float*)scratch;");
  code.line("const long stop = end * " + n(chunk) + " < " + n(pixels) + " ? end * " + n(chunk) +
            " : " + n(pixels) + ";");
  code.open("for (long pixel = begin * " + n(chunk) + "; pixel < stop; ++pixel)");
  code.line("#pragma omp simd");
  code.line("for (long c = 0; c < " + n(g.channels) +
            "; ++c) sums[c] = " + std::string(maximum ? "-__builtin_inff()" : "0") + ";");
  open_taps(code, g);
  code.line("#pragma omp simd");
  // A number that is none stays, like in the operators' meaning.
  code.line("for (long c = 0; c < " + n(g.channels) + "; ++c) " +
            (maximum ? "sums[c] = sums[c] > from[c] || sums[c] != sums[c] ? sums[c] : from[c];"
                     : "sums[c] += from[c];"));
  for (size_t i = 0; i < rank; ++i) code.close();
  code.line(finish.call("sums", n(g.channels), "pixel", "0", "1", n(g.channels)));
  code.close();
  code.close();
  stage.text = code.text();
  return stage;
}

}  // namespace tessera
