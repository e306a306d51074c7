// What may go wrong in generated kernels, put into them one by one: the emulator must name a fault,
// or the numbers must differ. TESSERA_CUDA_FAULTS=all takes every kernel, otherwise a few.
#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <map>
#include <regex>

#include "backend/arrays.h"
#include "backend/block_programs.h"
#include "backend/cuda/device/device.cuh"
#include "backend/emulated.h"
#include "backend/joined_programs.h"
#include "backend/written.h"
#include "base/rng.h"
#include "ir/text.h"
#include "ir/validate.h"

namespace tessera {
namespace {

enum class Which { First, Last };

// A change of the source, at one place.
struct Change {
  const char* name;
  const char* pattern;
  const char* replacement;
  Which which = Which::First;
};

const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      // --- order
      {"no barrier", R"(\n *ts::sync\(\);)", "\n"},
      {"no last barrier", R"(\n *ts::sync\(\);)", "\n", Which::Last},
      {"barrier in a branch", R"(ts::sync\(\);)", "if (ts::warp() > 0) ts::sync();"},
      {"no wait for copies", R"(ts::wait_copies<\d+>\(\);)", ""},
      {"wait for too few copies", R"(ts::wait_copies<0>\(\);)", "ts::wait_copies<1>();"},
      {"copies not committed", R"((load\d+\(s\);)\s*ts::commit_copies\(\);)", "$1"},
      {"copies of an iteration not committed",
       R"((load\d+\(l0 \+ \d+\);.*)\s*ts::commit_copies\(\);)", "$1"},
      // --- stages and loops
      {"wrong stage read", R"((const v\d+ = sv\d+ \+ )l0( % [2-9]))", "$1(l0 + 1)$2"},
      {"wrong stage filled", R"((to = sv\d+ \+ )l0( % [2-9]))", "$1(l0 + 1)$2"},
      {"tile of another iteration", R"((load\d+\()l0 \+ \d+\);)", "$1l0);"},
      {"an iteration too few", R"((for \(int l0 = 0; l0 < )(\d+);)", "$1$2 - 1;"},
      {"the first iteration left out", R"(for \(int l0 = 0;)", "for (int l0 = 1;"},
      // --- ends of tiles
      {"one beyond a tile's end", R"( < (n\d+_\d+)\b)", " <= $1"},
      {"end of the array forgotten", R"((, e\d+_\d+ = )ts::least\((b\d+_\d+ \+ \d+), \d+\))",
       "$1$2"},
      {"copies beyond the row", R"(ts::clamped\(.*, (\d+)\))", "$1"},
      {"the last unit left out", R"(if \(u < (\d+)\))", "if (u < $1 - 1)"},
      {"the last column left out", R"(x < (\d+)\) \{)", "x < $1 - 2) {"},
      {"the last row left out", R"(y < (\d+))", "y < $1 - 1"},
      // --- where elements lie
      {"copied without swizzle", R"(to \+ ts::swizzled<\d+, \d+>\((.*)\), from)",
       "to + ($1), from"},
      {"read without swizzle", R"((ts::Tile<ts::\w+, \d+, \d+, )(8|24|56)(,.*right0))", "$1 0$3"},
      {"another swizzle", R"((ts::Tile<ts::\w+, \d+, )3(, (24|56),.*right0))", "$1 4$2"},
      {"operand not transposed", R"((ts::Tile<.*), (true|false)>( right0))", "$1, !$2>$3"},
      {"left operand transposed", R"((ts::Tile<.*), (true|false)>( left0))", "$1, !$2>$3"},
      {"rows of fragments", R"(ts::lane\(\) / 4 \+)", "ts::lane() % 8 +", Which::Last},
      {"columns of fragments", R"(ts::lane\(\) % 4 \* 2)", "ts::lane() % 4", Which::Last},
      {"misaligned copy", R"(ts::copy_async<16>\(to \+ )", "ts::copy_async<16>(to + 1 + "},
      {"buffers share memory", R"(ts::shared\(\) \+ [1-9]\d*)", "ts::shared() + 0"},
      {"beyond shared memory", R"(ts::shared\(\) \+ (\d+))", "ts::shared() + 200000 + $1",
       Which::Last},
      {"another element of the result", R"(ts::store_global\(to \+ )",
       "ts::store_global(to + 1 + "},
      {"all blocks the same tile", R"(g0\*(?!1\*))", "0*", Which::Last},
      // --- threads
      {"the first element left out", R"(\(int i = ts::thread\(\);)", "(int i = ts::thread() + 1;"},
      {"an element left out", R"((int i = ts::thread\(\); i < )(\d+);)", "$1$2 - 1;"},
      {"every lane writes", R"(ts::thread\(\) % \d+ == 0)", "true"},
      {"half of the lanes combined", R"(int lanes = (16|8|4|2);)", "int lanes = 1;"},
      {"shuffle in a branch", R"((for \(int lanes = \d+;))", "if (ts::lane() < 16) $1"},
      // --- sums
      {"sums not initialized", R"((float r\d+\[.*\]) = \{\};)",
       "$1 = {ts::as_float(0x7fffffffu)};"},
      {"product not initialized", R"((float d\[.*\]) = \{\};)",
       "$1 = {ts::as_float(0x7fffffffu)};"},
      {"accumulator not initialized",
       R"(ts::store_shared\(v\d+ \+ \w+, static_cast<float>\(0\)\);)", ""},
      {"reduction starts with another number", R"(float r = 0;)", "float r = 1;"},
      {"fragments cut short", R"((for \(int k = 0; k < )(\d+)(; k \+= 16))", "$1$2 - 16$3"},
      {"depth cut short", R"((for \(int k = 0; k < )(\w+)(; \+\+k))", "$1$2 - 1$3"},
      {"depth skipped", R"(k \+= (8|16)\))", "k += 32)"},
      {"the scale of the other sum", R"((v\d+)s \+)", "$1p +", Which::Last},
      {"maximum forgotten", R"(\n *ts::store_shared\(v\d+m \+ .*top\)\);)", "\n"},
      {"old value overwritten",
       R"(ts::store_shared\((v\d+ \+ \w+), static_cast<float>\(ts::load_shared\(\1\) \+ )",
       "ts::store_shared($1, static_cast<float>("},
      // --- sm_90a: products of four warps, boxes and what the asynchronous proxy sees
      {"no wait for products", R"(ts::wait_products<0>\(.*\);)", ""},
      {"no last wait for products", R"(ts::wait_products<0>\(.*\);)", "", Which::Last},
      {"products not committed", R"(ts::commit_products\(\);)", ""},
      {"accumulators not settled", R"(\n *ts::begin_products\(.*\);)", "\n"},
      {"products replace the sums", R"(\{\}, true\);)", "{}, false);"},
      {"no fence", R"(\n *ts::fence_async\(\);)", "\n"},
      {"fence after the barrier", R"(ts::fence_async\(\);\s*ts::sync\(\);)",
       "ts::sync(); ts::fence_async();"},
      {"one thread fences", R"(ts::fence_async\(\);)", "if (ts::thread() == 0) ts::fence_async();"},
      {"boxes not announced", R"(\n *ts::expect_bytes\(.*\);)", "\n"},
      {"fewer bytes announced", R"(ts::expect_bytes\(full, (\d+)\))",
       "ts::expect_bytes(full, $1 / 2)"},
      {"more bytes announced", R"(ts::expect_bytes\(full, (\d+)\))",
       "ts::expect_bytes(full, $1 + 16)"},
      {"every thread announces", R"(if \(ts::thread\(\) == 0\) \{(\s*ts::Barrier\* const full = ))",
       "{$1"},
      {"wait for the other phase", R"((ts::wait\(full.*, )(.*)\);)", "$1($2 + 1) % 2);"},
      {"no wait for boxes", R"(\n *ts::wait\(full.*\);)", "\n"},
      {"wait for another stage", R"((ts::wait\(full0 \+ )l0)", "$1(l0 + 1)"},
      {"box of other columns", R"((ts::copy_tile\(.*, m\d+, )(.*)(, .*, full\);))", "$1$2 + 8$3"},
      {"box of other rows", R"((ts::copy_tile\(.*), full\);)", "$1 + 1, full);", Which::Last},
      {"box in the wrong place", R"(ts::copy_tile\(to)", "ts::copy_tile(to + 512"},
      {"box out of line", R"(ts::copy_tile\(to)", "ts::copy_tile(to + 8"},
      {"another map", R"((ts::copy_tile\(.*, )m1)", "$1m0"},
      {"barriers not made", R"(ts::init_barrier\(.*\);)", ";"},
      // Where nothing else is fenced before the first box.
      {"barriers not published", R"(ts::publish_barriers\(\);(\s*\}\s*ts::sync))", "$1"},
      {"barriers count two", R"((ts::init_barrier\(.*, )1\))", "$012)"},
      {"rows of 64 bytes for 128", R"((ts::WideTile<ts::\w+, \d+, )64(.*0\{))", "$01 32$2"},
      {"wide operand not transposed", R"((ts::WideTile<.*), (true|false)>( right0))", "$1, !$2>$3"},
      {"wide left operand transposed", R"((ts::WideTile<.*), (true|false)>( left0))", "$1, !$2>$3"},
      {"warps have the same rows", R"(ts::warp\(\)( % 4)? \* 16)", "ts::warp() % 2 * 16",
       Which::Last},
      {"the depth of another step", R"((\.at\(column, )k\))", "$01(k + 16) % 32)"},
      {"written without swizzle", R"(ts::store_shared\((v\d+ \+ )ts::swizzled<3, \d+>)",
       "ts::store_shared($1"},
      // --- products in registers
      {"lanes of a row apart", R"(\n *r = .*ts::shuffle_xor\(r, (1|4)\).*;)", "\n", Which::Last},
      {"all lanes of a row write", R"(ts::lane\(\) (% 4|/ 4) == 0)", "true", Which::Last},
      {"number of another column", R"(2 \* h \+ e\])", "2 * h]", Which::Last},
      {"number of another row", R"(2 \* h \+ e\])", "2 * (1 - h) + e]", Which::Last},
      // Of sums: a softmax does not mind which maximum is subtracted.
      {"a warp's part left out", R"((int w = 0; w < )(\d+)(; \+\+w\) r = r \+))", "$1$2 - 1$3"},
      {"parts of warps in one place", R"(( \* \d+ \+ )ts::warp\(\) % 4, r\);)", "$1 0, r);"},
      // --- operands that go to shared memory as matrices
      {"matrices stored across", R"(ts::store_matrices_transposed\()", "ts::store_matrices("},
      {"matrices not transposed back", R"(ts::store_matrices\()", "ts::store_matrices_transposed("},
      {"rows of matrices exchanged", R"((ts::store_matrices.*)ts::lane\(\) % (8|16))",
       "$1(ts::lane() ^ 1) % $2"},
      {"every second matrix over the first", R"((ts::store_matrices.*)ts::lane\(\) / 16 \* 8)",
       "$01 0"},
      {"neighbours exchanged", R"((ts::pair_of<.*>\()z\[0\], z\[1\])", "$01z[1], z[0]"},
      {"stored where its lanes part", R"((ts::store_matrices))", "if (ts::lane() < 16) $1"},
      // --- f32, rounded to tf32
      {"operand not rounded", R"(ts::multiply_add\((.*, )a\[i\](, .*ts::tf32))",
       "a[i][0] |= 1u; ts::multiply_add($1a[i]$2"},
      {"rows for columns of f32", R"((ts::Tile32<)(\d+), (\d+)(,.*left0))", "$1$3, $2$4"},
      {"another row of f32", R"((ts::Tile32<.*right0\{v\d+))", "$1 + 4"},
      {"rows in the order of memory for columns in registers", R"((right0\.right)_in_pairs)", "$1"},
      {"f32 without swizzle", R"((ts::Tile32<\d+, \d+, \d+, )(4|12|28)>)", "$1 0>"},
      // --- blocks that meet: the last one of a group puts together what all have stored
      {"missing fence before the ticket", R"(ts::fence_device\(\);)", ""},
      {"missing fence after the ticket", R"(ts::fence_device\(\);)", "", Which::Last},
      {"ticket before the others have stored",
       R"(\n *ts::sync\(\);(\s*if \(.*\{\s*ts::fence_device))", "\n$1"},
      {"ticket not reset", R"((ts::take_ticket\(.*, )(\d+)u)", "$012 * $2u"},
      {"wrong block count: one too few", R"((ts::take_ticket\(.*, )(\d+)u(?=[^]*arrived\) != ))",
       "$01$2u - 1"},
      {"goes on one block early", R"((arrived\) != )(\d+)u)", "$1$2u - 1u"},
      {"every block goes on", R"(\n *if \(.*arrived\).*return;)", "\n"},
      {"ticket of another group", R"(tickets \+ ts::block\(0\))", "tickets + 0"},
      {"ticket seen without a barrier", R"(\n *ts::sync\(\);(\s*if \(ts::load_shared\(arrived))",
       "\n$1"},
      {"a part left out", R"((part = 0; part < )(\d+))", "$1$2 - 1"},
      {"parts share memory at once", R"(\n *ts::sync\(\);(\s*\}\s*\}\s*$))", "\n$1"},
      {"no barrier of the cluster", R"(ts::sync_cluster<.*>\(\);)", ""},
      {"barrier of the cluster in a branch", R"(ts::sync_cluster<)",
       "if (ts::thread() > 0) ts::sync_cluster<"},
      {"barrier of half of the cluster", R"((ts::sync_cluster<1, )4)", "$01 2"},
      {"all blocks of a cluster the same part", R"((part = )ts::block\(1\))", "$01 0"},
      {"boxes side by side exchanged", R"((ts::boxed<\d+, \d+, )64>)", "$01 32>"},
  };
  return all;
}

std::optional<std::string> changed(const std::string& source, const Change& change) {
  const std::regex pattern(change.pattern);
  std::smatch found, match;
  std::string::const_iterator from = source.begin();
  bool any = false;
  while (std::regex_search(from, source.end(), match, pattern)) {
    any = true;
    found = match;
    if (change.which == Which::First) break;
    from = match[0].first + std::max<long>(1, match.length());
  }
  if (!any) return std::nullopt;
  return std::string(source.begin(), found[0].first) + found.format(change.replacement) +
         std::string(found[0].second, source.end());
}

// Rows of a product, divided by the sums of their squares.
const char* const kNormalized = R"(graph normalized {
  A = input : f16[10,64]
  B = input : f16[64,128]
  O = kernel A, B grid[x=1] loops[i=2] {
    A = input : f16[10,64]
    B = input : f16[64,128]
    a = iter A {fmap={i:1}} : f16[10,32]
    b = iter B {fmap={i:0}} : f16[32,128]
    p = matmul a, b
    c = accum p {loops=[0]}
    q = sqr c
    r = sum q {axes=[1], keepdims=true}
    d = div c, r
    O = save d : f16[10,128]
    return O
  } : f16[10,128]
  return O
}
)";

// A product whose result is the right operand of another.
const char* const kTwice = R"(graph twice {
  A = input : f16[64,64]
  B = input : f16[64,64]
  C = input : f16[16,64]
  O = kernel A, B, C grid[x=1] loops[i=2] {
    A = input : f16[64,64]
    B = input : f16[64,64]
    C = input : f16[16,64]
    a = iter A {fmap={i:1}} : f16[64,32]
    b = iter B {fmap={i:0}} : f16[32,64]
    d = iter C : f16[16,64]
    p = matmul a, b
    c = accum p {loops=[0]}
    e = exp c
    q = matmul d, e
    O = save q : f16[16,64]
    return O
  } : f16[16,64]
  return O
}
)";

// Programs of one kernel each, those from kHopper on for sm_90a.
constexpr size_t kHopper = 23;
constexpr size_t kRounded = 4;  // the last ones, of f32: tf32 is asked for
std::vector<std::string> faulty_programs() {
  return {
      rms_norm_linear(16, 128, 64, 2, 2, "f16"),
      attention({1, 5, 40, 70, 24, 1, 3, true, "bf16"}),
      rms_norm_linear(5, 100, 77, 3, 7),
      attention({2, 8, 16, 32, 8, 2, 2, true}),
      rms_norm_linear(5, 96, 40, 2, 3, "bf16"),
      attention({2, 16, 16, 64, 32, 1, 2, false, "f16"}),
      rms_norm_linear(1, 64, 48, 2, 4, "bf16"),
      rms_norm_linear(33, 80, 48, 2, 5, "f16"),
      rms_norm_linear(16, 64, 48, 2, 4),
      rms_norm_linear(3, 31, 40, 3, 2),
      rms_norm_linear(8, 200, 160, 2, 4, "bf16"),
      rms_norm_linear(20, 72, 72, 2, 3, "f16"),
      rms_norm_linear(7, 45, 33, 2, 3),
      attention({1, 5, 7, 37, 3, 1, 3}),
      attention({1, 17, 16, 40, 16, 2, 2, true, "bf16"}),
      attention({1, 32, 32, 64, 16, 2, 4, true, "f16"}),
      attention({3, 4, 24, 48, 24, 1, 3, false, "bf16"}),
      attention({1, 6, 16, 40, 16, 1, 2, false}),
      attention({1, 9, 20, 67, 20, 3, 2, true}),
      attention({2, 3, 40, 72, 24, 1, 4, true, "f16"}),
      attention({1, 17, 16, 40, 16, 2, 2, true, "f16", true}),
      rms_norm_linear(16, 256, 48, 2, 5, "f16"),
      split_attention(2, 4, 64, 16, 4, 2, "f16"),
      rms_norm_linear(8, 192, 128, 2, 3, "f16"),
      attention({1, 64, 64, 112, 64, 1, 2, true, "bf16"}),
      kNormalized,
      rms_norm_linear(16, 256, 256, 2, 2, "bf16"),
      attention({1, 16, 64, 192, 64, 1, 3, false, "f16"}),
      attention({2, 64, 64, 190, 128, 1, 3, true, "f16"}),
      rms_norm_linear(128, 64, 256, 2, 2, "f16"),
      split_product(20, 48, 50, 2, 3, 1, 1, "f32"),
      split_attention(2, 4, 64, 16, 4, 2, "f16"),
      kTwice,
      rms_norm_linear(5, 100, 77, 3, 7),
      attention({1, 17, 16, 40, 16, 2, 2, true}),
      attention({1, 64, 16, 64, 16, 1, 2, true}),
  };
}

struct FaultOutcome {
  std::optional<KernelFault> fault;
  std::vector<std::vector<std::byte>> results;
};

class Kernel {
 public:
  Kernel(const std::string& text, const std::string& arch, bool tf32) : graph_(parse(text)) {
    Target target = gpu();
    target.tf32 = tf32;
    validate(graph_);
    std::vector<KernelJoin> joins;
    for (const Op& op : graph_.ops())
      if (const auto join = kernel_join(graph_, graph_.tensor(op.result()).producer))
        joins.push_back(*join);
    program_ = emit_cuda(graph_, parse_arch(arch), {}, target, {}, joins);
    EXPECT_EQ(program_.kernels.size(), 1u);
    Rng rng(7);
    for (TensorId t : graph_.inputs()) {
      NDArray x = NDArray::zeros(graph_.type(t).dtype, extents(graph_.type(t).shape));
      for (double& r : x.reals) r = round_to(x.dtype, 2 * rng.unit() - 1);
      inputs_.push_back(to_memory(x));
    }
  }
  // The source without the kernel, and the kernel.
  std::string head() const { return program_.source.substr(0, begin()); }
  std::string kernel() const { return program_.source.substr(begin()); }

  FaultOutcome run(const EmulatedKernels& kernels, const std::string& name) const {
    const CudaKernel& k = program_.kernels[0];
    FaultOutcome r;
    EmulatedLaunch launch{k.grid, k.threads, k.shared_bytes, {}, 3};
    std::vector<void*> arguments;
    for (TensorId t : graph_.outputs())
      r.results.emplace_back(size_t(graph_.type(t).bytes()), std::byte{0xff});
    std::list<std::vector<std::byte>> others;  // what is stored in between, and tickets
    for (const int at : k.arguments) {
      const Slot& slot = program_.plan.slots[size_t(at)];
      const bool input = slot.place == Place::Input;
      std::byte* data = input ? const_cast<std::byte*>(inputs_[size_t(slot.index)].data())
                        : slot.place == Place::Output
                            ? r.results[size_t(slot.index)].data()
                            : others.emplace_back(size_t(slot.bytes), std::byte{0xff}).data();
      launch.buffers.push_back({data, slot.bytes, !input, input});
      arguments.push_back(data);
    }
    if (const int64_t bytes = program_.ticket_bytes(); bytes > 0) {
      launch.buffers.push_back(
          {others.emplace_back(size_t(bytes)).data(), bytes, true, true, true});
      arguments.push_back(launch.buffers.back().data);
    }
    std::vector<ts::TensorMap> maps;
    for (const TensorMapSpec& m : k.maps)
      maps.push_back(host_tensor_map(m, arguments[size_t(m.argument)]));
    for (ts::TensorMap& m : maps) arguments.push_back(&m);
    r.fault = emulate(launch, [&] { kernels.call(name, arguments.data()); });
    return r;
  }

 private:
  size_t begin() const { return program_.source.find("extern \"C\" __global__"); }
  Graph graph_;
  CudaProgram program_;
  std::vector<std::vector<std::byte>> inputs_;
};

TEST(CudaFaults, EveryOneIsFound) {
  const char* which = std::getenv("TESSERA_CUDA_FAULTS");
  const bool all = which != nullptr && std::string(which) == "all";
  std::vector<std::string> texts = faulty_programs();
  std::vector<size_t> chosen;
  for (size_t p = 0; p < texts.size(); ++p)
    if (all || p < 4 || (p + 1 >= kHopper && p < kHopper + 3) || p == 27 || p + 4 >= texts.size())
      chosen.push_back(p);
  std::map<std::string, int> tried;
  int pairs = 0, faults = 0;
  for (size_t p : chosen) {
    const Kernel kernel(texts[p], p < kHopper ? "sm_80" : "sm_90a", p + kRounded >= texts.size());
    std::string source = kernel.head();
    std::vector<std::string> names = {"k0"};
    std::vector<const Change*> of = {nullptr};
    source += kernel.kernel();
    for (const Change& c : changes()) {
      std::optional<std::string> text = changed(kernel.kernel(), c);
      if (!text) continue;
      const std::string name = "k0_" + std::to_string(names.size());
      text->replace(text->find(" k0("), 4, " " + name + "(");
      source += *text;
      names.push_back(name);
      of.push_back(&c);
    }
    const EmulatedKernels kernels(source, names, 0);
    const FaultOutcome right = kernel.run(kernels, "k0");
    ASSERT_FALSE(right.fault) << right.fault->str();
    for (size_t i = 1; i < names.size(); ++i) {
      const FaultOutcome r = kernel.run(kernels, names[i]);
      EXPECT_TRUE(r.fault || r.results != right.results)
          << "'" << of[i]->name << "' went unseen in program " << p << "\n"
          << *changed(kernel.kernel(), *of[i]);
      ++tried[of[i]->name];
      ++pairs;
      faults += r.fault.has_value();
    }
  }
  std::printf("%zu kernels, %zu kinds of fault, %d pairs, %d named by the emulator\n",
              chosen.size(), tried.size(), pairs, faults);
  EXPECT_GE(tried.size(), all ? changes().size() : 60);
}

}  // namespace
}  // namespace tessera
