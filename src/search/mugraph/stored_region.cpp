#include "search/mugraph/stored_region.h"

#include "base/records.h"

namespace tessera::mugraph {

template <class Archive> void record(Archive& a, Kernel::GridDim& g) { a(g.axes, g.parts); }

template <class Archive> void record(Archive& a, Kernel& k) {
  // All members by name: one that is added and forgotten here does not compile.
  auto& [outputs, loads, edges, loop, loop_parts, passes, varies, folds, nested, nested_parts,
         parts, grid, seconds, bound, block_bytes, operators] = k;
  a(outputs, loads, edges, loop, loop_parts, passes, varies, folds, nested, nested_parts, parts,
    grid, seconds, bound, block_bytes, operators);
}

template <class Archive> void record(Archive& a, Choice& c) {
  a(c.world, c.plan.seconds, c.plan.parts, c.plan.kernels);
}

template <class Archive> void record(Archive& a, StoredRegion::StoredWorld& w) {
  Formulation& f = w.formulation;
  a(f.options.cap, f.options.keep_shifts, f.program_only, w.split_axis, w.as_written, f.note);
}

template <class Archive> void record(Archive& a, StoredRegion& r) {
  SearchReport& c = r.counted;
  a(c.values, c.edges, c.graphs, c.tilings, r.limited, r.detail, c.pruned, r.worlds, r.choices);
}

std::string print_region(const StoredRegion& region) { return to_text(region); }

std::optional<StoredRegion> read_region(const std::string& text) {
  return from_text<StoredRegion>(text);
}

}  // namespace tessera::mugraph
