// Which values of a kernel get memory, which are computed where they are used, and which all blocks
// share.
#include <algorithm>

#include "backend/cpu/emitter.h"

namespace tessera {

namespace {

// Rough operations per element, to decide what is worth computing once.
int work(OpKind kind) {
  if (has(kind, algebra::Division)) return 4;
  if (has(kind, algebra::Call)) return 12;
  if (has(kind, algebra::Pointwise)) return 1;
  if (kind == OpKind::Gather || kind == OpKind::Concat || kind == OpKind::Pad) return 2;
  return 0;
}

}  // namespace

bool is_costly(OpKind kind) { return work(kind) >= 4; }

// Bytes of a transposed tile that is put down before it is used: it should stay in the cache.
constexpr int64_t kMostTurned = int64_t{256} << 10;

// A workspace that would fall out of the cache is not worth it.
constexpr int64_t kMostWorkspace = int64_t{8} << 20;

KernelEmitter::KernelEmitter(const KernelValues& kernel, UnitContext& unit, KernelPart part)
    : kernel_(kernel), unit_(unit), part_(part), users_(kernel_.users()) {
  fused_.assign(kernel_.values.size(), -1);
  mark_needed(saves());
  decide();
  share();
  keep_packed();
}

std::vector<int> KernelEmitter::saves() const {
  std::vector<int> found;
  for (size_t i = 0; i < kernel_.values.size(); ++i)
    if (kernel_.values[i].kind == OpKind::Save) found.push_back(int(i));
  return found;
}

void KernelEmitter::mark_needed(const std::vector<int>& roots) {
  needed_.assign(kernel_.values.size(), false);
  for (int id : roots) needed_[size_t(id)] = true;
  for (size_t i = needed_.size(); i-- > 0;) {
    if (!needed_[i]) continue;
    for (int input : kernel_.values[i].inputs) needed_[size_t(input)] = true;
  }
}

void KernelEmitter::share() {
  const int64_t blocks = product_of(kernel_.grid);
  if (blocks < 2) return;
  const int n = int(kernel_.values.size());
  // Same in all blocks, and not just a view of an operand.
  const auto same = [&](int id) {
    const Value& v = value(id);
    return needed_[size_t(id)] && !v.grid && v.in_memory && !is_load(v.kind) &&
           fused_[size_t(id)] < 0;
  };
  // ... and read, possibly through values without memory, by something that differs.
  std::vector<bool> read(size_t(n), false);
  for (int i = n; i-- > 0;) {
    if (!needed_[size_t(i)]) continue;
    for (int user : users_[size_t(i)]) {
      if (!needed_[size_t(user)]) continue;
      const Value& u = value(user);
      const int target = fused_[size_t(user)] >= 0 ? fused_[size_t(user)] : user;
      const bool differs = is_store(u.kind) || (value(target).in_memory && !same(target));
      const bool passes_on = !u.in_memory && !is_store(u.kind) && read[size_t(user)];
      if (differs || passes_on) read[size_t(i)] = true;
    }
  }
  for (int i = 0; i < n; ++i) {
    if (!same(i) || !read[size_t(i)]) continue;
    const Value& v = value(i);
    int64_t bytes = buffer_elements(v) * size_in_bytes(v.memory.storage);
    for (size_t l = 0; l < kernel_.loops.size(); ++l)
      if ((v.phase.varies >> l & 1) != 0) bytes *= kernel_.loops[l];
    shared_[i] = workspace_bytes_;
    workspace_bytes_ += (bytes + 63) / 64 * 64;
  }
  if (workspace_bytes_ > kMostWorkspace) {
    shared_.clear();
    workspace_bytes_ = 0;
  }
  if (shared_.empty()) return;
  if (part_ == KernelPart::Once) {
    std::vector<int> roots = mapped(shared_, [](const auto& entry) { return entry.first; });
    mark_needed(roots);
  } else {
    for (const auto& [id, offset] : shared_) {
      Value& v = kernel_.values[size_t(id)];
      v.kind = OpKind::Iter;  // read like an operand
      v.attrs = IterAttrs{};
      v.inputs.clear();
    }
    users_ = kernel_.users();
    mark_needed(saves());
  }
}

bool KernelEmitter::root(int id) const {
  const Value& v = value(id);
  return is_store(v.kind) || is_accumulator(v.kind) ||
         (part_ == KernelPart::Once && shared_.count(id) != 0);
}

bool is_tiled_product(const Value& v, CpuIsa isa) {
  if (!is_product(v.kind)) return false;
  const DType dtype = compute_dtype(v.dtype);
  if (dtype != DType::F32 && dtype != DType::F64) return false;
  return v.extents.back().nominal * 2 >= lanes_of(isa, dtype);
}

bool KernelEmitter::tiled_product(const Value& v) const { return is_tiled_product(v, unit_.isa); }

std::optional<Memory> KernelEmitter::view(int id) const { return view_of(id, nullptr); }

std::optional<Memory> KernelEmitter::view_of(int id, const Memory* source) const {
  const Value& v = value(id);
  if (v.in_memory) return source != nullptr ? *source : v.memory;
  const auto inner = [&]() { return view_of(v.inputs[0], source); };
  const auto widens = [&]() {
    const DType from = value(v.inputs[0]).dtype;
    return v.dtype == DType::F32 && compute_dtype(from) == DType::F32;
  };
  if (v.kind == OpKind::Cast && widens()) {
    std::optional<Memory> m = inner();
    return m && m->storage == DType::F32 ? m : std::nullopt;
  }
  if (turns_axes(v.kind)) {
    std::optional<Memory> m = inner();
    if (m) m->strides = turned_strides(v, m->strides);
    return m;
  }
  return std::nullopt;
}

void KernelEmitter::decide() {
  packed_ = packed_tiles(kernel_, unit_.isa);
  const std::vector<Pair> pairs = place_operands();
  for (size_t i = 0; i < needed_.size(); ++i)
    if (needed_[i] && (turned(int(i)) || kernel_.values[i].kind == OpKind::Concat)) place(i);
  fuse_into_accumulators();
  place_what_repeats();
  settle_pairs(pairs);
}

void KernelEmitter::place(size_t id, DType storage) {
  Value& v = kernel_.values[id];
  v.in_memory = true;
  v.memory.pointer = "v" + std::to_string(id);
  v.memory.storage = storage;
  std::vector<int64_t> shape = v.shape();
  if (tiled_product(v)) {  // whole vectors are stored, or all columns of a short tile's last panel
    int64_t stored = lanes_of(unit_.isa, storage);
    if (!v.extents.back().exact()) {
      const int64_t m = v.extents[v.extents.size() - 2].nominal;
      const auto panel = panel_shape(unit_.isa, storage, DType::BF16, m, shape.back());
      if (panel) stored = panel->tile.columns();
    }
    shape.back() = ceil_div(shape.back(), stored) * stored;
  }
  // Rows a multiple of a kilobyte apart would crowd into a few sets of the cache.
  const int64_t row_bytes = shape.empty() ? 0 : shape.back() * size_in_bytes(storage);
  if (shape.size() > 1 && row_bytes >= 1024 && row_bytes % 1024 == 0)
    shape.back() += 64 / size_in_bytes(storage);
  v.memory.strides = contiguous_strides(shape);
}

std::vector<KernelEmitter::Pair> KernelEmitter::place_operands() {
  std::vector<Pair> pairs;
  for (size_t i = 0; i < kernel_.values.size(); ++i) {
    Value& v = kernel_.values[i];
    if (!needed_[i]) continue;
    if (is_load(v.kind)) {
      v.in_memory = true;
      v.memory = kernel_.argument_memory(v.argument, "v" + std::to_string(i));
    } else if (is_reduction(v.kind) || is_product(v.kind) || is_scan(v.kind) ||
               is_accumulator(v.kind)) {
      place(i);
    }
    const bool dot = dot_product(v);
    if (dot) dots_.insert(int(i));
    if (!dot && !tiled_product(v)) continue;
    // Operands of tiled products must lie in memory in the type they are multiplied in; rows of
    // the right one must be contiguous.
    for (size_t k = 0; k < v.inputs.size(); ++k) {
      const int id = v.inputs[k];
      const size_t lefts = v.inputs.size() / 2;
      const bool right = k >= lefts;
      const int other = v.inputs[right ? k : k + lefts];  // the right one of both
      const std::optional<Memory> m = view(id);
      const std::optional<Memory> panel = dot ? std::nullopt : panel_operand(other);
      if (panel && (right || left_of_panel(id, *panel))) continue;
      const bool paired = !right && !dot && pair_operand(v, id, other).has_value();
      if (paired) pairs.push_back({int(i), id, other});
      const bool usable = paired || (right && (dot || row_operand(v, id))) ||
                          (m && m->storage == compute_dtype(v.dtype) &&
                           ((!right && !dot) || m->strides.back() == 1));
      if (usable) continue;
      const Value& x = value(id);
      if (x.kind == OpKind::Iter)
        copies_.insert(id);  // an iterator of another type or layout
      else if (panel && x.dtype == DType::BF16 && !x.in_memory && packed_operand(other))
        place(size_t(id), DType::BF16);  // rounded to its own type
      else
        place(size_t(id));
    }
  }
  return pairs;
}

// A product or reduction that only feeds an accumulator adds to it directly.
void KernelEmitter::fuse_into_accumulators() {
  for (size_t i = 0; i < kernel_.values.size(); ++i) {
    Value& v = kernel_.values[i];
    if (!needed_[i] || v.kind != OpKind::Accum || users_[size_t(v.inputs[0])].size() != 1) continue;
    const int from = v.inputs[0];
    const AccumKind kind = std::get<AccumAttrs>(v.attrs).kind;
    const OpKind producer = value(from).kind;
    const bool sums = kind == AccumKind::Sum && is_product(producer);
    if (!sums && !(is_reduction(producer) && fold_of(producer) == kind)) continue;
    if (value(from).phase.varies != update_loops(v)) continue;
    fused_[size_t(from)] = int(i);
    v.memory.strides = value(from).memory.strides;
  }
}

// Other values are computed where they are used, unless that repeats real work: walking back from
// the users, `places` are those where a value would be computed.
void KernelEmitter::place_what_repeats() {
  std::vector<std::set<int>> places(kernel_.values.size());
  for (size_t i = places.size(); i-- > 0;) {
    const Value& v = kernel_.values[i];
    if (!needed_[i] || v.in_memory || v.kind == OpKind::Save) continue;
    for (int user : users_[i]) {
      if (!needed_[size_t(user)]) continue;
      const Value& u = value(user);
      if (u.in_memory || is_store(u.kind))
        places[i].insert(user);
      else
        places[i].insert(places[size_t(user)].begin(), places[size_t(user)].end());
    }
    const int cost = inlined_work(int(i));
    // Slices read it at several indices in one place.
    const auto slices = std::ranges::count_if(
        users_[i], [&](int u) { return needed_[size_t(u)] && value(u).kind == OpKind::Slice; });
    bool outside = false;  // used inside loops that it does not vary with
    double evaluations = 0;
    for (int user : places[i]) {
      const Value& u = value(user);
      double space = double(u.elements());
      for (int input : u.inputs) space = std::max(space, double(value(input).elements()));
      if (is_product(u.kind)) space = double(v.elements());  // generic products reread
      evaluations += space / double(v.elements()) * double(std::max<int64_t>(1, slices));
      outside |= (update_loops(u) & ~v.phase.varies) != 0;
    }
    const bool leaf = v.kind == OpKind::Const || v.kind == OpKind::Iota;
    if (!leaf && ((outside && cost >= 1) || (evaluations > 1.5 && cost >= 3))) place(i);
  }
}

// Where the right one of a pair is converted after all, for something else or once for many uses,
// so must the left one be.
void KernelEmitter::settle_pairs(const std::vector<Pair>& pairs) {
  for (bool again = true; again;) {
    again = false;
    for (const Pair& p : pairs) {
      int source = p.right;
      while (!value(source).in_memory) source = value(source).inputs[0];
      const bool still =
          copies_.count(source) == 0 && pair_operand(value(p.product), p.left, p.right);
      const std::optional<Memory> m = view(p.left);
      if (still || copies_.count(p.left) != 0 || (m && m->storage == DType::F32)) continue;
      again = true;
      if (value(p.left).in_memory)
        copies_.insert(p.left);
      else
        place(size_t(p.left));
    }
  }
}

bool KernelEmitter::turned(int id) const {
  const Value& v = value(id);
  if (v.kind != OpKind::Transpose || v.in_memory || size_in_bytes(compute_dtype(v.dtype)) != 4 ||
      v.elements() * 4 > kMostTurned)
    return false;
  const std::optional<Memory> m = view(id);
  if (!m || m->storage != compute_dtype(v.dtype) || m->strides.back() == 1) return false;
  const size_t last = m->strides.size() - 1;
  bool tiles = false;
  for (size_t i = 0; i < last; ++i)
    tiles |= m->strides[i] == 1 && v.extents[i].nominal >= 8 && v.extents[last].nominal >= 8;
  if (!tiles) return false;
  return std::ranges::any_of(users_[size_t(id)], [&](int user) {
    const Value& u = value(user);
    if (!has(u.kind, algebra::Pointwise)) return false;
    return std::ranges::any_of(u.inputs, [&](int other) {
      const std::optional<Memory> o = view(other);
      return other != id && value(other).elements() == v.elements() && o && o->strides.back() == 1;
    });
  });
}

int KernelEmitter::inlined_work(int id) const {
  const Value& v = value(id);
  constexpr int kMost = 1000;  // enough to know: what is read twice doubles it at every step
  if (v.in_memory) return 0;
  int total = work(v.kind);
  for (size_t i = 0; i < v.inputs.size() && total < kMost; ++i) total += inlined_work(v.inputs[i]);
  return std::min(kMost, total);
}

}  // namespace tessera
