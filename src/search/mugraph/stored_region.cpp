#include "search/mugraph/stored_region.h"

#include <cstdlib>
#include <sstream>

#include "base/text.h"

namespace tessera::mugraph {
namespace {

// Writes what it is given, numbers exactly: plans are compared and sorted by their seconds.
class Writer {
 public:
  template <class... T> void operator()(T&... values) { (put(values), ...); }
  std::string take() { return std::move(text_); }

 private:
  void put(std::floating_point auto x) { text_ += exact(double(x)) + " "; }
  void put(std::integral auto n) { text_ += std::to_string(n) + " "; }
  void put(const std::string& s) { text_ += "\n" + (s.empty() ? "-" : s) + "\n"; }
  template <class T> void put(std::vector<T>& items) {
    put(items.size());
    for (T& item : items) record(*this, item);
  }
  template <class K, class V> void put(std::map<K, V>& items) {
    put(items.size());
    for (auto& [key, value] : items) put(key), put(value);
  }
  std::string text_;
};

// Reads it back into the same variables, until it meets something else.
class Reader {
 public:
  explicit Reader(const std::string& text) : in_(text) {}
  bool ok() const { return ok_; }
  template <class... T> void operator()(T&... values) { (get(values), ...); }

 private:
  void get(std::string& s) {
    in_ >> std::ws;
    if (!std::getline(in_, s)) ok_ = false;
    if (s == "-") s.clear();
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void get(T& value) {
    std::string word;
    in_ >> word;
    if constexpr (std::is_same_v<T, bool>) {
      ok_ = ok_ && (word == "0" || word == "1");
      value = word == "1";
    } else {
      const auto n = number_from<T>(word);
      ok_ = ok_ && n;
      value = n.value_or(T{});
    }
  }
  size_t count() {
    size_t n = 0;
    get(n);
    ok_ = ok_ && n <= size_t(1) << 20;
    return ok_ ? n : 0;
  }
  template <class T> void get(std::vector<T>& items) {
    for (size_t n = count(); n > 0 && ok_; --n) record(*this, items.emplace_back());
  }
  template <class K, class V> void get(std::map<K, V>& items) {
    for (size_t n = count(); n > 0 && ok_; --n) {
      K key{};
      get(key);
      get(items[key]);
    }
  }
  std::istringstream in_;
  bool ok_ = true;
};

// --- what is kept of each thing, in order
// ---------------------------------------------------------

template <class Archive, class T> void record(Archive& a, T& value) { a(value); }

template <class Archive> void record(Archive& a, Kernel::GridDim& g) { a(g.axes, g.parts); }

template <class Archive> void record(Archive& a, Kernel& k) {
  // All members by name: one that is added and forgotten here does not compile.
  auto& [outputs, loads, edges, loop, loop_parts, passes, varies, folds, nested, nested_parts,
         parts, grid, seconds, bound, block_bytes, operators] = k;
  a(outputs, loads, edges, loop, loop_parts, passes, varies, folds, nested, nested_parts, parts,
    grid, seconds, bound, block_bytes, operators);
}

template <class Archive> void record(Archive& a, Choice& c) {
  a(c.world, c.plan.seconds, c.plan.parts, c.plan.kernels);
}

template <class Archive> void record(Archive& a, StoredRegion::StoredWorld& w) {
  Formulation& f = w.formulation;
  a(f.options.cap, f.options.keep_shifts, f.program_only, w.split_axis, w.as_written, f.note);
}

template <class Archive> void record(Archive& a, StoredRegion& r) {
  a(r.values, r.edges, r.graphs, r.tilings, r.limited, r.detail, r.pruned, r.worlds, r.choices);
}

}  // namespace

std::string print_region(StoredRegion region) {
  Writer writer;
  record(writer, region);
  return writer.take();
}

std::optional<StoredRegion> read_region(const std::string& text) {
  Reader reader(text);
  StoredRegion region;
  record(reader, region);
  if (!reader.ok()) return std::nullopt;
  return region;
}

}  // namespace tessera::mugraph
