// Records as text: their members in one order, which one function gives for writing and reading:
//
//   template <class Archive> void record(Archive& a, Result& r) { a(r.seconds, r.origin); }
//
// Members are bools, numbers (exact), strings, vectors, maps, and what has a `record` of its own.
#pragma once
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/sha256.h"
#include "base/text.h"

namespace tessera {

template <class Archive, class T> void record(Archive& a, T& value) { a(value); }

class RecordWriter {
 public:
  template <class... T> void operator()(T&... values) { (put(values), ...); }
  std::string take() { return std::move(text_); }

 private:
  void put(std::floating_point auto x) { text_ += exact(double(x)) + " "; }
  void put(std::integral auto n) { text_ += std::to_string(n) + " "; }
  void put(const std::string& s) { (text_ += std::to_string(s.size()) + " ") += s + " "; }
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

// Reads it back, until it meets something else.
class RecordReader {
 public:
  explicit RecordReader(std::string_view text) : text_(text) {}
  // Whether all was read, and nothing else was there.
  bool complete() const { return ok_ && text_.empty(); }
  template <class... T> void operator()(T&... values) { (get(values), ...); }

 private:
  std::string_view word() { return bytes(std::min(text_.find(' '), text_.size())); }
  std::string_view bytes(size_t n) {
    ok_ = ok_ && n < text_.size() && text_[n] == ' ';
    const std::string_view taken = ok_ ? text_.substr(0, n) : std::string_view();
    text_.remove_prefix(ok_ ? n + 1 : text_.size());
    return taken;
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void get(T& value) {
    using Number = std::conditional_t<std::is_same_v<T, bool>, int, T>;
    const auto n = number_from<Number>(word());
    ok_ = ok_ && n && Number(T(*n)) == *n;
    value = ok_ ? T(*n) : T{};
  }
  // Of items, each of which takes a byte or more.
  size_t count() {
    size_t n = 0;
    get(n);
    ok_ = ok_ && n <= text_.size();
    return ok_ ? n : 0;
  }
  void get(std::string& s) {
    const size_t n = count();
    s = bytes(n);
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
  std::string_view text_;
  bool ok_ = true;
};

template <class T> std::string to_text(T value) {
  RecordWriter writer;
  record(writer, value);
  return writer.take();
}
// Nothing where the text is another's.
template <class T> std::optional<T> from_text(std::string_view text) {
  RecordReader reader(text);
  T value;
  record(reader, value);
  if (!reader.complete()) return std::nullopt;
  return value;
}

// With a checksum in front, for files; `key`: what else it belongs to.
inline std::string sealed(const std::string& text, const std::string& key = "") {
  return sha256_hex(key + text) + "\n" + text;
}
inline std::optional<std::string> unsealed(const std::string& file, const std::string& key = "") {
  constexpr size_t kDigits = 64;
  if (file.size() <= kDigits || file[kDigits] != '\n') return std::nullopt;
  std::string text = file.substr(kDigits + 1);
  if (file.compare(0, kDigits, sha256_hex(key + text)) != 0) return std::nullopt;
  return text;
}

}  // namespace tessera
