// The reference interpreter, a template over the domain: kernel graphs operator by operator, block
// graphs literally (every block, every iteration, on tiles clipped at the tensor's edge).
#pragma once
#include <functional>

#include "base/error.h"
#include "eval/demand.h"
#include "eval/domains.h"
#include "eval/movement.h"
#include "eval/pointwise.h"
#include "eval/terms.h"
#include "eval/trace.h"
#include "ir/axis_reads.h"
#include "ir/block_schedule.h"
#include "ir/window.h"

namespace tessera {

template <class D> class Interpreter {
 public:
  using Vec = typename D::Vec;
  using Chunk = typename D::Chunk;
  // Called after each kernel-level operator with its operands and results.
  using Observer = std::function<void(const Op&, const std::vector<View>& values)>;
  // Gives results to an opaque operator; the views are allocated, to be filled.
  using Opaque =
      std::function<void(const Op&, const std::vector<View>& in, std::vector<View>& out)>;

  // Called with the record of each block of a kernel; blocks then run one after the other.
  using Tracer = std::function<void(const Op& kernel, BlockTrace&&)>;

  Interpreter(const D& domain, ThreadPool* pool, Opaque opaque = {})
      : domain_(domain), pool_(pool), opaque_(std::move(opaque)) {}
  void set_tracer(Tracer tracer) { tracer_ = std::move(tracer); }
  // See FieldOptions::sample_blocks; fields only, which can flag what was left out.
  void set_sample_blocks(int n) { sample_blocks_ = n; }

  // Evaluates the operators that `demand` needs. `values` has the inputs set; afterwards those of
  // the outputs are valid, in storage of `arenas` (one per operator, freed after its last reader;
  // in one where all is small).
  void run(const Graph& g, const Demand& demand, std::vector<View>& values,
           std::vector<Arena>& arenas, const Observer& observer = {});

  // --- building blocks, also used for block and thread graphs (interpreter_blocks.h)

  // An uninitialised contiguous tensor.
  View allocate(Arena& arena, DType dtype, int rank, const std::array<int64_t, kMaxRank>& shape,
                Components demand, bool flags, bool sets) const {
    View v;
    v.dtype = dtype;
    v.rank = rank;
    v.shape = shape;
    v.set_contiguous_strides();
    const size_t n = size_t(v.size());
    const uint8_t planes = is_float(dtype) ? domain_.value_planes(demand) : uint8_t(1);
    for (int p = 0; p < 3; ++p)
      if (planes >> p & 1) v.plane[size_t(p)] = arena.allocate(n * plane_width(v, p, D::kWord));
    if (flags) v.plane[kFlagPlane] = arena.allocate(n);
    if (sets) v.plane[kSetPlane] = arena.allocate(n * 8);
    return v;
  }
  View copy_of(Arena& arena, const View& x, Components demand, bool flags = false,
               bool sets = false) const {
    View r = allocate(arena, x.dtype, x.rank, x.shape, demand, flags || x.flagged(),
                      sets || x.plane[kSetPlane] != nullptr);
    copy_view(r, x, D::kWord);
    return r;
  }
  // Forgets a flag plane that flags nothing.
  void drop_flags(View& v) const {
    if (!v.flagged()) return;
    CHECK(v.contiguous());
    const uint8_t* f = v.as<uint8_t>(kFlagPlane);
    const int64_t n = v.size();
    uint8_t any = 0;
    for (int64_t i = 0; i < n; ++i) any |= f[i];
    if (any == 0) v.plane[kFlagPlane] = nullptr;
  }

  // Applies a pointwise operator; `out` may be one of the operands. `context`: see TermDomain.
  void pointwise(const Op& op, const View* in, int count, const View& out, ThreadPool* pool,
                 [[maybe_unused]] uint64_t context = 1) const {
    std::array<View, 3> stretched_in;
    for (int i = 0; i < 3; ++i)
      stretched_in[size_t(i)] = i < count ? stretched(in[i], out.rank, out.shape) : out;
    if constexpr (D::kIsTerm)
      domain_.pointwise(op, stretched_in.data(), count, out, context, pool);
    else
      in_runs(op, stretched_in, count, out, pool);
  }
  void in_runs(const Op& op, const std::array<View, 3>& in, int count, const View& out,
               ThreadPool* pool) const {
    const DType operand = in[first_value(op.kind)].dtype;
    parallel_for(pool, out.size(), kGrain, [&](int64_t begin, int64_t end) {
      Chunk chunk[3], result;
      Walker<4> walk(out, {&in[0], &in[1], &in[2], &out}, begin);
      prepare(result.f);
      for (int64_t at = begin; at < end;) {
        const int n = int(std::min<int64_t>(kRun, end - at));
        load(walk, n, in, count, chunk);
        apply_pointwise(op, operand, out.dtype, chunk, result);
        store(walk, n, 3, out, result);
        walk_over(walk, n);
        at += n;
      }
    });
  }
  // An operator made up by the interpreter itself.
  View combine(Arena& arena, OpKind kind, const View& a, const View& b, Components demand) const;

  // Result of one operator (not a graph-defined one) on operands; `level` decides rounding.
  View apply(Arena& arena, const Graph& g, const Op& op, const std::vector<View>& in,
             Components demand, Level level, ThreadPool* pool) const;

 private:
  static constexpr int64_t kGrain = 64 * kRun;

  void prepare(Vec& x) const {
    if constexpr (D::kIsField) x.shared = &domain_.shared;
    x.n = 0;
  }
  template <class T>
  static void copy_in(T* to, const void* from, int64_t offset, int64_t step, int64_t n) {
    const T* x = static_cast<const T*>(from) + offset;
    if (step == 1)
      std::memcpy(to, x, size_t(n) * sizeof(T));
    else
      for (int64_t i = 0; i < n; ++i) to[i] = x[i * step];
  }
  template <class T>
  static void copy_out(const T* from, void* to, int64_t offset, int64_t step, int64_t n) {
    T* x = static_cast<T*>(to) + offset;
    if (step == 1)
      std::memcpy(x, from, size_t(n) * sizeof(T));
    else
      for (int64_t i = 0; i < n; ++i) x[i * step] = from[i];
  }
  template <int N> static void walk_over(Walker<N>& walk, int64_t n) {
    while (n > 0) {
      const int64_t run = walk.run(n);
      walk.advance(run);
      n -= run;
    }
  }
  // Calls f(done, length, walker) for the runs of the next n elements.
  template <int N, class F> static void each_run(const Walker<N>& from, int n, F f) {
    if (from.run(n) == n) {
      f(0, n, from);
      return;
    }
    Walker<N> walk = from;
    for (int done = 0; done < n;) {
      const int run = int(walk.run(n - done));
      f(done, run, walk);
      done += run;
      if (done < n) walk.advance(run);
    }
  }
  template <int N, class Views>
  void load(const Walker<N>& walk, int n, const Views& views, int count, Chunk* chunk) const {
    for (int i = 0; i < count; ++i) load_one(walk, n, i, views[size_t(i)], chunk[i]);
  }
  template <int N>
  void load_one(const Walker<N>& walk, int n, int i, const View& v, Chunk& chunk) const {
    auto planes = [&](int p, auto* to) {
      each_run(walk, n, [&](int done, int run, const Walker<N>& w) {
        copy_in(to + done, v.plane[size_t(p)], w.offset(i), w.step(i), run);
      });
    };
    if (is_float(v.dtype)) {
      domain_.begin_load(chunk.f, v, n);
      domain_.each_plane(chunk.f, v, planes);
    } else {
      begin_load(chunk.i, v, n);
      each_plane(chunk.i, v, planes);
    }
  }
  template <int N>
  void store(const Walker<N>& walk, int n, int i, const View& v, Chunk& chunk) const {
    auto planes = [&](int p, auto* from) {
      each_run(walk, n, [&](int done, int run, const Walker<N>& w) {
        copy_out(from + done, v.plane[size_t(p)], w.offset(i), w.step(i), run);
      });
    };
    if (is_float(v.dtype)) {
      domain_.begin_store(chunk.f, v);
      domain_.each_plane(chunk.f, v, planes);
    } else {
      if (v.dtype != DType::I64)
        for (int k = 0; k < n; ++k) chunk.i.v[k] = wrap_to(v.dtype, chunk.i.v[k]);
      begin_store(chunk.i, v);
      each_plane(chunk.i, v, planes);
    }
  }

  // Results of kinds of operators, see apply().
  View result_of(Arena& arena, const Type& type, const std::vector<View>& in,
                 Components demand) const;  // to be filled; flags and sets as operands have them
  View elementwise(Arena& arena, const Graph& g, const Op& op, const std::vector<View>& in,
                   Components demand, Level level, ThreadPool* pool) const;
  View range(Arena& arena, const Type& type, size_t axis, Components demand, Level level,
             ThreadPool* pool) const;
  View reshape(Arena& arena, const Type& type, const View& x, Components demand) const;
  void repeat(const View& out, const View& x, const std::vector<int64_t>& repeats) const;
  void join(const View& out, const std::vector<View>& in, int axis, bool stack,
            ThreadPool* pool) const;
  View pad(Arena& arena, const Type& type, const View& x, const PadAttrs& a, Components demand,
           ThreadPool* pool) const;
  View moved(const Type& type, const Shape& from, const View& x,
             const std::vector<AxisRead>& reads) const;
  // Operators that compute, other than element by element.
  View compute(Arena& arena, const Graph& g, const Op& op, const std::vector<View>& in,
               Components demand, ThreadPool* pool) const;
  View reduce(Arena& arena, const Op& op, const View& x, Components demand, ThreadPool* pool) const;
  template <class V, class Part>
  void reduce_into(OpKind kind, const View& x, int kept, const View& out, Part part,
                   ThreadPool* pool) const;
  View cumsum(Arena& arena, const View& x, int axis, Components demand) const;
  View matmul(Arena& arena, const View& a, const View& b, Components demand,
              ThreadPool* pool) const;
  // interpreter_windows.h
  View windows(Arena& arena, const View& x, const std::vector<WindowAxis>& axes,
               const Rational& outside, Components demand, ThreadPool* pool) const;
  View slide(Arena& arena, const View& windows, const View& w, int64_t groups, Components demand,
             ThreadPool* pool) const;
  View conv(Arena& arena, const Graph& g, const Op& op, const View& x, const View& w,
            Components demand, ThreadPool* pool) const;
  View conv_transpose(Arena& arena, const Graph& g, const Op& op, const View& x, const View& w,
                      Components demand, ThreadPool* pool) const;
  View pooled(Arena& arena, const Graph& g, const Op& op, const View& x, Components demand,
              ThreadPool* pool) const;
  View gather(Arena& arena, const Op& op, const View& x, const View& index,
              Components demand) const;
  View scalar(Arena& arena, DType dtype, const Rational& value, Components demand) const;

  // interpreter_blocks.h
  struct BlockPlan;
  struct BlockState;
  std::vector<int64_t> sampled_blocks(const Graph& g, const Op& op,
                                      const std::vector<View>& results) const;
  void run_kernel(Arena& arena, const Graph& g, const Op& op, const Demand& demand,
                  std::vector<View>& values);
  void run_body(BlockState& state, size_t body) const;
  void run_loop(BlockState& state, size_t body) const;
  void run_block_op(BlockState& state, const Op& op) const;
  void run_thread(BlockState& state, const Op& op) const;
  int record(BlockTrace& trace, const Graph& g, const Op& op, const std::vector<int>& current,
             const std::vector<View>& in, const View& out) const;
  void accumulate(BlockState& state, const Op& op) const;
  void finish_accumulator(BlockState& state, const Op& op) const;

  D domain_;
  ThreadPool* pool_;
  Opaque opaque_;
  Tracer tracer_;
  int sample_blocks_ = 0;
};

}  // namespace tessera

#include "eval/interpreter_blocks.h"
#include "eval/interpreter_ops.h"
#include "eval/interpreter_windows.h"
