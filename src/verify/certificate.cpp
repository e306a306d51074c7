#include "verify/certificate.h"

#include <charconv>
#include <cstdio>
#include <functional>
#include <map>

#include "base/check.h"
#include "base/error.h"

namespace tessera {
namespace {

std::string number(double x) {
  char buffer[40];
  for (int digits = 6; digits <= 17; digits++) {  // the shortest text that reads back exactly
    std::snprintf(buffer, sizeof buffer, "%.*g", digits, x);
    if (std::strtod(buffer, nullptr) == x) break;
  }
  return buffer;
}

std::string hex(uint64_t x) {
  char buffer[20];
  std::snprintf(buffer, sizeof buffer, "%016llx", static_cast<unsigned long long>(x));
  return buffer;
}

// One line per entry: newlines and backslashes inside text are escaped.
std::string escape(const std::string& text) {
  std::string result;
  for (char c : text)
    if (c == '\n')
      result += "\\n";
    else if (c == '\\')
      result += "\\\\";
    else
      result += c;
  return result;
}

std::string unescape(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); i++) {
    if (text[i] == '\\' && i + 1 < text.size()) {
      i++;
      result += text[i] == 'n' ? '\n' : text[i];
    } else {
      result += text[i];
    }
  }
  return result;
}

// Reads lines "key rest" and the "name=value" lists inside them; every complaint has its place.
class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  bool next() {
    if (at_ >= text_.size()) return false;
    size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) end = text_.size();
    std::string_view line = text_.substr(at_, end - at_);
    at_ = end + 1;
    line_++;
    size_t space = line.find(' ');
    key = line.substr(0, space);
    rest = space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
    rest_col_ = int(space == std::string_view::npos ? line.size() : space + 1) + 1;
    return true;
  }

  [[noreturn]] void fail(const std::string& message, int col = 1) const {
    throw Error(ErrorKind::BadInput, "certificate: " + message, SourceLocation{file_, line_, col});
  }

  template <class T> T integer(std::string_view s, int base = 10) const {
    T value{};
    auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value, base);
    if (error != std::errc() || end != s.data() + s.size() || s.empty())
      fail("expected a whole number, not '" + std::string(s) + "'", column(s));
    return value;
  }

  double real(std::string_view s) const {
    std::string copy(s);
    char* end = nullptr;
    double value = std::strtod(copy.c_str(), &end);
    if (copy.empty() || end != copy.c_str() + copy.size())
      fail("expected a number, not '" + copy + "'", column(s));
    return value;
  }

  // "a=1 b=2": each name must be known to `set` (which returns false otherwise) and occur.
  void fields(const std::map<std::string_view, std::function<void(std::string_view)>>& set) const {
    size_t seen = 0, at = 0;
    while (at < rest.size()) {
      size_t end = std::min(rest.find(' ', at), rest.size());
      std::string_view item = rest.substr(at, end - at);
      size_t eq = item.find('=');
      if (eq == std::string_view::npos) fail("expected name=value", column(item));
      auto it = set.find(item.substr(0, eq));
      if (it == set.end())
        fail("unknown field '" + std::string(item.substr(0, eq)) + "'", column(item));
      it->second(item.substr(eq + 1));
      seen++;
      at = end + 1;
    }
    if (seen != set.size())
      fail("'" + std::string(key) + "' needs its " + std::to_string(set.size()) +
           " fields once each");
  }

  std::string_view key, rest;

 private:
  int column(std::string_view inside) const { return rest_col_ + int(inside.data() - rest.data()); }
  std::string_view text_;
  std::string file_;
  size_t at_ = 0;
  int line_ = 0, rest_col_ = 1;
};

std::string line_of(const FieldDraw& d) {
  std::string s = "draw field=" + d.field + " primes=";
  for (size_t i = 0; i < d.primes.size(); i++) s += (i ? "," : "") + std::to_string(d.primes[i]);
  return s + " seed=" + std::to_string(d.seed) +
         " exponent_bound=" + std::to_string(d.exponent_bound) +
         " redraws=" + std::to_string(d.redraws) + " binding=" + std::to_string(d.binding) +
         " elements=" + std::to_string(d.elements) + " undefined=" + std::to_string(d.undefined) +
         (d.part < 0 ? "" : " part=" + std::to_string(d.part));
}

std::string line_of(const GateFamily& g) {
  return "gate family=" + g.family + " seed=" + std::to_string(g.seed) +
         " binding=" + std::to_string(g.binding) + " elements=" + std::to_string(g.elements) +
         " not_finite=" + std::to_string(g.not_finite) +
         " special_differ=" + std::to_string(g.special_differ) +
         " spec_error=" + number(g.spec_error) + " candidate_error=" + number(g.candidate_error) +
         " spec_mean=" + number(g.spec_mean) + " candidate_mean=" + number(g.candidate_mean) +
         " worst_ratio=" + number(g.worst_ratio) +
         (g.part < 0 ? "" : " part=" + std::to_string(g.part));
}

FieldDraw read_draw(const Reader& r) {
  FieldDraw d;
  std::map<std::string_view, std::function<void(std::string_view)>> fields = {
      {"field", [&](std::string_view s) { d.field = s; }},
      {"primes",
       [&](std::string_view s) {
         for (size_t at = 0; !s.empty() && at <= s.size();) {
           size_t end = std::min(s.find(',', at), s.size());
           d.primes.push_back(r.integer<uint64_t>(s.substr(at, end - at)));
           at = end + 1;
         }
       }},
      {"seed", [&](std::string_view s) { d.seed = r.integer<uint64_t>(s); }},
      {"exponent_bound", [&](std::string_view s) { d.exponent_bound = r.integer<uint64_t>(s); }},
      {"redraws", [&](std::string_view s) { d.redraws = r.integer<int>(s); }},
      {"binding", [&](std::string_view s) { d.binding = r.integer<int>(s); }},
      {"elements", [&](std::string_view s) { d.elements = r.integer<int64_t>(s); }},
      {"undefined", [&](std::string_view s) { d.undefined = r.integer<int64_t>(s); }},
  };
  if (r.rest.find(" part=") != std::string_view::npos)
    fields["part"] = [&](std::string_view s) { d.part = r.integer<int>(s); };
  r.fields(fields);
  return d;
}

GateFamily read_gate(const Reader& r) {
  GateFamily g;
  std::map<std::string_view, std::function<void(std::string_view)>> fields = {
      {"family", [&](std::string_view s) { g.family = s; }},
      {"seed", [&](std::string_view s) { g.seed = r.integer<uint64_t>(s); }},
      {"binding", [&](std::string_view s) { g.binding = r.integer<int>(s); }},
      {"elements", [&](std::string_view s) { g.elements = r.integer<int64_t>(s); }},
      {"not_finite", [&](std::string_view s) { g.not_finite = r.integer<int64_t>(s); }},
      {"special_differ", [&](std::string_view s) { g.special_differ = r.integer<int64_t>(s); }},
      {"spec_error", [&](std::string_view s) { g.spec_error = r.real(s); }},
      {"candidate_error", [&](std::string_view s) { g.candidate_error = r.real(s); }},
      {"spec_mean", [&](std::string_view s) { g.spec_mean = r.real(s); }},
      {"candidate_mean", [&](std::string_view s) { g.candidate_mean = r.real(s); }},
      {"worst_ratio", [&](std::string_view s) { g.worst_ratio = r.real(s); }},
  };
  if (r.rest.find(" part=") != std::string_view::npos)
    fields["part"] = [&](std::string_view s) { g.part = r.integer<int>(s); };
  r.fields(fields);
  return g;
}

Binding read_binding(const Reader& r) {
  Binding binding;
  for (size_t at = 0; at < r.rest.size();) {
    size_t end = std::min(r.rest.find(' ', at), r.rest.size());
    std::string_view item = r.rest.substr(at, end - at);
    size_t eq = item.find('=');
    if (eq == std::string_view::npos) r.fail("expected symbol=extent");
    binding.emplace_back(std::string(item.substr(0, eq)), r.integer<int64_t>(item.substr(eq + 1)));
    at = end + 1;
  }
  return binding;
}

}  // namespace

const char* name(Accuracy level) {
  switch (level) {
  case Accuracy::Bitwise: return "bitwise";
  case Accuracy::Close: return "close";
  case Accuracy::Fast: return "fast";
  }
  unreachable("Accuracy");
}

const char* meaning(Accuracy level) {
  switch (level) {
  case Accuracy::Bitwise: return "the same bits as the original's, NaN where it is NaN";
  case Accuracy::Close:
    return "as accurate as the original where that is finite and accurate, at the inputs tried";
  case Accuracy::Fast:
    return "as accurate as the original at inputs of ordinary magnitudes, at those tried";
  }
  unreachable("Accuracy");
}

Accuracy accuracy_named(std::string_view text) {
  for (Accuracy level : {Accuracy::Bitwise, Accuracy::Close, Accuracy::Fast})
    if (text == name(level)) return level;
  throw Error(ErrorKind::Usage,
              "a level is bitwise, close or fast, not '" + std::string(text) + "'");
}

std::string Certificate::str() const {
  std::string s = "certificate 1\n";
  auto line = [&](const char* key, const std::string& rest) {
    s += key;
    if (!rest.empty()) s += " " + escape(rest);
    s += "\n";
  };
  line("spec", hex(spec_hash) + " " + spec_name);
  line("candidate", hex(candidate_hash) + " " + candidate_name);
  line("seed", std::to_string(seed));
  line("level", std::string(name(level)) + ": " + meaning(level));
  for (const auto& x : inputs) line("input", x);
  for (const auto& x : outputs) line("output", x);
  for (const Binding& b : bindings) {
    std::string text;
    for (const auto& [symbol, extent] : b)
      text += (text.empty() ? "" : " ") + symbol + "=" + std::to_string(extent);
    line("binding", text);
  }
  if (!between.empty()) line("between", between);
  for (const CertificatePart& p : parts)
    line(p.second ? "part_2" : "part", std::to_string(p.binding) + " " + p.text);
  for (const FieldDraw& d : draws) s += line_of(d) + "\n";
  line("min_draws", std::to_string(min_draws));
  line("coverage", coverage);
  if (!all_sizes.empty()) line("all_sizes", all_sizes);
  if (!tiles.empty()) {
    std::string text;
    for (int64_t n : tiles) text += (text.empty() ? "" : " ") + std::to_string(n);
    line("tiles", text);
  }
  line("error_log2", number(error_log2));
  line("bound", bound);
  line("basis", basis);
  for (const auto& x : assumptions) line("assume", x);
  for (const GateFamily& g : gate) s += line_of(g) + "\n";
  for (const auto& x : notes) line("note", x);
  if (!second_opinion.empty()) line("second_opinion", second_opinion);
  return s;
}

Certificate Certificate::parse(std::string_view text, const std::string& file) {
  Reader r(text, file);
  const bool any = r.next();
  if (!any || r.key != "certificate" || r.rest != "1")
    r.fail("expected 'certificate 1' on the first line");
  Certificate c;
  auto program = [&](uint64_t& hash, std::string& name) {
    size_t space = std::min(r.rest.find(' '), r.rest.size());
    hash = r.integer<uint64_t>(r.rest.substr(0, space), 16);
    name = space < r.rest.size() ? unescape(r.rest.substr(space + 1)) : "";
  };
  auto part = [&](bool second) {
    const size_t space = std::min(r.rest.find(' '), r.rest.size() - 1);
    c.parts.push_back(
        {r.integer<int>(r.rest.substr(0, space)), unescape(r.rest.substr(space + 1)), second});
  };
  const std::map<std::string_view, std::function<void()>> keys = {
      {"spec", [&] { program(c.spec_hash, c.spec_name); }},
      {"candidate", [&] { program(c.candidate_hash, c.candidate_name); }},
      {"seed", [&] { c.seed = r.integer<uint64_t>(r.rest); }},
      {"level",
       [&] {
         try {
           c.level = accuracy_named(r.rest.substr(0, r.rest.find(':')));
         } catch (const Error& e) {
           r.fail(e.message());
         }
       }},
      {"input", [&] { c.inputs.push_back(unescape(r.rest)); }},
      {"output", [&] { c.outputs.push_back(unescape(r.rest)); }},
      {"binding", [&] { c.bindings.push_back(read_binding(r)); }},
      {"between", [&] { c.between = unescape(r.rest); }},
      {"part", [&] { part(false); }},
      {"part_2", [&] { part(true); }},
      {"draw", [&] { c.draws.push_back(read_draw(r)); }},
      {"min_draws", [&] { c.min_draws = r.integer<int>(r.rest); }},
      {"coverage", [&] { c.coverage = unescape(r.rest); }},
      {"all_sizes", [&] { c.all_sizes = unescape(r.rest); }},
      {"tiles",
       [&] {
         for (size_t at = 0; at < r.rest.size();) {
           size_t end = std::min(r.rest.find(' ', at), r.rest.size());
           c.tiles.push_back(r.integer<int64_t>(r.rest.substr(at, end - at)));
           at = end + 1;
         }
       }},
      {"error_log2", [&] { c.error_log2 = r.real(r.rest); }},
      {"bound", [&] { c.bound = unescape(r.rest); }},
      {"basis", [&] { c.basis = unescape(r.rest); }},
      {"assume", [&] { c.assumptions.push_back(unescape(r.rest)); }},
      {"gate", [&] { c.gate.push_back(read_gate(r)); }},
      {"second_opinion", [&] { c.second_opinion = unescape(r.rest); }},
      {"note", [&] { c.notes.push_back(unescape(r.rest)); }},
  };
  while (r.next()) {
    auto it = keys.find(r.key);
    if (it == keys.end()) r.fail("unknown entry '" + std::string(r.key) + "'");
    it->second();
  }
  return c;
}

}  // namespace tessera
