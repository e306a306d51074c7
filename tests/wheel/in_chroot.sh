#!/usr/bin/env bash
# Tries dist/*.whl where nobody has ever compiled anything: a Debian of its own with Python alone,
# without a compiler and without this checkout. As root; `make wheel-chroot` makes the wheel first.
# Usage: in_chroot.sh [SUITE], whose Python the wheel is for (bookworm: 3.11).
set -euo pipefail
cd "$(dirname "$0")/../.."
suite=${1:-bookworm}
if [ "$(id -u)" != 0 ]; then
  echo "wheel-chroot: LEFT OUT, a Debian of its own is made by root alone (sudo make wheel-chroot)"
  exit 0
fi
if ! command -v debootstrap >/dev/null; then
  apt-get -qq update && apt-get -qq install -y debootstrap
fi
root=$PWD/build/chroot
if [ ! -e "$root/.made" ]; then
  rm -rf "$root"
  echo "wheel-chroot: a Debian $suite with Python, some 150 MB, a minute or two"
  debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$root" \
    ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$PWD/build/debootstrap.log" ||
    { tail -3 "$PWD/build/debootstrap.log" >&2; exit 1; }
  touch "$root/.made"
fi
rm -rf "$root/try" && mkdir "$root/try"
cp dist/*.whl tests/wheel/try_wheel.py "$root/try"
# What the wheel needs comes from outside, where there may be a proxy or a mirror.
.venv/bin/pip -q download -d "$root/try" --only-binary :all: dist/*.whl
mounted() { mountpoint -q "$root/$1"; }
finish() { for m in proc dev/shm; do if mounted $m; then umount "$root/$m"; fi; done; }
trap finish EXIT
mkdir -p "$root/dev/shm"
mounted proc || mount -t proc proc "$root/proc"
mounted dev/shm || mount -t tmpfs shm "$root/dev/shm"
env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" sh -ec '
  ! command -v cc c++ g++ gcc clang >/dev/null || { echo "there is a compiler" >&2; exit 1; }
  cd /try
  python3 -m venv /try/venv
  /try/venv/bin/pip -q install --no-index --find-links /try /try/tessera_opt*.whl
  /try/venv/bin/python try_wheel.py
  /try/venv/bin/tessera demo'
