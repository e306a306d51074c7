#include "search/patterns/instantiate.h"

#include <algorithm>
#include <functional>
#include <map>

#include "ir/build.h"
#include "ir/written.h"

namespace tessera::patterns {
namespace {

// Where the axes of a tensor of `shape` lie that is broadcast to one of rank `rank`, of which a map
// splits these.
template <class Map> Map aligned(const Map& map, int rank, const Shape& shape) {
  Map found = map;
  const int shift = rank - int(shape.size());
  for (int8_t& axis : found) {
    if (axis < 0) continue;
    axis = int8_t(axis - shift);
    if (axis < 0 || shape[size_t(axis)].is_one()) axis = -1;
  }
  return found;
}

class Instance {
 public:
  // `holes`: what fills them is computed in the kernels; else around them.
  Instance(const Pattern& p, const Match& m, const Graph& region, const Graph& body, bool holes)
      : p_(p), m_(m), region_(region), body_(body), holes_(holes), out_(region.name()),
        made_(region.tensors().size()) {}

  Graph run() {
    for (TensorId t : region_.inputs()) copy_op(region_, producer(t), out_, made_);
    const std::optional<std::vector<OpId>> after = epilogue(region_, m_.value);
    std::vector<TensorId> map(body_.tensors().size());
    for (size_t i = 0; i < body_.inputs().size(); i++) {
      const TensorId t = body_.inputs()[i];
      input_of_[t.index] = i;
      if (holes_ && in_kernels(t) && p_.has_prologue(i)) continue;  // made where it is read
      if (!p_.is_number(i))
        map[t.index] = emit(m_.inputs[i]);
      else if (!in_kernels(t))
        map[t.index] = out_.add_const(m_.numbers[i], body_.tensor(t).type);
    }
    const TensorId result = body_.outputs()[0];
    const Op& last = body_.op(body_.tensor(result).producer);
    const bool inside = holes_ && !after->empty() && is_kernel(last.kind) && read_once(result);
    for (const Op& op : body_.ops()) {
      if (is_input(op.kind)) continue;
      if (is_kernel(op.kind))
        kernel(op, map, inside && &op == &last ? int(result.index - op.first_result.index) : -1);
      else
        copy_op(body_, op, out_, map);
    }
    made_[m_.value.index] = map[result.index];
    if (inside)
      out_.add_output(map[result.index]);
    else
      out_.add_output(emit(region_.outputs()[0]));
    return without_dead_code(out_);
  }

 private:
  // Does the body read this input as arguments of kernels only?
  bool in_kernels(TensorId t) const {
    for (const Op& op : body_.ops())
      if (!is_kernel(op.kind) && std::ranges::count(op.inputs, t)) return false;
    return !std::ranges::count(body_.outputs(), t);
  }
  bool read_once(TensorId t) const {
    for (const Op& op : body_.ops())
      if (std::ranges::count(op.inputs, t)) return false;
    return true;
  }

  // A value of the region, computed outside the kernels.
  TensorId emit(TensorId t) {
    if (made_[t.index].valid()) return made_[t.index];
    for (TensorId in : producer(t).inputs) emit(in);
    copy_op(region_, producer(t), out_, made_);
    return made_[t.index];
  }

  const Op& producer(TensorId t) const { return region_.op(region_.tensor(t).producer); }
  // What a tree reads: values of the region that are no constants.
  void leaves(TensorId t, const std::function<bool(TensorId)>& inside,
              std::vector<TensorId>& found) const {
    if (producer(t).constant()) return;
    if (!inside(t)) {
      if (!std::ranges::count(found, t)) found.push_back(t);
      return;
    }
    for (TensorId in : producer(t).inputs) leaves(in, inside, found);
  }

  void kernel(const Op& op, std::vector<TensorId>& map, int with_epilogue) {
    const Graph& block = body_.body(op);
    Graph made = Graph::block(block.grid(), block.loops());
    std::vector<TensorId> arguments;           // of the kernel, in `out_`
    std::map<uint32_t, TensorId> argument_of;  // value of the region → input of `made`
    std::vector<TensorId> inner(block.tensors().size());
    const auto argument = [&](TensorId value) {
      const auto known = argument_of.find(value.index);
      if (known != argument_of.end()) return known->second;
      const TensorId outer = emit(value);
      arguments.push_back(outer);
      return argument_of[value.index] =
                 made.add_input(out_.tensor(outer).type, out_.tensor(outer).name);
    };

    // Values of the region that are computed on the tiles. Those of fewer axes, too.
    const auto inside = [&](TensorId t) {
      return has(producer(t).kind, algebra::Pointwise) && !(t == m_.value);
    };
    // All arguments come first: those of the body, what prologues read, what the epilogue reads.
    struct Source {
      std::optional<TensorId> value;  // of the region: made by a prologue
      std::optional<Rational> number;
    };
    std::map<uint32_t, Source> sources;  // of inputs of the block
    for (size_t k = 0; k < block.inputs().size(); k++) {
      const auto input = input_of_.find(op.inputs[k].index);
      const TensorId own = block.inputs()[k];
      if (input != input_of_.end() && p_.is_number(input->second) && in_kernels(op.inputs[k])) {
        sources[own.index].number = m_.numbers[input->second];
      } else if (holes_ && input != input_of_.end() && p_.has_prologue(input->second) &&
                 in_kernels(op.inputs[k])) {
        const TensorId value = m_.inputs[input->second];
        std::vector<TensorId> read;
        leaves(value, inside, read);
        for (TensorId t : read) argument(t);
        sources[own.index].value = value;
      } else {
        arguments.push_back(map[op.inputs[k].index]);
        inner[own.index] = made.add_input(block.tensor(own).type, block.tensor(own).name);
      }
    }
    if (with_epilogue >= 0) {
      std::vector<TensorId> read;
      leaves(region_.outputs()[0], inside, read);
      for (TensorId t : read)
        if (!(t == m_.value)) argument(t);
    }

    int saved = 0;
    for (const Op& b : block.ops()) {
      if (is_input(b.kind)) continue;
      if (is_load(b.kind)) {
        const Source& source = sources[b.inputs[0].index];
        const IterAttrs maps = block.attrs<IterAttrs>(b);
        if (source.value) {
          std::map<uint32_t, TensorId> done;
          inner[b.result().index] =
              tree(made, *source.value, maps, region_.tensor(*source.value).type.rank(), inside,
                   argument, done);
          continue;
        }
        if (source.number) {
          inner[b.result().index] = made.add_const(*source.number, block.tensor(b.result()).type);
          continue;
        }
      }
      if (is_store(b.kind) && saved++ == with_epilogue) {
        SaveAttrs save = block.attrs<SaveAttrs>(b);
        IterAttrs maps;
        maps.imap = save.omap;
        maps.fmap = save.fmap;
        std::map<uint32_t, TensorId> done = {{m_.value.index, inner[b.inputs[0].index]}};
        const TensorId y = tree(made, region_.outputs()[0], maps, int(save.type.shape.size()),
                                inside, argument, done);
        save.type = region_.tensor(region_.outputs()[0]).type;
        made.add_op(OpKind::Save, {y}, save);
        inner[b.result().index] = TensorId(made.tensors().size() - 1);
        continue;
      }
      copy_op(block, b, made, inner);
    }
    for (TensorId t : block.outputs()) made.add_output(inner[t.index]);
    std::vector<std::string> names;
    for (uint32_t r = 0; r < op.num_results; r++) names.push_back(body_.tensor(op.result(r)).name);
    const TensorId first(out_.tensors().size());
    if (std::optional<WrittenKernel> written = written_kernel(body_, op)) {
      // Where the def is now that its holes are filled.
      for (int& t : written->operands) t = int(inner[size_t(t)].index);
      written->result = int(inner[size_t(written->result)].index);
      made.set_name(written->name());
    }
    out_.add_graph_op(OpKind::Kernel, arguments, std::move(made), names);
    for (uint32_t r = 0; r < op.num_results; r++)
      map[op.result(r).index] = TensorId(first.index + r);
  }

  // A value on the tile that the maps give of a tensor of rank `rank`.
  TensorId tree(Graph& made, TensorId value, const IterAttrs& maps, int rank,
                const std::function<bool(TensorId)>& inside,
                const std::function<TensorId(TensorId)>& argument,
                std::map<uint32_t, TensorId>& done) const {
    const auto known = done.find(value.index);
    if (known != done.end()) return known->second;
    TensorId result;
    const Op& op = producer(value);
    if (op.constant()) {
      result = made.add_const(*op.constant(), Type{region_.tensor(value).type.dtype, {}});
    } else if (!inside(value)) {
      const Shape& shape = region_.tensor(value).type.shape;
      IterAttrs mine;
      mine.imap = aligned(maps.imap, rank, shape);
      mine.fmap = aligned(maps.fmap, rank, shape);
      result = build::iter(made, argument(value), mine);
    } else {
      std::vector<TensorId> args;
      for (TensorId t : op.inputs)
        args.push_back(tree(made, t, maps, rank, inside, argument, done));
      result = made.add(op.kind, std::move(args), op.attrs, region_.tensor(value).name);
    }
    return done[value.index] = result;
  }

  const Pattern& p_;
  const Match& m_;
  const Graph &region_, &body_;
  const bool holes_;
  Graph out_;
  std::vector<TensorId> made_;           // by tensor of the region
  std::map<uint32_t, size_t> input_of_;  // tensor of the body → number of the input
};

}  // namespace

Graph instantiate(const Pattern& p, const Body& body, const Match& m, const Values& setting,
                  const Graph& region) {
  Values values = m.symbols;
  values.insert(setting.begin(), setting.end());
  const Graph bound = bound_body(p, body, values, region.tensor(region.outputs()[0]).type.dtype);
  return Instance(p, m, region, bound, !body.called()).run();
}

}  // namespace tessera::patterns
