#!/usr/bin/env bash
# Runs the README's one-minute example and puts its real output into the README.
set -euo pipefail
cd "$(dirname "$0")/.."
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
export PATH="$PWD/.venv/bin:$PATH" COLUMNS=100 NO_COLOR=1
tally train examples/llama-tiny.toml --out "$stage/run" >/dev/null 2>&1
tally audit "$stage/run" --samples 8 2>/dev/null >"$stage/audit.txt"
tally attack weights-edited-by-one-ulp "$stage/run" "$stage/forged" >/dev/null 2>&1
tally export-model "$stage/run" "$stage/model" >/dev/null 2>&1
python scripts/readme_answers.py "$stage/model" "$stage"
for name in receipt forged; do
  tally verify-response "$stage/$name.json" --model "$stage/model" 2>/dev/null >"$stage/$name.txt" || true
done
mv "$stage/forged.txt" "$stage/quantised.txt"
tally audit "$stage/forged" --full 2>/dev/null >"$stage/forged.txt" || true
python scripts/readme_example.py "$stage"
