#include "base/text.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace tessera {
namespace {

TEST(Text, NumbersReadBack) {
  for (double x : {0.0, 1.0, -2.5, 1e5, 1 / 3.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2})
    EXPECT_EQ(number_from<double>(exact(x)), x) << exact(x);
  EXPECT_EQ(exact(100000), "100000");
  EXPECT_TRUE(std::isnan(*number_from<double>(exact(std::nan("")))));
  EXPECT_EQ(significant(1234.5678, 3), "1.23e+03");
  EXPECT_EQ(decimals(-1e300, 0).size(), 302u);
  EXPECT_EQ(number_from<int>("12"), 12);
  for (const char* bad : {"", "12 ", " 12", "1x", "99999999999", "+1", "1.5"})
    EXPECT_FALSE(number_from<int>(bad)) << bad;
  EXPECT_FALSE(number_from<uint64_t>("-1"));
}

TEST(Text, PartsAndLines) {
  using Parts = std::vector<std::string_view>;
  EXPECT_EQ(split("", ','), Parts{});
  EXPECT_EQ(split(",a,,b,", ','), (Parts{"", "a", "", "b", ""}));
  for (const char* text : {"", "a\nb", "a\\nb", "\\", "\n\\\n"}) {
    EXPECT_EQ(from_one_line(one_line(text)), text);
    EXPECT_EQ(one_line(text).find('\n'), std::string::npos);
  }
  EXPECT_EQ(in_quotes("a\tb"), "'a?b'");
  EXPECT_EQ(in_quotes(std::string(99, 'a')), "'" + std::string(40, 'a') + "…'");
}

TEST(Text, ScannerTakesWholeTokens) {
  const std::string file = "f";
  Scanner s("forty for 2**3 # what is left\n\n  next-1.5 17x", file);
  EXPECT_FALSE(s.take("for"));
  EXPECT_EQ(s.word("a word"), "forty");
  EXPECT_TRUE(s.take("for"));
  EXPECT_EQ(s.number(2), 2);
  EXPECT_FALSE(s.take("*"));
  EXPECT_TRUE(s.take("**"));
  EXPECT_EQ(s.number(9), 3);
  EXPECT_TRUE(s.at_end());
  EXPECT_EQ(s.rest(), "the end of the line");
  s.skip_lines();
  EXPECT_EQ(s.word("a name", "-."), "next-1.5");
  EXPECT_FALSE(Scanner("-a", file).number(9));
}

TEST(Text, ScannerComplainsInPlace) {
  const std::string file = "f";
  const auto message = [&](auto&& scan) -> std::string {
    Scanner s("one\n  two 300\n", file, 5);
    s.word("a word");
    s.skip_lines();
    try {
      scan(s);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(message([](Scanner& s) { s.expect("("); }), "f:6:3: expected '(', not 'two 300'");
  EXPECT_EQ(message([](Scanner& s) { s.word("a word"), s.number(255); }),
            "f:6:7: a number beyond 255");
  EXPECT_EQ(message([](Scanner& s) { s.word("a word"), s.end_of_line(); }),
            "f:6:7: expected the end of the line, not '300'");
  EXPECT_EQ(message([](Scanner& s) { s.fail("all of it", 0); }), "f:5:1: all of it");
  EXPECT_EQ(message([](Scanner& s) { s.go_to(s.text().size()), s.word("more"); }),
            "f:7:1: expected more, not 'the end of the line'");
}

}  // namespace
}  // namespace tessera
