// SMT problems as SMT-LIB 2 text, solved by Z3 where it is found at run time: a program of its own,
// so that its limits on time and memory are hard.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace tessera {

enum class SmtStatus { Unsat, Sat, Unknown };

struct SmtLimits {
  double seconds = 10;  // of the whole script
  int megabytes = 1024;
};

// Z3's executable: `named` if it is not empty, else $TESSERA_Z3, else z3 on PATH.
std::optional<std::string> find_z3(const std::string& named = "");
// What to do where there is none.
inline constexpr const char* kInstallZ3 = "no SMT solver was found; install Z3 (`pip install "
                                          "z3-solver` or `apt install z3`), or name its "
                                          "executable in TESSERA_Z3";

// "Z3 4.13.0"; throws Error(Io) if `z3` does not run.
std::string z3_version(const std::string& z3);

// The answers to the script's `check-sat` commands, in order. Fewer than there are commands where a
// limit was reached or Z3 gave up; Z3's complaints are Unknown.
std::vector<SmtStatus> solve_smt(const std::string& z3, const std::string& script,
                                 const SmtLimits& limits = {});

}  // namespace tessera
