#include "cost/target.h"

#include <gtest/gtest.h>

#include "base/error.h"

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
  for (const char* name : {"cpu-avx512", "cpu-avx2", "h200"}) {
    Target t = find_target(name, std::string(TESSERA_SOURCE_DIR) + "/targets");
    EXPECT_EQ(t.name, name);
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
      {"level l2 size 3\n", "x.target:1:10: 'size': a level has capacity, bandwidth and per_core"},
      {"level l2 bandwidth 3\n", "x.target:1:7: level 'l2' has no capacity"},
      {"level l2 capacity 3\n", "x.target:1:7: level 'l2' has no bandwidth"},
      {"level l2 capacity 0\n", "x.target:1:19: a capacity is from 1 byte to 1e18"},
      {"level l2 capacity 3Q\n", "x.target:1:19: '3Q': unknown suffix 'Q'"},
      {"matmul f33 1G\n", "x.target:1:8: 'f33' is no element type"},
      {"matmul f32 0\n", "x.target:1:12: a rate is positive"},
      {"weight foo 1\n", "x.target:1:8: 'foo' is no operator"},
      {"", "x.target: target description has no 'target' line"},
      {"target t\n", "x.target: target description has no two 'level' lines"},
  };
  for (const Case& c : cases) EXPECT_EQ(message_of(c.text), c.message) << c.text;
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
