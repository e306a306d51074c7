#include "backend/host_calls.h"

#include <map>
#include <mutex>

#include "base/error.h"

namespace tessera {
namespace {

// Of the process, as code in it is: never destroyed, since programs may run while it exits.
struct Hosts {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Host>> by_name;
};
Hosts& hosts() {
  static Hosts& all = *new Hosts;
  return all;
}

thread_local const HostFunction* instead_of_hosts = nullptr;

}  // namespace

void set_host(const std::string& name, Host host) {
  auto made = std::make_shared<const Host>(std::move(host));
  const std::lock_guard lock(hosts().mutex);
  if (made->run)
    hosts().by_name[name].swap(made);  // the old one ends without the lock
  else
    hosts().by_name.erase(name);
}

std::shared_ptr<const Host> find_host(const std::string& name) {
  const std::lock_guard lock(hosts().mutex);
  const auto found = hosts().by_name.find(name);
  return found == hosts().by_name.end() ? nullptr : found->second;
}

std::string host_problem(const HostStep& step) {
  const std::shared_ptr<const Host> host = find_host(step.host);
  if (host == nullptr) return "nobody here computes it";
  return host->problem(step.text);
}

void call_host(const HostStep& step, void* const* arguments, int threads) {
  if (instead_of_hosts != nullptr) return (*instead_of_hosts)(step, arguments, threads);
  const std::shared_ptr<const Host> host = find_host(step.host);
  if (host == nullptr)
    throw Error(ErrorKind::Unsupported, step.text + ": nobody here computes it any more");
  host->run(step, arguments, threads);
}

HostScope::HostScope(const HostFunction& instead) : before_(instead_of_hosts) {
  instead_of_hosts = &instead;
}
HostScope::~HostScope() { instead_of_hosts = before_; }

HostStep opaque_step(const Graph& graph, const Op& op) {
  const auto& attrs = graph.attrs<OpaqueAttrs>(op);
  HostStep step;
  step.host = attrs.function.substr(0, attrs.function.find('.'));
  step.text = attrs.function + " " + attrs.payload;
  for (TensorId t : op.inputs) step.operands.push_back(graph.type(t));
  step.results = attrs.results;
  return step;
}

Graph without_opaque(const Graph& graph) {
  Graph out(graph.name());
  std::vector<TensorId> map(graph.tensors().size());
  for (TensorId t : graph.inputs())
    map[t.index] = out.add_input(graph.type(t), graph.tensor(t).name, graph.is_weight(t));
  for (const Op& op : graph.ops()) {
    if (is_input(op.kind)) continue;
    if (!is_opaque(op.kind)) {
      copy_op(graph, op, out, map);
      continue;
    }
    for (uint32_t r = 0; r < op.num_results; ++r)
      map[op.result(r).index] = out.add_input(graph.type(op.result(r)));
  }
  for (TensorId t : graph.outputs()) out.add_output(map[t.index]);
  for (const Op& op : graph.ops())
    if (is_opaque(op.kind))
      for (TensorId t : op.inputs) out.add_output(map[t.index]);
  return out;
}

}  // namespace tessera
