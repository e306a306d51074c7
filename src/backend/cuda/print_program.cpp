// A kernel's steps as its plan orders them: declarations of buffers, tiles that run ahead of their
// use, barriers, waits and fences. Nothing is decided here.
#include <algorithm>

#include "backend/cuda/block_emitter.h"
#include "base/check.h"

namespace tessera {

class ProgramPrinter {
 public:
  ProgramPrinter(const BlockEmitter& e, const BlockPlan& plan, std::string& text)
      : e_(e), flow_(e.flow_), plan_(plan), text_(text) {}

  void run() {
    for (size_t b = 0; b < flow_.buffers.size(); ++b) {
      const SharedBuffer& buffer = flow_.buffers[b];
      if (buffer.elements == 0) continue;
      const std::string type = storage_type(buffer.dtype, Dialect::Cuda);
      const ValuePlan& p = plan_.values[b];
      line(type + "* const " + (p.copies > 1 ? "s" : "") + buffer.name + " = reinterpret_cast<" +
           type + "*>(ts::shared() + " + n(p.offset) + ");  // " +
           (p.copies > 1 ? n(p.copies) + " times " : "") + n(p.pitch) + " bytes");
    }
    barriers();
    for (const std::string& s : e_.head_) line(s);
    for (size_t a = 0; a < plan_.actions.size(); ++a) a = action(a);
  }

 private:
  static std::string n(int64_t x) { return std::to_string(x); }
  void line(const std::string& s) { text_ += std::string(size_t(2 * indent_), ' ') + s + "\n"; }
  const EmitStep& step(const Action& a) const { return flow_.steps[size_t(a.step)]; }
  const EmitLoop& loop(int l) const { return flow_.loops[size_t(l)]; }
  std::string variable(int l) const { return "l" + n(loop(l).number); }

  // --- barriers of boxes
  // Tiles of a loop that come as boxes: each announces its bytes to the stage's barrier.
  int boxes(int l) const {
    return int(std::ranges::count_if(
        flow_.steps,
        [&](const EmitStep& s) {
          return s.tile >= 0 && s.loop == l && s.instruction == Instruction::Bulk;
        }));
  }
  bool nested(int l) const { return loop(l).around >= 0; }
  void barriers() {
    bool any = false;
    for (int l = 0; l < int(flow_.loops.size()); ++l) {
      if (boxes(l) == 0) continue;
      line("ts::Barrier* const full" + n(l) + " = reinterpret_cast<ts::Barrier*>(ts::shared() + " +
           n(plan_.loops[size_t(l)].bulk_offset) + ");");
      any = true;
    }
    if (!any) return;
    line("if (ts::thread() == 0) {");
    for (int l = 0; l < int(flow_.loops.size()); ++l)
      if (boxes(l) > 0)
        line("  for (int s = 0; s < " + n(stages(l)) + "; ++s) ts::init_barrier(full" + n(l) +
             " + s, " + n(boxes(l)) + ");");
    line("  ts::publish_barriers();");
    line("}");
    // Nobody waits at a barrier before all have met.
    for (const Action& a : plan_.actions) {
      if (a.kind == ActionKind::Barrier) break;
      if (a.kind != ActionKind::WaitBulk) continue;
      line("ts::sync();");
      break;
    }
    for (int l = 0; l < int(flow_.loops.size()); ++l)
      if (boxes(l) > 0 && nested(l))
        line("int past" + n(l) + " = 0;  // iterations of earlier times");
  }
  int stages(int l) const { return plan_.loops[size_t(l)].stages; }
  // Iteration `i` of the loop among all of its iterations.
  std::string count(int l, const std::string& i) const {
    return boxes(l) > 0 && nested(l) ? "(past" + n(l) + " + " + i + ")" : i;
  }
  // What is added to the pointer of the first copy, for that of iteration `i`.
  std::string stage(size_t buffer, const std::string& i) const {
    const ValuePlan& p = plan_.values[buffer];
    if (p.copies == 1) return "";
    return " + " + count(p.loop, i) + " % " + n(p.copies) + " * " +
           n(p.pitch / size_in_bytes(flow_.buffers[buffer].dtype));
  }

  // --- tiles
  size_t buffer_of(const EmitStep& s) const { return s.accesses[0].buffer; }
  // The copy of a tile, of the iteration that the loop's variable names.
  void copy(const EmitStep& s, bool declare) {
    const int id = s.tile;
    const Value& v = e_.value(id);
    const SharedBuffer& b = flow_.buffers[buffer_of(s)];
    Code code;
    code.set_indent(indent_);
    if (declare)
      for (size_t axis = 0; axis < v.extents.size(); ++axis) {
        const Extent& x = v.extents[axis];
        std::vector<std::string> lines;
        if (!x.exact() && (x.loops >> loop(s.loop).number & 1) != 0)
          e_.declare_extent(id, axis, lines);
        for (const std::string& each : lines) code.line(each);
      }
    const std::string l = s.loop < 0 ? "" : variable(s.loop);
    code.line(std::string(storage_type(b.dtype, Dialect::Cuda)) +
              "* const to = " + (plan_.values[buffer_of(s)].copies > 1 ? "s" : "") + b.name +
              stage(buffer_of(s), l) + ";");
    if (s.instruction == Instruction::Bulk) {
      const std::string which =
          stages(s.loop) > 1 ? " + " + count(s.loop, l) + " % " + n(stages(s.loop)) : "";
      code.open("if (ts::thread() == 0)");
      e_.copy_boxes(id, "full" + n(s.loop) + which, code);
      code.close();
      code.line("ts::sync_warp();");
    } else {
      e_.copy_code(id, code);
    }
    text_ += code.text();
  }
  bool early(const Action& a) const {
    return a.kind == ActionKind::Step && step(a).tile >= 0 && plan_.steps[size_t(a.step)].ahead > 0;
  }
  std::string function(const Action& a) const { return "load" + n(step(a).tile); }
  // The first iterations' tiles, before the loop: a function for each, which the loop calls too.
  size_t prologue(size_t a) {
    const int l = step(plan_.actions[a]).loop;
    std::vector<std::string> body;
    for (size_t i = a; plan_.actions[i].ahead == 0 && early(plan_.actions[i]); ++i) {
      const EmitStep& s = step(plan_.actions[i]);
      line("// v" + n(s.tile) + ": a tile of operand " + n(e_.value(s.tile).argument) +
           " for each iteration, " + n(stages(l)) + " stages");
      line("const auto " + function(plan_.actions[i]) + " = [&](int " + variable(l) + ") {");
      ++indent_;
      copy(s, true);
      --indent_;
      line("};");
      body.push_back(function(plan_.actions[i]) + "(s);");
    }
    bool commit = false;
    while (plan_.actions[a].kind != ActionKind::LoopBegin) {
      commit = commit || plan_.actions[a].kind == ActionKind::Commit;
      CHECK(early(plan_.actions[a]) || plan_.actions[a].kind == ActionKind::Commit)
          << "something stands between the first tiles of a loop and the loop";
      ++a;
    }
    if (commit) body.push_back("ts::commit_copies();");
    line("for (int s = 0; s < " + n(plan_.loops[size_t(l)].ahead) + "; ++s) {");
    for (const std::string& s : body) line("  " + s);
    line("}");
    return a - 1;
  }
  // Tiles of a later iteration, asked for in this one.
  size_t ahead(size_t a) {
    const int l = step(plan_.actions[a]).loop;
    const std::string i = variable(l) + " + " + n(plan_.actions[a].ahead);
    std::string calls;
    size_t to = a;
    for (; to < plan_.actions.size() && early(plan_.actions[to]); ++to)
      calls += (calls.empty() ? "" : " ") + function(plan_.actions[to]) + "(" + i + ");";
    if (to > a + 1) calls = "{ " + calls + " }";
    line("if (" + i + " < " + n(loop(l).extent) + ") " + calls);
    return to - 1;
  }

  // Prints the action, or some from there on; returns the last one.
  size_t action(size_t at) {
    const Action& a = plan_.actions[at];
    switch (a.kind) {
    case ActionKind::Step:
      if (early(a)) return open_ == step(a).loop ? ahead(at) : prologue(at);
      if (step(a).tile >= 0) {
        line("{  // v" + n(step(a).tile) + ": a tile of operand " +
             n(e_.value(step(a).tile).argument));
        ++indent_;
        copy(step(a), false);
        --indent_;
        line("}");
        return at;
      }
      for (const std::string& s : step(a).lines) line(s);
      return at;
    case ActionKind::Commit: line("ts::commit_copies();"); return at;
    case ActionKind::Wait: line("ts::wait_copies<" + n(a.pending) + ">();"); return at;
    case ActionKind::WaitBulk: wait(a.loop); return at;
    case ActionKind::Fence: line("ts::fence_async();"); return at;
    case ActionKind::Barrier: line("ts::sync();"); return at;
    case ActionKind::LoopBegin: begin(a.loop); return at;
    case ActionKind::LoopEnd: end(a.loop); return at;
    }
    unreachable("ActionKind");
  }
  void wait(int l) {
    const std::string i = count(l, variable(l)), of = n(stages(l));
    const bool several = stages(l) > 1;
    line("ts::wait(full" + n(l) + (several ? " + " + i + " % " + of : "") + ", " + i +
         (several ? " / " + of : "") + " % 2);");
  }
  void begin(int l) {
    open_ = l;
    const std::string i = variable(l);
    line("for (int " + i + " = 0; " + i + " < " + n(loop(l).extent) + "; ++" + i + ") {");
    ++indent_;
    for (size_t b = 0; b < flow_.buffers.size(); ++b) {
      if (plan_.values[b].copies == 1 || plan_.values[b].loop != l) continue;
      const SharedBuffer& buffer = flow_.buffers[b];
      line(std::string(storage_type(buffer.dtype, Dialect::Cuda)) + "* const " + buffer.name +
           " = s" + buffer.name + stage(b, i) + ";");
    }
  }
  void end(int l) {
    open_ = loop(l).around;
    --indent_;
    line("}");
    if (boxes(l) > 0 && nested(l)) line("past" + n(l) + " += " + n(loop(l).extent) + ";");
  }

  const BlockEmitter& e_;
  const EmitFlow& flow_;
  const BlockPlan& plan_;
  std::string& text_;
  int indent_ = 1;
  int open_ = -1;  // the innermost loop around what is printed
};

void BlockEmitter::print_program(const BlockPlan& plan, std::string& text) const {
  ProgramPrinter(*this, plan, text).run();
}

}  // namespace tessera
