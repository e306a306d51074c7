#include "verify/certificate.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tessera {
namespace {

Certificate sample() {
  Certificate c;
  c.spec_name = "rms norm";
  c.candidate_name = "b";
  c.spec_hash = 0xfedcba9876543210u;
  c.candidate_hash = 7;
  c.seed = UINT64_MAX;
  c.level = Accuracy::Bitwise;
  c.inputs = {"X f32[2,N]", "f64[]"};
  c.outputs = {"y f32[2]"};
  c.bindings = {{{"N", 5}, {"M", 3}}, {}};
  c.draws = {{"p61", {13, 6, 3}, 99, 4096, 12, 1, 30, 2}, {"exact", {}, 1, 0, 0, 0, 5, 0}};
  c.min_draws = 2;
  c.coverage = "all elements";
  c.error_log2 = -103.25;
  c.bound = "degree 4\nsecond line \\ backslash";
  c.basis = "proved";
  c.assumptions = {"x/x is 1 where x != 0", ""};
  c.gate = {{"normal", 3, 1, 100, 2, 1, 1e-7, 1.5e-7, 0.25}};
  c.notes = {"note"};
  return c;
}

TEST(Certificate, PrintsAndParsesBack) {
  const Certificate c = sample();
  EXPECT_EQ(Certificate::parse(c.str()), c);
  EXPECT_EQ(Certificate::parse(c.str()).str(), c.str());
  EXPECT_EQ(Certificate::parse(Certificate().str()), Certificate());
}

TEST(Certificate, ErrorsNameTheirPlace) {
  auto message = [](const std::string& text) -> std::string {
    try {
      Certificate::parse(text, "c.txt");
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(message(""), "c.txt:1:1: certificate: expected 'certificate 1' on the first line");
  EXPECT_EQ(message("certificate 1\nwhat 3\n"), "c.txt:2:1: certificate: unknown entry 'what'");
  EXPECT_EQ(message("certificate 1\nseed 12x\n"),
            "c.txt:2:6: certificate: expected a whole number, not '12x'");
  EXPECT_EQ(message("certificate 1\nerror_log2 -4o\n"),
            "c.txt:2:12: certificate: expected a number, not '-4o'");
  EXPECT_EQ(message("certificate 1\nlevel maybe\n"),
            "c.txt:2:7: certificate: a level is bitwise, close or fast, not 'maybe'");
  EXPECT_EQ(message("certificate 1\ndraw field=p31 sede=1\n"),
            "c.txt:2:16: certificate: unknown field 'sede'");
  EXPECT_EQ(message("certificate 1\ndraw field=p31\n"),
            "c.txt:2:6: certificate: 'undefined' is missing");
  EXPECT_EQ(message("certificate 1\ndraw p31\n"), "c.txt:2:6: certificate: expected name=value");
  EXPECT_EQ(message("certificate 1\nbinding N\n"),
            "c.txt:2:9: certificate: expected symbol=extent");
}

}  // namespace
}  // namespace tessera
