// How operators are written between their operands, in C as in NumPy.
#pragma once
#include "ir/op.h"

namespace tessera {

inline const char* symbol(OpKind kind) {  // null: it is written as a call
  switch (kind) {
  case OpKind::Add: return "+";
  case OpKind::Sub: return "-";
  case OpKind::Mul: return "*";
  case OpKind::Div: return "/";
  case OpKind::And: return "&";
  case OpKind::Or: return "|";
  case OpKind::Eq: return "==";
  case OpKind::Ne: return "!=";
  case OpKind::Lt: return "<";
  case OpKind::Le: return "<=";
  case OpKind::Gt: return ">";
  case OpKind::Ge: return ">=";
  default: return nullptr;
  }
}

}  // namespace tessera
