// The public C++ API of Tessera, on one page. Everything is in namespace tessera.
//
//   Graph g = parse(text, "model.ug");            // or build: Graph g("f"); g.add_input(...); ...
//   OptimizeResult r = optimize(g);               // search, prove, compile, check, measure, choose
//   r.module()->run(inputs, outputs);               // contiguous row-major arrays of the caller's
//   std::cout << r.certificate()->str() << r.module()->source() << print(r.graph());
//
//   Verdict v = verify(a, b);                     // equal + certificate, refuted + inputs, unknown
//   std::vector<NDArray> y = eval(g, inputs);     // the reference interpreter
//
// Errors a user can cause are thrown as tessera::Error (kind, message, place).
#pragma once

#include "backend/cpu/module.h"  // Module, emit_source
#include "base/error.h"          // Error, ErrorKind, SourceLocation
#include "driver/optimize.h"     // optimize, search, OptimizeOptions, OptimizeResult
#include "eval/eval.h"           // eval, NDArray
#include "ir/graph.h"            // Graph, Op, OpKind, Type, Shape, DType, bind_symbols
#include "ir/text.h"             // print, parse
#include "ir/validate.h"         // validate
#include "verify/funnel.h"       // verify, accept, recheck, Verdict, Certificate
