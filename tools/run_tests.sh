#!/usr/bin/env bash
# Runs every test of the built tree, cheap ones first; stops at the first group that fails.
set -euo pipefail
cd "$(dirname "$0")/.."
step() { echo "== $1 =="; shift; local t=$SECONDS; "$@"; echo "   $((SECONDS - t)) s"; }
records=$(mktemp -d)  # of GoogleTest and pytest
finish() {  # what passed, failed and was skipped, and why
  local code=$?
  .venv/bin/python tests/summary.py "$records" || code=1
  rm -rf "$records"
  exit $code
}
trap finish EXIT

# A test binary in two processes: few of its tests use a second processor.
halves() {
  local pids=() shard failed=0
  for shard in 0 1; do
    GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=$shard GTEST_OUTPUT="xml:$records/$RANDOM$shard.xml" \
      "$@" --gtest_brief=1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  return $failed
}

export PATH="$PWD/.venv/bin:$PATH"  # z3: proofs of some tests need it
# HiGHS beside the built-in solver; the sanitizer run below does without that oracle.
step "C++ unit tests" halves env \
  TESSERA_HIGHS="$(ls .venv/lib/python3*/site-packages/highspy/libhighs.so.1 2>/dev/null)" build/release/tessera_tests
random_programs() {  # other ones in each of two processes
  env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX TESSERA_RANDOM_PROGRAMS=1000 TESSERA_RANDOM_SEED=$((
    1 + 1000 * GTEST_SHARD_INDEX)) build/release/tessera_tests --gtest_filter='RandomPrograms.*' "$@"
}
# The SIMD tables as a processor without AVX-512 sees them: what must not run there would end the test.
if command -v qemu-x86_64 >/dev/null; then
  step "proofs on an emulated processor without AVX-512" qemu-x86_64 -cpu Haswell \
    build/release/tessera_tests --gtest_brief=1 --gtest_filter='RealKernels*:Certificate.*:Regions.EveryLayerMayBeRewritten'
else
  echo "left out: proofs on an emulated processor without AVX-512 (qemu-x86_64 is not installed)"
fi
step "2,000 random programs: search, code, run" halves random_programs
step "Python tests" .venv/bin/python -m pytest -n 2 --dist loadfile --junitxml="$records/python.xml"
if [ -d tests/text ]; then step "text tests" .venv/bin/python tests/texttest.py; fi
# Without what is minutes of the system's compiler, or of searches that others do on less.
slow='CpuPanels.*:CpuRows.*:CpuOps.*:CpuPacked.*:CpuMath.*:Attention.*:Rows.*:CudaFaults.*'
slow+=':CpuImages.ConvolutionsOfAllKinds:Calibrate.*:VerifyBench.DeepPrograms:VerifyBench.BranchFaultsAreRefused'
slow+=':Mugraph.SameResultForAnyThreadCount:Mugraph.RandomProgramsGetRightCandidates'
slow+=':CudaCalls.KernelsWhereTheLibraryHasNoWay:CudaWindows.ConvolutionsByAThreadPerElement'
slow+=':CudaEpilogue.LowRank*:CudaWide.ManyRows:Resume.TextsThatDoNotFit*:CudaCompile.Gen*:Bodies.*'
slow+=':IndexRanges.NoSeed*:Race.StartsFromPlain*:VerifyBench.Injected*:SecondOpinion.Never*'
slow+=':CudaTf32.ProgramsAre*:Mugraph.EveryCandidateC*'
[ -z "${TESSERA_TEST_LONG:-}" ] || slow=none
step "C++ unit tests, address and undefined-behaviour sanitizers" halves build/asan/tessera_tests \
  --gtest_filter="-$slow"
