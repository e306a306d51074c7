#include "backend/cpu/emit_kernel.h"

#include <algorithm>
#include <functional>
#include <map>

#include "backend/cpu/emitter.h"
#include "base/check.h"
#include "base/error.h"

namespace tessera {

// A kernel that moves more than this leaves nothing in the caches for the next one to find.
constexpr int64_t kBeyondCaches = int64_t{32} << 20;

KernelText emit_kernel(const std::string& name, const Graph& block_graph, UnitContext& unit,
                       const std::vector<Layout>& layouts) {
  const KernelValues kernel = kernel_values(block_graph, layouts);
  KernelText out;
  KernelEmitter blocks(kernel, unit, Part::Blocks);
  if (blocks.has_shared()) {
    out.workspace_bytes = blocks.workspace_bytes();
    out.text =
        KernelEmitter(kernel, unit, Part::Once).run(name + "_once", out.scratch_bytes) + "\n";
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
  buffers_.push_back({name, dtype, elements * size_in_bytes(dtype), clock_, clock_,
                      static_cast<int>(regions_.size())});
}

void KernelEmitter::workspace_pointer(int id) {
  const Value& v = value(id);
  std::string offset;
  int64_t size = buffer_elements(v);
  for (size_t l = kernel_.loops.size(); l-- > 0;) {
    if ((v.phase.varies >> l & 1) == 0) continue;
    offset += " + l" + std::to_string(l) + "*" + std::to_string(size);
    size *= kernel_.loops[l];
  }
  const std::string p = v.memory.pointer;
  code_.line(std::string(storage_type(v.memory.storage)) + "* const " + p + " = w" + p.substr(1) +
             offset + ";");
}

void KernelEmitter::allocate_value(int id) {
  const Value& v = value(id);
  if (part_ == Part::Once && shared_.count(id) != 0) {
    workspace_pointer(id);
  } else {
    allocate(v.memory.pointer, v.memory.storage, buffer_elements(v));
  }
}

void KernelEmitter::touch(const std::string& name) {
  ++clock_;
  const auto it = buffer_of_.find(name);
  if (it == buffer_of_.end()) return;
  Buffer& b = buffers_[it->second];
  b.death = std::max(b.death, clock_);
  // Used in a loop it was made outside of: needed until that loop ends.
  if (static_cast<int>(regions_.size()) > b.depth) {
    regions_[static_cast<size_t>(b.depth)].insert(it->second);
  }
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
  code_.set_indent(part_ == Part::Once ? 1 : 2);
  region(0, -1);
  // Offsets by lifetime.
  std::vector<MemoryRequest> requests;
  for (const Buffer& b : buffers_) requests.push_back({b.name, b.bytes, b.birth, b.death});
  const MemoryPlan plan = plan_memory(requests);
  scratch_bytes = std::max(scratch_bytes, plan.bytes);

  Code head;
  head.open("extern \"C\" __attribute__((visibility(\"default\"))) void " + name +
            "(void** args, long begin, long end, char* scratch)");
  for (size_t i = 0; i < kernel_.argument_dtypes.size(); ++i) {
    const bool read = static_cast<int>(i) < kernel_.operands;
    const std::string type = storage_type(kernel_.argument_dtypes[i]);
    head.line((read ? "const " : "") + type + "* const a" + std::to_string(i) + " = (" +
              (read ? "const " : "") + type + "*)args[" + std::to_string(i) + "];");
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& b = buffers_[i];
    const std::string type = storage_type(b.dtype);
    head.line(type + "* const " + b.name + " = (" + type + "*)(scratch + " +
              std::to_string(plan.offsets[i]) + ");");
  }
  if (!shared_.empty()) {
    head.line("char* const workspace = (char*)args[" +
              std::to_string(kernel_.argument_dtypes.size()) + "];");
    for (const auto& [id, offset] : shared_) {
      const Memory& m = value(id).memory;
      const std::string type = storage_type(m.storage);
      head.line(type + "* const w" + m.pointer.substr(1) + " = (" + type + "*)(workspace + " +
                std::to_string(offset) + ");");
    }
  }
  if (part_ == Part::Once) {
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
    head.line("const long g" + std::to_string(d) + " = " + index + ";");
    below *= kernel_.grid[d];
  }
  head.append(code_.text());
  for (const auto& [tile, sharing] : kept_)
    head.line(packed_memory(tile).pointer + "of = block / " + std::to_string(sharing) + ";");
  head.close();
  head.close();
  return head.text();
}

namespace {

// True when the loops of `inner` begin with those of `outer` and then `next`.
bool continues(uint8_t inner, uint8_t outer, int next) {
  if ((inner & outer) != outer) return false;
  const unsigned rest = inner & ~static_cast<unsigned>(outer);
  return rest != 0 && __builtin_ctz(rest) == next;
}

}  // namespace

void KernelEmitter::dependencies(int id, uint8_t region_loops, std::set<int>& found) const {
  for (int input : value(id).inputs) {
    const Value& v = value(input);
    const bool fused = fused_[static_cast<size_t>(input)] >= 0;
    if ((v.phase.varies & ~region_loops) == 0 && v.in_memory && !fused) {
      found.insert(input);
    } else {
      dependencies(input, region_loops, found);
    }
  }
}

void KernelEmitter::region(uint8_t loops, int last) {
  const int n = static_cast<int>(kernel_.values.size());
  region_loops_ = loops;
  declare_extents(loops, last);
  // Stores and accumulations that happen in this very loop body, then what they need of it.
  std::vector<bool> here(static_cast<size_t>(n), false);
  for (int i = n; i-- > 0;) {
    const Value& v = value(i);
    if (!needed_[static_cast<size_t>(i)]) continue;
    const bool is_root = root(i);
    const uint8_t updates = update_loops(v);
    const bool at_home = v.phase.varies == loops;
    const bool again =
        last >= 0 && (v.phase.varies & ~loops) == 0 && (v.phase.varies >> last & 1) != 0;
    if (is_root ? (updates == loops || at_home) : at_home) {
      here[static_cast<size_t>(i)] = true;
    } else if (!is_root && again) {
      // Varies with fewer loops than this nest has: computed again if something here needs it.
      for (int user : users_[static_cast<size_t>(i)]) {
        here[static_cast<size_t>(i)] = here[static_cast<size_t>(i)] ||
                                       here[static_cast<size_t>(user)] ||
                                       (update_loops(value(user)) & loops) == loops;
      }
    }
  }
  // Loops directly inside this one.
  std::map<int, std::vector<int>> nests;
  for (int i = 0; i < n; ++i) {
    const Value& v = value(i);
    if (!needed_[static_cast<size_t>(i)] || !root(i)) continue;
    for (int l = last + 1; l < static_cast<int>(kernel_.loops.size()); ++l) {
      if (continues(update_loops(v), loops, l)) nests[l].push_back(i);
    }
  }
  std::vector<bool> done(static_cast<size_t>(n), false);
  const auto ready = [&](int id, int except = -1) {
    std::set<int> needs;
    dependencies(id, loops, needs);
    return std::all_of(needs.begin(), needs.end(), [&](int d) {
      return d == except || !here[static_cast<size_t>(d)] || done[static_cast<size_t>(d)];
    });
  };
  for (;;) {
    bool progress = false;
    for (int i = 0; i < n; ++i) {
      if (!here[static_cast<size_t>(i)] || done[static_cast<size_t>(i)]) continue;
      const Value& v = value(i);
      const bool folded_inside = is_accumulator(v.kind) && update_loops(v) != loops;
      if (folded_inside || !ready(i)) continue;
      done[static_cast<size_t>(i)] = true;
      progress = true;
      if (fused_[static_cast<size_t>(i)] < 0) compute(i);
      computed_.insert(i);
    }
    // A loop may start once all that its body takes from here is there.
    for (auto it = nests.begin(); it != nests.end(); ++it) {
      const bool can_start = std::all_of(it->second.begin(), it->second.end(), [&](int root) {
        return transitively_ready(root, loops, here, done, it->second);
      });
      if (!can_start) continue;
      const int l = it->first;
      const std::vector<int> roots = it->second;
      nests.erase(it);
      for (int root : roots) {
        if (is_accumulator(value(root).kind) && value(root).phase.varies == loops)
          start_accumulator(root);
      }
      const std::string variable = "l" + std::to_string(l);
      code_.open("for (long " + variable + " = 0; " + variable + " < " +
                 std::to_string(kernel_.loops[static_cast<size_t>(l)]) + "; ++" + variable + ")");
      regions_.emplace_back();
      region(static_cast<uint8_t>(loops | 1u << l), l);
      for (size_t b : regions_.back()) buffers_[b].death = std::max(buffers_[b].death, ++clock_);
      regions_.pop_back();
      region_loops_ = loops;
      code_.close();
      for (int root : roots) {
        if (is_accumulator(value(root).kind) && value(root).phase.varies == loops) {
          done[static_cast<size_t>(root)] = true;
        }
      }
      progress = true;
      break;
    }
    if (!progress) break;
  }
  for (int i = 0; i < n; ++i) {
    CHECK(!here[static_cast<size_t>(i)] || done[static_cast<size_t>(i)])
        << "value " << i << " (" << name(value(i).kind) << ") cannot be scheduled";
  }
  CHECK(nests.empty()) << "a loop cannot be scheduled";
}

bool KernelEmitter::transitively_ready(int root, uint8_t loops, const std::vector<bool>& here,
                                       const std::vector<bool>& done,
                                       const std::vector<int>& siblings) const {
  std::set<int> needs;
  dependencies(root, loops, needs);
  // Through values inside the loop down to those of this region.
  return std::all_of(needs.begin(), needs.end(), [&](int d) {
    const size_t i = static_cast<size_t>(d);
    if (std::find(siblings.begin(), siblings.end(), d) != siblings.end()) return true;
    return !here[i] || done[i];
  });
}

// --- values ------------------------------------------------------------------------------------

void KernelEmitter::compute(int id) {
  const Value& v = value(id);
  if (v.kind == OpKind::Iter && shared_.count(id) != 0) return workspace_pointer(id);
  if (v.kind == OpKind::Iter) {
    const auto& a = std::get<IterAttrs>(v.attrs);
    tile(id, v, a.imap, a.fmap);
    pack_tile(id);
    if (copies_.count(id) != 0) copy_tile(id);
    return;
  }
  if (v.kind == OpKind::Save) return save(id);
  if (is_accumulator(v.kind)) return accumulate(id);
  if (!v.in_memory) return;  // computed where it is used
  if (summed_.erase(id) > 0) return;
  if (const std::optional<int> operand = dying_operand(id)) {
    code_.line("// " + v.memory.pointer + " is written over " + value(*operand).memory.pointer);
    kernel_.values[static_cast<size_t>(id)].memory = value(*operand).memory;
  } else {
    allocate_value(id);
  }
  const char* kind = name(v.kind);
  code_.line("// " + v.memory.pointer + ": " + kind);
  if (is_product(v.kind)) return product(id, v.memory, false);
  if (is_reduction(v.kind)) return reduce(id, v.memory, false);
  if (v.kind == OpKind::Cumsum) return cumsum(id);
  if (transpose(id)) return;
  Nest loops = nest();
  const std::vector<Index> index = all_loops(loops, v.extents);
  const std::string x = elementwise(loops, id, index);
  const std::vector<int> sums = sums_along(id);
  size_t inner = v.extents.size();  // the axis of the innermost loop
  while (inner > 0 && v.extents[inner - 1].nominal == 1) --inner;
  const int lanes = inner == 0 ? 0 : row_lanes(v.extents[inner - 1], v.dtype);
  const std::string at = Nest::offset(index, v.memory.strides).text;
  // Rounded, and added up, by the vector.
  const bool rounds = lanes > 0 && v.memory.storage == DType::BF16 && panels_take_bf16(unit_.isa);
  std::string clauses, whole = "t_round_bf16(" + v.memory.pointer + " + " + at + ", out, count);";
  if (!rounds)
    loops.statement(loops.depth() - 1, store(v.memory, at, x, unit_.prelude));
  else
    loops.statement(loops.depth() - 1, "out[lane] = " + x + ";");
  for (int sum : sums) (rounds ? whole : clauses) += row_sum(loops, sum, x, index, lanes, rounds);
  if (rounds) {
    unit_.prelude.insert("t_round_bf16");
    loops.around_vectors("float out[16] __attribute__((aligned(64))) = {};", whole);
  }
  if (lanes > 0 && (rounds || !sums.empty()))
    loops.set_lanes(lanes);
  else if (!sums.empty())
    loops.set_simd(clauses);
  emit(loops);
  touch(id);
  for (int sum : sums) touch(sum);
}

bool KernelEmitter::transpose(int id) {
  const Value& v = value(id);
  if (v.kind != OpKind::Transpose || size_in_bytes(v.memory.storage) != 4) return false;
  const std::optional<Memory> from = view(v.inputs[0]);
  if (!from || from->storage != v.memory.storage) return false;
  // Strides of the operand along the result's axes; the innermost one must be far apart and some
  // other contiguous.
  const auto& perm = std::get<PermAttrs>(v.attrs).perm;
  std::vector<int64_t> strides;
  for (int p : perm) strides.push_back(from->strides[static_cast<size_t>(p)]);
  const size_t last = strides.size() - 1;
  size_t row = last;
  for (size_t i = 0; i < last; ++i) {
    if (strides[i] == 1 && v.extents[i].nominal >= 8) row = i;
  }
  if (row == last || strides[last] == 1 || v.extents[last].nominal < 8) return false;
  unit_.prelude.insert("t_transpose");
  Nest loops = nest();
  std::vector<Index> index(v.extents.size());
  for (size_t i = 0; i < last; ++i) {
    if (i != row) index[i] = loops.loop(v.extents[i].text());
  }
  loops.no_simd();
  touched_.push_back(v.inputs[0]);
  for (int through = v.inputs[0]; !value(through).in_memory;) {
    through = value(through).inputs[0];
    touched_.push_back(through);
  }
  loops.statement(loops.depth() - 1,
                  "t_transpose(" + from->pointer + " + " + Nest::offset(index, strides).text +
                      ", " + std::to_string(strides[last]) + ", " + v.memory.pointer + " + " +
                      Nest::offset(index, v.memory.strides).text + ", " +
                      std::to_string(v.memory.strides[row]) + ", " + v.extents[row].text() + ", " +
                      v.extents[last].text() + ");");
  emit(loops);
  touch(id);
  return true;
}

std::string KernelEmitter::elementwise(Nest& loops, int id, const std::vector<Index>& index) {
  // The value itself counts as virtual while it is computed.
  kernel_.values[static_cast<size_t>(id)].in_memory = false;
  const std::string x = loops.element(id, index);
  kernel_.values[static_cast<size_t>(id)].in_memory = true;
  return x;
}

std::optional<int> KernelEmitter::dying_operand(int id) const {
  const Value& v = value(id);
  // Only where no loop computes either of them a second time.
  const unsigned every_loop = (1u << kernel_.loops.size()) - 1;
  const bool pointwise = has(v.kind, algebra::Pointwise);
  if (!pointwise || v.phase.varies != every_loop || region_loops_ != every_loop ||
      shared_.count(id) != 0)
    return std::nullopt;
  const auto same_extents = [&](const Value& x) {
    return std::equal(x.extents.begin(), x.extents.end(), v.extents.begin(), v.extents.end(),
                      [](const Extent& a, const Extent& b) { return a.text() == b.text(); });
  };
  // What is read at the index that is written, and what is read elsewhere too.
  std::set<int> here, elsewhere;
  const std::function<void(int, bool)> walk = [&](int i, bool aligned) {
    const Value& x = value(i);
    aligned = aligned && same_extents(x);
    if (x.in_memory) {
      (aligned ? here : elsewhere).insert(i);
      return;
    }
    for (int input : x.inputs) walk(input, aligned && has(x.kind, algebra::Pointwise));
  };
  for (int input : v.inputs) walk(input, true);
  const std::function<bool(int)> read_later = [&](int i) {
    const std::vector<int>& users = users_[static_cast<size_t>(i)];
    return std::any_of(users.begin(), users.end(), [&](int user) {
      const Value& u = value(user);
      if (!needed_[static_cast<size_t>(user)] || user == id) return false;
      const int fused = fused_[static_cast<size_t>(user)];
      if (fused >= 0) return computed_.count(fused) == 0;
      if (u.in_memory || u.kind == OpKind::Save) return computed_.count(user) == 0;
      return read_later(user);
    });
  };
  for (int i : here) {
    const Value& x = value(i);
    const bool own = x.kind != OpKind::Iter && !is_accumulator(x.kind) && shared_.count(i) == 0 &&
                     fused_[static_cast<size_t>(i)] < 0;
    if (own && elsewhere.count(i) == 0 && x.phase == v.phase &&
        x.memory.storage == v.memory.storage && x.memory.panel == 0 && !read_later(i))
      return i;
  }
  return std::nullopt;
}

int64_t KernelEmitter::buffer_elements(const Value& v) const {
  int64_t n = 1;
  for (size_t i = 0; i < v.extents.size(); ++i) {
    n = std::max(n, v.extents[i].nominal * v.memory.strides[i]);
  }
  return n;
}

std::vector<Index> KernelEmitter::all_loops(Nest& loops, const std::vector<Extent>& extents) const {
  std::vector<Index> index;
  for (const Extent& e : extents) index.push_back(loops.loop(e.text()));
  return index;
}

std::vector<KernelEmitter::Split>
KernelEmitter::splits(int64_t extent, size_t axis, const GridMap& grid, const LoopMap& loop) const {
  std::vector<Split> result;
  for (size_t d = 0; d < kernel_.grid.size(); ++d) {
    if (grid[d] != static_cast<int>(axis)) continue;
    extent = ceil_div(extent, kernel_.grid[d]);
    result.push_back({"g" + std::to_string(d), extent});
  }
  for (size_t l = 0; l < kernel_.loops.size(); ++l) {
    if (loop[l] != static_cast<int>(axis)) continue;
    extent = ceil_div(extent, kernel_.loops[l]);
    result.push_back({"l" + std::to_string(l), extent});
  }
  return result;
}

void KernelEmitter::declare_extents(uint8_t loops, int last) {
  for (int id = 0; id < static_cast<int>(kernel_.values.size()); ++id) {
    const Value& v = value(id);
    if (v.kind != OpKind::Iter && v.kind != OpKind::Save) continue;
    for (size_t axis = 0; axis < v.extents.size(); ++axis) {
      const Extent& e = v.extents[axis];
      const std::string stem = std::to_string(id) + "_" + std::to_string(axis);
      if (e.actual != "n" + stem) continue;
      const bool here =
          last < 0 ? e.loops == 0 : (e.loops >> last & 1) != 0 && (e.loops & ~loops) == 0;
      if (!here) continue;
      // Begin and end of the part, clipped at every split.
      unit_.prelude.insert("t_least");
      const bool iter = v.kind == OpKind::Iter;
      const GridMap& grid =
          iter ? std::get<IterAttrs>(v.attrs).imap : std::get<SaveAttrs>(v.attrs).omap;
      const LoopMap& loop =
          iter ? std::get<IterAttrs>(v.attrs).fmap : std::get<SaveAttrs>(v.attrs).fmap;
      const int64_t whole = kernel_.argument_extents[static_cast<size_t>(v.argument)][axis];
      const std::vector<Split> parts = splits(whole, axis, grid, loop);
      if (part_ == Part::Once && parts.front().variable[0] == 'g')
        continue;  // of no block in particular
      std::string low = "0", high = std::to_string(whole);
      int step = 0;
      for (const Split& s : parts) {
        const std::string part = s.variable + "*" + std::to_string(s.size);
        const std::string from = low == "0" ? part : low + " + " + part;
        const std::string k = stem + "_" + std::to_string(step++);
        code_.line("const long b" + k + " = t_least(" + from + ", " + high + "), e" + k +
                   " = t_least(" + from + " + " + std::to_string(s.size) + ", " + high + ");");
        low = "b" + k;
        high = "e" + k;
      }
      code_.line("const long b" + stem + " = " + low + ", " + e.actual + " = " + high + " - " +
                 low + ";");
    }
  }
}

std::string KernelEmitter::tile_offset(int id, int argument, const std::vector<Extent>& extents,
                                       const GridMap& grid, const LoopMap& loop) const {
  const std::vector<int64_t>& whole = kernel_.argument_extents[static_cast<size_t>(argument)];
  const std::vector<int64_t> strides = kernel_.argument_pitch(argument);
  std::string offset;
  for (size_t axis = 0; axis < whole.size(); ++axis) {
    const std::vector<Split> parts = splits(whole[axis], axis, grid, loop);
    if (parts.empty()) continue;
    std::string begin;
    if (extents[axis].exact()) {
      for (const Split& s : parts) {
        begin += (begin.empty() ? "" : " + ") + s.variable + "*" + std::to_string(s.size);
      }
      if (parts.size() > 1 && strides[axis] != 1) begin = "(" + begin + ")";
    } else {
      begin = "b" + std::to_string(id) + "_" + std::to_string(axis);
    }
    if (const Layout* panels = kernel_.tiles_of(argument, axis)) {
      const std::string t = std::to_string(panels->tile);
      begin = "(" + begin + ")/" + t + "*" + std::to_string(panel_columns(*panels, panels->tile));
    }
    if (strides[axis] != 1) begin += "*" + std::to_string(strides[axis]);
    offset += (offset.empty() ? "" : " + ") + begin;
  }
  return offset;
}

void KernelEmitter::tile(int id, const Value& v, const GridMap& grid, const LoopMap& loop) {
  const size_t argument = static_cast<size_t>(v.argument);
  const std::string offset = tile_offset(id, v.argument, v.extents, grid, loop);
  const bool read = v.argument < kernel_.operands;
  code_.line(std::string(read ? "const " : "") + storage_type(kernel_.argument_dtypes[argument]) +
             "* const v" + std::to_string(id) + " = a" + std::to_string(v.argument) +
             (offset.empty() ? "" : " + " + offset) + ";");
}

void KernelEmitter::copy_tile(int id) {
  Value& v = kernel_.values[static_cast<size_t>(id)];
  std::vector<int64_t> shape;
  for (const Extent& e : v.extents) shape.push_back(e.nominal);
  const Memory copy{"v" + std::to_string(id) + "c", compute_dtype(v.dtype),
                    contiguous_strides(shape)};
  allocate(copy.pointer, copy.storage, v.elements());
  code_.line("// " + copy.pointer + ": " + v.memory.pointer + " as " + name(copy.storage));
  v.memory.pointer = "v" + std::to_string(id);
  v.memory.storage = v.dtype;
  v.memory.strides = kernel_.argument_pitch(v.argument);
  Nest loops = nest();
  const std::vector<Index> index = all_loops(loops, v.extents);
  const std::string x = loops.element(id, index);
  loops.statement(loops.depth() - 1,
                  store(copy, Nest::offset(index, copy.strides).text, x, unit_.prelude));
  emit(loops);
  v.memory = copy;
}

void KernelEmitter::save(int id) {
  const Value& v = value(id);
  const auto& a = std::get<SaveAttrs>(v.attrs);
  code_.line("// store result " + std::to_string(v.argument - kernel_.operands));
  code_.open("");
  tile(id, v, a.omap, a.fmap);
  const size_t argument = static_cast<size_t>(v.argument);
  const Memory memory{"v" + std::to_string(id), kernel_.argument_dtypes[argument],
                      contiguous_strides(kernel_.argument_extents[argument])};
  // The tile of the result may be shorter than the value, or the other way round.
  const Value& x = value(v.inputs[0]);
  Nest loops = nest();
  std::vector<Index> index;
  for (size_t i = 0; i < v.extents.size(); ++i) {
    const Extent &to = v.extents[i], &from = x.extents[i];
    if (to.exact() || from.exact()) {
      index.push_back(loops.loop(to.exact() ? from.text() : to.text()));
    } else {
      unit_.prelude.insert("t_least");
      index.push_back(loops.loop("t_least(" + to.text() + ", " + from.text() + ")"));
    }
  }
  const std::string element = loops.element(v.inputs[0], index);
  const std::string at = Nest::offset(index, memory.strides).text;
  const int lanes = streams(v.argument) ? row_lanes(v.extents.back(), memory.storage) : 0;
  if (lanes > 0 && memory.storage == compute_dtype(memory.storage)) {
    unit_.prelude.insert("t_stream");
    loops.statement(loops.depth() - 1, "out[lane] = " + element + ";");
    loops.set_lanes(lanes);
    loops.around_vectors(std::string(storage_type(memory.storage)) + " out[" +
                             std::to_string(lanes) + "] __attribute__((aligned(64)));",
                         "t_stream(" + memory.pointer + " + " + at + ", out, count);");
    emit(loops);
    code_.line("t_streamed();");
    code_.close();
    return;
  }
  loops.statement(loops.depth() - 1, store(memory, at, element, unit_.prelude));
  emit(loops);
  code_.close();
}

bool KernelEmitter::streams(int argument) const {
  int64_t all = 0, own = 0;
  for (size_t i = 0; i < kernel_.argument_extents.size(); ++i) {
    int64_t bytes = size_in_bytes(kernel_.argument_dtypes[i]);
    for (int64_t n : kernel_.argument_extents[i]) bytes *= n;
    all += bytes;
    if (static_cast<int>(i) == argument) own = bytes;
  }
  return all >= kBeyondCaches && own >= kBeyondCaches / 8;
}

void KernelEmitter::fill(const Memory& memory, const std::vector<Extent>& extents,
                         const std::string& x) {
  Nest loops = nest();
  std::vector<Index> index;
  for (const Extent& e : extents) index.push_back(loops.loop(std::to_string(e.nominal)));
  loops.statement(loops.depth() - 1, memory.pointer + "[" +
                                         Nest::offset(index, memory.strides).text + "] = " + x +
                                         ";");
  emit(loops);
}

std::string KernelEmitter::neutral(AccumKind kind, DType dtype) const {
  const std::string type = compute_type(dtype);
  if (kind == AccumKind::Sum || kind == AccumKind::Concat) return "0";
  const bool low = kind == AccumKind::Max;
  if (is_float(dtype)) return literal(Rational::infinity(low), dtype);
  switch (dtype) {
  case DType::I64: return low ? "(-0x7fffffffffffffffL - 1)" : "0x7fffffffffffffffL";
  case DType::I32: return low ? "(-0x7fffffff - 1)" : "0x7fffffff";
  case DType::I8: return low ? "-128" : "127";
  case DType::U8: return low ? "0" : "255";
  case DType::Bool: return low ? "0" : "1";
  case DType::F64:
  case DType::F32:
  case DType::F16:
  case DType::BF16: break;
  }
  unreachable("neutral");
}

void KernelEmitter::start_accumulator(int id) {
  const Value& v = value(id);
  const auto& a = std::get<AccumAttrs>(v.attrs);
  allocate_value(id);
  code_.line("// " + v.memory.pointer + ": accumulates (" + name(a.kind) +
             (v.kind == OpKind::AccumRescale ? ", rescaled" : "") + ")");
  if (v.kind == OpKind::AccumRescale) {
    fill(v.memory, v.extents, "0");
    if (scales_of(id) != v.memory.pointer) return;
    const Value& m = value(v.inputs[1]);
    std::vector<int64_t> shape;
    for (const Extent& e : m.extents) shape.push_back(e.nominal);
    for (const char* part : {"m", "s", "p"}) {  // running maximum, old scale, new scale
      allocate(v.memory.pointer + part, v.memory.storage, m.elements());
    }
    fill({v.memory.pointer + "m", v.memory.storage, contiguous_strides(shape)}, m.extents,
         neutral(AccumKind::Max, v.dtype));
    return;
  }
  if (a.kind == AccumKind::Concat) {
    for (const Extent& e : v.extents) {
      if (!e.exact() && e.actual.rfind("n" + std::to_string(id) + "_", 0) == 0) {
        code_.line("long " + e.actual + " = 0;");
      }
    }
    return;
  }
  fill(v.memory, v.extents, neutral(a.kind, v.dtype));
  touch(id);
}

void KernelEmitter::accumulate(int id) {
  const Value& v = value(id);
  const auto& a = std::get<AccumAttrs>(v.attrs);
  const int from = v.inputs[0];
  if (update_loops(v) != v.phase.varies || !a.loops.empty()) touch(id);
  if (fused_[static_cast<size_t>(from)] == id) {
    code_.line("// " + v.memory.pointer + " += " + name(value(from).kind));
    if (is_product(value(from).kind)) {
      product(from, v.memory, true);
    } else {
      reduce(from, v.memory, true);
    }
    touch(id);
    return;
  }
  const std::vector<Extent>& extents = value(from).extents;
  if (v.kind == OpKind::AccumRescale) return rescale(id);
  code_.line("// " + v.memory.pointer + " accumulates");
  Nest loops = nest();
  const std::vector<Index> index = all_loops(loops, extents);
  const std::string x = loops.element(from, index);
  std::string at = v.memory.pointer + "[" + Nest::offset(index, v.memory.strides).text;
  std::string statement;
  switch (a.kind) {
  case AccumKind::Sum: statement = at + "] += " + x + ";"; break;
  case AccumKind::Max:
  case AccumKind::Min: {
    unit_.prelude.insert("t_max");
    const char* as = is_float(v.dtype) || v.dtype == DType::I64 ? "" : "(int)";
    statement = at + "] = " + (a.kind == AccumKind::Max ? "t_max(" : "t_min(") + as + at + "], " +
                as + x + ");";
    break;
  }
  case AccumKind::Concat: {
    const size_t axis = static_cast<size_t>(a.axis);
    statement = at + " + l" + std::to_string(a.loops[0]) + "*" +
                std::to_string(extents[axis].nominal * v.memory.strides[axis]) + "] = " + x + ";";
    break;
  }
  }
  loops.statement(loops.depth() - 1, statement);
  emit(loops);
  if (a.kind == AccumKind::Concat && !v.extents[static_cast<size_t>(a.axis)].exact()) {
    code_.line(v.extents[static_cast<size_t>(a.axis)].actual +
               " += " + extents[static_cast<size_t>(a.axis)].text() + ";");
  }
  touch(id);
}

std::string KernelEmitter::scales_of(int id) const {
  const Value& v = value(id);
  const auto maxima = [&](const Value& accumulator) {  // axes of extent 1 do not matter
    int m = accumulator.inputs[1];
    while (value(m).kind == OpKind::Squeeze || value(m).kind == OpKind::Unsqueeze)
      m = value(m).inputs[0];
    return m;
  };
  for (int i = 0; i < id; ++i) {
    const Value& u = value(i);
    if (u.kind == OpKind::AccumRescale && needed_[static_cast<size_t>(i)] &&
        maxima(u) == maxima(v) && u.attrs == v.attrs && u.phase == v.phase && u.dtype == v.dtype) {
      return value(i).memory.pointer;
    }
  }
  return v.memory.pointer;
}

void KernelEmitter::rescale(int id) {
  const Value& v = value(id);
  const Value& m = value(v.inputs[1]);
  const std::string p = v.memory.pointer, scales = scales_of(id);
  code_.line("// " + p + " accumulates, rescaled to the running maximum");
  unit_.prelude.insert("t_exp_down");
  unit_.prelude.insert("t_max");
  std::vector<int64_t> shape;
  for (const Extent& e : m.extents) shape.push_back(e.nominal);
  const std::vector<int64_t> strides = contiguous_strides(shape);
  const std::string type = compute_type(v.dtype);
  if (scaled_.insert(scales).second) {
    Nest loops = nest();
    const std::vector<Index> index = all_loops(loops, m.extents);
    const std::string x = loops.element(v.inputs[1], index);
    const std::string at = "[" + Nest::offset(index, strides).text + "]";
    const int level = loops.depth() - 1;
    loops.statement(level, "const " + type + " old = " + scales + "m" + at + ", top = t_max(old, " +
                               x + ");");
    loops.statement(level, scales + "m" + at + " = top;");
    loops.statement(level,
                    scales + "s" + at + " = old == top ? (" + type + ")1 : t_exp_down(old - top);");
    loops.statement(level, scales + "p" + at + " = " + x + " == top ? (" + type +
                               ")1 : t_exp_down(" + x + " - top);");
    emit(loops);
  }
  Nest loops = nest();
  const std::vector<Extent>& extents = value(v.inputs[0]).extents;
  const std::vector<Index> index = all_loops(loops, extents);
  std::vector<Index> narrow;
  const size_t skip = index.size() - m.extents.size();
  for (size_t i = 0; i < m.extents.size(); ++i) {
    narrow.push_back(m.extents[i].nominal == 1 ? Index{} : index[skip + i]);
  }
  const std::string x = loops.element(v.inputs[0], index);
  const std::string at = p + "[" + Nest::offset(index, v.memory.strides).text + "]";
  const std::string by = "[" + Nest::offset(narrow, strides).text + "]";
  loops.statement(loops.depth() - 1, at + " = " + at + " * " + scales + "s" + by + " + " + x +
                                         " * " + scales + "p" + by + ";");
  emit(loops);
  touch(id);
  for (const char* part : {"m", "s", "p"}) touch(scales + part);
}

}  // namespace tessera
