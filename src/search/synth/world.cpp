#include "search/synth/world.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "eval/ndarray.h"
#include "search/synth/world_vec.h"

namespace tessera::synth {
namespace {

constexpr uint64_t kModelSeed = 0x73796e7468;  // the functions known by name are always the same
constexpr size_t kFirstBlockBytes = size_t(1) << 14, kBlockBytes = size_t(1) << 20;
constexpr int64_t kSmall = 1024;  // parts of factors that are looked for

// The index of an element among a value's elements, from its coordinates in a draw.
struct Layout {
  std::array<int, kMaxAxes> extent{}, stride{};
  int rank = 0, count = 1;
  int first = 0;  // of the draw's elements
  Layout(const DimTable& dims, const Dims& d, int draw)
      : rank(d.rank), first(draw == 0 ? 0 : dims.count(d, 0)) {
    for (int a = rank; a-- > 0;) {
      extent[size_t(a)] = dims.sizes[d.axis[size_t(a)]][size_t(draw)];
      stride[size_t(a)] = count;
      count *= extent[size_t(a)];
    }
  }
};

// Calls f(coordinates) for every element in C order.
template <class F> void each(const Layout& layout, F f) {
  std::array<int, kMaxAxes> at{};
  for (int i = 0; i < layout.count; ++i) {
    f(at);
    for (int a = layout.rank; a-- > 0;) {
      if (++at[size_t(a)] < layout.extent[size_t(a)]) break;
      at[size_t(a)] = 0;
    }
  }
}

uint64_t key_of(const Dims& d) {
  uint64_t key = d.rank | uint64_t(d.dtype) << 4;
  for (int a = 0; a < d.rank; ++a) key = derive_key(key, d.axis[size_t(a)]);
  return key;
}

// How order or keyed functions make one vector of operands.
void load(WorldVec& v, const ChainTables<uint32_t>& chain, const Sample& s, bool with_q,
          const uint16_t* map, int n) {
  v.chain = &chain;
  v.n = n;
  v.with_q = with_q;
  v.undefined = 0;
  for (int i = 0; i < n; ++i) {
    const int at = map ? map[i] : i;
    v.p[i] = s.p[at];
    if (with_q) v.q[i] = s.q[at];
    v.x[i] = s.x[at];
  }
}
void load(IntVec& v, const Sample& s, const uint16_t* map, int n) {
  v.n = n;
  v.flagged = false;
  for (int i = 0; i < n; ++i) {
    const int at = map ? map[i] : i;
    v.v[i] = s.v ? s.v[at] : int64_t(s.p[at]);
  }
}

}  // namespace

int64_t DimTable::elements(const Dims& d) const {
  int64_t n = 1;
  for (int a = 0; a < d.rank; ++a) n *= extents[d.axis[size_t(a)]];
  return n;
}
int64_t DimTable::elements(uint64_t extent) const {
  int64_t n = 1;
  for (; extent != 0; extent >>= 8) n *= extents[extent & 255];
  return n;
}
int DimTable::count(const Dims& d, int draw) const {
  int n = 1;
  for (int a = 0; a < d.rank && n <= kMaxCount; ++a) n *= sizes[d.axis[size_t(a)]][size_t(draw)];
  return n;
}
int DimTable::count(const Dims& d) const { return count(d, 0) + count(d, 1); }

std::optional<Dims> broadcast(const Dims& a, const Dims& b) {
  Dims r;
  r.dtype = a.dtype;
  r.rank = std::max(a.rank, b.rank);
  for (int i = 0; i < r.rank; ++i) {
    const DimId x = a.back(i), y = b.back(i);
    if (x != y && x != kOne && y != kOne) return std::nullopt;
    r.axis[size_t(r.rank - 1 - i)] = x == kOne ? y : x;
  }
  return r;
}

std::optional<Dims> result_dims(const Node& node, const Dims* const* args) {
  const Dims* a = node.arity > 0 ? args[0] : nullptr;
  Dims r;
  switch (node.form) {
  case Form::Const:
  case Form::Extent: r.dtype = node.dtype; return r;
  case Form::Spread:
    if (a->rank != 1) return std::nullopt;
    r = *a;
    r.push(a->back(0));
    return r;
  case Form::Pointwise: {
    r = *a;
    for (int i = 1; i < node.arity; ++i) {
      const auto both = broadcast(r, *args[i]);
      if (!both) return std::nullopt;
      r = *both;
    }
    r.dtype = args[first_value(node.kind)]->dtype;
    if (is_comparison(node.kind)) r.dtype = DType::Bool;
    if (node.kind == OpKind::Cast) r.dtype = node.dtype;
    return r;
  }
  case Form::Reduce:
  case Form::Squeeze:
    r.dtype = a->dtype;
    for (int i = 0; i < a->rank; ++i)
      if (!(node.attr >> i & 1))
        r.push(a->axis[size_t(i)]);
      else if (node.form == Form::Squeeze && a->axis[size_t(i)] != kOne)
        return std::nullopt;
    return r;
  case Form::Unsqueeze:
    r.dtype = a->dtype;
    for (int i = 0, from = 0; from < a->rank || node.attr >> i != 0; ++i) {
      if (i >= kMaxAxes) return std::nullopt;
      r.push(node.attr >> i & 1 ? kOne : a->axis[size_t(from++)]);
    }
    return r;
  case Form::Transpose:
    r = *a;
    for (int i = 0; i < a->rank; ++i) r.axis[size_t(i)] = a->axis[node.attr >> (4 * i) & 15];
    return r;
  case Form::Diagonal:
    if (a->rank < 2 || a->back(0) != a->back(1)) return std::nullopt;
    r = *a;
    r.axis[size_t(--r.rank)] = kOne;
    return r;
  case Form::Triangle:
    if (a->rank < 2) return std::nullopt;
    return *a;
  case Form::Dot: {
    const Dims& b = *args[1];
    if (a->rank == 0 || b.rank == 0 || a->dtype != b.dtype) return std::nullopt;
    if (a->back(0) != (b.rank == 1 ? b.axis[0] : b.back(1))) return std::nullopt;
    Dims left, right;
    left.dtype = right.dtype = a->dtype;
    for (int i = 0; i + 2 < a->rank; ++i) left.push(a->axis[size_t(i)]);
    for (int i = 0; i + 2 < b.rank; ++i) right.push(b.axis[size_t(i)]);
    const auto batch = broadcast(left, right);
    if (!batch || batch->rank + 2 > kMaxAxes) return std::nullopt;
    r = *batch;
    if (a->rank > 1) r.push(a->back(1));
    if (b.rank > 1) r.push(b.back(0));
    return r;
  }
  case Form::Leaf:
  case Form::Identity:
  case Form::Broadcast:
  case Form::Stack:
  case Form::Kept: break;
  }
  unreachable("a form whose shape does not follow");
}

World::World(DimTable dims, bool with_q, uint64_t seed)
    : dims_(std::move(dims)), with_q_(with_q), seed_(seed), model_(FieldSize::Bits31, kModelSeed),
      out_p_(kMaxCount), out_q_(kMaxCount), out_x_(kMaxCount), out_v_(kMaxCount) {}

uint64_t World::constant(const Rational& value) { return add_unique(constants_, value); }

uint64_t World::kept(KeptOp op) {
  kept_.push_back(std::move(op));
  return kept_.size() - 1;
}

Sample World::blank(const Dims& dims) {
  Sample s;
  s.dims = dims;
  s.n = dims_.count(dims);
  s.p = out_p_.data();
  s.q = with_q_ ? out_q_.data() : nullptr;
  s.x = out_x_.data();
  s.v = is_integer(dims.dtype) ? out_v_.data() : nullptr;
  return s;
}

void World::set_integer(size_t at, DType dtype, int64_t value) {
  value = wrap_to(dtype, value);
  out_v_[at] = value;
  out_p_[at] = chain().modulus[0].from_int(value);
  if (with_q_) out_q_[at] = chain().modulus[1].from_int(value);
  out_x_[at] = double(value);
}

void World::set(size_t at, const Sample& from, int element) {
  out_p_[at] = from.p[element];
  if (with_q_) out_q_[at] = from.q[element];
  out_x_[at] = from.x[element];
  if (from.v) out_v_[at] = from.v[element];
}

uint64_t World::hash_of(const Sample& s) const {
  uint64_t h = key_of(s.dims);
  for (int i = 0; i < s.n; ++i) h = (h ^ s.p[i]) * 0x9fb21c651e98df25u + (h >> 29);
  return mix64(h);
}

Sample SampleStore::keep(const Sample& s) {
  const size_t words = size_t(s.n) * sizeof(uint32_t), reals = size_t(s.n) * sizeof(double);
  const size_t integers = s.v ? reals : 0;
  const size_t bytes = (reals + integers + words * (s.q ? 2 : 1) + 7) & ~size_t(7);
  if (blocks_.empty() || used_ + bytes > size_) {
    size_ = blocks_.empty() ? std::max(bytes, kFirstBlockBytes) : std::min(2 * size_, kBlockBytes);
    blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(size_));
    used_ = 0;
  }
  std::byte* at = blocks_.back().get() + used_;
  used_ += bytes;
  Sample r = s;
  r.x = reinterpret_cast<double*>(at);
  std::memcpy(at, s.x, reals);
  at += reals;
  if (s.v) {
    r.v = reinterpret_cast<int64_t*>(at);
    std::memcpy(at, s.v, integers);
    at += integers;
  }
  r.p = reinterpret_cast<uint32_t*>(at);
  std::memcpy(at, s.p, words);
  if (s.q) {
    r.q = reinterpret_cast<uint32_t*>(at + words);
    std::memcpy(at + words, s.q, words);
  }
  return r;
}

Numbers World::draw(const Dims& dims, uint64_t key, bool positive) const {
  const size_t n = size_t(dims_.count(dims));
  CHECK(n <= size_t(kMaxCount));
  Numbers r{std::vector<uint32_t>(n), std::vector<uint32_t>(n), std::vector<double>(n), {}};
  const uint64_t base = derive_key(derive_key(seed_, key), key_of(dims));
  const CounterRng p{derive_key(base, 0)}, q{derive_key(base, 1)}, x{derive_key(base, 2)};
  for (size_t i = 0; i < n; ++i) {
    if (dims.dtype == DType::Bool) {
      r.p[i] = uint32_t(p.at(i) & 1);
      r.x[i] = r.p[i];
      continue;
    }
    if (is_integer(dims.dtype)) {
      const uint64_t word = q.at(i);
      int64_t v = int64_t(word % 19) - 9;
      if (((base + i) & 1) != 0) {
        constexpr int64_t kEdges[] = {INT64_MAX, INT64_MIN, -1,  INT32_MAX,
                                      INT32_MIN, 127,       128, 255};
        v = (word & 3) == 0 ? kEdges[word >> 2 & 7] : int64_t(p.at(i));
      }
      v = wrap_to(dims.dtype, v);
      if (positive && v <= 0) v = v < 0 && v != wrap_to(dims.dtype, -v) ? -v : 1;
      r.v.push_back(v);
      r.p[i] = chain().modulus[0].from_int(v);
      r.q[i] = chain().modulus[1].from_int(v);
      r.x[i] = double(v);
      continue;
    }
    const uint32_t word = chain().element(0, p.at(i));
    r.p[i] = positive ? chain().modulus[0].mul(word, word) : word;
    r.q[i] = chain().element(1, q.at(i));
    // Of several sizes, so that comparisons come out both ways.
    constexpr double kScales[] = {0.1, 1, 1, 3};
    const double u = (0.25 + 2 * x.unit(i)) * kScales[q.at(i) >> 8 & 3];
    r.x[i] = positive || (q.at(i) & 1) != 0 ? u : -u;
  }
  return r;
}

Sample World::sample(const Dims& dims, const Numbers& numbers) const {
  Sample s;
  s.dims = dims;
  s.n = int(numbers.p.size());
  s.p = numbers.p.data();
  s.q = with_q_ ? numbers.q.data() : nullptr;
  s.x = numbers.x.data();
  s.v = numbers.v.empty() ? nullptr : numbers.v.data();
  s.hash = hash_of(s);
  return s;
}

// --- index maps -------------------------------------------------------------------------------

const World::Map& World::broadcast_map(const Dims& from, const Dims& to) {
  Map& map = maps_[derive_key(key_of(from), key_of(to))];
  if (!map.empty()) return map;
  for (int draw = 0; draw < kDraws; ++draw) {
    const Layout in(dims_, from, draw), out(dims_, to, draw);
    const int shift = to.rank - from.rank;
    each(out, [&](const auto& at) {
      int index = in.first;
      for (int a = 0; a < in.rank; ++a)
        if (in.extent[size_t(a)] != 1) index += at[size_t(a + shift)] * in.stride[size_t(a)];
      map.push_back(uint16_t(index));
    });
  }
  return map;
}

const World::Map& World::gather_map(const Node& node, const Dims& from, const Dims& to) {
  constexpr uint16_t kZero = UINT16_MAX;
  const uint64_t key = derive_key(derive_key(key_of(from), uint64_t(node.form) * 64 + 7),
                                  derive_key(node.attr, uint64_t(node.kind)));
  Map& map = maps_[key];
  if (!map.empty()) return map;
  for (int draw = 0; draw < kDraws; ++draw) {
    const Layout in(dims_, from, draw), out(dims_, to, draw);
    each(out, [&](const auto& at) {
      int index = in.first;
      if (node.form == Form::Transpose) {
        for (int a = 0; a < in.rank; ++a)
          index += at[size_t(a)] * in.stride[node.attr >> (4 * a) & 15];
      } else if (node.form == Form::Diagonal) {
        for (int a = 0; a < out.rank; ++a) index += at[size_t(a)] * in.stride[size_t(a)];
        index += at[size_t(out.rank - 1)] * in.stride[size_t(in.rank - 1)];
      } else if (node.form == Form::Spread) {
        index = at[0] == at[1] ? in.first + at[0] : kZero;
      } else {  // Triangle
        for (int a = 0; a < in.rank; ++a) index += at[size_t(a)] * in.stride[size_t(a)];
        const int64_t distance = at[size_t(in.rank - 1)] - at[size_t(in.rank - 2)];
        const bool kept = node.kind == OpKind::Triu ? distance >= int64_t(node.attr)
                                                    : distance <= int64_t(node.attr);
        if (!kept) index = kZero;
      }
      map.push_back(uint16_t(index));
    });
  }
  return map;
}

const World::DotMap* World::dot_map(const Dims& a, const Dims& b) {
  const uint64_t key = derive_key(key_of(a) + 1, key_of(b));
  if (const auto known = dot_maps_.find(key); known != dot_maps_.end())
    return known->second ? &*known->second : nullptr;
  std::optional<DotMap>& found = dot_maps_[key];
  const Dims* args[] = {&a, &b};
  const std::optional<Dims> out = result_dims(product(0, 1), args);
  if (!out || dims_.count(*out) > kMaxCount) return nullptr;
  found.emplace();
  found->out = *out;
  found->n0 = dims_.count(*out, 0);
  const int batch = out->rank - (a.rank > 1) - (b.rank > 1);
  for (int draw = 0; draw < kDraws; ++draw) {
    const Layout la(dims_, a, draw), lb(dims_, b, draw), lo(dims_, *out, draw);
    const int k = la.extent[size_t(a.rank - 1)];
    found->k[size_t(draw)] = k;
    each(lo, [&](const auto& at) {
      int ia = la.first, ib = lb.first;
      auto batched = [&](const Layout& l, int& index) {
        for (int i = 0; i + 2 < l.rank; ++i) {
          const size_t axis = size_t(i + batch - (l.rank - 2));
          if (l.extent[size_t(i)] != 1) index += at[axis] * l.stride[size_t(i)];
        }
      };
      batched(la, ia);
      batched(lb, ib);
      int next = batch;
      if (a.rank > 1) ia += at[size_t(next++)] * la.stride[size_t(a.rank - 2)];
      if (b.rank > 1) ib += at[size_t(next)] * lb.stride[size_t(b.rank - 1)];
      const int step_b = lb.stride[size_t(b.rank > 1 ? b.rank - 2 : 0)];
      for (int j = 0; j < k; ++j) {
        found->a.push_back(uint16_t(ia + j));
        found->b.push_back(uint16_t(ib + j * step_b));
      }
    });
  }
  return &*found;
}

// --- operations -------------------------------------------------------------------------------

std::optional<Sample> World::eval(const Node& node, const Sample* const* args, const Dims* shape) {
  std::optional<Sample> r;
  switch (node.form) {
  case Form::Const: {
    const Rational& value = constants_[node.attr];
    Dims scalar;
    scalar.dtype = node.dtype;
    r = blank(scalar);
    if (!is_float(node.dtype)) {
      if (!value.is_integer() || wrap_to(node.dtype, value.num()) != value.num())
        return std::nullopt;
      for (size_t i = 0; i < kDraws; ++i) set_integer(i, node.dtype, value.num());
      if (node.dtype == DType::Bool) out_p_[0] = out_p_[1] = uint32_t(value.num());
      break;
    }
    const auto p = chain().constant(0, value), q = chain().constant(1, value);
    if (!p || !q) return std::nullopt;
    for (size_t i = 0; i < kDraws; ++i) {
      out_p_[i] = *p;
      out_q_[i] = *q;
      out_x_[i] = value.to_double();
    }
    break;
  }
  case Form::Extent:
  case Form::Identity: r = counted(node, shape); break;
  case Form::Pointwise: r = pointwise(node, args); break;
  case Form::Reduce: r = reduce(node, *args[0]); break;
  case Form::Dot: r = dot(*args[0], *args[1]); break;
  case Form::Unsqueeze:
  case Form::Squeeze:
  case Form::Transpose:
  case Form::Diagonal:
  case Form::Spread:
  case Form::Triangle: {
    const Dims* from = &args[0]->dims;
    const std::optional<Dims> to = result_dims(node, &from);
    if (!to) return std::nullopt;
    if (node.form == Form::Unsqueeze || node.form == Form::Squeeze)
      r = *args[0], r->dims = *to;
    else
      r = gathered(gather_map(node, *from, *to), *args[0], *to);
    break;
  }
  case Form::Broadcast:
    if (dims_.count(*shape) > kMaxCount) return std::nullopt;
    r = gathered(broadcast_map(args[0]->dims, *shape), *args[0], *shape);
    break;
  case Form::Leaf:
  case Form::Stack:
  case Form::Kept: unreachable("values of their own");
  }
  if (!r) return std::nullopt;
  if (rounding_ && r->x == out_x_.data() && is_float(r->dims.dtype))
    for (int i = 0; i < r->n; ++i) out_x_[size_t(i)] = double(float(out_x_[size_t(i)]));
  for (int i = 0; i < r->n; ++i) {
    if (std::isfinite(r->x[i])) continue;
    if (!lenient_) return std::nullopt;
    ++undefined_;
  }
  r->hash = hash_of(*r);
  // Extents of unlike dimensions are unlike, whatever their sizes here.
  if (r->dims.dtype == DType::Bool || node.form == Form::Extent)
    r->hash = named(node, args, r->hash);
  return r;
}

// A handful of truths is soon the same by chance: what they are truths of counts too.
uint64_t World::named(const Node& node, const Sample* const* args, uint64_t values) {
  OpKind kind = node.kind;
  uint64_t a = node.arity > 0 ? args[0]->hash : 0, b = node.arity > 1 ? args[1]->hash : 0;
  const uint64_t c = node.arity > 2 ? args[2]->hash : 0;
  const bool reversed = kind == OpKind::Gt || kind == OpKind::Ge;
  if (kind == OpKind::Gt) kind = OpKind::Lt;
  if (kind == OpKind::Ge) kind = OpKind::Le;
  if (reversed || (has(kind, algebra::Commutative) && b < a)) std::swap(a, b);
  const uint64_t what = derive_key(uint64_t(node.form) << 8 | uint64_t(kind), node.attr);
  return derive_key(derive_key(values, what), derive_key(a, derive_key(b, c)));
}

// Whole numbers that follow from the sizes alone.
std::optional<Sample> World::counted(const Node& node, const Dims* shape) {
  Dims dims;
  dims.dtype = node.dtype;
  if (node.form == Form::Identity) dims = *shape;
  Sample r = blank(dims);
  if (r.n > kMaxCount) return std::nullopt;
  for (int draw = 0, i = 0; draw < kDraws; ++draw) {
    const int columns = node.form == Form::Identity ? dims_.sizes[dims.back(0)][size_t(draw)] : 1;
    for (int at = 0; at < dims_.count(dims, draw); ++at, ++i) {
      int64_t value = at / columns == at % columns;
      for (uint64_t left = node.form == Form::Extent ? node.attr : 0; left != 0; left >>= 8)
        value *= dims_.sizes[left & 255][size_t(draw)];
      out_p_[size_t(i)] = chain().modulus[0].from_int(value);
      out_q_[size_t(i)] = chain().modulus[1].from_int(value);
      out_x_[size_t(i)] = double(value);
    }
  }
  return r;
}

std::optional<Sample> World::pointwise(const Node& node, const Sample* const* args) {
  const Dims* dims[3] = {};
  for (int i = 0; i < node.arity; ++i) dims[i] = &args[i]->dims;
  const std::optional<Dims> out = result_dims(node, dims);
  if (!out) return std::nullopt;
  const int n = dims_.count(*out);
  if (n > kMaxCount) return std::nullopt;
  static thread_local WorldChunk in[3], result;
  const uint16_t* maps[3] = {};
  for (int i = 0; i < node.arity; ++i) {
    Dims to = *out;
    to.dtype = dims[i]->dtype;
    if (!(*dims[i] == to)) maps[i] = broadcast_map(*dims[i], to).data();
    if (!is_float(dims[i]->dtype))
      load(in[i].i, *args[i], maps[i], n);
    else
      load(in[i].f, chain(), *args[i], with_q_, maps[i], n);
  }
  Op op;
  op.kind = node.kind;
  if (node.kind == OpKind::Pow) op.attrs = PowAttrs{constants_[node.attr]};
  if (node.kind == OpKind::Cast && is_float(node.dtype)) return cast(node.dtype, *args[0], in[0].f);
  const DType operand = args[first_value(node.kind)]->dims.dtype;
  apply_pointwise(op, operand, out->dtype, in, result);
  Sample r = blank(*out);
  if (!is_float(out->dtype)) {
    if (result.i.flagged && !lenient_ &&
        std::any_of(result.i.flag, result.i.flag + n, [](auto f) { return f != 0; }))
      return std::nullopt;
    if (out->dtype != DType::Bool) {
      for (int i = 0; i < n; ++i) set_integer(size_t(i), out->dtype, result.i.v[i]);
      return r;
    }
    for (int i = 0; i < n; ++i) {
      out_p_[size_t(i)] = out_q_[size_t(i)] = uint32_t(result.i.v[i] != 0);
      out_x_[size_t(i)] = double(result.i.v[i] != 0);
    }
    return r;
  }
  if (result.f.undefined != 0) {
    if (!lenient_) return std::nullopt;
    undefined_ += result.f.undefined;
  }
  std::copy_n(result.f.p, n, out_p_.data());
  if (with_q_) std::copy_n(result.f.q, n, out_q_.data());
  std::copy_n(result.f.x, n, out_x_.data());
  return r;
}

// What rounds is a function known by name: it is neither linear nor undone by casting back.
// Integers become the numbers that they round to.
std::optional<Sample> World::cast(DType to, const Sample& a, WorldVec& x) {
  Dims dims = a.dims;
  dims.dtype = to;
  Sample r = blank(dims);
  if (is_float(a.dims.dtype)) {
    const bool widens = size_in_bytes(to) > size_in_bytes(a.dims.dtype) || to == a.dims.dtype;
    const WorldVec y =
        widens ? x : by_name(x, Keyed::Set, 16 + uint64_t(to), [](double v) { return v; });
    std::copy_n(y.p, r.n, out_p_.data());
    if (with_q_) std::copy_n(y.q, r.n, out_q_.data());
    std::copy_n(y.x, r.n, out_x_.data());
    return r;
  }
  for (size_t i = 0; i < size_t(r.n); ++i) {
    const double value = round_to(to, double(a.v ? a.v[i] : int64_t(a.p[i])));
    if (!lenient_ && !std::isfinite(value)) return std::nullopt;
    const int64_t whole = std::abs(value) < 0x1p63 ? int64_t(value) : INT64_MIN;  // −2^63 for +2^63
    out_p_[i] = chain().modulus[0].from_int(whole);
    if (with_q_) out_q_[i] = chain().modulus[1].from_int(whole);
    out_x_[i] = value;
  }
  return r;
}

std::optional<Sample> World::reduce(const Node& node, const Sample& a) {
  const Dims* from = &a.dims;
  const std::optional<Dims> to = result_dims(node, &from);
  if (!to || a.dims.dtype == DType::Bool) return std::nullopt;
  if (a.v && node.kind == OpKind::Mean) return std::nullopt;
  Dims kept = a.dims;  // with extent 1 where it is reduced: broadcasts back over the operand
  for (int i = 0; i < kept.rank; ++i)
    if (node.attr >> i & 1) kept.axis[size_t(i)] = kOne;
  const Map& map = broadcast_map(kept, a.dims);
  Sample r = blank(*to);
  const Field field = chain().modulus[0], exponents = chain().modulus[1];
  const bool sum = is_sum(node.kind), largest = fold_of(node.kind) == AccumKind::Max;
  std::array<bool, kMaxCount> begun{};
  for (int i = 0; i < a.n; ++i) {
    const size_t at = map[size_t(i)];
    if (!begun[at]) {
      begun[at] = true;
      set(at, a, i);
    } else if (sum && a.v) {
      set_integer(at, r.dims.dtype, int64_t(uint64_t(out_v_[at]) + uint64_t(a.v[i])));
    } else if (sum) {
      out_p_[at] = field.add(out_p_[at], a.p[i]);
      if (with_q_) out_q_[at] = exponents.add(out_q_[at], a.q[i]);
      out_x_[at] += a.x[i];
    } else if (a.v       ? a.v[i] != out_v_[at] && (a.v[i] > out_v_[at]) == largest
               : largest ? a.x[i] > out_x_[at]
                         : a.x[i] < out_x_[at]) {
      set(at, a, i);
    }
  }
  if (node.kind == OpKind::Mean) {
    for (int draw = 0, i = 0; draw < kDraws; ++draw) {
      const int n = dims_.count(*to, draw), over = dims_.count(a.dims, draw) / n;
      const uint32_t p = field.inv(field.from_int(over)),
                     q = exponents.inv(exponents.from_int(over));
      for (int j = 0; j < n; ++j, ++i) {
        out_p_[size_t(i)] = field.mul(out_p_[size_t(i)], p);
        if (with_q_) out_q_[size_t(i)] = exponents.mul(out_q_[size_t(i)], q);
        out_x_[size_t(i)] /= over;
      }
    }
  }
  return r;
}

std::optional<Sample> World::dot(const Sample& a, const Sample& b) {
  if (a.dims.dtype == DType::Bool) return std::nullopt;
  const DotMap* map = dot_map(a.dims, b.dims);
  if (!map) return std::nullopt;
  Sample r = blank(map->out);
  const Field field = chain().modulus[0], exponents = chain().modulus[1];
  for (size_t i = 0, at = 0; i < size_t(r.n); ++i) {
    const int k = map->k[int(i) >= map->n0];
    if (a.v) {
      uint64_t v = 0;
      for (int j = 0; j < k; ++j, ++at) v += uint64_t(a.v[map->a[at]]) * uint64_t(b.v[map->b[at]]);
      set_integer(i, r.dims.dtype, int64_t(v));
      continue;
    }
    uint32_t p = 0, q = 0;
    double x = 0;
    for (int j = 0; j < k; ++j, ++at) {
      const size_t ia = map->a[at], ib = map->b[at];
      p = field.add(p, field.mul(a.p[ia], b.p[ib]));
      if (with_q_) q = exponents.add(q, exponents.mul(a.q[ia], b.q[ib]));
      x += a.x[ia] * b.x[ib];
    }
    out_p_[i] = p;
    out_q_[i] = q;
    out_x_[i] = x;
  }
  return r;
}

std::optional<Sample> World::gathered(const Map& map, const Sample& a, const Dims& to) {
  static constexpr uint32_t kZero = 0;
  static constexpr double kZeroReal = 0;
  static constexpr int64_t kZeroInteger = 0;
  const Sample zero{to, 1, &kZero, &kZero, &kZeroReal, a.v ? &kZeroInteger : nullptr};
  Sample r = blank(to);
  for (size_t i = 0; i < size_t(r.n); ++i)
    if (map[i] == UINT16_MAX)
      set(i, zero, 0);
    else
      set(i, a, map[i]);
  return r;
}

std::optional<Sample> World::stack(const std::vector<const Sample*>& args, int axis, DimId along) {
  Dims to;
  to.dtype = args[0]->dims.dtype;
  const Dims& part = args[0]->dims;
  if (part.rank + 1 > kMaxAxes) return std::nullopt;
  for (int i = 0; i <= part.rank; ++i)
    to.push(i == axis ? along : part.axis[size_t(i < axis ? i : i - 1)]);
  Sample r = blank(to);
  if (r.n > kMaxCount) return std::nullopt;
  size_t i = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    const Layout in(dims_, part, draw), out(dims_, to, draw);
    each(out, [&](const auto& at) {
      int index = in.first;
      for (int a = 0; a < in.rank; ++a)
        index += at[size_t(a < axis ? a : a + 1)] * in.stride[size_t(a)];
      set(i++, *args[size_t(at[size_t(axis)])], index);
    });
  }
  r.hash = hash_of(r);
  return r;
}

// --- looking at values --------------------------------------------------------------------------

std::optional<Rational> World::rational(uint32_t residue) const {
  // Rational reconstruction: a/b ≡ r (mod p) with small a and b, by the Euclidean algorithm.
  const int64_t p = chain().modulus[0].p;
  int64_t r0 = p, r1 = chain().modulus[0].to_word(residue), t0 = 0, t1 = 1;
  while (r1 > kSmall) {
    const int64_t quotient = r0 / r1;
    std::tie(r0, r1) = std::pair(r1, r0 - quotient * r1);
    std::tie(t0, t1) = std::pair(t1, t0 - quotient * t1);
  }
  if (t1 == 0 || std::abs(t1) > kSmall) return std::nullopt;
  return t1 < 0 ? Rational::ratio(-r1, -t1) : Rational::ratio(r1, t1);
}

std::optional<Rational> World::ratio(const Sample& target, const Sample& base) const {
  if (!(target.dims == base.dims)) return std::nullopt;
  if (target.v) return integer_ratio(target, base);
  const Field field = chain().modulus[0];
  int at = 0;
  while (at < base.n && base.p[at] == 0) ++at;
  if (at == base.n || target.p[at] == 0) return std::nullopt;
  for (int i = 0; i < base.n; ++i)
    if (field.mul(target.p[at], base.p[i]) != field.mul(target.p[i], base.p[at]))
      return std::nullopt;
  return rational(field.mul(target.p[at], field.inv(base.p[at])));
}

std::optional<Rational> World::integer_ratio(const Sample& target, const Sample& base) {
  int at = 0;
  while (at < base.n && (base.v[at] & 1) == 0) ++at;
  if (at == base.n) return std::nullopt;  // only odd numbers divide modulo 2^n
  uint64_t inverse = 1;                   // Newton's iteration: correct bits double
  for (int i = 0; i < 6; ++i) inverse *= 2 - uint64_t(base.v[at]) * inverse;
  const DType dtype = target.dims.dtype;
  const int64_t c = wrap_to(dtype, int64_t(uint64_t(target.v[at]) * inverse));
  if (c == 0 || std::abs(double(c)) > kSmall) return std::nullopt;
  for (int i = 0; i < base.n; ++i)
    if (wrap_to(dtype, int64_t(uint64_t(c) * uint64_t(base.v[i]))) != target.v[i])
      return std::nullopt;
  return Rational(c);
}

std::optional<Rational> World::number(const Sample& s) const {
  if (s.dims.dtype == DType::Bool) return std::nullopt;
  for (int i = 1; i < s.n; ++i)
    if (s.p[i] != s.p[0]) return std::nullopt;
  if (s.v) return Rational(s.v[0]);
  return rational(s.p[0]);
}

bool World::agree(const Sample& target, const Sample& value, const Sample& mask, bool truth) {
  auto map_to_target = [&](const Dims& from) -> const Map* {
    Dims to = target.dims;
    to.dtype = from.dtype;
    return from == to ? nullptr : &broadcast_map(from, to);
  };
  const Map* masks = map_to_target(mask.dims);
  const Map* values = map_to_target(value.dims);
  bool any = false;
  for (int i = 0; i < target.n; ++i) {
    if ((mask.p[masks ? (*masks)[size_t(i)] : i] != 0) != truth) continue;
    const int at = values ? (*values)[size_t(i)] : i;
    if (target.v ? target.v[i] != value.v[at] : target.p[i] != value.p[at]) return false;
    any = true;
  }
  return any;
}

std::array<int, kDraws> World::picks(const Dims& dims) const {
  const auto& last = dims_.sizes[dims.back(0)];
  return {last[0] - 1, dims_.count(dims, 0) + last[1] - 1};
}

std::optional<std::array<uint32_t, kDraws>> World::product_picks(const Sample& a, const Sample& b) {
  const DotMap* map = dot_map(a.dims, b.dims);
  if (!map) return std::nullopt;
  const std::array<int, kDraws> at = picks(map->out);
  std::array<uint32_t, kDraws> r{};
  for (size_t draw = 0; draw < kDraws; ++draw) {
    const size_t k = size_t(map->k[draw]);
    const size_t before = draw == 0 ? 0 : size_t(map->n0 * map->k[0]);
    const size_t first = before + size_t(at[draw] - (draw == 0 ? 0 : map->n0)) * k;
    for (size_t j = first; j < first + k; ++j)
      r[draw] = field().add(r[draw], field().mul(a.p[map->a[j]], b.p[map->b[j]]));
  }
  return r;
}

Sample World::shrunk(const Sample& s) {
  Dims to = s.dims;
  for (int a = 0; a < to.rank; ++a) {
    if (to.axis[size_t(a)] == kOne) continue;
    Dims trial = to;
    trial.axis[size_t(a)] = kOne;
    const Map& map = broadcast_map(trial, s.dims);
    std::array<int, kMaxCount> first;
    first.fill(-1);
    bool same = true;
    for (int i = 0; same && i < s.n; ++i) {
      int& f = first[map[size_t(i)]];
      if (f < 0) f = i;
      same = s.p[i] == s.p[f];
    }
    if (same) to = trial;
  }
  const Map& map = broadcast_map(to, s.dims);
  // Elements move towards the front, so that reading ahead of writing is enough within scratch.
  Sample r = blank(to);
  std::array<int, kMaxCount> from;
  for (int i = s.n; i-- > 0;) from[map[size_t(i)]] = i;
  for (int i = 0; i < r.n; ++i) {
    const int at = from[size_t(i)];
    CHECK(at >= i);
    set(size_t(i), s, at);
  }
  while (r.dims.rank > 0 && r.dims.axis[0] == kOne) {
    for (int a = 0; a + 1 < r.dims.rank; ++a) r.dims.axis[size_t(a)] = r.dims.axis[size_t(a + 1)];
    r.dims.axis[--r.dims.rank] = kOne;
  }
  r.hash = hash_of(r);
  return r;
}

}  // namespace tessera::synth
