#include "verify/certificate.h"

#include <algorithm>
#include <concepts>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <span>

#include "base/check.h"
#include "base/error.h"
#include "base/names.h"
#include "base/text.h"

namespace tessera {
namespace {

struct HashedName {
  uint64_t& hash;
  std::string& name;
};

// What a certificate is made of, in the order in which it is written: names and fields in turn.
template <class Each, class T, class... More>
void in_turn(Each& each, const char* name, T&& field, More&&... more) {
  each(name, std::forward<T>(field));
  if constexpr (sizeof...(more) > 0) in_turn(each, std::forward<More>(more)...);
}

template <class Each> void each_field(FieldDraw& d, Each&& each) {
  in_turn(each, "field", d.field, "primes", d.primes, "seed", d.seed, "exponent_bound",
          d.exponent_bound, "redraws", d.redraws, "binding", d.binding, "elements", d.elements,
          "undefined", d.undefined);
}

template <class Each> void each_field(GateFamily& g, Each&& each) {
  in_turn(each, "family", g.family, "seed", g.seed, "binding", g.binding, "elements", g.elements,
          "not_finite", g.not_finite, "special_differ", g.special_differ, "spec_error",
          g.spec_error, "candidate_error", g.candidate_error, "spec_mean", g.spec_mean,
          "candidate_mean", g.candidate_mean, "worst_ratio", g.worst_ratio);
}

template <class Each> void each_entry(Certificate& c, Each&& each) {
  in_turn(each, "spec", HashedName{c.spec_hash, c.spec_name}, "candidate",
          HashedName{c.candidate_hash, c.candidate_name}, "seed", c.seed, "level", c.level, "input",
          c.inputs, "output", c.outputs, "binding", c.bindings, "between", c.between, "part",
          c.parts, "draw", c.draws, "min_draws", c.min_draws, "coverage", c.coverage, "all_sizes",
          c.all_sizes, "tiles", c.tiles, "error_log2", c.error_log2, "bound", c.bound, "basis",
          c.basis, "assume", c.assumptions, "gate", c.gate, "note", c.notes, "second_opinion",
          c.second_opinion);
}

template <class T>
concept Record = std::same_as<T, FieldDraw> || std::same_as<T, GateFamily>;
template <class T>
concept PlainNumber = std::integral<T> || std::same_as<T, double>;

// --- values as text

std::string text_of(const std::string& s) { return one_line(s); }
std::string text_of(double x) { return exact(x); }
std::string text_of(std::integral auto n) { return std::to_string(n); }
std::string text_of(Accuracy level) { return name(level) + std::string(": ") + meaning(level); }
std::string text_of(const HashedName& p) {
  char hash[20];
  std::snprintf(hash, sizeof hash, "%016llx ", static_cast<unsigned long long>(p.hash));
  return hash + text_of(p.name);
}
std::string text_of(const CertificatePart& p) { return text_of(p.binding) + " " + text_of(p.text); }
std::string text_of(const Binding& b) {
  std::string text;
  for (const auto& [symbol, extent] : b)
    (text += text.empty() ? "" : " ") += symbol + "=" + text_of(extent);
  return text;
}
std::string text_of(const std::vector<int64_t>& tiles) { return joined(tiles, " "); }
std::string text_of(const std::vector<uint64_t>& primes) { return joined(primes); }
template <Record R> std::string text_of(R record) {
  std::string text;
  each_field(record, [&](const char* name, const auto& value) {
    text += (text.empty() ? "" : " ") + std::string(name) + "=" + text_of(value);
  });
  return text + (record.part < 0 ? "" : " part=" + text_of(record.part));
}

// --- and back

class CertificateReader {
 public:
  CertificateReader(std::string_view text, const std::string& file) : scanner_(text, file) {}

  [[noreturn]] void fail(const std::string& what, std::string_view at) const {
    scanner_.fail("certificate: " + what, size_t(at.data() - scanner_.text().data()));
  }

  void read(std::string_view s, std::string& text) const { text = from_one_line(s); }
  template <PlainNumber T> void read(std::string_view s, T& value) const {
    const auto n = number_from<T>(s);
    if (!n)
      fail(std::string("expected a ") + (std::integral<T> ? "whole " : "") + "number, not '" +
               std::string(s) + "'",
           s);
    value = *n;
  }
  void read(std::string_view s, Accuracy& level) const {
    try {
      level = accuracy_named(s.substr(0, s.find(':')));
    } catch (const Error& e) {
      fail(e.message(), s);
    }
  }
  void read(std::string_view s, HashedName p) const {
    const auto [hash, name] = at(s, ' ');
    const auto [end, error] = std::from_chars(hash.data(), hash.data() + hash.size(), p.hash, 16);
    if (error != std::errc() || end != hash.data() + hash.size())
      fail("expected a program's hash", hash);
    read(name, p.name);
  }
  void read(std::string_view s, CertificatePart& p) const {
    const auto [binding, text] = at(s, ' ');
    read(binding, p.binding);
    read(text, p.text);
  }
  void read(std::string_view s, std::pair<std::string, int64_t>& extent) const {
    if (s.find('=') == std::string_view::npos) fail("expected symbol=extent", s);
    const auto [symbol, number] = at(s, '=');
    extent.first = symbol;
    read(number, extent.second);
  }
  void read(std::string_view s, Binding& b) const { read_list(s, ' ', b); }
  void read(std::string_view s, std::vector<int64_t>& tiles) const { read_list(s, ' ', tiles); }
  void read(std::string_view s, std::vector<uint64_t>& primes) const { read_list(s, ',', primes); }
  // "a=1 b=2": each field once.
  template <Record R> void read(std::string_view s, R& record) const {
    std::map<std::string_view, std::string_view> given;
    for (std::string_view item : split(s, ' ')) {
      if (item.find('=') == std::string_view::npos) fail("expected name=value", item);
      const auto [name, value] = at(item, '=');
      if (!given.emplace(name, value).second) fail("'" + std::string(name) + "' twice", item);
    }
    std::string missing;
    const auto take = [&](const char* name, auto& value) {
      const auto it = given.find(name);
      if (it == given.end()) return void(missing = name);
      read(it->second, value);
      given.erase(it);
    };
    each_field(record, take);
    if (given.count("part")) take("part", record.part);
    if (!given.empty())
      fail("unknown field '" + std::string(given.begin()->first) + "'", given.begin()->first);
    if (!missing.empty()) fail("'" + missing + "' is missing", s);
  }

 private:
  // What stands before and behind the first separator.
  static std::pair<std::string_view, std::string_view> at(std::string_view s, char separator) {
    const size_t end = std::min(s.find(separator), s.size());
    return {s.substr(0, end), s.substr(std::min(end + 1, s.size()))};
  }
  template <class T>
  void read_list(std::string_view s, char separator, std::vector<T>& list) const {
    for (std::string_view item : split(s, separator)) read(item, list.emplace_back());
  }

  Scanner scanner_;
};

}  // namespace

const char* name(Accuracy level) {
  return name_of<Accuracy::Fast>(level, {"bitwise", "close", "fast"});
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

void add_once(std::vector<std::string>& list, const std::string& text) {
  if (std::ranges::find(list, text) == list.end()) list.push_back(text);
}

std::string Certificate::str() const {
  std::string text = "certificate 1\n";
  const auto line = [&](std::string key, const std::string& value) {
    text += key + (value.empty() ? "" : " ") + value + "\n";
  };
  Certificate copy = *this;
  each_entry(copy, [&]<class T>(const char* key, const T& value) {
    if constexpr (std::same_as<T, std::vector<CertificatePart>>)
      for (const CertificatePart& p : value)
        line(p.second ? key + std::string("_2") : key, text_of(p));
    else if constexpr (requires { value.front().part; } || std::same_as<T, std::vector<Binding>> ||
                       std::same_as<T, std::vector<std::string>>)
      for (const auto& one : value) line(key, text_of(one));
    else if (const std::string s = text_of(value); !s.empty())
      line(key, s);
  });
  return text;
}

Certificate Certificate::parse(std::string_view text, const std::string& file) {
  const CertificateReader reader(text, file);
  Certificate c;
  std::map<std::string_view, std::function<void(std::string_view)>> entries;
  std::set<std::string_view> given;
  const auto once = [&](const char* key, auto read) {
    return [&given, &reader, key, read](std::string_view s) {
      if (!given.insert(key).second) reader.fail("'" + std::string(key) + "' twice", s);
      read(s);
    };
  };
  each_entry(c, [&]<class T>(const char* key, T&& value) {
    using V = std::remove_cvref_t<T>;
    if constexpr (std::same_as<V, HashedName>)
      entries[key] = once(key, [&reader, value](std::string_view s) { reader.read(s, value); });
    else if constexpr (requires { value.front().part; } || std::same_as<V, std::vector<Binding>> ||
                       std::same_as<V, std::vector<std::string>> ||
                       std::same_as<V, std::vector<CertificatePart>>)
      entries[key] = [&](std::string_view s) { reader.read(s, value.emplace_back()); };
    else
      entries[key] = once(key, [&](std::string_view s) { reader.read(s, value); });
  });
  entries["part_2"] = [&](std::string_view s) {
    reader.read(s, c.parts.emplace_back());
    c.parts.back().second = true;
  };
  const std::vector<std::string_view> lines = split(text, '\n');
  if (lines.empty() || lines[0] != "certificate 1")
    reader.fail("expected 'certificate 1' on the first line", text);
  for (std::string_view line : std::span(lines).subspan(1)) {
    if (line.empty()) continue;
    const std::string_view key = line.substr(0, line.find(' '));
    const auto entry = entries.find(key);
    if (entry == entries.end()) reader.fail("unknown entry '" + std::string(key) + "'", key);
    entry->second(line.substr(std::min(key.size() + 1, line.size())));
  }
  return c;
}

}  // namespace tessera
