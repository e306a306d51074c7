// What tests count, in graphs and in texts.
#pragma once

#include <string>

#include "ir/graph.h"

namespace tessera {

inline int count(const Graph& g, OpKind kind) {
  int n = 0;
  for (const Op& op : g.ops()) n += op.kind == kind;
  return n;
}

// Operators that compute something.
inline int computing_ops(const Graph& g) {
  int n = 0;
  for (const Op& op : g.ops())
    n += op.kind != OpKind::Input && op.kind != OpKind::Const && !has(op.kind, algebra::Movement);
  return n;
}

inline int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tessera
