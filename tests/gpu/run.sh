#!/usr/bin/env bash
# Builds with the machine's own Python (no .venv, no package registry) and then tests or measures on
# its NVIDIA GPU. Usage: tests/gpu/run.sh test|bench. Both end within TESSERA_GPU_SECONDS (default 570).
#   PYTHON         the interpreter; needs torch, cmake, ninja and nanobind (default python3)
#   GPU_RESULTS    where results go (default bench/results/cuda.json and cuda-test.json); what is
#                  there already is kept, so a second run goes on where the first one stopped
set -euo pipefail
cd "$(dirname "$0")/../.."
mode=${1:?usage: tests/gpu/run.sh test|bench}
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "tessera: there is no $python; set PYTHON" >&2; exit 1; }
seconds=${TESSERA_GPU_SECONDS:-570}
left() { echo $((seconds - SECONDS)); }

brought=$("$python" tests/gpu/machine.py --packages)
export PYTHONPATH=$brought${PYTHONPATH:+${brought:+:}$PYTHONPATH}
"$python" tests/gpu/machine.py
cmake=$("$python" tests/gpu/machine.py --program cmake)
ninja=$("$python" tests/gpu/machine.py --program ninja)

# Another Python or another compiler needs another build.
build=build/gpu-$("$python" -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
mkdir -p "$build"
log=$build/build.log
echo "building in $build with $(nproc) processors"
"$cmake" -G Ninja -DCMAKE_MAKE_PROGRAM="$ninja" -DPython_EXECUTABLE="$(command -v "$python")" \
  -DCMAKE_BUILD_TYPE=Release -DTESSERA_TESTS=OFF -DTESSERA_WERROR=OFF -S . -B "$build" >"$log" 2>&1 &&
  "$ninja" -C "$build" _core _bench >>"$log" 2>&1 ||
  { tail -40 "$log" >&2; echo "tessera: the build failed; all of its output is in $log" >&2; exit 1; }
echo "built in $SECONDS s"

export PYTHONPATH=$PWD/python:$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
case $mode in
  test)
    TESSERA_GPU_SECONDS=$(($(left) - 10)) "$python" -m tests.gpu --resume \
      --results "${GPU_RESULTS:-bench/results/cuda-test.json}"
    ;;
  bench)
    results=${GPU_RESULTS:-bench/results/cuda.json}
    stop=$(($(left) - 45)) # a case that is begun then is finished
    "$python" -m tessera bench mirage --target cuda --json "$results" --resume --budget 25 \
      --stop-after "$stop"
    "$python" bench/table.py "$results"
    ;;
  *) echo "usage: tests/gpu/run.sh test|bench" >&2; exit 64 ;;
esac
echo "done in $SECONDS s"
