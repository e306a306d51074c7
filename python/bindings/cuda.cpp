// backend/cuda: programs on a device, arrays that are handed over without a copy (DLPack), and what
// of CUDA this machine has.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "arrays.h"
#include "backend/cuda/emulate_program.h"
#include "backend/cuda/library.h"
#include "backend/cuda_code.h"
#include "backend/written.h"
#include "base/error.h"
#include "bindings.h"
#include "driver/code.h"
#include "driver/optimize.h"

namespace tessera::python {
namespace {

// DLPack's structures (dmlc.github.io/dlpack, version 0).
struct DlTensor {
  void* data;
  int32_t device_type, device;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t offset;   // in bytes
};
struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*release)(DlManaged*);
};
constexpr int kDlCuda = 2, kDlManaged = 13;
constexpr const char* kFresh = "dltensor";
constexpr const char* kTaken = "used_dltensor";

struct DlType {
  DType dtype;
  uint8_t code, bits;
};
constexpr DlType kDlTypes[] = {
    {DType::F64, 2, 64},  {DType::F32, 2, 32}, {DType::F16, 2, 16},
    {DType::BF16, 4, 16}, {DType::I64, 0, 64}, {DType::I32, 0, 32},
    {DType::I8, 0, 8},    {DType::U8, 1, 8},   {DType::Bool, 6, 8},
};

// An array of somebody else's, as long as this lives.
class ForeignArray {
 public:
  explicit ForeignArray(nb::object capsule) {
    auto* managed = static_cast<DlManaged*>(PyCapsule_GetPointer(capsule.ptr(), kFresh));
    if (managed == nullptr) {
      PyErr_Clear();
      throw Error(ErrorKind::BadInput, "this is no DLPack capsule, or one that was used before");
    }
    const DlTensor& t = managed->tensor;
    for (const DlType& known : kDlTypes)
      if (known.code == t.code && known.bits == t.bits && t.lanes == 1) dtype = name(known.dtype);
    if (dtype.empty())
      throw Error(ErrorKind::Unsupported, "arrays of this dtype (DLPack code " +
                                              std::to_string(t.code) + ", " +
                                              std::to_string(t.bits) + " bits) are not supported");
    int64_t expected = 1;
    for (int d = t.ndim; d-- > 0;) {
      shape.insert(shape.begin(), t.shape[d]);
      if (t.strides != nullptr && t.shape[d] != 1 && t.strides[d] != expected) contiguous = false;
      expected *= t.shape[d];
    }
    address = reinterpret_cast<CudaAddress>(t.data) + t.offset;
    device_type = t.device_type;
    device = t.device;
    PyCapsule_SetName(capsule.ptr(), kTaken);
    managed_ = managed;
  }
  ForeignArray(const ForeignArray&) = delete;
  ForeignArray& operator=(const ForeignArray&) = delete;
  ~ForeignArray() {
    if (managed_ != nullptr && managed_->release != nullptr) managed_->release(managed_);
  }

  CudaAddress address = 0;
  std::string dtype;
  std::vector<int64_t> shape;
  bool contiguous = true;
  int device_type = 0, device = 0;

 private:
  DlManaged* managed_ = nullptr;
};

// An array of ours on a device.
class DeviceArray {
 public:
  DeviceArray(int device, Type type)
      : type_(std::move(type)), context_(CudaContext::of(device)),
        memory_(std::make_shared<DeviceMemory>(context_, type_.bytes(), "the results")) {}

  CudaAddress address() const { return memory_->address(); }
  const Type& type() const { return type_; }
  int device() const { return context_->device().ordinal; }

  void write(nb::bytes data) {
    require_bytes(data.size());
    memory_->fill(data.c_str(), nullptr);
  }
  nb::bytes read() const {
    std::string data(size_t(memory_->bytes()), '\0');
    {
      Released release;
      memory_->read(data.data(), nullptr);
    }
    return nb::bytes(data.data(), data.size());
  }
  // Work that the consumer puts on its stream comes after what made the array, which was on the
  // default one.
  nb::object dlpack(std::optional<int64_t> stream) const {
    if (stream && *stream > 2) {
      const CudaContext::Current current(*context_);
      const CudaApi& api = context_->driver().api();
      CudaHandle event = nullptr;
      context_->check(api.event_create(&event, 2), "make an event");  // 2: without a time
      const int recorded = api.event_record(event, nullptr);
      const int waiting = recorded != 0
                              ? recorded
                              : api.stream_wait(reinterpret_cast<CudaStream>(*stream), event, 0);
      api.event_destroy(event);
      context_->check(waiting, "hand an array over to another stream");
    }
    struct Held {
      DlManaged managed{};
      std::shared_ptr<DeviceMemory> memory;
      std::vector<int64_t> shape;
    };
    auto held = std::make_unique<Held>();
    held->memory = memory_;
    held->shape = extents(type_.shape);
    DlTensor& t = held->managed.tensor;
    t.data = reinterpret_cast<void*>(address());
    t.device_type = kDlCuda;
    t.device = device();
    t.ndim = int32_t(held->shape.size());
    for (const DlType& known : kDlTypes)
      if (known.dtype == type_.dtype) {
        t.code = known.code;
        t.bits = known.bits;
      }
    t.lanes = 1;
    t.shape = held->shape.data();
    held->managed.context = held.get();
    held->managed.release = [](DlManaged* m) { delete static_cast<Held*>(m->context); };
    PyObject* capsule = PyCapsule_New(&held->managed, kFresh, [](PyObject* c) {
      // Nobody took it.
      if (!PyCapsule_IsValid(c, kFresh)) return;
      auto* m = static_cast<DlManaged*>(PyCapsule_GetPointer(c, kFresh));
      m->release(m);
    });
    if (capsule == nullptr) throw nb::python_error();
    held.release();
    return nb::steal(capsule);
  }

 private:
  void require_bytes(size_t bytes) const {
    if (int64_t(bytes) != memory_->bytes())
      throw Error(ErrorKind::BadInput, "the array takes " + std::to_string(memory_->bytes()) +
                                           " bytes, not " + std::to_string(bytes));
  }
  Type type_;
  std::shared_ptr<CudaContext> context_;
  std::shared_ptr<DeviceMemory> memory_;
};

void run_cuda(const CudaModule& module, const std::vector<CudaAddress>& inputs,
              const std::vector<CudaAddress>& outputs, const CudaWeights* prepared,
              uint64_t stream) {
  Released release;
  module.run(inputs, outputs, prepared, reinterpret_cast<CudaStream>(stream));
}

std::shared_ptr<CudaWeights> prepare_cuda(const CudaModule& module,
                                          const std::vector<CudaAddress>& inputs, uint64_t stream) {
  Released release;
  return std::const_pointer_cast<CudaWeights>(
      module.prepare(inputs, reinterpret_cast<CudaStream>(stream)));
}

nb::list kernels_of(const CudaCode& code) {
  nb::list list;
  for (const CudaKernel& k : code.program.kernels) {
    if (k.call) {
      list.append(dict_of("library", k.call->library(), "call", k.call->str()));
      continue;
    }
    nb::dict d = dict_of("name", k.name, "grid", nb::make_tuple(k.grid[0], k.grid[1], k.grid[2]),
                         "threads", k.threads, "shared_bytes", k.shared_bytes);
    for (const CudaBinary& b : code.kernels) {
      if (b.kernel != k.name) continue;
      d["registers"] = b.registers;
      d["spilled_bytes"] = b.spilled_bytes;
      if (!b.serialized.empty()) d["serialized"] = b.serialized;
    }
    list.append(d);
  }
  return list;
}

nb::dict describe(const CudaDevice& device) {
  return dict_of("name", device.name, "ordinal", device.ordinal, "arch", device.arch(),
                 "memory_bytes", device.memory_bytes, "shared_bytes", device.shared_bytes,
                 "multiprocessors", device.multiprocessors);
}

// What there is of CUDA: versions, devices, and what is wrong.
nb::dict cuda_machine() {
  nb::dict d;
  d["devices"] = nb::list();
  const auto look = [&](const std::string& what, auto find) {
    d[what.c_str()] = nb::none();
    const std::string problem = what + "_problem";
    d[problem.c_str()] = "";
    try {
      find();
    } catch (const Error& error) {
      d[problem.c_str()] = error.message();
    }
  };
  look("driver", [&] {
    const auto driver = CudaDriver::get();
    d["driver"] = cuda_version_text(driver->version());
    d["devices"] = list_of(cuda_devices(), describe);
  });
  look(
      "nvrtc",
      [&] {
        d["nvrtc"] = nvrtc_version();
        if (!d["driver"].is_none()) {
          const int version = nvrtc_version_number();
          require_driver_for(*CudaDriver::get(), version / 1000, version % 1000 / 10);
        }
      });
  look(
      "cublaslt", [&] { d["cublaslt"] = cublaslt_version(); });
  look("cudnn", [&] { d["cudnn"] = cudnn_version(); });
  return d;
}

// The kernels of a program for a target that is a GPU, here or not.
CudaProgram cuda_program(const Graph& graph, const std::string& target,
                         const std::string& directory) {
  const CodePlace place = place_of(target, directory);
  if (!place.gpu) throw Error(ErrorKind::Usage, "target '" + target + "' is no GPU");
  OptimizeOptions options;
  options.target = target;
  options.target_directory = directory;
  const Target described = resolve_target(options);
  return emit_cuda(graph, place.arch, {}, described, {}, kernel_joins(graph, described));
}

std::shared_ptr<CudaCode> emit_cuda_code(const Graph& program, const std::string& target,
                                         const std::string& directory) {
  Released release;
  auto code = std::make_shared<CudaCode>();
  code->program = cuda_program(program, target, directory);
  return code;
}

std::vector<Type> types_of(const Graph& graph, const std::vector<TensorId>& tensors) {
  return mapped(
      tensors, [&](TensorId t) { return graph.type(t); });
}

// The kernels' first fault in the emulator, which needs no GPU; none: `outputs` are filled.
std::optional<std::string> emulated(const Graph& graph, const nb::list& inputs,
                                    const nb::list& outputs, const std::string& target,
                                    const std::string& folder, uint64_t seed) {
  const auto in = memory_of(inputs, types_of(graph, graph.inputs()), false, "input");
  const auto out = memory_of(outputs, types_of(graph, graph.outputs()), true, "output");
  const std::vector<const void*> read(in.begin(), in.end());
  Released release;
  const EmulatedProgram program(graph, cuda_program(graph, target, folder));
  const auto fault = program.run(read, out, seed);
  return fault ? std::optional(fault->str()) : std::nullopt;
}

}  // namespace

void bind_cuda(nb::module_& m) {
  nb::class_<CudaWeights>(m, "CudaWeights").def_prop_ro("bytes", &CudaWeights::bytes);

  nb::class_<CudaModule>(m, "CudaModule")
      .def("run", &run_cuda, nb::arg("inputs"), nb::arg("outputs"),
           nb::arg("prepared").none() = nb::none(), nb::arg("stream") = 0)
      .def("prepare", &prepare_cuda, nb::arg("inputs"), nb::arg("stream") = 0)
      .def("may_overwrite", &CudaModule::may_overwrite, nb::arg("input"), nb::arg("output"))
      .def_prop_ro("weights", &CudaModule::weights)
      .def_prop_ro("prepared_bytes", &CudaModule::prepared_bytes)
      .def_prop_ro(
          "device", [](const CudaModule& s) { return s.context()->device().ordinal; })
      .def_prop_ro(
          "device_name", [](const CudaModule& s) { return s.context()->device().str(); })
      .def_prop_ro(
          "input_types", [](const CudaModule& s) { return to_python(s.input_types()); })
      .def_prop_ro(
          "output_types", [](const CudaModule& s) { return to_python(s.output_types()); });

  nb::class_<CudaCode>(m, "CudaCode")
      .def_prop_ro("module", [](const CudaCode& s) { return s.module; })
      .def_prop_ro("arch", [](const CudaCode& s) { return s.program.arch.str(); })
      .def_prop_ro("source", [](const CudaCode& s) { return standalone_source(s.program); })
      .def_prop_ro("kernels", &kernels_of);

  nb::class_<ForeignArray>(m, "ForeignArray")
      .def(nb::init<nb::object>(), nb::arg("capsule"))
      .def_ro("address", &ForeignArray::address)
      .def_ro("dtype", &ForeignArray::dtype)
      .def_ro("shape", &ForeignArray::shape)
      .def_ro("contiguous", &ForeignArray::contiguous)
      .def_ro("device_type", &ForeignArray::device_type)
      .def_ro("device", &ForeignArray::device);

  nb::class_<DeviceArray>(m, "DeviceArray")
      .def(
          "__init__",
          [](DeviceArray* self, int device, const std::string& dtype, nb::handle shape) {
            new (self) DeviceArray(device, type_from(dtype, shape));
          },
          nb::arg("device"), nb::arg("dtype"), nb::arg("shape"))
      .def_prop_ro("address", &DeviceArray::address)
      .def_prop_ro("device", &DeviceArray::device)
      .def_prop_ro("type", [](const DeviceArray& s) { return to_python(s.type()); })
      .def("write", &DeviceArray::write, nb::arg("data"))
      .def("read", &DeviceArray::read)
      .def("__dlpack_device__", [](const DeviceArray& s) { return std::pair(kDlCuda, s.device()); })
      .def(
          "__dlpack__",
          [](const DeviceArray& s, std::optional<int64_t> stream, const nb::kwargs&) {
            return s.dlpack(stream);
          },
          nb::arg("stream").none() = nb::none(), nb::arg("kwargs"));

  m.def("cuda_machine", &cuda_machine);
  m.def("set_cuda_folders", &set_cuda_folders, nb::arg("folders"));
  m.def("emit_cuda", &emit_cuda_code, nb::arg("program"), nb::arg("target"), nb::arg("directory"));
  m.def("cuda_emulated", &emulated, nb::arg("graph"), nb::arg("inputs"), nb::arg("outputs"),
        nb::arg("target"), nb::arg("target_directory"), nb::arg("seed") = 1);
  // For tests alone: a stand-in for the driver; "" for the system's.
  m.def("use_cuda_driver", &CudaDriver::use_library, nb::arg("path"));
  m.def("use_cublaslt", &use_cublaslt, nb::arg("path"));
  m.def("use_cudnn", &use_cudnn, nb::arg("path"));
}

}  // namespace tessera::python
