#include "verify/interface.h"

namespace tessera {

std::optional<Counterexample> interface_difference(const Graph& a, const Graph& b) {
  auto differ = [](const std::string& what) {
    Counterexample c;
    c.kind = Difference::Interface;
    c.what = what;
    return std::optional(c);
  };
  auto lists = [&](const std::vector<TensorId>& x, const std::vector<TensorId>& y,
                   const char* what) -> std::optional<Counterexample> {
    if (x.size() != y.size())
      return differ("the original has " + std::to_string(x.size()) + " " + what +
                    (x.size() == 1 ? "" : "s") + ", the rewrite " + std::to_string(y.size()));
    for (size_t i = 0; i < x.size(); i++)
      if (!(a.type(x[i]) == b.type(y[i])))
        return differ(std::string(what) + " " + std::to_string(i) + " is " + a.type(x[i]).str() +
                      " in the original and " + b.type(y[i]).str() + " in the rewrite");
    return std::nullopt;
  };
  if (auto d = lists(a.inputs(), b.inputs(), "input")) return d;
  return lists(a.outputs(), b.outputs(), "output");
}

std::string describe(const Graph& g, TensorId t) {
  const Tensor& x = g.tensor(t);
  return (x.name.empty() ? "" : x.name + " ") + x.type.str();
}

}  // namespace tessera
