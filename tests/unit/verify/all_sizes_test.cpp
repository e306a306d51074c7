#include "verify/all_sizes.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "search/rules/check.h"
#include "search/rules/library.h"
#include "places.h"
#include "verify/programs.h"

namespace tessera {
namespace {

TEST(AllSizesDebug, Rules) {
  int n = 0, ok = 0;
  for (const auto& r : rules::load_rules(source_dir() + "/rules")) {
    n++;
    const std::string why = rules::not_for_all_sizes(r, 3);
    ok += why.empty();
    if (!why.empty()) std::cout << r.name << ": " << why << "\n   " << rules::print(r, r.left) << " = " << rules::print(r, r.right) << "\n";
  }
  std::cout << ok << " of " << n << "\n";
}

}  // namespace
}  // namespace tessera
