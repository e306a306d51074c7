#include "backend/cuda/clock.h"

#include "base/error.h"

namespace tessera {

namespace {
constexpr unsigned kNonBlocking = 1;  // the default stream does not wait for it
}

CudaClock::CudaClock(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {
  const CudaContext::Current current(*context_);
  const CudaApi& api = context_->driver().api();
  context_->check(api.stream_create(&stream_, kNonBlocking), "make a stream");
  context_->check(api.event_create(&begin_, 0), "make an event");
  context_->check(api.event_create(&end_, 0), "make an event");
}

CudaClock::~CudaClock() {
  try {
    const CudaContext::Current current(*context_);
    const CudaApi& api = context_->driver().api();
    for (CudaHandle event : {begin_, end_})
      if (event != nullptr) api.event_destroy(event);
    if (stream_ != nullptr) api.stream_destroy(stream_);
  } catch (const Error&) {  // the context is gone, and all that is in it
  }
}

double CudaClock::time(const std::function<void(int)>& work, int repeats) {
  const CudaContext::Current current(*context_);
  const CudaApi& api = context_->driver().api();
  context_->check(api.event_record(begin_, stream_), "start the clock");
  for (int i = 0; i < repeats; ++i) work(i);
  context_->check(api.event_record(end_, stream_), "stop the clock");
  context_->check(api.event_synchronize(end_), "run what is timed");
  float ms = 0;
  context_->check(api.event_elapsed(&ms, begin_, end_), "read the clock");
  return 1e-3 * double(ms);
}

}  // namespace tessera
