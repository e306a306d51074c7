#include "backend/body_records.h"

#include <algorithm>

#include "backend/compiler.h"
#include "backend/cpu/onednn.h"
#include "backend/host_calls.h"
#include "base/error.h"
#include "base/names.h"
#include "base/records.h"

namespace tessera {
namespace {

using patterns::Body;
using patterns::Language;
using patterns::Pattern;

// Raised when texts are translated or checked otherwise: what was checked before is no longer.
constexpr int kBodyVersion = 3;

}  // namespace

template <class Archive> void record(Archive& a, BodyRecord& r) {
  int state = int(r.state);
  a(state, r.pattern, r.source, r.machine, r.runs, r.instances, r.what, r.text);
  r.state = state == int(BodyRecord::State::Checked)        ? BodyRecord::State::Checked
            : state == int(BodyRecord::State::CompiledOnly) ? BodyRecord::State::CompiledOnly
                                                            : BodyRecord::State::Refused;
}

const char* name(BodyRecord::State state) {
  return name_of<BodyRecord::State::Refused>(state, {"checked", "compiled-only", "refused"});
}

std::string BodyRecords::file(const std::string& source, const std::string& machine) const {
  return folder_ + "/" + sha256_hex(source + "\n" + machine) + ".body";
}

std::optional<BodyRecord> BodyRecords::find(const std::string& source,
                                            const std::string& machine) const {
  if (folder_.empty() || machine.empty()) return std::nullopt;
  const auto all = read_file(file(source, machine));
  const auto body = all ? unsealed(*all) : std::nullopt;
  if (!body) return std::nullopt;
  RecordReader reader(*body);
  BodyRecord r;
  record(reader, r);
  if (!reader.complete()) return std::nullopt;
  if (r.source != source || r.machine != machine) return std::nullopt;
  return r;
}

void BodyRecords::store(const BodyRecord& r) const {
  if (folder_.empty()) return;
  const std::string problem = write_atomically(file(r.source, r.machine), sealed(to_text(r)));
  if (!problem.empty()) throw Error(ErrorKind::Io, problem);
}

std::vector<Language> languages_of(bool cuda) {
  if (cuda) return {Language::Cuda, Language::Raw};
  return {Language::Cpp, Language::Torch, Language::OneDnn};
}

std::string body_machine(Language language, CpuIsa isa, const std::string& device) {
  const std::string version = " version " + std::to_string(kBodyVersion);
  std::string on;
  try {
    switch (language) {
    case Language::None: break;
    case Language::Cpp:
      return "cpu " + std::string(to_string(isa)) + version + " compiler " +
             find_compiler().identity;
    case Language::Cuda: on = "cuda emulated"; break;
    case Language::Raw: on = "cuda " + (device.empty() ? "compiled" : device); break;
    case Language::Torch:
      if (const auto host = find_host("torch"); host != nullptr) on = host->version();
      break;
    case Language::OneDnn:
      if (const std::string v = onednn().version; !v.empty())
        on = "onednn " + v + " " + to_string(isa);
      break;
    }
  } catch (const Error&) {
  }
  return on.empty() ? "" : on + version;
}

std::optional<BodyRecord> record_of(const Pattern& p, const Body& b, Cache& cache, CpuIsa isa,
                                    const std::string& device) {
  const BodyRecords records(cache);
  const std::string source = source_of(p, b);
  auto record = records.find(source, body_machine(b.language, isa, device));
  if (!record && b.language == Language::Raw && !device.empty())
    record = records.find(source, body_machine(b.language, isa, ""));
  return record;
}

std::vector<std::string> trust_lines(const Graph& graph, Cache& cache, bool cuda, CpuIsa isa,
                                     const std::string& device) {
  std::vector<std::string> lines;
  const BodyRecords records(cache);
  for (const Op& op : graph.ops()) {
    const auto a = written_kernel(graph, op);
    if (!a) continue;
    std::string line = "proved up to body " + a->pattern + " (" + a->source.substr(0, 12) + "), ";
    std::optional<BodyRecord> record;
    for (Language language : languages_of(cuda))
      if (!record) record = records.find(a->source, body_machine(language, isa, device));
    if (record && record->state == BodyRecord::State::Checked)
      line += "which was checked by " + std::to_string(record->runs) + " runs at " +
              std::to_string(record->instances) + " sizes, settings and types (" + record->what +
              ") on " + record->machine.substr(0, record->machine.find(" version")) +
              " and is not proved";
    else
      line += "which is not checked here: what it means is computed instead";
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(line);
  }
  return lines;
}

void mark_unusable(std::vector<Pattern>& warehouse, Cache& cache, bool cuda, CpuIsa isa,
                   const std::string& device) {
  for (Pattern& p : warehouse) {
    for (Body& b : p.bodies) {
      if (b.library == "onednn" && !cuda)
        b.unusable = onednn().problem.empty() ? "" : "oneDNN: " + onednn().problem;
      if (!b.written() || (b.target == "cuda") != cuda) continue;
      const auto record = record_of(p, b, cache, isa, device);
      if (record && record->state == BodyRecord::State::Checked) {
        b.unusable.clear();
      } else if (record && record->state == BodyRecord::State::Refused) {
        b.unusable = "its body in line " + std::to_string(b.line) +
                     " was refused by a check: " + record->what;
      } else if (b.called() && body_machine(b.language, isa, device).empty()) {
        b.unusable = "its call in line " + std::to_string(b.line) + " needs " +
                     (b.language == Language::Torch ? "PyTorch" : "oneDNN") + ", which is not here";
      } else {
        b.unusable = b.language == Language::Raw
                         ? "its raw CUDA in line " + std::to_string(b.line) +
                               " has not been checked on this GPU: `tessera patterns check`"
                         : "its body in line " + std::to_string(b.line) +
                               " has not been checked here: `tessera patterns check`";
      }
    }
  }
}

}  // namespace tessera
