#include "driver/code.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "cost/target.h"

namespace tessera {
namespace {

// The description of an architecture, or of one like it: the first that there is.
std::string description_of(const CudaArch& arch, const std::string& directory) {
  const char* own = arch.major >= 10 ? "b200" : arch.major == 9 ? "h100" : "a100";
  for (const char* name : {own, "h200"})
    if (std::filesystem::exists(directory + "/" + name + ".target")) return name;
  return own;
}

CudaArch arch_of_description(const std::string& name) {
  if (name == "b200") return {10, 0, true};
  return name == "a100" ? CudaArch{8, 0, false} : CudaArch{9, 0, true};
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return text;
}

// The description that a device's name has in it ("NVIDIA H200" → h200).
std::string description_of(const CudaDevice& device, const std::string& directory) {
  const std::string name = lower(device.name);
  for (const char* known : {"a100", "h100", "h200", "b200"})
    if (name.find(known) != std::string::npos) return known;
  return description_of(parse_arch(device.arch()), directory);
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 4 && std::ranges::all_of(text, is_digit);
}

void take_device(CodePlace& place, const CudaDevice& device, const std::string& directory) {
  constexpr int kLeast = 8;
  if (device.major < kLeast)
    throw Error(ErrorKind::Unsupported,
                device.str() + " is too old: kernels are made for compute capability " +
                    std::to_string(kLeast) +
                    ".0 and later (bf16, asynchronous copies); use "
                    "target cpu");
  place.context = CudaContext::of(device.ordinal);
  place.arch = parse_arch(device.arch());
  place.description = description_of(device, directory);
}

// The first device of the architecture that is wanted, if one is here.
void find_device(CodePlace& place) {
  try {
    std::string others;
    for (const CudaDevice& d : cuda_devices()) {
      if (d.major == place.arch.major && d.minor == place.arch.minor) {
        place.context = CudaContext::of(d.ordinal);
        return;
      }
      others += (others.empty() ? "" : ", ") + d.str();
    }
    place.why_not = others.empty() ? "there is no GPU on this machine"
                                   : "no GPU here is " + place.arch.str() + ", only " + others;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::ToolMissing) throw;
    place.why_not = e.message();
  }
}

}  // namespace

CodePlace place_of(const std::string& target, const std::string& directory) {
  CodePlace place;
  const bool cuda = target == "cuda" || target.starts_with("cuda:");
  if (!cuda) {
    if (target == "cpu") return place;
    place.gpu = find_target(target, directory).kind == TargetKind::Gpu;
    if (!place.gpu) return place;
    place.description = target;
    place.arch = arch_of_description(target);
    find_device(place);
    return place;
  }
  place.gpu = true;
  const std::string rest = target == "cuda" ? "0" : target.substr(5);
  if (!is_number(rest)) {
    if (!rest.starts_with("sm_"))
      throw Error(ErrorKind::Usage, "target '" + target +
                                        "' is not known; there are cuda (the GPU of this machine), "
                                        "cuda:N (its device N) and architectures: cuda:sm_80, "
                                        "cuda:sm_90a, cuda:sm_100a");
    place.arch = parse_arch(rest);
    place.description = description_of(place.arch, directory);
    find_device(place);
    return place;
  }
  try {
    const std::vector<CudaDevice> devices = cuda_devices();
    const size_t wanted = std::stoul(rest);
    if (wanted < devices.size()) {
      take_device(place, devices[wanted], directory);
      return place;
    }
    if (target != "cuda") CudaContext::of(int(wanted));  // throws, and tells what there is
    place.why_not = "there is no GPU on this machine";
  } catch (const Error& e) {
    if (target != "cuda" || e.kind() != ErrorKind::ToolMissing) throw;
    place.why_not = e.message();
  }
  // Something has to be chosen: what most readers have.
  place.arch = {9, 0, true};
  place.description = description_of(place.arch, directory);
  return place;
}

}  // namespace tessera
