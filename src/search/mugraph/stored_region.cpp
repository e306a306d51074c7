#include "search/mugraph/stored_region.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace tessera::mugraph {
namespace {

// Numbers are written exactly: plans are compared and sorted by their seconds.
class Writer {
 public:
  template <class T> void list(const T& items) {
    number(items.size());
    for (auto x : items) number(x);
  }
  template <class T> void number(T x) {
    if constexpr (std::is_floating_point_v<T>) {
      char buffer[40];
      std::snprintf(buffer, sizeof buffer, "%a ", double(x));
      text_ += buffer;
    } else {
      text_ += std::to_string(x) + " ";
    }
  }
  void line(const std::string& s) { text_ += s + "\n"; }
  void end() { text_ += "\n"; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(const std::string& text) : in_(text) {}
  bool ok() const { return ok_; }
  template <class T> void number(T& x) {
    std::string word;
    if (!(in_ >> word)) {
      ok_ = false;
      return;
    }
    char* end = nullptr;
    if constexpr (std::is_floating_point_v<T>)
      x = std::strtod(word.c_str(), &end);
    else if constexpr (std::is_unsigned_v<T>)
      x = T(std::strtoull(word.c_str(), &end, 10));
    else
      x = T(std::strtoll(word.c_str(), &end, 10));
    ok_ = ok_ && *end == '\0';
  }
  size_t count() {
    size_t n = 0;
    number(n);
    if (n > (size_t(1) << 20)) ok_ = false;
    return ok_ ? n : 0;
  }
  template <class T> void list(std::vector<T>& items) {
    items.resize(count());
    for (T& x : items) number(x);
  }
  void line(std::string& s) {
    in_ >> std::ws;
    if (!std::getline(in_, s)) ok_ = false;
    if (s == "-") s.clear();
  }

 private:
  std::istringstream in_;
  bool ok_ = true;
};

std::string or_dash(const std::string& s) { return s.empty() ? "-" : s; }

}  // namespace

std::string print_region(const StoredRegion& r) {
  Writer out;
  for (int64_t n : {r.values, r.edges, r.graphs, r.tilings, int64_t(r.limited)}) out.number(n);
  out.end();
  out.line(or_dash(r.detail));
  out.number(r.pruned.size());
  out.end();
  for (const auto& [rule, n] : r.pruned) {
    out.number(n);
    out.line(rule);
  }
  out.number(r.worlds.size());
  out.end();
  for (const StoredRegion::StoredWorld& w : r.worlds) {
    out.number(w.formulation.options.cap);
    out.number(int(w.formulation.options.keep_shifts));
    out.number(int(w.formulation.program_only));
    out.number(w.split_axis);
    out.number(int(w.as_written));
    out.line(or_dash(w.formulation.note));
  }
  out.number(r.choices.size());
  out.end();
  for (const Choice& c : r.choices) {
    out.number(c.world);
    out.number(c.plan.seconds);
    out.number(c.plan.parts.size());
    for (const auto& [axis, n] : c.plan.parts) {
      out.number(axis);
      out.number(n);
    }
    out.number(c.plan.kernels.size());
    out.end();
    for (const Kernel& k : c.plan.kernels) {
      // All members by name: one that is added and forgotten here does not compile.
      const auto& [outputs, loads, edges, loop, loop_parts, passes, varies, folds, nested,
                   nested_parts, parts, grid, seconds, bound, block_bytes, operators] = k;
      out.list(outputs);
      out.list(loads);
      out.list(edges);
      out.number(loop);
      out.number(loop_parts);
      out.number(passes);
      out.number(varies);
      out.number(folds);
      out.number(nested);
      out.number(nested_parts);
      out.number(parts);
      out.number(grid.size());
      for (const Kernel::GridDim& g : grid) {
        out.number(g.axes);
        out.number(g.parts);
      }
      out.number(seconds);
      out.number(bound);
      out.number(block_bytes);
      out.number(operators);
      out.end();
    }
  }
  return out.take();
}

std::optional<StoredRegion> read_region(const std::string& text) {
  Reader in(text);
  StoredRegion r;
  int limited = 0;
  for (int64_t* n : {&r.values, &r.edges, &r.graphs, &r.tilings}) in.number(*n);
  in.number(limited);
  r.limited = limited != 0;
  in.line(r.detail);
  for (size_t n = in.count(); n > 0 && in.ok(); --n) {
    int64_t times = 0;
    std::string rule;
    in.number(times);
    in.line(rule);
    r.pruned[rule] = times;
  }
  r.worlds.resize(in.count());
  for (StoredRegion::StoredWorld& w : r.worlds) {
    int keep = 0, only = 0, written = 0;
    in.number(w.formulation.options.cap);
    in.number(keep);
    in.number(only);
    in.number(w.split_axis);
    in.number(written);
    in.line(w.formulation.note);
    w.formulation.options.keep_shifts = keep != 0;
    w.formulation.program_only = only != 0;
    w.as_written = written != 0;
  }
  r.choices.resize(in.count());
  for (Choice& c : r.choices) {
    in.number(c.world);
    in.number(c.plan.seconds);
    for (size_t n = in.count(); n > 0 && in.ok(); --n) {
      int axis = 0;
      in.number(axis);
      in.number(c.plan.parts[axis]);
    }
    c.plan.kernels.resize(in.count());
    for (Kernel& k : c.plan.kernels) {
      auto& [outputs, loads, edges, loop, loop_parts, passes, varies, folds, nested, nested_parts,
             parts, grid, seconds, bound, block_bytes, operators] = k;
      in.list(outputs);
      in.list(loads);
      in.list(edges);
      in.number(loop);
      in.number(loop_parts);
      in.number(passes);
      in.number(varies);
      in.number(folds);
      in.number(nested);
      in.number(nested_parts);
      in.number(parts);
      grid.resize(in.count());
      for (Kernel::GridDim& g : grid) {
        in.number(g.axes);
        in.number(g.parts);
      }
      in.number(seconds);
      in.number(bound);
      in.number(block_bytes);
      in.number(operators);
    }
  }
  if (!in.ok()) return std::nullopt;
  return r;
}

}  // namespace tessera::mugraph
