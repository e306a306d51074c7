#include "ir/op.h"

#include <unordered_map>

#include "base/check.h"
#include "base/names.h"

namespace tessera {
namespace {

using namespace algebra;  // flags, for the table only
constexpr unsigned K = 1, B = 2, T = 4;
constexpr unsigned KB = K | B, KBT = K | B | T;

// A function, because g++ 12 takes 14 s to compile the table as expressions that build variants.
template <class A>
void add_row(std::vector<OpInfo>& rows, const char* text, int min_arity, int max_arity,
             unsigned levels, unsigned flags) {
  rows.emplace_back();
  OpInfo& row = rows.back();
  row.name = text;
  row.min_arity = min_arity;
  row.max_arity = max_arity;
  row.levels = levels;
  row.flags = flags;
  row.default_attrs.emplace<A>();
}

const std::vector<OpInfo>& table() {
  static const std::vector<OpInfo> rows = [] {
    std::vector<OpInfo> r;
#define OP(kind, text, min_arity, max_arity, attrs, levels, flags)                                 \
  add_row<attrs>(r, text, min_arity, max_arity, levels, flags);
#include "ir/ops.def"
    return r;
  }();
  (void)T;
  return rows;
}

}  // namespace

const OpInfo& info(OpKind kind) { return table()[size_t(kind)]; }

std::optional<OpKind> op_from_name(std::string_view text) {
  static const auto index = [] {
    std::unordered_map<std::string_view, OpKind> m;
    for (OpKind kind : all_op_kinds()) m.emplace(info(kind).name, kind);
    return m;
  }();
  auto it = index.find(text);
  return it == index.end() ? std::nullopt : std::optional(it->second);
}

const std::vector<OpKind>& all_op_kinds() {
  static const std::vector<OpKind> kinds = {
#define OP(kind, ...) OpKind::kind,
#include "ir/ops.def"
  };
  return kinds;
}

std::optional<AccumKind> fold_of(OpKind kind) {
  for (AccumKind fold : {AccumKind::Sum, AccumKind::Max, AccumKind::Min})
    if (kind == step_by(fold) || kind == reduction_by(fold)) return fold;
  return std::nullopt;
}

OpKind step_by(AccumKind fold) {
  CHECK(fold != AccumKind::Concat) << "a concatenation is no fold of numbers";
  return fold == AccumKind::Sum ? OpKind::Add : fold == AccumKind::Max ? OpKind::Max : OpKind::Min;
}

OpKind reduction_by(AccumKind fold) {
  CHECK(fold != AccumKind::Concat) << "a concatenation is no fold of numbers";
  return fold == AccumKind::Sum   ? OpKind::Sum
         : fold == AccumKind::Max ? OpKind::ReduceMax
                                  : OpKind::ReduceMin;
}

Outcomes outcomes(OpKind comparison) {
  switch (comparison) {
  case OpKind::Eq: return {false, true, false};
  case OpKind::Ne: return {true, false, true};
  case OpKind::Lt: return {true, false, false};
  case OpKind::Le: return {true, true, false};
  case OpKind::Gt: return {false, false, true};
  case OpKind::Ge: return {false, true, true};
  default: unreachable("not a comparison");
  }
}

const char* symbol(OpKind kind) {
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

const char* name(Level level) {
  return name_of<Level::Thread>(level, {"kernel", "block", "thread"});
}

const char* name(AccumKind kind) {
  return name_of<AccumKind::Concat>(kind, {"sum", "max", "min", "concat"});
}

}  // namespace tessera
