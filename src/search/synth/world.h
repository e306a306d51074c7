// The worlds in which synthesis compares programs (observational equivalence): every value is
// evaluated on random inputs at two sets of small sizes, exactly. A number is held three ways:
//   p  an element of the prime field of eval/field.h: the algebra, and what fingerprints are of
//   q  its counterpart under exp, for programs with exp or log: exp maps q to p by x ↦ ω^x, and log
//      takes discrete logarithms, so exp(log x) = x and exp(log x − log y) = x/y hold as for reals
//   x  a real number, which decides comparisons: max, |x| and where select by it what p and q
//   become
// Branches taken are those of one random real point, and on its branch programs are compared as
// rational functions: two programs that agree everywhere agree here, and the converse fails with
// probability about degree/2^31 an element (or where a branch was never taken; what is accepted is
// for verify/ to say).
#pragma once
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "eval/field.h"
#include "search/synth/node.h"

namespace tessera::synth {

// What dimensions are: extents in the program, sizes in the two draws.
struct DimTable {
  std::vector<int64_t> extents{1};
  std::vector<std::array<int, kDraws>> sizes{{1, 1}};

  int64_t elements(const Dims& d) const;     // in the program
  int64_t elements(uint64_t extent) const;   // in the program, of an Extent's attr
  int count(const Dims& d, int draw) const;  // in a draw
  int count(const Dims& d) const;            // in both
};

inline constexpr int kMaxCount = 128;  // elements of a value in both draws together

// A value's numbers, both draws one after the other, C order.
struct Sample {
  Dims dims;
  int n = 0;
  const uint32_t* p = nullptr;  // Montgomery form; bools: 0 or 1
  const uint32_t* q = nullptr;  // null where the world does without
  const double* x = nullptr;
  const int64_t* v = nullptr;  // integers as they are, which only they have: p and x follow from it
  uint64_t hash =
      0;  // of dims and p (bools: and of how they came about): equal hashes, equal values
};

struct Numbers {
  std::vector<uint32_t> p, q;
  std::vector<double> x;
  std::vector<int64_t> v;  // of integers
};

// Where samples live on.
class SampleStore {
 public:
  Sample keep(const Sample& s);
  // Forgets all samples; for many short-lived ones.
  void clear() {
    if (blocks_.size() > 1) blocks_.erase(blocks_.begin(), blocks_.end() - 1);
    used_ = 0;
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;  // each twice the size of the last, up to 1 MB
  size_t used_ = 0, size_ = 0;                        // bytes, of the last block
};

struct WorldVec;

class World {
 public:
  World(DimTable dims, bool with_q, uint64_t seed);

  const DimTable& dims() const { return dims_; }
  const std::vector<Rational>& constants() const { return constants_; }
  uint64_t constant(const Rational& value);  // its index, for Node::attr
  uint64_t kept(KeptOp op);                  // likewise
  std::vector<KeptOp>& kept_ops() { return kept_; }
  const std::vector<KeptOp>& kept_ops() const { return kept_; }
  bool with_q() const { return with_q_; }
  const FieldModel& model() const { return model_; }
  const Modulus<uint32_t>& field() const { return chain().modulus[0]; }  // of p

  // The value of an operation on operands; nothing where shapes do not fit, a value would have more
  // than kMaxCount elements, or some element is undefined. It lives until the next call: keep it.
  // `shape` is for Broadcast and Identity. Not for Leaf, Stack and Kept.
  std::optional<Sample> eval(const Node& node, const Sample* const* args,
                             const Dims* shape = nullptr);
  // In lenient mode undefined elements get some number, and are counted here.
  void set_lenient(bool lenient) { lenient_ = lenient; }
  int64_t undefined() const { return undefined_; }
  // Real numbers are rounded to f32 after each operation: what rounding does to a program.
  void set_rounding(bool rounding) { rounding_ = rounding; }
  // Random numbers for a value, the same for the same key; positive ones are squares in the field.
  // Of integers every other one is from the whole range of the dtype, where sums and products wrap.
  Numbers draw(const Dims& dims, uint64_t key, bool positive) const;
  // A value of given numbers, which have to live as long.
  Sample sample(const Dims& dims, const Numbers& numbers) const;
  // Of any node but leaves and what is kept; `value_of` tells its operands' values, `dims` is the
  // shape of its own.
  template <class ValueOf>
  std::optional<Sample> eval_any(const Node& node, const std::vector<KeptOp>& kept,
                                 const Dims& dims, ValueOf value_of) {
    if (node.form == Form::Stack) {
      auto parts = mapped(kept[node.attr].args, [&](ValueId a) { return &value_of(a); });
      const int axis = std::get<AxisAttrs>(kept[node.attr].attrs).axis;
      return stack(parts, axis, dims.axis[size_t(axis)]);
    }
    const Sample* args[3] = {};
    for (int i = 0; i < node.arity; ++i) args[i] = &value_of(node.arg[size_t(i)]);
    return eval(node, args, &dims);
  }

  // c with target = c·base in both draws; nothing where there is no such small rational (for
  // integers: integer of their dtype).
  std::optional<Rational> ratio(const Sample& target, const Sample& base) const;
  // Does a value, broadcast, equal the target wherever the mask is `truth`, and is it that
  // anywhere?
  bool agree(const Sample& target, const Sample& value, const Sample& mask, bool truth);
  // Two elements of numpy.matmul(a, b), p alone: picks() of the result; nothing where the shapes do
  // not fit.
  std::optional<std::array<uint32_t, kDraws>> product_picks(const Sample& a, const Sample& b);
  // One element of each draw, first along all axes but the last and last along that: operations
  // element by element take picks to picks, however their operands broadcast.
  std::array<int, kDraws> picks(const Dims& dims) const;
  // The number that all elements are.
  std::optional<Rational> number(const Sample& s) const;
  // The smallest value that broadcasts to this one: axes along which it does not vary become 1,
  // leading ones are dropped. `s` may be what the last call gave.
  Sample shrunk(const Sample& s);

 private:
  using Map = std::vector<uint16_t>;
  struct DotMap {
    Dims out;
    std::vector<uint16_t> a, b;  // the operands' elements, k after k of one output element
    std::array<int, kDraws> k{};
    int n0 = 0;  // output elements of the first draw
  };
  const ChainTables<uint32_t>& chain() const { return model_.tables().get<uint32_t>(); }
  Sample blank(const Dims& dims);                           // into scratch
  void set_integer(size_t at, DType dtype, int64_t value);  // wrapped; in all lanes of scratch
  void set(size_t at, const Sample& from, int element);     // in all lanes of scratch
  uint64_t hash_of(const Sample& s) const;
  static uint64_t named(const Node& node, const Sample* const* args, uint64_t values);
  const Map& broadcast_map(const Dims& from, const Dims& to);
  const Map& gather_map(const Node& node, const Dims& from, const Dims& to);
  const DotMap* dot_map(const Dims& a, const Dims& b);
  std::optional<Sample> counted(const Node& node, const Dims* shape);
  std::optional<Sample> pointwise(const Node& node, const Sample* const* args);
  std::optional<Sample> reduce(const Node& node, const Sample& a);
  std::optional<Sample> dot(const Sample& a, const Sample& b);
  std::optional<Sample> gathered(const Map& map, const Sample& a, const Dims& to);
  std::optional<Sample> stack(const std::vector<const Sample*>& args, int axis, DimId along);
  std::optional<Sample> cast(DType to, const Sample& a, WorldVec& x);  // to a float
  static std::optional<Rational> integer_ratio(const Sample& target, const Sample& base);
  // A small rational that is this residue (Montgomery form) modulo p.
  std::optional<Rational> rational(uint32_t residue) const;

  DimTable dims_;
  std::vector<Rational> constants_;
  std::vector<KeptOp> kept_;
  bool with_q_;
  uint64_t seed_;
  bool lenient_ = false, rounding_ = false;
  int64_t undefined_ = 0;
  FieldModel model_;
  std::vector<uint32_t> out_p_, out_q_;
  std::vector<double> out_x_;
  std::vector<int64_t> out_v_;
  std::unordered_map<uint64_t, Map> maps_;
  std::unordered_map<uint64_t, std::optional<DotMap>> dot_maps_;
};

// The shape an operation gives its operands; nothing where they do not fit. Not for Leaf, Stack,
// Broadcast and Kept.
std::optional<Dims> result_dims(const Node& node, const Dims* const* args);
// NumPy broadcasting.
std::optional<Dims> broadcast(const Dims& a, const Dims& b);

}  // namespace tessera::synth
