#include "backend/cuda_code.h"

#include <algorithm>

#include "backend/host_kernels.h"
#include "backend/written.h"
#include "base/error.h"
#include "base/records.h"
#include "cost/analytical.h"

namespace tessera {
template <class Archive> void record(Archive& a, CudaBinary& k) {
  a(k.kernel, k.registers, k.spilled_bytes, k.stack_bytes, k.static_shared_bytes, k.serialized);
}

namespace {

std::vector<std::string> names_of(const CudaProgram& program) {
  std::vector<std::string> names;
  for (const CudaKernel& k : program.kernels)
    if (!k.call && std::ranges::find(names, k.name) == names.end()) names.push_back(k.name);
  return names;
}

// Compiles with NVRTC, or finds what it made.
void compile(CudaCode& code, Cache& cache) {
  const std::vector<std::string> names = names_of(code.program);
  const std::string arch = code.program.arch.str();
  Sha256 hash;
  hash.field("cuda").field(nvrtc_version()).field(arch).field(code.program.source);
  for (const char* header : {"device.cuh", "ptx.cuh", "tiles.cuh"})
    hash.field(device_header(header));
  for (const std::string& n : names) hash.field(n);
  const std::string key = hash.hex(), report_key = sha256_hex("report with advice " + key);
  const auto path = cache.find(key, ".cubin");
  const auto report = cache.find_text(report_key);
  if (path && report) {
    if (auto bytes = read_file(*path)) {
      code.kernels =
          from_text<std::vector<CudaBinary>>(*report).value_or(std::vector<CudaBinary>());
      code.from_cache = code.kernels.size() == names.size();
      code.image = *std::move(bytes);
    }
  }
  if (code.from_cache) return;
  CudaObject made = compile_cuda_kernels(code.program.source, names, arch);
  cache.store(key, ".cubin", made.cubin);
  cache.store_text(report_key, to_text(made.kernels));
  code.image = std::move(made.cubin);
  code.kernels = std::move(made.kernels);
}

}  // namespace

std::vector<KernelJoin> kernel_joins(const Graph& graph, Target target) {
  target.libraries.clear();
  return cuda_choice(graph, target, nullptr).joins;
}

CudaChoice cuda_choice(const Graph& graph, const Target& target,
                       const std::shared_ptr<CudaContext>& context) {
  const auto as_run = [&](LibraryCall call) {
    call.tf32 = target.tf32 && call.dtype == DType::F32;
    const auto after = call.after_padding();
    return after ? *after : call;
  };
  AnalyticalModel::Accepts accepts;
  if (context)
    accepts = [&](const LibraryCall& call) { return library_has_way(context, as_run(call)); };
  CudaChoice choice;
  for (const auto& k : AnalyticalModel(target).kernels(graph, accepts)) {
    if (k.call) choice.calls[k.op.index] = as_run(*k.call);
    if (k.join) choice.joins.push_back(*k.join);
  }
  return choice;
}

std::shared_ptr<CudaCode> make_cuda_code(const Graph& given, Cache& cache,
                                         const CudaCodeOptions& options) {
  auto code = std::make_shared<CudaCode>();
  WrittenSources written;
  const Graph graph =
      with_checked_bodies(given, cache, true, best_isa(),
                          options.context ? options.context->device().str() : "", written);
  const CudaChoice choice = cuda_choice(graph, options.target, options.context);
  code->program = emit_cuda(graph, options.arch, options.plan, options.target, choice.calls,
                            choice.joins, written);
  const CudaDriver* driver = options.context ? &options.context->driver() : nullptr;
  if (names_of(code->program).empty()) {
    // Libraries do everything.
  } else if (driver != nullptr && driver->runs_host_code()) {
    code->image = host_kernels(code->program.source, names_of(code->program), cache);
  } else {
    if (driver != nullptr) {
      const int toolkit = nvrtc_version_number();
      require_driver_for(*driver, toolkit / 1000, toolkit % 1000 / 10);
    }
    compile(*code, cache);
  }
  if (options.context) try {
      code->module =
          std::make_shared<CudaModule>(graph, code->program, code->image, options.context);
    } catch (const Error& e) {
      const auto clustered = [](const CudaKernel& k) { return k.cluster > 1; };
      const auto& kernels = code->program.kernels;
      if (e.kind() != ErrorKind::Unsupported || std::ranges::none_of(kernels, clustered)) throw;
      // The device has no room for the clusters: blocks take tickets, or kernels are two launches.
      CudaCodeOptions apart = options;
      apart.target.sm.cluster = 1;
      return make_cuda_code(given, cache, apart);
    }
  return code;
}

Target fitted_target(Target t, const CudaArch& arch, const CudaDevice* device) {
  MemoryLevel& block = t.levels.back();
  block.capacity =
      device != nullptr ? device->shared_bytes : std::min(block.capacity, arch.shared_bytes());
  t.sm.shared = std::min(t.sm.shared, arch.shared_bytes() + t.sm.reserved);
  t.sm.cluster = std::min(t.sm.cluster, arch.largest_cluster());
  if (device != nullptr) {
    t.cores = device->multiprocessors;
    t.levels.front().capacity = device->memory_bytes;
    if (!has_cublaslt()) t.libraries.erase("matmul");
    if (!has_cudnn()) {
      t.libraries.erase("convolution");
      t.libraries.erase("attention");
    }
  }
  return t;
}

}  // namespace tessera
