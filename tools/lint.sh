#!/usr/bin/env bash
# Format, lint and type checks of everything in the tree; `lint.sh --fix` formats in place.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0
check() { echo "== $1 =="; shift; "$@" || failed=1; }

sources() { find src include tests python bench examples -name '*.cpp' -o -name '*.h' | sort; }
python=(python tools tests)
for folder in examples bench; do
  if compgen -G "$folder/*.py" >/dev/null; then python+=("$folder"); fi
done
format=(--dry-run --Werror)
ruff_format=(--check)
ruff_check=()
if [ "${1:-}" = --fix ]; then format=(-i); ruff_format=(); ruff_check=(--fix); fi

check "clang-format" .venv/bin/clang-format "${format[@]}" $(sources 2>/dev/null)
check "ruff format" .venv/bin/ruff format -q "${ruff_format[@]}" "${python[@]}"
check "ruff check" .venv/bin/ruff check -q "${ruff_check[@]}" "${python[@]}"
check "mypy --strict" .venv/bin/mypy "${python[@]}"
check "layers" .venv/bin/python tools/check_layers.py
check "size" .venv/bin/python tools/size.py
exit $failed
