#!/usr/bin/env bash
# Prepares a bare machine: compiler, Python headers, .venv. Usage: bootstrap.sh run|dev|peers
# `run` is what building and using the package needs; `dev` adds what tests and lint need; `peers`,
# after `dev`, PyTorch, JAX and onnxruntime.
# As root on Debian/Ubuntu missing system packages are installed; otherwise it says what to do.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:?usage: bootstrap.sh run|dev|peers}
python=${PYTHON:-python3}

fail() { echo "tessera set-up: $*" >&2; exit 1; }

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

missing_packages=() missing_things=()
need() { # need PACKAGE -- THING: noted here, installed (or complained about) by install_needed
  missing_packages+=("$1")
  missing_things+=("$3")
}

apt_updated=0
install_needed() {
  [ ${#missing_packages[@]} = 0 ] && return
  local things
  things=$(printf ', %s' "${missing_things[@]}")
  things=${things:2}
  may_install || fail "missing: $things. Install it first, for example:
  sudo apt-get install ${missing_packages[*]}"
  echo "tessera set-up: installing ${missing_packages[*]} ($things)"
  if [ $apt_updated = 0 ]; then apt-get -qq update || true; apt_updated=1; fi
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
    "${missing_packages[@]}" >/dev/null || fail "apt-get could not install ${missing_packages[*]}"
  missing_packages=() missing_things=()
}

has_python_header() {
  "$1" -c 'import os, sys, sysconfig as s
sys.exit(not os.path.exists(os.path.join(s.get_paths()["include"], "Python.h")))'
}

if ! command -v "$python" >/dev/null; then need python3 -- "Python"; install_needed; fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "Python 3.11 or newer is needed, $python is $("$python" -V 2>&1); set PYTHON=/path/to/python3"
command -v "${CXX:-g++}" >/dev/null || command -v c++ >/dev/null || command -v clang++ >/dev/null ||
  need g++ -- "a C++20 compiler"
has_python_header "$python" || need python3-dev -- "Python.h"
if [ "$mode" = dev ]; then
  found=0
  for dir in /usr/include /usr/local/include ${GTEST_ROOT:+"$GTEST_ROOT/include"}; do
    [ -e "$dir/gtest/gtest.h" ] && found=1
  done
  [ $found = 1 ] || need libgtest-dev -- "GoogleTest"
fi
install_needed
# Optional: single tests emulate an older processor, and keep results on a Redis server.
optional() {  # COMMAND PACKAGE
  if [ "$mode" != dev ] || ! may_install || command -v "$1" >/dev/null; then return; fi
  if [ $apt_updated = 0 ]; then apt-get -qq update || true; apt_updated=1; fi
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$2" >/dev/null 2>&1 ||
    echo "tessera set-up: no $2, its test is left out"
}
if [ "$(uname -m)" = x86_64 ]; then optional qemu-x86_64 qemu-user; fi
optional redis-server redis-server

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  rm -rf .venv
  if ! "$python" -m venv .venv >/dev/null 2>&1; then
    rm -rf .venv
    if "$python" -m virtualenv --version >/dev/null 2>&1; then
      "$python" -m virtualenv -q .venv
    else
      need python3-venv -- "the venv module of Python"
      install_needed
      "$python" -m venv .venv
    fi
  fi
fi

pip() { .venv/bin/python -m pip --disable-pip-version-check -q "$@"; }
case $mode in
  run) pip install -r tools/requirements.txt ;;
  dev) pip install -r tools/requirements.txt -r tools/requirements-dev.txt ;;
  peers)
    echo "tessera set-up: PyTorch, JAX and onnxruntime, whose tests TESSERA_TEST_MINIMAL=1 leaves out"
    pip install -r tools/requirements.txt -r tools/requirements-dev.txt -r tools/requirements-peers.txt ||
      { echo "tessera set-up: they could not be installed: THEIR TESTS ARE LEFT OUT" >&2; exit 0; } ;;
  *) fail "unknown mode $mode" ;;
esac

# The package is used in place: no reinstall after an edit.
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
printf '%s\n%s\n' "$PWD/python" "$PWD" > "$site/tessera-in-place.pth"
printf '#!%s\nimport sys\nfrom tessera.cli import main\nif __name__ == "__main__":\n    sys.exit(main())\n' "$PWD/.venv/bin/python" > .venv/bin/tessera
chmod +x .venv/bin/tessera

touch ".venv/stamp-run"
if [ "$mode" != run ]; then touch ".venv/stamp-dev" ".venv/stamp-$mode"; fi
