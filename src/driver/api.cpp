// The public API (include/tessera/tessera.h): handles on values of the core, whose errors are
// thrown on as public ones.
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "backend/arrays.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "driver/optimize.h"
#include "eval/eval.h"
#include "ir/text.h"
#include "verify/all_sizes.h"

// What the public names below would hide.
namespace tessera::core {
using tessera::bind_symbols, tessera::optimize, tessera::parse, tessera::print, tessera::recheck;
using tessera::Certificate, tessera::DType, tessera::Error, tessera::ErrorKind, tessera::Graph;
using tessera::symbols_of;
using tessera::Type, tessera::Verdict, tessera::verify;
}  // namespace tessera::core

#include "tessera/tessera.h"

namespace tessera {
inline namespace api {

static_assert(int(ErrorKind::Internal) == int(core::ErrorKind::Internal));
static_assert(int(DType::Bool) == int(core::DType::Bool));

struct GraphImpl : core::Graph {};
struct CertificateImpl : core::Certificate {};
struct VerdictImpl : core::Verdict {};
struct ResultImpl : OptimizeResult {};
// Evidence: only the check of compiled code makes it, of a proved rewrite or of an original.
struct FunctionImpl : CheckedCode {};
struct WeightsImpl {
  std::shared_ptr<const FunctionImpl> of;
  std::shared_ptr<const PreparedWeights> cpu;
  std::shared_ptr<const CudaWeights> gpu;
};

struct Access {
  template <class Public, class Impl> static Public make(Impl impl) {
    return Public(std::make_shared<const Impl>(std::move(impl)));
  }
  template <class Impl> static const Impl& of(const Handle<Impl>& handle) { return *handle.impl_; }
};

namespace {

// Runs `f`, whose errors become public ones.
template <class F> auto guarded(F f) {
  try {
    return f();
  } catch (const core::Error& e) {
    Error out(e.what());
    out.kind = ErrorKind(e.kind());
    out.message = e.message();
    const SourceLocation at = e.location().value_or(SourceLocation());
    out.file = at.file;
    out.line = at.line;
    out.column = at.col;
    throw out;
  }
}

void require(bool good, core::ErrorKind kind, const std::string& else_what) {
  if (!good) throw core::Error(kind, else_what);
}

std::vector<Type> types(const core::Graph& graph, const std::vector<TensorId>& tensors) {
  std::vector<Type> out;
  for (TensorId t : tensors) {
    Type& type = out.emplace_back(Type{DType(graph.type(t).dtype), {}});
    for (const Dim& d : graph.type(t).shape) type.shape.push_back(d.extent);
  }
  return out;
}

// The arrays' memory, if they have the types of these tensors.
template <class Address, class Pointer>
std::vector<Address> addresses(const std::vector<Array<Pointer>>& arrays, const core::Graph& graph,
                               const std::vector<TensorId>& tensors, const std::string& what) {
  if (arrays.size() != tensors.size())
    throw core::Error(core::ErrorKind::BadInput, std::to_string(arrays.size()) + " " + what +
                                                     "s were given; give " +
                                                     std::to_string(tensors.size()));
  std::vector<Address> out;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string which = what + " " + std::to_string(i);
    require(arrays[i].type.dtype <= DType::Bool, core::ErrorKind::BadInput,
            which + " has no known dtype");
    core::Type given{core::DType(arrays[i].type.dtype), {}};
    given.shape.assign(arrays[i].type.shape.begin(), arrays[i].type.shape.end());
    require(given == graph.type(tensors[i]), core::ErrorKind::BadInput,
            which + " is " + given.str() + "; give " + graph.type(tensors[i]).str());
    require(arrays[i].data != nullptr || given.bytes() == 0, core::ErrorKind::BadInput,
            which + " is a null pointer");
    out.push_back((Address)arrays[i].data);  // NOLINT: a pointer, or a number of the device's
  }
  return out;
}
template <class Address> auto read(const std::vector<Input>& arrays, const core::Graph& g) {
  return addresses<Address>(arrays, g, g.inputs(), "input");
}
template <class Address> auto write(const std::vector<Output>& arrays, const core::Graph& g) {
  return addresses<Address>(arrays, g, g.outputs(), "output");
}

void check(const Options& o) {
  require(o.budget_seconds >= 0, core::ErrorKind::Usage,
          "budget_seconds must be 0 or more, not " + std::to_string(o.budget_seconds));
  require(o.threads >= 0 && o.threads <= 1024, core::ErrorKind::Usage,
          "threads must be from 0 (all) to 1024, not " + std::to_string(o.threads));
  for (const auto* folders : {&o.rule_folders, &o.pattern_folders})
    for (const std::string& folder : *folders)
      require(std::filesystem::is_directory(folder), core::ErrorKind::NotFound,
              "there is no folder " + folder);
}

const CudaModule& on_device(const CompiledCode& code) {
  require(code.runs(), core::ErrorKind::Unsupported,
          "the code is for a GPU that is not here; optimize for target \"cpu\"");
  return *code.cuda->module;
}

}  // namespace

void require_elements(size_t elements, const std::vector<int64_t>& shape) {
  uint64_t wanted = 1;
  bool fits = true;
  for (int64_t extent : shape)
    fits = extent >= 0 && !__builtin_mul_overflow(wanted, uint64_t(extent), &wanted) && fits;
  guarded([&] {
    require(fits && wanted == elements, core::ErrorKind::BadInput,
            std::to_string(elements) + " elements were given for a shape of " +
                (fits ? std::to_string(wanted) : "more than there can be"));
  });
}

Graph Graph::parse(std::string_view text, const std::string& file) {
  return guarded([&] { return Access::make<Graph>(GraphImpl{core::parse(text, file)}); });
}
std::string Graph::text() const { return core::print(*impl_); }
std::vector<Type> Graph::inputs() const { return types(*impl_, impl_->inputs()); }
std::vector<Type> Graph::outputs() const { return types(*impl_, impl_->outputs()); }

Graph Graph::with_sizes(const std::vector<std::pair<std::string, int64_t>>& sizes) const {
  return guarded([&] {
    const std::vector<std::string> symbols = core::symbols_of({&*impl_});
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::string& name = sizes[i].first;
      require(std::ranges::count(symbols, name) == 1, core::ErrorKind::BadInput,
              "the program has no size " + name);
      for (size_t j = 0; j < i; ++j)
        require(sizes[j].first != name, core::ErrorKind::BadInput, name + " is given twice");
    }
    return Access::make<Graph>(GraphImpl{core::bind_symbols(*impl_, sizes)});
  });
}

void Graph::interpret(const std::vector<Input>& inputs, const std::vector<Output>& outputs) const {
  guarded([&] {
    const core::Graph& g = *impl_;
    const auto from = read<const void*>(inputs, g);
    const auto to = write<void*>(outputs, g);
    std::vector<NDArray> arrays;
    for (size_t i = 0; i < from.size(); ++i)
      arrays.push_back(from_memory(g.type(g.inputs()[i]), from[i]));
    EvalOptions native;
    native.precision = Precision::Native;
    arrays = eval(g, arrays, native);
    for (size_t i = 0; i < to.size(); ++i) {
      const std::vector<std::byte> bytes = to_memory(arrays[i]);
      std::memcpy(to[i], bytes.data(), bytes.size());
    }
  });
}

Certificate Certificate::parse(std::string_view text) {
  return guarded(
      [&] { return Access::make<Certificate>(CertificateImpl{core::Certificate::parse(text)}); });
}
std::string Certificate::text() const { return impl_->str(); }
bool Certificate::proved() const { return impl_->proved(); }
double Certificate::error_log2() const { return impl_->error_log2; }
std::string Certificate::all_sizes() const { return impl_->all_sizes; }
std::string Certificate::recheck(const Graph& original, const Graph& rewrite) const {
  return guarded([&] {
    const Recheck r = core::recheck(*impl_, Access::of(original), Access::of(rewrite));
    return r.ok ? std::string() : r.what;
  });
}

bool Verdict::equal() const { return impl_->equal(); }
bool Verdict::refuted() const { return impl_->refuted(); }
std::string Verdict::text() const { return impl_->str(); }
Certificate Verdict::certificate() const {
  return guarded([&] {
    require(equal(), core::ErrorKind::Usage, "only equal programs have a certificate");
    return Access::make<Certificate>(CertificateImpl{impl_->certificate()});
  });
}

Verdict verify(const Graph& original, const Graph& rewrite, const Options& options) {
  return guarded([&] {
    check(options);
    VerifyOptions o;
    o.level = accuracy_named(options.level);
    o.accept_tested = options.accept_tested;
    o.threads = options.threads > 0 ? options.threads : default_threads();
    o.seconds = options.budget_seconds;
    o.cancel = options.cancel;
    return Access::make<Verdict>(
        VerdictImpl{core::verify(Access::of(original), Access::of(rewrite), o)});
  });
}

std::string Function::source() const { return impl_->code().source(); }
void Function::run(const std::vector<Input>& inputs, const std::vector<Output>& outputs,
                   const Weights* weights, void* stream) const {
  guarded([&] {
    const WeightsImpl none{impl_, nullptr, nullptr};
    const WeightsImpl& w = weights ? Access::of(*weights) : none;
    require(w.of == impl_, core::ErrorKind::Usage, "give weights that this Function prepared");
    const CompiledCode& code = impl_->code();
    if (code.cpu)
      code.cpu->run(read<const void*>(inputs, impl_->graph()),
                    write<void*>(outputs, impl_->graph()), w.cpu.get());
    else
      on_device(code).run(read<CudaAddress>(inputs, impl_->graph()),
                          write<CudaAddress>(outputs, impl_->graph()), w.gpu.get(), stream);
  });
}
Weights Function::prepare(const std::vector<Input>& inputs, void* stream) const {
  return guarded([&] {
    const CompiledCode& code = impl_->code();
    WeightsImpl w{impl_, nullptr, nullptr};
    if (code.cpu)
      w.cpu = code.cpu->prepare(read<const void*>(inputs, impl_->graph()));
    else
      w.gpu = on_device(code).prepare(read<CudaAddress>(inputs, impl_->graph()), stream);
    return Access::make<Weights>(std::move(w));
  });
}

bool Result::improved() const { return impl_->improved(); }
Graph Result::graph() const { return Access::make<Graph>(GraphImpl{impl_->graph()}); }
double Result::original_seconds() const { return impl_->original_s; }
double Result::seconds() const { return impl_->seconds; }
double Result::speedup() const { return impl_->speedup; }
Certificate Result::certificate() const {
  return guarded([&] {
    require(improved(), core::ErrorKind::Usage, "the original was kept, there is no certificate");
    return Access::make<Certificate>(CertificateImpl{impl_->rewrite->certificate()});
  });
}
Function Result::function() const {
  return guarded([&] {
    require(impl_->rewrite || impl_->original_code, core::ErrorKind::Unsupported,
            "there is no code: " + impl_->report.original_failed);
    return Access::make<Function>(
        FunctionImpl{impl_->rewrite ? impl_->rewrite->code() : *impl_->original_code});
  });
}

Result optimize(const Graph& program, const Options& options) {
  return guarded([&] {
    check(options);
    OptimizeOptions o;
    o.budget_seconds = options.budget_seconds;
    o.level = accuracy_named(options.level);
    o.accept_tested = options.accept_tested;
    o.threads = options.threads;
    o.seed = options.seed;
    o.use_cache = options.use_cache;
    o.target = options.target;
    o.target_directory = options.target_folder;
    o.rule_folders = options.rule_folders;
    o.pattern_folders = options.pattern_folders;
    const auto tell = [&](const Progress& p) {
      if (options.progress) options.progress(p.stage, p.best_speedup);
    };
    return Access::make<Result>(
        ResultImpl{core::optimize(Access::of(program), o, tell, options.cancel)});
  });
}

}  // namespace api
}  // namespace tessera
