// Short programs for the verifier's tests: written in the text format, compared in one call.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "ir/text.h"
#include "verify/funnel.h"

namespace tessera {

// `body` is the inside of a graph: "x = input : f32[2]; …; return y", statements separated by ';'.
inline Graph program(const std::string& body) {
  std::string text = "graph p {\n";
  for (char c : body) text += c == ';' ? '\n' : c;
  return parse(text + "\n}\n", "test");
}

inline Verdict compare_programs(const std::string& a, const std::string& b,
                                Accuracy level = Accuracy::Close, bool special = false) {
  VerifyOptions options;
  options.seed = 20260101;
  options.level = level;
  options.special = special;
  return verify(program(a), program(b), options);
}

inline void expect_equal(const std::string& a, const std::string& b) {
  const Verdict v = compare_programs(a, b);
  EXPECT_TRUE(v.equal()) << a << "\n" << b << "\n" << v.str();
}

// Refuted with real inputs, which are part of the verdict.
inline void expect_refuted(const std::string& a, const std::string& b) {
  const Verdict v = compare_programs(a, b);
  ASSERT_TRUE(v.refuted()) << a << "\n" << b << "\n" << v.str();
  EXPECT_FALSE(v.counterexample().inputs.empty());
}

// Not equal at any of some seeds.
inline void expect_never_equal(const std::string& a, const std::string& b, int seeds = 4) {
  for (int seed = 0; seed < seeds; seed++) {
    VerifyOptions options;
    options.seed = uint64_t(seed);
    const Verdict v = verify(program(a), program(b), options);
    EXPECT_FALSE(v.equal()) << "seed " << seed << "\n" << a << "\n" << b;
  }
}

}  // namespace tessera
