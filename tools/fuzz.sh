#!/usr/bin/env bash
# Builds the fuzz targets with sanitizers (libFuzzer where clang has it, else the built-in mutation
# loop, also by FUZZER=loop) and runs each for SECONDS_PER_TARGET (default 20) from SEED (default
# random, printed). Inputs that break something are kept in build/fuzz-*/found.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${SECONDS_PER_TARGET:-20}
seed=${SEED:-$((RANDOM * 32768 + RANDOM))}
cxx=${CXX:-g++}
libfuzzer=OFF
for clang in clang++ clang++-{20,19,18,17,16,15,14}; do
  if [ "${FUZZER:-}" != loop ] && command -v "$clang" >/dev/null &&
     echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
       "$clang" -x c++ -fsanitize=fuzzer,address,undefined - -o /dev/null 2>/dev/null; then
    cxx=$clang libfuzzer=ON
    break
  fi
done
build=build/fuzz-$libfuzzer
.venv/bin/cmake -G Ninja -S . -B "$build" -DCMAKE_MAKE_PROGRAM="$PWD/.venv/bin/ninja" \
  -DCMAKE_CXX_COMPILER="$cxx" -DTESSERA_OPTIMIZE=-O1 -DTESSERA_FUZZ=ON \
  -DTESSERA_LIBFUZZER=$libfuzzer -DTESSERA_SANITIZE=ON -DTESSERA_PYTHON=OFF -DTESSERA_TESTS=OFF >/dev/null
.venv/bin/ninja -C "$build" -j"${JOBS:-$(nproc)}" --quiet fuzz

# The corpus: every program and rule in the tree; what once broke something lies in tests/fuzz/corpus.
corpus=$build/corpus
found=$build/found
rm -rf "$corpus"
mkdir -p "$corpus" "$found"
find tests $(ls -d examples patterns rules 2>/dev/null) \( -name '*.ug' -o -name '*.rules' -o -name '*.pattern' \) | while read -r file; do
  cp "$file" "$corpus/${file//\//_}"
done
export ASAN_OPTIONS=abort_on_error=1:handle_abort=0:detect_leaks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=abort_on_error=1:print_stacktrace=1
for target in "$build"/*_fuzz; do
  echo "== $(basename "$target"): $seconds s, seed $seed, $cxx, libFuzzer $libfuzzer =="
  "$target" -seed="$seed" -max_total_time="$seconds" -timeout=10 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="$found/" "$corpus" 2>&1 |
    { grep -vE '# Uses: |recommended dictionary' || true; }
done
# Models, where Atheris is installed (it has wheels for some Pythons only).
if .venv/bin/python -c 'import atheris, onnx' 2>/dev/null && ls python/tessera/_core*.so >/dev/null 2>&1; then
  echo "== onnx_fuzz.py: $seconds s, seed $seed, Atheris =="
  PYTHONPATH=python .venv/bin/python tests/fuzz/onnx_fuzz.py "$build/onnx-corpus" -seed="$seed" \
    -max_total_time="$seconds" -verbosity=0 -artifact_prefix="$found/"
fi
# Random NumPy programs with state outside, views, writes and effects, decorated and not.
if ls python/tessera/_core*.so >/dev/null 2>&1; then
  echo "== random NumPy programs with state from seed $seed =="
  .venv/bin/python tests/python/random_state.py "${RANDOM_PROGRAMS:-20000}" "$seed"
fi
# Random programs through search, code and execution, where the release build is there.
if [ -x build/release/tessera_tests ]; then
  echo "== random programs from seed $seed =="
  TESSERA_RANDOM_PROGRAMS=${RANDOM_PROGRAMS:-20000} TESSERA_RANDOM_SEED=$seed \
    build/release/tessera_tests --gtest_brief=1 --gtest_filter='RandomPrograms.*'
fi
