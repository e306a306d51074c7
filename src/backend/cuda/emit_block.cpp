// The kernel as a whole: the order of its steps, loop by loop, and its shared memory.
#include <algorithm>

#include "backend/cuda/block_emitter.h"
#include "backend/loop_work.h"
#include "base/check.h"
#include "base/error.h"

namespace tessera {
namespace {

constexpr int64_t kMostGridYZ = 65535;

}  // namespace

// --- buffers and steps ---------------------------------------------------------------------------

size_t BlockEmitter::buffer(const std::string& name, DType dtype, int64_t elements) {
  const auto [it, fresh] = buffer_of_.try_emplace(name, flow_.buffers.size());
  if (fresh) flow_.buffers.push_back({name, dtype, elements});
  return it->second;
}

void BlockEmitter::begin(const std::string& comment) {
  step_ = EmitStep();
  step_.loop = loop_;
  code_ = Code();
  touched_.clear();
  if (!comment.empty()) code_.line("// " + comment);
}

void BlockEmitter::finish() {
  const std::string& text = code_.text();
  for (size_t from = 0; from < text.size();) {
    const size_t to = text.find('\n', from);
    step_.lines.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  flow_.steps.push_back(std::move(step_));
}

void BlockEmitter::reads(const std::string& name, const std::string& mapping, bool async) {
  const auto it = buffer_of_.find(name);
  CHECK(it != buffer_of_.end()) << name << " is read before it has memory";
  step_.accesses.push_back({it->second, false, mapping, async});
}

void BlockEmitter::writes(const std::string& name, const std::string& mapping, bool async) {
  const auto it = buffer_of_.find(name);
  CHECK(it != buffer_of_.end()) << name << " is written before it has memory";
  step_.accesses.push_back({it->second, true, mapping, async});
}

void BlockEmitter::holds(int id, bool write) {
  step_.accesses.push_back({buffer("r" + n(id), DType::F32, 0), write, "own", false});
}

void BlockEmitter::reads_touched(const std::string& mapping, const std::vector<int>& roots,
                                 int width) {
  std::set<int> here, elsewhere;  // read at the element's own index, and at others
  const std::function<void(int, bool)> walk = [&](int id, bool own) {
    if (home(id) != Home::Inline) {
      (own ? here : elsewhere).insert(id);
      return;
    }
    for (int input : value(id).inputs) walk(input, own && has(value(id).kind, algebra::Pointwise));
  };
  for (int root : roots) walk(root, true);
  std::ranges::sort(touched_);
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  for (int id : touched_) {
    if (home(id) == Home::Tile) reads("v" + n(id), "");
    if (home(id) != Home::Shared) continue;
    const bool own = here.count(id) != 0 && elsewhere.count(id) == 0 &&
                     mapping_of(value(id).extents, width) == mapping;
    reads("v" + n(id), own ? mapping : "");
  }
  touched_.clear();
}

// --- the body of each loop -----------------------------------------------------------------------

void BlockEmitter::compute(int id) {
  const Value& v = value(id);
  if (is_store(v.kind)) return save(id);
  if (is_accumulator(v.kind)) return accumulate(id);
  if (home(id) == Home::Direct) return direct_tile(id);
  if (home(id) == Home::Tile) return load_tile(id);
  if (home(id) == Home::Fragment) return is_product(v.kind) ? product(id, id) : hold_operand(id);
  if (home(id) != Home::Shared) return;
  if (is_product(v.kind)) return product(id, id);
  if (is_reduction(v.kind)) return reduce(id, id);
  if (is_scan(v.kind)) return cumsum(id);
  elementwise(id);
}

void BlockEmitter::region(uint8_t loops, int last) {
  LoopWork work(
      kernel_, needed_, users_, [&](int id) { return root(id); }, loops, last);
  // Tiles first: they may run ahead.
  for (int i = 0; last >= 0 && i < int(work.left.size()); ++i) {
    if (!work.left[size_t(i)] || home(i) != Home::Tile || (value(i).phase.varies >> last & 1) == 0)
      continue;
    load_tile(i);
    work.left[size_t(i)] = false;
  }
  std::move(work).run([&](int id) { return in_memory(id); }, [&](int id) { compute(id); },
                      [&](int l, const std::vector<int>& sums) {
                        for (int sum : sums) start_accumulator(sum);
                        const int outside = loop_;
                        loop_ = int(flow_.loops.size());
                        flow_.loops.push_back({l, kernel_.loops[size_t(l)], outside});
                        const std::set<std::string> scaled = std::move(scaled_);
                        scaled_.clear();
                        EmitStep extents;
                        extents.loop = loop_;
                        declare_extents(uint8_t(loops | 1u << l), l, extents.lines);
                        if (!extents.lines.empty()) flow_.steps.push_back(std::move(extents));
                        region(uint8_t(loops | 1u << l), l);
                        loop_ = outside;
                        scaled_ = scaled;
                        for (int sum : sums) finish_accumulator(sum);
                      });
}

// --- the kernel ----------------------------------------------------------------------------------

bool BlockEmitter::flat() const {
  bool flat = false;
  for (size_t d = 1; d < kernel_.grid.size(); ++d) flat = flat || kernel_.grid[d] > kMostGridYZ;
  return flat;
}

std::string BlockEmitter::statements(BlockText& out) {
  declare_extents(0, -1, head_);
  region(0, -1);
  const bool swizzled = std::ranges::any_of(box_width_, [](int w) { return w > 0; });
  const int64_t blocks = product_of(kernel_.grid);
  if (blocks > 0x7fffffff)
    throw Error(ErrorKind::Unsupported, "a grid of " + n(blocks) + " blocks; CUDA has 2^31 - 1");
  BlockLimits limits = limits_.block;
  limits.blocks_per_sm = int(std::min<int64_t>(ceil_div(blocks, limits_.cores), 32));
  const BlockPlan plan = plan_steps(flow_, swizzled ? 1024 : 128, limits);
  out.threads = threads_;
  out.shared_bytes = plan.shared_bytes;
  out.barriers = plan.barriers;
  for (const auto& [id, u] : units_)
    if (u.registers)
      out.sum_registers +=
          u.slots * u.numbers() * std::max(1, size_in_bytes(compute_dtype(value(id).dtype)) / 4);
  out.maps = maps_;
  if (flat())
    out.grid[0] = int(blocks);
  else
    for (size_t d = 0; d < kernel_.grid.size(); ++d) out.grid[d] = int(kernel_.grid[d]);
  std::string text;
  print_program(plan, text);
  return text;
}

BlockText BlockEmitter::run(const std::string& name) {
  BlockText out;
  const std::string body = statements(out);
  std::string head =
      "extern \"C\" __global__ void __launch_bounds__(" + n(threads_) + ") " + name + "(";
  for (size_t i = 0; i < kernel_.argument_dtypes.size(); ++i)
    head += std::string(i == 0 ? "" : ", ") + (int(i) < kernel_.operands ? "const " : "") +
            storage_type(kernel_.argument_dtypes[i], Dialect::Cuda) + "* __restrict__ a" +
            n(int64_t(i));
  for (size_t i = 0; i < maps_.size(); ++i)
    head += ", const __grid_constant__ ts::TensorMap m" + n(int64_t(i));
  out.text = head + ") {\n";
  const auto line = [&](const std::string& s) { out.text += "  " + s + "\n"; };
  if (flat()) {
    int64_t below = out.grid[0];
    std::string rest = "ts::block(0)";
    for (size_t d = 0; d < kernel_.grid.size(); ++d) {
      below /= kernel_.grid[d];
      line("const int g" + n(int64_t(d)) + " = " + rest + " / " + n(below) +
           (d == 0 ? "" : " % " + n(kernel_.grid[d])) + ";");
    }
  } else {
    for (size_t d = 0; d < kernel_.grid.size(); ++d)
      line("const int g" + n(int64_t(d)) + " = ts::block(" + n(int64_t(d)) + ");");
  }
  out.text += body + "}\n";
  return out;
}

}  // namespace tessera
