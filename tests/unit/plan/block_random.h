// Random blocks: loops, tiles of two axes, loads, element by element steps, transposed reads, row
// sums, products and stores, each step with a random walk.
#pragma once

#include <optional>
#include <random>

#include "block_testing.h"

namespace tessera {

class RandomBlock {
 public:
  explicit RandomBlock(uint64_t seed) : rng_(seed) {}

  Block make(int steps = 6) {
    block_ = {};
    block_.threads = pick({32, 64, 128});
    const int shape = pick({0, 1, 1, 2, 3});  // no loop, one, two after another, one in the other
    if (shape >= 1) block_.loops.push_back({pick({1, 2, 5}), -1});
    if (shape >= 2) block_.loops.push_back({pick({2, 4}), shape == 3 ? 0 : -1});
    std::vector<int> bodies = {-1};
    if (shape >= 1) bodies.push_back(0);
    if (shape >= 2) bodies.push_back(1);
    if (shape == 3) bodies.push_back(0);
    bodies.push_back(-1);
    for (int body : bodies) {
      const int n = body < 0 ? steps / 2 : steps;
      for (int i = 0; i < n; ++i) add(body, i);
      if (block_.loops.empty()) continue;
      if (n == 0 || !has_step(body)) load(body);
    }
    for (size_t v = 0; v < block_.values.size(); ++v)
      if (!block_.values[v].registers && visible(static_cast<int>(v), -1) && coin(3))
        store(static_cast<int>(v));
    if (block_.steps.empty()) load(-1);
    read_all();
    return block_;
  }

 private:
  // What is loaded and not read is read by a step of its own, right after the load.
  void read_all() {
    for (size_t s = 0; s < block_.steps.size(); ++s) {
      const BlockStep& load = block_.steps[s];
      if (load.kind != StepKind::Load) continue;
      const int v = load.writes[0].value;
      bool read = false;
      for (const BlockStep& other : block_.steps)
        for (const BlockAccess& a : other.reads) read = read || a.value == v;
      if (read) continue;
      BlockStep use{
          "use " + load.name, StepKind::Compute, load.loop, extents(v), walk(), {{v, {0, 1}}}, {}};
      block_.steps.insert(block_.steps.begin() + static_cast<long>(s) + 1, use);
    }
  }
  int pick(std::vector<int> from) { return from[rng_() % from.size()]; }
  bool coin(int n) { return rng_() % static_cast<uint64_t>(n) == 0; }
  bool has_step(int body) const {
    for (const BlockStep& s : block_.steps)
      if (s.loop == body) return true;
    return false;
  }
  // Whether a value has been written where `body` can see it.
  bool visible(int v, int body) const {
    return inside(block_, body, made_in_[static_cast<size_t>(v)]);
  }
  int some_value(int body) {
    std::vector<int> all;
    for (size_t v = 0; v < block_.values.size(); ++v)
      if (visible(static_cast<int>(v), body)) all.push_back(static_cast<int>(v));
    return all.empty() ? -1 : all[rng_() % all.size()];
  }
  int value(DType dtype, std::vector<int64_t> extents, int body) {
    BlockValue v;
    v.name = "v" + std::to_string(block_.values.size());
    v.dtype = dtype;
    v.extents = std::move(extents);
    block_.values.push_back(v);
    made_in_.push_back(body);
    return static_cast<int>(block_.values.size()) - 1;
  }
  const std::vector<int64_t>& extents(int v) const {
    return block_.values[static_cast<size_t>(v)].extents;
  }
  Walk walk() {
    if (coin(3)) return row_walk(pick({0, 1}), pick({4, 8, 16, 32}), pick({1, 2, 4}));
    return linear_walk(pick({0, 1, 1}), pick({1, 2, 4, 8}));
  }
  DType dtype() { return coin(2) ? DType::F16 : DType::F32; }
  int64_t extent() { return pick({8, 16, 16, 32, 24, 10}); }
  std::string name(const char* what) { return what + std::to_string(block_.steps.size()); }

  void load(int body) {
    const int v = value(dtype(), {extent(), extent()}, body);
    BlockStep s{name("load"),
                StepKind::Load,
                body,
                extents(v),
                linear_walk(pick({0, 1, 1, 1}), pick({4, 8})),
                {},
                {{v, {0, 1}}},
                1};
    s.global_bytes = pick({2, 8, 16, 16}) < 4 ? 2 : 16;
    block_.steps.push_back(s);
  }
  void store(int v) {
    block_.steps.push_back({name("store"),
                            StepKind::Store,
                            -1,
                            extents(v),
                            {linear_walk(1, 4)},
                            {{v, {0, 1}}},
                            {},
                            1});
  }
  void add(int body, int i) {
    const int x = some_value(body);
    if (x < 0 || i == 0 || coin(4)) return load(body);
    if (coin(4)) return product(body);
    if (coin(5)) return row_sum(body, x);
    const bool transposed = coin(4);
    std::vector<int64_t> e = extents(x);
    if (transposed) std::swap(e[0], e[1]);
    BlockStep s{name("map"), StepKind::Compute,
                body,        e,
                walk(),      {{x, transposed ? std::vector<int>{1, 0} : std::vector<int>{0, 1}}},
                {}};
    const int y = some_value(body);
    if (y != x && extents(y) == e) s.reads.push_back({y, {0, 1}});
    // Sometimes an older value is updated, like an accumulator.
    if (y != x && extents(y) == e && coin(3) && !is_loaded(y)) {
      s.writes.push_back({y, {0, 1}});
    } else {
      s.writes.push_back({value(dtype(), e, body), {0, 1}});
    }
    if (coin(6)) {
      s.scratch_bytes = 256;
      s.barriers = pick({0, 1});
    }
    block_.steps.push_back(s);
  }
  bool is_loaded(int v) const {
    for (const BlockStep& s : block_.steps)
      for (const BlockAccess& a : s.writes)
        if (a.value == v && s.kind == StepKind::Load) return true;
    return false;
  }
  void row_sum(int body, int x) {
    BlockStep s{name("sum"),
                StepKind::Compute,
                body,
                extents(x),
                {row_walk(1, pick({4, 8, 32}), pick({1, 2}))},
                {{x, {0, 1}}},
                {}};
    s.writes.push_back({value(DType::F32, {extents(x)[0], 1}, body), {0, -1}});
    block_.steps.push_back(s);
  }
  void product(int body) {
    std::vector<std::pair<int, int>> pairs;
    for (size_t a = 0; a < block_.values.size(); ++a)
      for (size_t b = 0; b < block_.values.size(); ++b)
        if (a != b && visible(static_cast<int>(a), body) && visible(static_cast<int>(b), body) &&
            extents(static_cast<int>(a))[1] == extents(static_cast<int>(b))[0])
          pairs.emplace_back(static_cast<int>(a), static_cast<int>(b));
    if (pairs.empty()) return load(body);
    const auto [a, b] = pairs[rng_() % pairs.size()];
    const int64_t m = extents(a)[0], k = extents(a)[1], n = extents(b)[1];
    const int y = value(dtype(), {m, n}, body);
    const int warps = block_.threads / 32;
    BlockStep s{name("product"),
                StepKind::Compute,
                body,
                {m, n, k},
                coin(2) ? fragment_walk(0, 1, 2, 1, warps) : fragment_walk(0, 1, 2, warps, 1),
                {{a, {0, 2}}, {b, {2, 1}}},
                {{y, {0, 1}}}};
    block_.steps.push_back(s);
  }

  std::mt19937_64 rng_;
  Block block_;
  std::vector<int> made_in_;
};

}  // namespace tessera
