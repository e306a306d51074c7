#include "backend/cuda/emit_joined.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace tessera {
namespace {

std::string n(int64_t x) { return std::to_string(x); }

std::string indented(const std::string& text, const std::string& by) {
  std::string out;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size() - 1);
    if (text[from] != '\n') out += by;
    out.append(text, from, to - from + 1);
    from = to + 1;
  }
  return out;
}

std::string pointer(DType dtype, bool written) {
  return (written ? "" : "const ") + std::string(storage_type(dtype, Dialect::Cuda)) + "*";
}

}  // namespace

BlockText emit_joined(const std::string& name, const KernelJoin& join, const KernelValues& first,
                      const KernelValues& second, const std::vector<int>& places,
                      const EmitLimits& limits, std::set<std::string>& prelude) {
  BlockEmitter before(first, limits, prelude);
  BlockText out;
  const std::string stores = before.statements(out);
  // What other blocks stored is not for the asynchronous proxy, which no fence here is about.
  EmitLimits portable = limits;
  portable.arch.specific = false;
  portable.threads = out.threads;
  BlockEmitter after(second, portable, prelude);
  BlockText more;
  const std::string combines = after.statements(more);
  CHECK(more.maps.empty() && !before.flat() && !after.flat());

  // Arguments: names of parameters, by argument of each of the two.
  std::vector<std::string> of_first(first.argument_dtypes.size()),
      of_second(second.argument_dtypes.size());
  std::string parameters;
  int count = 0;
  const auto parameter = [&](DType dtype, bool written) {
    const std::string p = "p" + n(count++);
    parameters += (parameters.empty() ? "" : ", ") + pointer(dtype, written) + " __restrict__ " + p;
    return p;
  };
  for (int i = 0; i < first.operands; ++i)
    of_first[size_t(i)] = parameter(first.argument_dtypes[size_t(i)], false);
  for (int i = 0; i < second.operands; ++i)
    if (places[size_t(i)] < 0)
      of_second[size_t(i)] = parameter(second.argument_dtypes[size_t(i)], false);
  for (size_t i = size_t(second.operands); i < of_second.size(); ++i)
    of_second[i] = parameter(second.argument_dtypes[i], true);
  for (size_t i = size_t(first.operands); i < of_first.size(); ++i)
    of_first[i] = parameter(first.argument_dtypes[i], true);
  for (int i = 0; i < second.operands; ++i)
    if (const int r = places[size_t(i)]; r >= 0)
      of_second[size_t(i)] = of_first[size_t(first.operands + r)];
  // Clusters lie along the dimensions of the grid that the two do not share.
  const bool cluster = join.arrivals <= limits.cluster;
  std::string dims, rank;
  for (size_t d = 0; d < 3; ++d) {
    const bool alone = d < first.grid.size() && std::ranges::count(join.same, int(d)) == 0;
    const int64_t size = alone ? first.grid[d] : 1;
    dims += (d > 0 ? ", " : "") + n(size);
    if (size == 1) continue;
    const std::string block = "ts::block(" + n(int64_t(d)) + ")";
    rank = rank.empty() ? block : "(" + rank + ") * " + n(size) + " + " + block;
  }
  if (!cluster) parameters += ", unsigned* __restrict__ tickets";
  for (size_t i = 0; i < out.maps.size(); ++i)
    parameters += ", const __grid_constant__ ts::TensorMap m" + n(int64_t(i));

  const auto named = [](const KernelValues& k, const std::vector<std::string>& of) {
    std::string lines;
    for (size_t i = 0; i < of.size(); ++i)
      lines += "    " + pointer(k.argument_dtypes[i], int(i) >= k.operands) + " const a" +
               n(int64_t(i)) + " = " + of[i] + ";\n";
    return lines;
  };
  std::string& text = out.text;
  text = "extern \"C\" __global__ void __launch_bounds__(" + n(out.threads) + ") " +
         (cluster ? "__cluster_dims__(" + dims + ") " : "") + name + "(" + parameters +
         ") {\n  {\n" + named(first, of_first);
  for (size_t d = 0; d < first.grid.size(); ++d)
    text += "    const int g" + n(int64_t(d)) + " = ts::block(" + n(int64_t(d)) + ");\n";
  text += indented(stores, "  ") + "  }\n";

  // The group, from the dimensions that both share, and the block of the second, of its parts.
  std::string group = "0", indices;
  int64_t parts = 1;
  for (size_t d = 0; d < second.grid.size(); ++d) {
    const int64_t extent = second.grid[d];
    const std::string g = "    const int g" + n(int64_t(d)) + " = ";
    if (const int e = join.same[d]; e >= 0) {
      const std::string block = "ts::block(" + n(e) + ")";
      group = group == "0" ? block : "(" + group + ") * " + n(extent) + " + " + block;
      indices += g + block + ";\n";
    } else {
      indices += g + (parts == 1 ? "part" : "part / " + n(parts)) + " % " + n(extent) + ";\n";
      parts *= extent;
    }
  }
  CHECK(parts == join.parts);
  const std::string body = named(second, of_second) + indices + indented(combines, "  ");
  out.sum_registers = std::max(out.sum_registers, more.sum_registers);
  if (cluster) {
    out.cluster = int(join.arrivals);
    out.shared_bytes = std::max(out.shared_bytes, more.shared_bytes);
    text += "  // " + n(join.arrivals) + " blocks share what is left to do.\n  ts::sync_cluster<" +
            dims + ">();\n  for (int part = " + rank + "; part < " + n(parts) +
            "; part += " + n(join.arrivals) + ") {\n" + body +
            (parts > join.arrivals ? "    ts::sync();\n" : "") + "  }\n}\n";
    return out;
  }
  const int64_t arrived = (std::max(out.shared_bytes, more.shared_bytes) + 15) / 16 * 16;
  out.shared_bytes = arrived + 16;
  out.tickets = int(join.groups);
  text += "  // The last of " + n(join.arrivals) + " blocks puts together what all have stored.\n" +
          "  unsigned* const arrived = reinterpret_cast<unsigned*>(ts::shared() + " + n(arrived) +
          ");\n  ts::sync();\n  if (ts::thread() == 0) {\n    ts::fence_device();\n" +
          "    ts::store_shared(arrived, ts::take_ticket(tickets + " + group + ", " +
          n(join.arrivals) + "u));\n    ts::fence_device();\n  }\n  ts::sync();\n" +
          "  if (ts::load_shared(arrived) != " + n(join.arrivals - 1) + "u) return;\n" +
          "  for (int part = 0; part < " + n(parts) + "; ++part) {\n" + body +
          (parts > 1 ? "    ts::sync();\n" : "") + "  }\n}\n";
  return out;
}

}  // namespace tessera
