// Blocks of loops under construction: loops around what is added next, elements of values as
// expressions, and folds (sums, products, windows), of which there is one form for all. Internal to
// loops.cpp.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "kernel/ir.h"

namespace tessera::kernel {

using Indices = std::vector<Expr>;

// A value made of terms: of each element at `out` the terms at `in`.
struct Fold {
  AccumKind kind = AccumKind::Sum;
  int buffer = -1;
  std::vector<int64_t> out, in;  // extents
  // The axis of `out` of which several elements are made at once, which share operands; -1: none.
  int shared = -1;
  std::function<Scalar(const Indices& out, const Indices& in)> term;
  std::function<Scalar(const Scalar& total, const Indices& out)> finish =
      [](const Scalar& total, const Indices&) { return total; };
};

class LoopBuilder {
 public:
  LoopBuilder(const Graph& graph, Function& function)
      : g_(graph), f_(function), uses_(use_counts(graph)) {}

  // Where values are kept, by tensor; -1: nowhere, they are computed where they are read.
  std::vector<int> home;

  int add_buffer(const std::string& name, DType dtype, int64_t elements, Space space);
  // Statements that compute one value.
  void block(const std::string& note, const std::function<void()>& body);
  // A loop over [0, extent), none where that is 1; the body is given the index.
  void loop(LoopKind kind, int64_t extent, const std::function<void(const Expr&)>& body);
  // Loops over all positions: parallel ones, the innermost a vector loop.
  void loops(const std::vector<int64_t>& extents, const std::function<void(const Indices&)>& body);
  // Loops over all positions of the axes from `next` on; they set `index`.
  void nest(LoopKind kind, const std::vector<int64_t>& extents, Indices& index,
            const std::function<void()>& body, size_t next = 0);
  void statement(Statement s) { body_->push_back(std::move(s)); }
  void store(int buffer, const Expr& offset, const Scalar& value);
  // A whole number that is read from memory, in [0, extent) or the function ends.
  Expr index(const Scalar& value, int64_t extent);
  int local(DType dtype, int64_t elements);

  Scalar element(TensorId t, const Indices& index);
  Scalar load(int buffer, const Expr& offset) const;
  // Stores all elements of a value at its home's `offset` of their index.
  void store_all(TensorId t, int buffer, const std::function<Expr(const Indices&)>& offset);
  void fold(const Fold& fold);

 private:
  bool is_flat(TensorId t, int64_t elements) const;
  Scalar pointwise(const Op& op, const Indices& index);
  Scalar movement(const Op& op, const Indices& index);
  Scalar reshaped(const Op& op, const Indices& index);
  Scalar chosen(const Condition& when, const std::function<Scalar()>& then,
                const Scalar& otherwise);
  void fold_columns(const Fold& f, DType as);
  void fold_lanes(const Fold& f, DType as);
  std::string fresh(const std::string& name);

  const Graph& g_;
  Function& f_;
  std::vector<int> uses_;  // by tensor
  Body* body_ = &f_.body;
  int depth_ = 0;      // loops around
  int guards_ = 0;     // choices around: nothing is computed ahead of them
  bool flat_ = false;  // indices are of all elements in their order
  int lets_ = 0;
  std::map<std::string, Scalar> known_;  // elements that have names here
  std::set<std::string> names_;          // of buffers
};

// An address: of a tensor whose elements are in order.
Expr offset_of(const Indices& index, const std::vector<int64_t>& extents);
// The least value of a dtype (or the greatest): where a maximum (minimum) begins.
Rational extreme(DType dtype, bool least);

}  // namespace tessera::kernel
