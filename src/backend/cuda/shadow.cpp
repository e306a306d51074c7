#include "backend/cuda/shadow.h"

#include <algorithm>

namespace tessera {
namespace {

std::string access(const char* what, int thread, int line) {
  return "thread " + std::to_string(thread) + " " + what + " (line " + std::to_string(line) + ")";
}

}  // namespace

Clocks::Clocks(int threads)
    : of_(size_t(threads), std::vector<uint32_t>(size_t(threads), 0)), fences_(size_t(threads)) {
  for (size_t t = 0; t < of_.size(); ++t) of_[t][t] = 1;
}

void Clocks::acquire(int thread, const std::vector<uint32_t>& clock) {
  std::vector<uint32_t>& mine = of_[size_t(thread)];
  join(mine, clock);
  ++mine[size_t(thread)];
}

void Clocks::join(std::vector<uint32_t>& into, const std::vector<uint32_t>& clock) {
  for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], clock[i]);
}

void Clocks::fence(int thread) {
  constexpr size_t kKept = 4;
  std::vector<uint32_t>& mine = fences_[size_t(thread)];
  if (mine.size() == kKept) mine.erase(mine.begin());
  mine.push_back(now(thread));
  ++of_[size_t(thread)][size_t(thread)];  // what comes later is not fenced
}

bool Clocks::fenced(int thread, int other, uint32_t time) const {
  return std::ranges::any_of(
      fences_[size_t(other)], [&](uint32_t f) { return f >= time && knows(thread, other, f); });
}

Shadow::Shadow(int64_t bytes, bool initialized, int grain)
    : grain_(grain), cells_(size_t((bytes + grain - 1) / grain)) {
  for (Cell& c : cells_) c.initialized = initialized;
}

std::span<Shadow::Cell> Shadow::cells(int64_t offset, int bytes) {
  const int64_t first = offset / grain_, end = (offset + bytes + grain_ - 1) / grain_;
  return std::span(cells_).subspan(size_t(first), size_t(end - first));
}

std::optional<std::string> Shadow::read(const Clocks& clocks, int thread, int64_t offset, int bytes,
                                        int line) {
  for (Cell& c : cells(offset, bytes)) {
    if (c.copying)
      return "a read of what an asynchronous copy is about to write: nobody waited for "
             "the copy of line " +
             std::to_string(c.line);
    if (!c.initialized) return "a read of what nothing has written";
    if (c.writer >= 0 && c.writer != thread && !clocks.knows(thread, c.writer, c.written))
      return "a race: " + access("reads", thread, line) + " what " +
             access("writes", c.writer, c.line) + ", and nothing orders the two";
    c.readers = with_reader(clocks, c.readers, thread, line);
  }
  return std::nullopt;
}

std::optional<std::string> Shadow::read_async(const Clocks& clocks, int thread, int64_t offset,
                                              int bytes, int line) {
  if (auto wrong = read(clocks, thread, offset, bytes, line)) return wrong;
  return check_fenced(clocks, thread, offset, bytes, "reads");
}

std::optional<std::string> Shadow::check_fenced(const Clocks& clocks, int thread, int64_t offset,
                                                int bytes, const char* does) {
  const Cell* last = nullptr;  // neighbours have mostly the same writer
  for (const Cell& c : cells(offset, bytes)) {
    if (c.writer < 0 || c.async) continue;
    if (last != nullptr && last->writer == c.writer && last->written == c.written) continue;
    last = &c;
    if (!clocks.fenced(thread, c.writer, c.written))
      return std::string("the asynchronous proxy ") + does + " what " +
             access("writes", c.writer, c.line) + " and no fence_async lies between";
  }
  return std::nullopt;
}

void Shadow::start_reading(int64_t offset, int bytes) {
  for (Cell& c : cells(offset, bytes)) ++c.reading;
}

void Shadow::end_reading(int64_t offset, int bytes) {
  for (Cell& c : cells(offset, bytes)) --c.reading;
}

std::optional<std::string> Shadow::check_write(const Clocks& clocks, int thread, const Cell& c,
                                               int line) {
  if (c.copying)
    return "a write to what the asynchronous copy of line " + std::to_string(c.line) +
           " writes: nobody waited for it";
  if (c.reading > 0)
    return "a write to what the asynchronous proxy still reads: nobody waited for it";
  if (c.writer >= 0 && c.writer != thread && !clocks.knows(thread, c.writer, c.written))
    return "a race: " + access("writes", thread, line) + " what " +
           access("writes", c.writer, c.line) + ", and nothing orders the two";
  for (const Reader& r : sets_[c.readers])
    if (r.thread != thread && !clocks.knows(thread, r.thread, r.time))
      return "a race: " + access("writes", thread, line) + " what " +
             access("reads", r.thread, r.line) + ", and nothing orders the two";
  return std::nullopt;
}

std::optional<std::string> Shadow::write(const Clocks& clocks, int thread, int64_t offset,
                                         int bytes, int line) {
  for (Cell& c : cells(offset, bytes)) {
    if (auto wrong = check_write(clocks, thread, c, line)) return wrong;
    c = {clocks.now(thread), line, 0, int16_t(thread), true, false, false, 0};
  }
  return std::nullopt;
}

std::optional<std::string> Shadow::start_copy(const Clocks& clocks, int thread, int64_t offset,
                                              int bytes, int line) {
  if (auto wrong = write(clocks, thread, offset, bytes, line)) return wrong;
  for (Cell& c : cells(offset, bytes)) c.copying = true;
  return std::nullopt;
}

std::optional<std::string> Shadow::start_async_copy(const Clocks& clocks, int thread,
                                                    int64_t offset, int bytes, int line) {
  if (auto wrong = check_fenced(clocks, thread, offset, bytes, "writes over")) return wrong;
  return start_copy(clocks, thread, offset, bytes, line);
}

void Shadow::end_copy(const Clocks& clocks, int thread, int64_t offset, int bytes, bool async) {
  for (Cell& c : cells(offset, bytes)) {
    c.copying = false;
    c.writer = int16_t(thread);
    c.written = clocks.now(thread);
    c.async = async;
  }
}

void Shadow::forget_accesses() {
  for (Cell& c : cells_) {
    c.writer = -1;
    c.readers = 0;
  }
  sets_.resize(1);
  next_.clear();
}

uint32_t Shadow::with_reader(const Clocks& clocks, uint32_t set, int thread, int line) {
  const uint32_t now = clocks.now(thread);
  const auto [at, is_new] = next_.try_emplace({set, thread, now}, 0);
  if (!is_new) return at->second;
  std::vector<Reader> readers;
  // Who is known to have read before says nothing more than the new reader does.
  for (const Reader& r : sets_[set])
    if (r.thread != thread && !clocks.knows(thread, r.thread, r.time)) readers.push_back(r);
  readers.push_back({thread, now, line});
  std::ranges::sort(readers, [](const Reader& a, const Reader& b) { return a.thread < b.thread; });
  sets_.push_back(std::move(readers));
  return at->second = uint32_t(sets_.size() - 1);
}

}  // namespace tessera
