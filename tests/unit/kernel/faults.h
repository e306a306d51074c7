// Faults for kernels: every field of every kind of node is as likely to be hit as any other.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernel/ir.h"

namespace tessera::kernel {

// One thing that can be changed in a function, and what it is called: "load.offset".
struct FaultSite {
  std::string field;
  std::function<void(Rng&)> change;
};

class FaultSites {
 public:
  explicit FaultSites(Function& f) : f_(f) {
    for (size_t b = 0; b < f.buffers.size(); ++b) of_buffer(f.buffers[b]);
    of_body(f.body);
  }
  const std::vector<FaultSite>& all() const { return all_; }

  // Changes one field, each kind of them as likely; says which.
  std::string inject(Rng& rng) const {
    std::map<std::string, std::vector<const FaultSite*>> by_field;
    for (const FaultSite& s : all_) by_field[s.field].push_back(&s);
    auto it = by_field.begin();
    std::advance(it, int64_t(rng.below(by_field.size())));
    it->second[rng.below(it->second.size())]->change(rng);
    return it->first;
  }

 private:
  void add(const std::string& field, std::function<void(Rng&)> change) {
    all_.push_back({field, std::move(change)});
  }
  static Expr changed(const Expr& e, Rng& rng) {
    switch (rng.below(4)) {
    case 0: return e + 1;
    case 1: return e - 1;
    case 2: return e * 2;
    default:
      if (e.terms().empty()) return e + 2;
      const auto& t = e.terms()[rng.below(e.terms().size())];  // one term more or less of it
      return e + Expr::variable(t.atom->text, t.atom->range) * (rng.chance(0.5) ? 1 : -1);
    }
  }
  void of_expr(const std::string& field, Expr& e) {
    add(field, [&e](Rng& rng) { e = changed(e, rng); });
  }
  void of_buffer_id(const std::string& field, int& id) {
    add(field, [this, &id](Rng& rng) {
      id = int((size_t(id) + 1 + rng.below(f_.buffers.size() - 1)) % f_.buffers.size());
    });
  }
  void of_buffer(Buffer& b) {
    add("buffer.elements", [&b](Rng& rng) { b.elements += rng.chance(0.5) ? 1 : -1; });
    add("buffer.dtype", [&b](Rng& rng) {
      b.dtype = DType((uint64_t(b.dtype) + 1 + rng.below(kNumDTypes - 1)) % kNumDTypes);
    });
    if (b.space == Space::Workspace)
      add("buffer.offset", [&b](Rng& rng) { b.offset = int64_t(rng.below(8)) * 64; });
  }

  // --- scalars: nodes by their number in the order of a walk
  static void each_node(const Scalar& x, const std::function<void(const ScalarNode&)>& f) {
    f(*x.node);
    if (const auto* a = std::get_if<Apply>(x.node.get()))
      for (const Scalar& y : a->operands) each_node(y, f);
    if (const auto* s = std::get_if<Select>(x.node.get()))
      for (const Scalar& y : s->of) each_node(y, f);
  }
  static void edit(Scalar& x, int& number, const std::function<void(DType&, ScalarNode&)>& f) {
    ScalarNode node = *x.node;
    if (number-- == 0) f(x.dtype, node);
    if (auto* a = std::get_if<Apply>(&node))
      for (Scalar& y : a->operands) edit(y, number, f);
    if (auto* s = std::get_if<Select>(&node))
      for (Scalar& y : s->of) edit(y, number, f);
    x.node = std::make_shared<const ScalarNode>(std::move(node));
  }
  void of_scalar(Scalar& x) {
    int number = 0;
    each_node(x, [&](const ScalarNode& node) {
      const auto at = [&, n = number++](const std::string& field,
                                        std::function<void(ScalarNode&, Rng&)> change) {
        add(field, [&x, n, change](Rng& rng) {
          int left = n;
          edit(x, left, [&](DType&, ScalarNode& own) { change(own, rng); });
        });
      };
      of_node(node, at);
    });
  }
  template <class At> void of_node(const ScalarNode& node, const At& at) {
    if (std::holds_alternative<Literal>(node))
      at("literal.value",
         [](ScalarNode& x, Rng& rng) { std::get<Literal>(x).value = int64_t(rng.below(3)) + 2; });
    if (std::holds_alternative<Expr>(node))
      at("scalar.expr", [](ScalarNode& x, Rng& rng) { x = changed(std::get<Expr>(x), rng); });
    if (std::holds_alternative<Variable>(node))
      at("variable.name", [](ScalarNode& x, Rng& rng) {
        std::get<Variable>(x).name = "v" + std::to_string(rng.below(4));
      });
    if (std::holds_alternative<Load>(node)) {
      at("load.offset", [](ScalarNode& x, Rng& rng) {
        Expr& e = std::get<Load>(x).offset;
        e = changed(e, rng);
      });
      at("load.buffer", [this](ScalarNode& x, Rng& rng) {
        std::get<Load>(x).buffer = int(rng.below(f_.buffers.size()));
      });
    }
    if (std::holds_alternative<Apply>(node)) {
      at("apply.kind", [](ScalarNode& x, Rng& rng) {
        const auto& kinds = all_op_kinds();
        std::get<Apply>(x).kind = kinds[rng.below(kinds.size())];
      });
      at("apply.operands", [](ScalarNode& x, Rng& rng) {
        auto& in = std::get<Apply>(x).operands;
        if (in.size() > 1 && rng.chance(0.5))
          std::swap(in[0], in[1]);
        else
          in[0] = in.size() > 1 ? in[1] : literal(in[0].dtype, 1);
      });
    }
    if (std::holds_alternative<Select>(node)) {
      at("select.when", [](ScalarNode& x, Rng&) { std::get<Select>(x).when = {}; });
      at("select.of", [](ScalarNode& x, Rng&) {
        auto& of = std::get<Select>(x).of;
        std::swap(of[0], of[1]);
      });
    }
  }

  // --- statements
  void of_body(Body& body) {
    if (body.size() > 1) {
      add("body.missing",
          [&body](Rng& rng) { body.erase(body.begin() + int64_t(rng.below(body.size()))); });
      add("body.order", [&body](Rng& rng) {
        const size_t i = rng.below(body.size() - 1);
        std::swap(body[i], body[i + 1]);
      });
    }
    for (Statement& s : body)
      std::visit(Cases{[&](Block& x) { of_body(x.body); },
                       [&](Loop& x) {
                         of_expr("loop.extent", x.extent);
                         add("loop.kind", [&x](Rng& rng) {
                           x.kind = LoopKind((int(x.kind) + 1 + int(rng.below(2))) % 3);
                         });
                         of_body(x.body);
                       },
                       [&](If& x) { of_body(x.then), of_body(x.otherwise); },
                       [&](Let& x) { of_scalar(x.value); },
                       [&](Index& x) {
                         add("index.range", [&x](Rng& rng) {
                           (rng.chance(0.5) ? x.range.least : x.range.most) +=
                               rng.chance(0.5) ? 1 : -1;
                         });
                         of_scalar(x.value);
                       },
                       [&](Local& x) { of_buffer_id("local.buffer", x.buffer); },
                       [&](Store& x) {
                         of_buffer_id("store.buffer", x.buffer);
                         of_expr("store.offset", x.offset);
                         of_scalar(x.value);
                       },
                       [&](Accumulate& x) {
                         of_buffer_id("accumulate.buffer", x.buffer);
                         of_expr("accumulate.offset", x.offset);
                         add("accumulate.fold", [&x](Rng& rng) {
                           x.fold = AccumKind((int(x.fold) + 1 + int(rng.below(3))) % 4);
                         });
                         of_scalar(x.value);
                       }},
                 s.is);
  }

  Function& f_;
  std::vector<FaultSite> all_;
};

}  // namespace tessera::kernel
