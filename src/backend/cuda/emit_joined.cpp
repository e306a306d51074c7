#include "backend/cuda/emit_joined.h"

#include <algorithm>

#include "base/check.h"

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

// What both kernels call the arguments of the joined one.
struct Parameters {
  std::string text;
  std::vector<std::string> of_first, of_second;  // by argument of each

  Parameters(const KernelValues& first, const KernelValues& second,
             const std::vector<int>& places) {
    const size_t a = size_t(first.operands), b = size_t(second.operands);
    of_first.resize(first.argument_dtypes.size());
    of_second.resize(second.argument_dtypes.size());
    for (size_t i = 0; i < a; ++i) of_first[i] = next(first.argument_dtypes[i], false);
    for (size_t i = 0; i < b; ++i)
      if (places[i] < 0) of_second[i] = next(second.argument_dtypes[i], false);
    for (size_t i = b; i < of_second.size(); ++i)
      of_second[i] = next(second.argument_dtypes[i], true);
    for (size_t i = a; i < of_first.size(); ++i) of_first[i] = next(first.argument_dtypes[i], true);
    for (size_t i = 0; i < b; ++i)
      if (places[i] >= 0) of_second[i] = of_first[a + size_t(places[i])];
  }
  std::string next(DType dtype, bool written) {
    const std::string p = "p" + n(count_++);
    text += (text.empty() ? "" : ", ") + pointer(dtype, written) + " __restrict__ " + p;
    return p;
  }

 private:
  int count_ = 0;
};

std::string named(const KernelValues& k, const std::vector<std::string>& of) {
  std::string lines;
  for (size_t i = 0; i < of.size(); ++i)
    lines += "    " + pointer(k.argument_dtypes[i], int(i) >= k.operands) + " const a" +
             n(int64_t(i)) + " = " + of[i] + ";\n";
  return lines;
}

// The block of the second kernel that a part of a group is.
struct Second {
  std::string group = "0", indices;  // the group, from the dimensions that both kernels share
  int64_t parts = 1;

  Second(const KernelJoin& join, const std::vector<int64_t>& grid) {
    for (size_t d = 0; d < grid.size(); ++d) {
      const std::string g = "    const int g" + n(int64_t(d)) + " = ";
      if (const int e = join.same[d]; e >= 0) {
        const std::string block = "ts::block(" + n(e) + ")";
        group = group == "0" ? block : "(" + group + ") * " + n(grid[d]) + " + " + block;
        indices += g + block + ";\n";
      } else {
        indices += g + (parts == 1 ? "part" : "part / " + n(parts)) + " % " + n(grid[d]) + ";\n";
        parts *= grid[d];
      }
    }
    CHECK(parts == join.parts);
  }
};

// Clusters lie along the dimensions of the grid that the two do not share.
struct Cluster {
  std::string dims, rank;

  Cluster(const KernelJoin& join, const std::vector<int64_t>& grid) {
    for (size_t d = 0; d < 3; ++d) {
      const bool alone = d < grid.size() && std::ranges::count(join.same, int(d)) == 0;
      const int64_t size = alone ? grid[d] : 1;
      dims += (d > 0 ? ", " : "") + n(size);
      if (size == 1) continue;
      const std::string block = "ts::block(" + n(int64_t(d)) + ")";
      rank = rank.empty() ? block : "(" + rank + ") * " + n(size) + " + " + block;
    }
  }
};

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

  const bool in_cluster = join.arrivals <= limits.cluster;
  const Cluster cluster(join, first.grid);
  Parameters parameters(first, second, places);
  if (!in_cluster) parameters.text += ", unsigned* __restrict__ tickets";
  for (size_t i = 0; i < out.maps.size(); ++i)
    parameters.text += ", const __grid_constant__ ts::TensorMap m" + n(int64_t(i));
  std::string& text = out.text;
  text = "extern \"C\" __global__ void __launch_bounds__(" + n(out.threads) + ") " +
         (in_cluster ? "__cluster_dims__(" + cluster.dims + ") " : "") + name + "(" +
         parameters.text + ") {\n  {\n" + named(first, parameters.of_first);
  for (size_t d = 0; d < first.grid.size(); ++d)
    text += "    const int g" + n(int64_t(d)) + " = ts::block(" + n(int64_t(d)) + ");\n";
  text += indented(stores, "  ") + "  }\n";

  const Second of_group(join, second.grid);
  const int64_t parts = of_group.parts;
  const std::string body =
      named(second, parameters.of_second) + of_group.indices + indented(combines, "  ");
  const int64_t shared_bytes = std::max(out.shared_bytes, more.shared_bytes);
  out.sum_registers = std::max(out.sum_registers, more.sum_registers);
  if (in_cluster) {
    out.cluster = int(join.arrivals);
    out.shared_bytes = shared_bytes;
    text += "  // " + n(join.arrivals) + " blocks share what is left to do.\n  ts::sync_cluster<" +
            cluster.dims + ">();\n  for (int part = " + cluster.rank + "; part < " + n(parts) +
            "; part += " + n(join.arrivals) + ") {\n" + body +
            (parts > join.arrivals ? "    ts::sync();\n" : "") + "  }\n}\n";
    return out;
  }
  const int64_t arrived = (shared_bytes + 15) / 16 * 16;
  out.shared_bytes = arrived + 16;
  out.tickets = int(join.groups);
  text += "  // The last of " + n(join.arrivals) + " blocks puts together what all have stored.\n" +
          "  unsigned* const arrived = reinterpret_cast<unsigned*>(ts::shared() + " + n(arrived) +
          ");\n  ts::sync();\n  if (ts::thread() == 0) {\n    ts::fence_device();\n" +
          "    ts::store_shared(arrived, ts::take_ticket(tickets + " + of_group.group + ", " +
          n(join.arrivals) + "u));\n    ts::fence_device();\n  }\n  ts::sync();\n" +
          "  if (ts::load_shared(arrived) != " + n(join.arrivals - 1) + "u) return;\n" +
          "  for (int part = 0; part < " + n(parts) + "; ++part) {\n" + body +
          (parts > 1 ? "    ts::sync();\n" : "") + "  }\n}\n";
  return out;
}

}  // namespace tessera
