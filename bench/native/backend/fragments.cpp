#include "backend/fragments.h"

#include "backend/cuda/cuda_module.h"
#include "backend/cuda/nvrtc.h"
#include "backend/host_kernels.h"
#include "plan/plain_plan.h"

namespace tessera {
namespace {

// The kernel as the code of a graph with one operator, whose input and output have as many words.
CudaProgram fragment_program(const Graph& graph, const FragmentKernel& kernel,
                             const std::string& arch) {
  CudaProgram p;
  p.plan = plan_kernel_graph(graph);
  p.arch = parse_arch(arch);
  CudaKernel k;
  k.name = kernel.name;
  k.threads = kernel.threads;
  k.shared_bytes = 32 << 10;
  const Task& task = p.plan.tasks.front();
  k.arguments = task.reads;
  k.arguments.insert(k.arguments.end(), task.writes.begin(), task.writes.end());
  if (kernel.box_columns > 0)
    k.maps.push_back({.rows = 13,
                      .columns = 72,
                      .pitch = 72,
                      .box_rows = 16,
                      .box_columns = kernel.box_columns,
                      .swizzled = kernel.swizzled});
  p.kernels.push_back(std::move(k));
  return p;
}

}  // namespace

std::vector<std::vector<uint32_t>> read_fragments(const std::string& source,
                                                  const std::vector<FragmentKernel>& kernels,
                                                  int ordinal, Cache& cache) {
  const auto context = CudaContext::of(ordinal);
  const std::string arch = context->device().arch();
  std::vector<std::string> names;
  for (const FragmentKernel& k : kernels) names.push_back(k.name);
  const std::string image = context->driver().runs_host_code()
                                ? host_kernels(source, names, cache)
                                : compile_cuda_kernels(source, names, arch).cubin;
  std::vector<std::vector<uint32_t>> found;
  for (const FragmentKernel& k : kernels) {
    Graph graph("fragment");
    const TensorId in = graph.add_input({DType::I32, {k.words}}, "in");
    graph.set_outputs({graph.add(OpKind::Neg, {in}, {}, "out")});
    const CudaModule module(graph, fragment_program(graph, k, arch), image, context);
    std::vector<uint32_t> numbers(size_t(k.words)), out(size_t(k.words));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = uint32_t(2 * i | (2 * i + 1) << 16);
    const void* const inputs[] = {numbers.data()};
    void* const outputs[] = {out.data()};
    module.run_on_host_arrays(inputs, outputs);
    found.push_back(std::move(out));
  }
  return found;
}

}  // namespace tessera
