// Laws that hold for every program of the corpus.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "ir/text.h"
#include "ir/validate.h"
#include "places.h"

namespace tessera {
namespace {

TEST(Corpus, PrintsParsesAndValidates) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/tests/corpus")) {
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    Graph g = parse(text.str(), entry.path().string());
    EXPECT_TRUE(parse(print(g)) == g) << entry.path();
    EXPECT_EQ(print(parse(print(g))), print(g)) << entry.path();
    EXPECT_TRUE(without_dead_code(g) == g) << entry.path();
    EXPECT_NO_THROW(validate(g));
    count++;
  }
  EXPECT_GE(count, 15);
}

}  // namespace
}  // namespace tessera
