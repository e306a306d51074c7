#include "search/patterns/loops.h"

#include <algorithm>
#include <functional>
#include <map>

#include "base/text.h"

namespace tessera::patterns {
namespace {

constexpr size_t kMaxLoopTextBytes = 1 << 20, kMaxLoopLines = 1000;
constexpr int kMaxDepth = 16;

std::string product(const std::vector<Dim>& size) {
  return joined(
      size, "*", [](const Dim& d) { return d.str(); });
}

// Lines "loop0 [M, para, (dot)]".
class LoopParser : public Scanner {
 public:
  using Scanner::Scanner;

  Loop loop() {
    const size_t start = at();
    const std::string name = word("a loop, as in 'loop0 [M, para, (dot)]'");
    if (!name.starts_with("loop")) fail("expected 'loop' and a number, not '" + name + "'", start);
    Loop loop;
    expect("[");
    do loop.size.push_back(size());
    while (take("*"));
    expect(",");
    const size_t from = skip();
    const std::string par = word("'para' or 'non-para'", "-");
    loop.parallel = par == "para" || par == "parallelizable";
    if (!loop.parallel && par != "non-para" && par != "non-parallelizable")
      fail("expected 'para' or 'non-para', not '" + par + "'", from);
    if (take(",")) {
      expect("(");
      do loop.ops.push_back(op());
      while (take(","));
      expect(")");
    }
    expect("]");
    end_of_line();
    return loop;
  }

 private:
  Dim size() {
    const size_t from = skip();
    const auto n = number(kMaxElements);
    if (!n) return Dim(word("a size: a number or a symbol"));
    if (*n < 2) fail("a loop runs from 2 to 2^40 times", from);
    return Dim(*n);
  }
  std::string op() {
    const size_t from = skip();
    const std::string name = word("an operation");
    // The paper's names of trivial operations are those of the text format, or these.
    static const std::map<std::string, std::string> kOther = {
        {"reduceMean", "reduceSum"}, {"sub", "sub"}, {"permute", "transpose"}};
    const auto other = kOther.find(name);
    const std::string known = other == kOther.end() ? name : other->second;
    const auto kind = op_from_name(known);
    if (!is_key(known) && (!kind || loop_op(*kind) != known))
      fail("no operation '" + name +
               "'; there are dot, reduceMax, reduceMin, reduceSum, reduceAny and the operators of "
               "the text format, such as exp",
           from);
    return known;
  }
};

void print(const LoopGraph& loops, size_t depth, int& number, std::string& text) {
  for (const Loop& l : loops) {
    text += std::string(2 * depth, ' ') + "loop" + std::to_string(number++) + " [" +
            product(l.size) + (l.parallel ? ", para" : ", non-para");
    for (size_t i = 0; i < l.ops.size(); i++) text += (i == 0 ? ", (" : ", ") + l.ops[i];
    text += l.ops.empty() ? "]" : ")]";
    text += "\n";
    print(l.children, depth + 1, number, text);
  }
}

std::vector<std::string> sorted_keys(const Loop& l) {
  std::vector<std::string> found = l.ops;
  std::erase_if(found, [](const std::string& op) { return !is_key(op); });
  std::ranges::sort(found);
  return found;
}

void collect_keys(const LoopGraph& loops, std::vector<std::string>& found) {
  for (const Loop& l : loops) {
    for (const std::string& op : sorted_keys(l)) found.push_back(op);
    collect_keys(l.children, found);
  }
}

// --- matching --------------------------------------------------------------------------------

using SizeBinding =
    std::map<std::string, std::string>;  // symbol of the pattern → size of the subgraph

bool bind_size(const Loop& pattern, const Loop& loop, SizeBinding& sizes) {
  const std::string size = product(loop.size), wanted = product(pattern.size);
  const bool open = std::ranges::any_of(pattern.size, [](const Dim& d) { return d.symbolic(); });
  return open ? sizes.emplace(wanted, size).first->second == size : wanted == size;
}

// Are the keys the pattern's (or, of a subgraph that may grow, among them)?
bool keys_fit(const Loop& pattern, const Loop& loop, bool partial) {
  std::vector<std::string> wanted = sorted_keys(pattern);
  size_t any = size_t(std::ranges::count(wanted, "reduceAny"));
  std::erase(wanted, "reduceAny");
  for (const std::string& key : sorted_keys(loop)) {
    const auto at = std::ranges::find(wanted, key);
    if (at != wanted.end())
      wanted.erase(at);
    else if (any > 0 && key != "dot")
      --any;
    else
      return false;
  }
  if (partial) return true;
  for (const std::string& op : pattern.ops)
    if (!is_key(op) && std::ranges::find(loop.ops, op) == loop.ops.end()) return false;
  return wanted.empty() && any == 0;
}

bool embeds(const LoopGraph& pattern, size_t p, const LoopGraph& graph, size_t g, bool partial,
            const SizeBinding& before, const std::function<bool(const SizeBinding&)>& then) {
  if (g == graph.size()) return (partial || p == pattern.size()) && then(before);
  if (p == pattern.size()) return false;
  const Loop &wanted = pattern[p], &loop = graph[g];
  SizeBinding sizes = before;
  const bool parallel =
      partial ? !wanted.parallel || loop.parallel : wanted.parallel == loop.parallel;
  if (parallel && bind_size(wanted, loop, sizes) && keys_fit(wanted, loop, partial) &&
      embeds(wanted.children, 0, loop.children, 0, partial, sizes, [&](const SizeBinding& inner) {
        return embeds(pattern, p + 1, graph, g + 1, partial, inner, then);
      }))
    return true;
  return partial && embeds(pattern, p + 1, graph, g, partial, before, then);
}

}  // namespace

std::string loop_op(OpKind kind) {
  if (kind == OpKind::Matmul) return "dot";
  if (is_sum(kind)) return "reduceSum";
  if (is_reduction(kind)) return fold_of(kind) == AccumKind::Max ? "reduceMax" : "reduceMin";
  return name(kind);
}

bool is_key(std::string_view op) {
  return op == "dot" || op == "reduceMax" || op == "reduceMin" || op == "reduceSum" ||
         op == "reduceAny";
}

std::vector<std::string> keys(const LoopGraph& loops) {
  std::vector<std::string> found;
  collect_keys(loops, found);
  std::ranges::sort(found);
  return found;
}

std::string print(const LoopGraph& loops) {
  std::string text;
  int number = 0;
  print(loops, 0, number, text);
  return text;
}

LoopGraph parse_loops(std::string_view text, const std::string& file, int first_line) {
  LoopParser parser(text, file, first_line);
  if (text.size() > kMaxLoopTextBytes) parser.fail("more than 1 MiB of loops", 0);
  LoopGraph roots;
  // Where the next loop may go: the lists it may be appended to, by indentation.
  struct Open {
    int indentation;
    std::vector<size_t> path;
  };
  std::vector<Open> open;
  size_t count = 0;
  for (parser.skip_lines(); parser.at() < text.size(); parser.skip_lines()) {
    const int indentation = parser.column_of(parser.at()) - 1;
    const auto before = text.substr(parser.at() - size_t(indentation), size_t(indentation));
    if (before.find('\t') != std::string_view::npos) parser.fail("a tab; indent by spaces");
    while (!open.empty() && open.back().indentation >= indentation) {
      if (open.back().indentation == indentation || open.size() == 1 ||
          open[open.size() - 2].indentation >= indentation) {
        open.pop_back();
        continue;
      }
      parser.fail("this loop is indented like none before it");
    }
    if (open.empty() && !roots.empty() && indentation > 0)
      parser.fail("this loop is indented like none before it");
    if (int(open.size()) >= kMaxDepth) parser.fail("more than 16 loops inside each other");
    if (++count > kMaxLoopLines) parser.fail("more than 1000 loops");
    std::vector<size_t> path = open.empty() ? std::vector<size_t>{} : open.back().path;
    LoopGraph* list = &roots;
    for (size_t i : path) list = &(*list)[i].children;
    path.push_back(list->size());
    list->push_back(parser.loop());
    open.push_back({indentation, std::move(path)});
  }
  if (roots.empty()) parser.fail("no loops; write one a line, as in 'loop0 [M, para]'", 0);
  return roots;
}

bool is_skeleton(const Op& op) { return is_key(loop_op(op.kind)); }

Fit fit(const LoopGraph& pattern, const LoopGraph& subgraph) {
  const auto yes = [](const SizeBinding&) { return true; };
  if (embeds(pattern, 0, subgraph, 0, false, {}, yes)) return Fit::Complete;
  if (embeds(pattern, 0, subgraph, 0, true, {}, yes)) return Fit::Partial;
  return Fit::None;
}

}  // namespace tessera::patterns
