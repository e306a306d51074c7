// Long calls into the core: they run on a thread of their own without the GIL, while the calling
// thread polls for Ctrl-C (which sets a cancel flag) and hands progress to Python.
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "bindings.h"

namespace tessera::python {

// Makes a Python object of one piece of news, under the GIL.
using MakeProgress = std::function<nb::object()>;

// What the work sees: flags to poll, and a place to leave progress in.
class LongCall {
 public:
  // The first Ctrl-C asks for the best so far; the second one, or `stop`, for an end at once.
  std::atomic<bool> cancel{false}, abandon{false};
  // None, or a function that says whether to stop; asked now and then, for calls from threads that
  // Ctrl-C does not reach.
  nb::object stop = nb::none();
  bool interrupted = false;  // by Ctrl-C; the work then stopped early by its own rules

  // Keeps `make` until the caller's next poll; where very much comes in between, only some of it.
  void publish(MakeProgress make) {
    constexpr size_t kMostWaiting = 256;
    std::lock_guard lock(mutex_);
    if (news_.size() >= kMostWaiting)
      news_.back() = std::move(make);
    else
      news_.push_back(std::move(make));
  }

  // Runs work() to its end and returns what it returns. Rethrows what work throws.
  template <class Work> auto run(Work work, const nb::object& progress = nb::none()) {
    using Result = decltype(work());
    std::optional<Result> result;
    std::exception_ptr failure;
    std::thread worker([&] {
      try {
        result.emplace(work());
      } catch (...) {
        failure = std::current_exception();
      }
      std::lock_guard lock(mutex_);
      done_ = true;
      changed_.notify_one();
    });
    std::optional<nb::python_error> raised;
    std::exception_ptr other;
    for (bool done = false; !done;) {
      {
        Released release;
        std::unique_lock lock(mutex_);
        done = changed_.wait_for(lock, std::chrono::milliseconds(50), [&] { return done_; });
      }
      try {
        if (staying(PyErr_CheckSignals) != 0) throw nb::python_error();
        if (!progress.is_none()) tell(progress);
        if (!stop.is_none() && holds(stop, nullptr)) cancel = abandon = interrupted = true;
      } catch (nb::python_error& error) {
        if (interrupted || !error.matches(PyExc_KeyboardInterrupt)) abandon = true;
        cancel = true;
        interrupted = true;
        // Ctrl-C asks for the best so far; anything else that a handler raises is passed on.
        if (!error.matches(PyExc_KeyboardInterrupt)) raised.emplace(std::move(error));
      } catch (...) {  // of memory, say: the worker has to be waited for
        cancel = abandon = true;
        other = std::current_exception();
      }
    }
    {
      Released release;
      worker.join();
    }
    if (failure) std::rethrow_exception(failure);
    if (raised) throw std::move(*raised);
    if (other) std::rethrow_exception(other);
    return std::move(*result);
  }

 private:
  void tell(const nb::object& progress) {
    std::vector<MakeProgress> news;
    {
      std::lock_guard lock(mutex_);
      std::swap(news, news_);
    }
    for (const MakeProgress& make : news) holds(progress, make().ptr());
  }
  // Of a call with an argument, or without.
  static bool holds(const nb::object& function, PyObject* argument) {
    PyObject* const result = staying([&] {
      return argument != nullptr ? PyObject_CallOneArg(function.ptr(), argument)
                                 : PyObject_CallNoArgs(function.ptr());
    });
    if (result == nullptr) throw nb::python_error();
    const nb::object kept = nb::steal(result);
    return PyObject_IsTrue(result) == 1;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<MakeProgress> news_;  // oldest first
  bool done_ = false;
};

}  // namespace tessera::python
