#include "search/synth/sketches.h"

namespace tessera::synth {
namespace {

class Meeting {
 public:
  explicit Meeting(Bank& bank) : bank_(bank), world_(bank.world()), target_(bank.target_sample()) {}

  void run(int size) {
    if (target_.dims.dtype == DType::Bool) return;
    std::vector<uint32_t> known;
    for (int s = 0; s <= size; ++s)
      known.insert(known.end(), bank_.level(s).begin(), bank_.level(s).end());
    for (uint32_t b : known) {
      if (bank_.over()) return;
      const Sample base = bank_[b].sample;
      if (bank_[b].known == bank_.target() || base.dims.dtype != target_.dims.dtype) continue;
      if (const auto c = world_.ratio(target_, base)) bank_.offer_scaled(b, *c);
      if (bank_.is_constant(b)) continue;
      const auto shape = broadcast(target_.dims, base.dims);
      if (!shape || !(*shape == target_.dims)) continue;
      for (const Hole& h : holes_beside(bank_, b)) fill(h, b, base);
    }
    choices(known);
    if (!is_float(target_.dims.dtype)) return;
    const Grammar& grammar = bank_.grammar();
    if (grammar.roots) inverse(OpKind::Sqr, OpKind::Sqrt);
    if (grammar.exponentials) inverse(OpKind::Log, OpKind::Exp);
    if (grammar.exponentials) inverse(OpKind::Exp, OpKind::Log);
  }

 private:
  void fill(const Hole& h, uint32_t b, const Sample& base) {
    ++bank_.report().evaluations;
    const Sample* args[] = {h.reversed ? &base : &target_, h.reversed ? &target_ : &base};
    const std::optional<Sample> value = world_.eval(pointwise(h.solve, 0, 1), args);
    if (!value) return;
    uint32_t a = bank_.find(*value);
    if (a == kNone && varies_less(world_, *value)) {
      const Sample small = world_.shrunk(*value);
      a = bank_.find(small);
      if (a == kNone && small.dims.rank == 0) a = bank_.constant_of(small);
    }
    if (a == kNone || bank_[a].known == bank_.target()) return;
    bank_.offer_target(h.second ? pointwise(h.kind, b, a) : pointwise(h.kind, a, b));
  }

  // target = f(hole)
  void inverse(OpKind inverse, OpKind function) {
    ++bank_.report().evaluations;
    const Sample* args[] = {&target_};
    const std::optional<Sample> value = world_.eval(pointwise(inverse, 0), args);
    if (!value) return;
    const uint32_t at = bank_.find(*value);
    if (at == kNone || bank_[at].known == bank_.target()) return;
    bank_.offer_target(pointwise(function, at));
  }

  // target = where(c, a, b) for the conditions of the program: c splits the target's elements, and
  // each part is looked for by itself.
  void choices(const std::vector<uint32_t>& known) {
    for (uint32_t c : bank_.conditions()) {
      const Sample mask = bank_[c].sample;
      const auto shape = broadcast(target_.dims, mask.dims);
      if (!shape || !(*shape == target_.dims)) continue;
      uint32_t side[2] = {kNone, kNone};
      for (const bool truth : {true, false}) {
        uint32_t& best = side[truth];
        for (uint32_t a : known) {
          if (bank_.over()) return;
          const Entry& e = bank_[a];
          if (e.known == bank_.target() || e.sample.dims.dtype != target_.dims.dtype ||
              (best != kNone && e.total >= bank_[best].total))
            continue;
          const auto both = broadcast(target_.dims, e.sample.dims);
          if (both && *both == target_.dims && world_.agree(target_, e.sample, mask, truth))
            best = a;
        }
        if (best == kNone) break;
      }
      bank_.report().evaluations += int64_t(known.size() / 8);
      if (side[0] != kNone && side[1] != kNone)
        bank_.offer_target(pointwise(OpKind::Where, c, side[1], side[0]));
    }
  }

  Bank& bank_;
  World& world_;
  const Sample target_;
};

}  // namespace

std::vector<Hole> holes_beside(const Bank& bank, uint32_t base) {
  std::vector<Hole> holes{{OpKind::Add, false, OpKind::Sub, false},
                          {OpKind::Sub, true, OpKind::Sub, true},
                          {OpKind::Sub, false, OpKind::Add, false}};
  if (!is_float(bank[base].sample.dims.dtype)) return holes;  // integers do not divide
  holes.push_back({OpKind::Mul, false, OpKind::Div, false});
  const bool extent = bank.is_extent(base);
  if (extent || bank.grammar().quotients) holes.push_back({OpKind::Div, false, OpKind::Mul, false});
  if (!extent && bank.grammar().quotients) holes.push_back({OpKind::Div, true, OpKind::Div, true});
  return holes;
}

bool varies_less(const World& world, const Sample& s) {
  if (s.dims.rank == 0) return true;
  const int n0 = world.dims().count(s.dims, 0);
  const int row = s.dims.rank > 1 ? n0 / world.dims().sizes[s.dims.axis[0]][0] : 1;
  return (n0 > 1 && s.p[0] == s.p[1]) || (row < n0 && s.p[0] == s.p[row]) || s.dims.rank > 2;
}

void meet(Bank& bank, int size) { Meeting(bank).run(size); }

}  // namespace tessera::synth
