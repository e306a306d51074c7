#include "plan/plain_plan.h"

namespace tessera {

Plan plan_kernel_graph(const Graph& graph, const PlanOptions& options) {
  PlanBuilder builder(graph, options);
  for (OpId id : builder.ops()) {
    const Op& op = graph.op(id);
    Task task;
    task.op = id;
    task.once = builder.once(id);
    for (TensorId t : op.inputs) task.reads.push_back(builder.slot(t));
    for (uint32_t r = 0; r < op.num_results; ++r) task.writes.push_back(builder.slot(op.result(r)));
    task.in_place = in_place_operand(graph, op);
    builder.add(std::move(task));
  }
  return builder.finish();
}

}  // namespace tessera
