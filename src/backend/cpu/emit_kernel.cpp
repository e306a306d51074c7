#include "backend/cpu/emit_kernel.h"

#include <algorithm>

#include "backend/cpu/emitter.h"
#include "backend/fmt.h"
#include "backend/loop_work.h"
#include "base/check.h"

namespace tessera {

KernelText emit_kernel(const std::string& name, const Graph& block_graph, UnitContext& unit,
                       const std::vector<Layout>& layouts) {
  KernelValues kernel = kernel_values(block_graph, layouts);
  kernel.rounds = unit.rounds;
  KernelText out;
  out.units = block_graph.num_blocks();
  KernelEmitter blocks(kernel, unit, KernelPart::Blocks);
  if (blocks.has_shared()) {
    out.workspace_bytes = blocks.workspace_bytes();
    out.text =
        KernelEmitter(kernel, unit, KernelPart::Once).run(name + "_once", out.scratch_bytes) + "\n";
  }
  out.text += blocks.run(name, out.scratch_bytes);
  out.together = blocks.blocks_together();
  return out;
}

// --- buffers -----------------------------------------------------------------------------------

void KernelEmitter::allocate(const std::string& name, DType dtype, int64_t elements) {
  ++clock_;
  if (buffer_of_.count(name) != 0) return;  // computed again in another nest
  buffer_of_[name] = buffers_.size();
  buffers_.push_back(
      {name, dtype, elements * size_in_bytes(dtype), clock_, clock_, int(regions_.size())});
}

void KernelEmitter::workspace_pointer(int id) {
  const Value& v = value(id);
  std::string offset;
  int64_t size = buffer_elements(v);
  for (size_t l = kernel_.loops.size(); l-- > 0;) {
    if ((v.phase.varies >> l & 1) == 0) continue;
    offset += fmt(" + l$0*$1", l, size);
    size *= kernel_.loops[l];
  }
  const std::string p = v.memory.pointer;
  code_.line(fmt("$0* const $1 = w$2$3;", storage_type(v.memory.storage), p, p.substr(1), offset));
}

void KernelEmitter::allocate_value(int id) {
  const Value& v = value(id);
  if (part_ == KernelPart::Once && shared_.count(id) != 0)
    workspace_pointer(id);
  else
    allocate(v.memory.pointer, v.memory.storage, buffer_elements(v));
}

void KernelEmitter::touch(const std::string& name) {
  ++clock_;
  const auto it = buffer_of_.find(name);
  if (it == buffer_of_.end()) return;
  Buffer& b = buffers_[it->second];
  b.death = std::max(b.death, clock_);
  // Used in a loop it was made outside of: needed until that loop ends.
  if (int(regions_.size()) > b.depth) regions_[size_t(b.depth)].insert(it->second);
}

void KernelEmitter::touch(int id) { touch(value(id).memory.pointer); }

void KernelEmitter::emit(Nest& nest) {
  nest.emit(code_);
  for (int id : touched_) touch(id);
  touched_.clear();
}

Nest KernelEmitter::nest() { return Nest(kernel_, unit_.prelude, touched_); }

// --- regions: the body of each loop ------------------------------------------------------------

std::string KernelEmitter::run(const std::string& name, int64_t& scratch_bytes) {
  code_.set_indent(part_ == KernelPart::Once ? 1 : 2);
  region(0, -1);
  // Offsets by lifetime.
  std::vector<MemoryRequest> requests;
  for (const Buffer& b : buffers_) requests.push_back({b.name, b.bytes, b.birth, b.death});
  const MemoryPlan plan = plan_memory(requests);
  scratch_bytes = std::max(scratch_bytes, plan.bytes);

  Code head;
  open_function(head, name, kernel_.argument_dtypes, size_t(kernel_.operands),
                kernel_.argument_layouts);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& b = buffers_[i];
    const std::string type = storage_type(b.dtype);
    head.line(fmt("$0* const $1 = ($0*)(scratch + $2);", type, b.name, plan.offsets[i]));
  }
  if (!shared_.empty()) {
    head.line(fmt("char* const workspace = (char*)args[$0];", kernel_.argument_dtypes.size()));
    for (const auto& [id, offset] : shared_) {
      const Memory& m = value(id).memory;
      const std::string type = storage_type(m.storage);
      head.line(fmt("$0* const w$1 = ($0*)(workspace + $2);", type, m.pointer.substr(1), offset));
    }
  }
  if (part_ == KernelPart::Once) {
    // What all blocks share may still name a grid dimension of one block.
    for (size_t d = 0; d < kernel_.grid.size(); ++d)
      if (kernel_.grid[d] == 1) head.line("const long g" + std::to_string(d) + " = 0;");
    head.append(code_.text());
    head.close();
    return head.text();
  }
  for (const auto& [tile, sharing] : kept_)  // the blocks that a packed tile is of
    head.line("long " + packed_memory(tile).pointer + "of = -1;");
  head.open("for (long block = begin; block < end; ++block)");
  int64_t below = 1;
  for (size_t d = kernel_.grid.size(); d-- > 0;) {
    std::string index = below == 1 ? "block" : "block / " + std::to_string(below);
    if (d != 0)
      index = (below == 1 ? index : "(" + index + ")") + " % " + std::to_string(kernel_.grid[d]);
    head.line(fmt("const long g$0 = $1;", d, index));
    below *= kernel_.grid[d];
  }
  head.append(code_.text());
  for (const auto& [tile, sharing] : kept_)
    head.line(fmt("$0of = block / $1;", packed_memory(tile).pointer, sharing));
  head.close(2);
  return head.text();
}

void KernelEmitter::region(uint8_t loops, int last) {
  region_loops_ = loops;
  declare_extents(loops, last);
  LoopWork work(
      kernel_, needed_, users_, [&](int id) { return root(id); }, loops, last);
  std::move(work).run([&](int id) { return value(id).in_memory && fused_[size_t(id)] < 0; },
                      [&](int id) {
                        if (fused_[size_t(id)] < 0) compute(id);
                        computed_.insert(id);
                      },
                      [&](int l, const std::vector<int>& sums) {
                        for (int sum : sums) start_accumulator(sum);
                        code_.open(fmt("for (long $0 = 0; $0 < $1; ++$0)", "l" + std::to_string(l),
                                       kernel_.loops[size_t(l)]));
                        regions_.emplace_back();
                        region(uint8_t(loops | 1u << l), l);
                        for (size_t b : regions_.back())
                          buffers_[b].death = std::max(buffers_[b].death, ++clock_);
                        regions_.pop_back();
                        region_loops_ = loops;
                        code_.close();
                      });
}

}  // namespace tessera
