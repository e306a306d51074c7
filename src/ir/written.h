// Kernels that a person wrote (docs/patterns.md, bodies). The block graph of such a kernel is one
// block that reads whole tensors, computes what fills the prologues, the pattern's def and the
// epilogue, and saves; its name says whose code computes that. Whoever makes another block graph of
// it drops the name, and with it code, never meaning.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace tessera {

struct WrittenKernel {
  std::string pattern;        // whose body it is
  std::string source;         // SHA-256 of what was checked: text, def, holes, guards, settings
  std::vector<int> operands;  // tensors of the block graph that are the def's inputs, in order
  int result = -1;            // and the one that is the def's result
  std::string values;         // of the tuned names that its text uses, "R=4 BN=64"
  // "written rmsnorm 4f0c… 1 2 : 9 : R=4", a block graph's name; the text format shows it.
  std::string name() const;
};
// Nothing for what is no such name.
std::optional<WrittenKernel> read_written(std::string_view name);

// Of a kernel that a person wrote; nothing for all else, and where the name does not fit the graph.
std::optional<WrittenKernel> written_kernel(const Graph& g, const Op& op);
// A copy in which written kernels that `keep` does not want are the operators that they mean.
Graph without_written(const Graph&, const std::function<bool(const Op&)>& keep = {});

}  // namespace tessera
