#include "backend/cuda/graph_clock.h"

#include <memory>

#include "base/error.h"

namespace tessera {
namespace {

constexpr unsigned kNonBlocking = 1;  // the default stream does not wait for it
constexpr int kThreadLocal = 1;       // other threads may do what this capture could not

}  // namespace

// A graph that can be launched.
class CudaGraphClock::Captured {
 public:
  Captured(std::shared_ptr<CudaContext> context, CudaStream stream,
           const std::function<void(int)>& work, int repeats)
      : context_(std::move(context)) {
    const CudaApi& api = context_->driver().api();
    context_->check(api.begin_capture(stream, kThreadLocal), "capture what is timed");
    CudaHandle graph = nullptr;
    try {
      for (int i = 0; i < repeats; ++i) work(i);
    } catch (...) {  // the stream is not left in a capture
      api.end_capture(stream, &graph);
      if (graph != nullptr) api.graph_destroy(graph);
      throw;
    }
    context_->check(api.end_capture(stream, &graph), "capture what is timed");
    const int failed = api.graph_instantiate(&run_, graph, 0);
    api.graph_destroy(graph);
    context_->check(failed, "prepare the graph that is timed");
  }
  ~Captured() {
    try {
      const CudaContext::Current current(*context_);
      context_->driver().api().graph_exec_destroy(run_);
    } catch (const Error&) {  // the context is gone, and all that is in it
    }
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  CudaHandle run() const { return run_; }

 private:
  std::shared_ptr<CudaContext> context_;
  CudaHandle run_ = nullptr;
};

CudaGraphClock::CudaGraphClock(std::shared_ptr<CudaContext> context)
    : context_(std::move(context)) {
  const CudaContext::Current current(*context_);
  const CudaApi& api = context_->driver().api();
  context_->check(api.stream_create(&stream_, kNonBlocking), "make a stream");
  context_->check(api.event_create(&begin_, 0), "make an event");
  context_->check(api.event_create(&end_, 0), "make an event");
}

CudaGraphClock::~CudaGraphClock() {
  try {
    const CudaContext::Current current(*context_);
    const CudaApi& api = context_->driver().api();
    for (CudaHandle event : {begin_, end_})
      if (event != nullptr) api.event_destroy(event);
    if (stream_ != nullptr) api.stream_destroy(stream_);
  } catch (const Error&) {  // the context is gone, and all that is in it
  }
}

std::function<double()> CudaGraphClock::timed(const std::function<void(int)>& work, int repeats) {
  const CudaContext::Current current(*context_);
  const CudaApi& api = context_->driver().api();
  // Somebody else's capture on another thread is none of ours.
  const RelaxedCapture relaxed(context_->driver());
  for (int i = 0; i < repeats; ++i) work(i);
  context_->check(api.stream_synchronize(stream_), "run what is timed");
  auto captured = std::make_shared<const Captured>(context_, stream_, work, repeats);
  return [this, captured] {
    const CudaContext::Current here(*context_);
    const RelaxedCapture relaxed_here(context_->driver());
    const CudaApi& call = context_->driver().api();
    context_->check(call.event_record(begin_, stream_), "start the clock");
    context_->check(call.graph_launch(captured->run(), stream_), "run what is timed");
    context_->check(call.event_record(end_, stream_), "stop the clock");
    context_->check(call.event_synchronize(end_), "run what is timed");
    float ms = 0;
    context_->check(call.event_elapsed(&ms, begin_, end_), "read the clock");
    return 1e-3 * double(ms);
  };
}

}  // namespace tessera
