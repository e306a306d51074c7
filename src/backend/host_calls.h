// Operators that are computed by the process in which a program runs, such as PyTorch's or
// onnxruntime's: a step of a compiled program hands its operands and the memory of its results to
// the host of that name. Where there is none, a program does without them or is refused.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace tessera {

struct HostStep {
  std::string host, text;  // who computes it, and what it is there
  std::vector<Type> operands, results;
  int number = -1;  // of an opaque operator: among those that are computed
};

// Arguments: arrays of the operands, row-major and only to be read, then those of the results,
// which are to be filled; all are gone after the call. Throws Error.
using HostFunction = std::function<void(const HostStep&, void* const* arguments, int threads)>;

struct Host {
  // What a check of its operators depends on, such as "torch 2.13.0"; empty where it is not here.
  std::function<std::string()> version;
  // Why it cannot compute this; empty where it can.
  std::function<std::string(const std::string& text)> problem;
  HostFunction run;
};

// For all programs of the process, from now on; replaces the host of that name. Without a function
// to run there is none.
void set_host(const std::string& name, Host host);
// Null: there is none. Kept by whoever has it.
std::shared_ptr<const Host> find_host(const std::string& name);
// Why nobody here computes this; empty where somebody does.
std::string host_problem(const HostStep& step);
// Calls the host, or on a thread with a HostScope what that says. Throws Error: also where there is
// no host any more.
void call_host(const HostStep& step, void* const* arguments, int threads);

// While it lives, this thread's host calls are what `instead` does.
class HostScope {
 public:
  explicit HostScope(const HostFunction& instead);
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

 private:
  const HostFunction* before_;
};

// The step of an opaque operator "onnx.TopK": the host "onnx" computes "onnx.TopK" with its
// payload.
HostStep opaque_step(const Graph& graph, const Op& op);
// What opaque operators give as further inputs, and what they take as further outputs, in their
// order: a program that needs no host.
Graph without_opaque(const Graph& graph);

}  // namespace tessera
