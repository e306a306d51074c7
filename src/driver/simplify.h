// Algebra before kernels: the program with less work in it, which is then cut into parts.
#pragma once
#include "driver/session.h"

namespace tessera {

// The cheapest program that synthesis finds and the verifier believes; the program itself where
// that gains little. The session's report tells what was found and how.
Graph simplified(Session& session, const Graph& program);

}  // namespace tessera
