#include "cost/target.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/error.h"
#include "places.h"

namespace tessera {
namespace {

std::string message_of(const std::string& text) {
  try {
    parse_target(text, "x.target");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::BadInput);
    return e.what();
  }
  return "no error";
}

const std::string kMinimal =
    "target t\nkind cpu\nlevel dram capacity 1G bandwidth 10G\n"
    "level l2 capacity 1M bandwidth 50G per_core\nmatmul f32 100G\npointwise f32 10G\n";

TEST(Target, ReadsUnits) {
  Target t = parse_target(kMinimal + "launch 2.5us # comment\nweight exp 8\n");
  EXPECT_EQ(t.levels[0].capacity, int64_t(1) << 30);
  EXPECT_EQ(t.levels[0].bandwidth, 1e10);
  EXPECT_TRUE(t.levels[1].per_core);
  EXPECT_DOUBLE_EQ(t.launch_seconds, 2.5e-6);
  EXPECT_EQ(t.weight(OpKind::Exp), 8);
  EXPECT_EQ(t.weight(OpKind::Add), 1);
  EXPECT_EQ(t.matmul_rate(DType::F64), 50e9);
  EXPECT_EQ(t.block_bytes(), (int64_t(1) << 20) * 3 / 4);
}

TEST(Target, PrintsAndParsesBack) {
  Target t = parse_target(kMinimal + "launch 2.5us\nweight exp 8\nweight div 4\n");
  EXPECT_EQ(parse_target(t.str()).str(), t.str());
}

TEST(Target, ShippedDescriptionsParse) {
  for (const char* name : {"cpu-avx512", "cpu-avx2", "a100", "h100", "h200", "b200"}) {
    Target t = find_target(name, source_dir() + "/targets");
    EXPECT_EQ(t.name, name);
    EXPECT_EQ(parse_target(t.str()).str(), t.str());
  }
  EXPECT_EQ(default_cpu_target().kind, TargetKind::Cpu);
}

TEST(Target, EveryMessageHasItsPlace) {
  struct Case {
    std::string text, message;
  };
  const Case cases[] = {
      {"bogus 1\n", "x.target:1:1: unknown key 'bogus'"},
      {"target\n", "x.target:1:1: 'target': a name is missing"},
      {"target a b\n", "x.target:1:10: unexpected 'b'"},
      {"target a\ntarget b\n", "x.target:2:1: 'target' is given twice"},
      {"kind tpu\n", "x.target:1:6: 'tpu': kind is cpu or gpu"},
      {"cores 0\n", "x.target:1:7: '0': expected a whole number from 1 to 65536"},
      {"cores x\n", "x.target:1:7: 'x': expected a number"},
      {"launch -1us\n", "x.target:1:8: '-1us': must be finite and not negative"},
      {"launch 3\n", "x.target:1:8: '3': a time ends in s, ms, us or ns"},
      {"level l2 size 3\n",
       "x.target:1:10: 'size': a level has capacity, bandwidth, nominal and per_core"},
      {"level l2 bandwidth 3\n", "x.target:1:7: level 'l2' has no capacity"},
      {"level l2 capacity 3\n", "x.target:1:7: level 'l2' has no bandwidth"},
      {"level l2 capacity 0\n", "x.target:1:19: a capacity is from 1 byte to 1e18"},
      {"level l2 capacity 3Q\n", "x.target:1:19: '3Q': unknown suffix 'Q'"},
      {"matmul f33 1G\n", "x.target:1:8: 'f33' is no element type"},
      {"matmul f32 0\n", "x.target:1:12: a rate is positive"},
      {"weight foo 1\n", "x.target:1:8: 'foo' is no operator"},
      {"level l2 capacity 3 bandwidth 4 nominal 3\n",
       "x.target:1:7: level 'l2' reaches more than its nominal bandwidth"},
      {"sm cores 3\n", "x.target:1:4: 'cores': sm has threads, blocks, registers, cluster, shared, "
                       "reserved and port"},
      {"sm threads 0\n", "x.target:1:12: '0': expected a whole number from 1 to 1048576"},
      {"sm shared 1K 2\n", "x.target:1:14: unexpected '2'"},
      {"sm port 0\n", "x.target:1:9: a bandwidth is positive"},
      {"latency l3 1ns\n", "x.target:1:9: 'l3': latency has dram and l2"},
      {"latency dram 7\n", "x.target:1:14: '7': a time ends in s, ms, us or ns"},
      {"special 0\n", "x.target:1:9: a rate is positive"},
      {"library blas bandwidth 1\n",
       "x.target:1:9: 'blas': library has matmul, attention and convolution"},
      {"library matmul bandwidth 3\n",
       "x.target:1:26: a share of the target's own figure is at most 2"},
      {"library matmul speed 3\n",
       "x.target:1:16: 'speed': a library has bandwidth, compute and overhead"},
      {"library matmul bandwidth 0.5\n",
       "x.target:1:9: library 'matmul' needs its bandwidth and compute"},
      {"scale memory 0\n", "x.target:1:14: a factor is positive"},
      {"scale l2 1\n", "x.target:1:7: 'l2': scale has launch, latency, memory and compute"},
      {"", "x.target: target description has no 'target' line"},
      {"target t\n", "x.target: target description has no two 'level' lines"},
  };
  for (const Case& c : cases) EXPECT_EQ(message_of(c.text), c.message) << c.text;
}

// Every line of a GPU is needed, and the message names the one that is not there.
TEST(Target, RatesOfF32ThatIsRounded) {
  Target t = find_target("h200", source_dir() + "/targets");
  EXPECT_EQ(parse_target(t.str()).tf32_flops, t.tf32_flops);
  EXPECT_LT(t.matmul_rate(DType::F32), 1e12);
  t.tf32 = true;
  EXPECT_EQ(t.matmul_rate(DType::F32), t.tf32_flops);
  EXPECT_EQ(t.tf32_flops, t.matmul_rate(DType::F16) / 2);
  EXPECT_NE(message_of(kMinimal + "matmul tf32 0\n").find("a rate is positive"), std::string::npos);
}

TEST(Target, AGpuIsDescribedWhole) {
  const Target h200 = find_target("h200", source_dir() + "/targets");
  std::istringstream lines(h200.str());
  std::vector<std::string> rows;
  for (std::string row; std::getline(lines, row);) rows.push_back(row);
  int needed = 0;
  for (size_t leave = 0; leave < rows.size(); ++leave) {
    std::string text;
    for (size_t i = 0; i < rows.size(); ++i)
      if (i != leave) text += rows[i] + "\n";
    const std::string& row = rows[leave];
    for (const char* key : {"launch_in_graph", "clock", "special", "sm ", "latency ", "level "}) {
      if (!row.starts_with(key)) continue;
      ++needed;
      EXPECT_NE(message_of(text), "no error") << row;
    }
  }
  EXPECT_EQ(needed, 15);
  std::string small = h200.str();
  const std::string shared = "sm shared " + std::to_string(228 << 10);
  ASSERT_NE(small.find(shared), std::string::npos);
  small.replace(small.find(shared), shared.size(), "sm shared 227K");
  EXPECT_EQ(message_of(small),
            "x.target: target description has no room for a block: 'sm shared' is less than its "
            "level's capacity and 'sm reserved'");
}

TEST(Target, SummaryNamesWhatCounts) {
  const std::string text = find_target("h200", source_dir() + "/targets").summary();
  for (const char* part :
       {"h200: 132 multiprocessors at 1.75 GHz", "hbm: 141 GB, 4.3 TB/s (nominal 4.8 TB/s)",
        "products in f16: 788 TFLOP/s, bound by memory below 183 FLOP/B", "(227 KB a block)",
        "KB on the way to each multiprocessor", "library matmul: 55 % of the bandwidth"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  const std::string cpu = default_cpu_target().summary();
  EXPECT_NE(cpu.find("cpu: 2 cores\n"), std::string::npos) << cpu;
  EXPECT_NE(cpu.find("100 GB/s per core"), std::string::npos) << cpu;
  EXPECT_EQ(cpu.find("multiprocessor"), std::string::npos) << cpu;
}

TEST(Target, MissingFileIsNotFound) {
  try {
    load_target("/no/such/file.target");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::NotFound);
  }
}

}  // namespace
}  // namespace tessera
