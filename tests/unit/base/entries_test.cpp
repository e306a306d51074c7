#include "base/entries.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"

namespace tessera {
namespace {

const EntryFields kFields = {{"kind", "program"},     {"empty", ""},         {"bar", "|"},
                             {"lines", "a\n\n  b\n"}, {"last", "x = y | z"}, {"n1_2", "0"}};

std::string problem(const std::string& text) {
  try {
    parse_entry(text, "f");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::BadInput);
    return e.message();
  }
  return "";
}

TEST(Entries, ReadBackAsTheyWereWritten) {
  EXPECT_EQ(parse_entry(print_entry(kFields)), kFields);
  EXPECT_EQ(field_of(kFields, "lines"), "a\n\n  b\n");
  EXPECT_EQ(field_of(kFields, "none"), "");
}

TEST(Entries, NamesAreNamesAndThereOnce) {
  for (const char* name : {"", "A", "1", "a b", "a-b", "_"})
    EXPECT_THROW(print_entry({{name, "x"}}), Error) << name;
  EXPECT_THROW(print_entry({{"a", "x"}, {"a", "y"}}), Error);
}

TEST(Entries, EveryChangedByteIsSeen) {
  const std::string text = print_entry(kFields);
  Rng rng(1);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = char(other[i] ^ (1 << rng.below(7)));
    EXPECT_NE(problem(other), "") << i;
    EXPECT_NE(problem(text.substr(0, i)), "") << i;
    EXPECT_NE(problem(text.substr(0, i) + "z" + text.substr(i)), "") << i;
  }
}

TEST(Entries, ErrorsSayWhatIsWrongAndWhere) {
  EXPECT_EQ(problem("kind program\n"), "f:1: it does not begin with 'tessera entry 1'");
  EXPECT_EQ(problem("tessera entry 1\nkind program\n"), "f:2: there is no checksum");
  const std::string seal(64, '0');
  EXPECT_EQ(problem("tessera entry 1\nsha256 " + seal + "\nkind program\n"),
            "f:2: its checksum is another");
  EXPECT_EQ(problem("tessera entry 1"), "f:1: it ends in the middle of a line");
}

}  // namespace
}  // namespace tessera
