#!/usr/bin/env bash
# Builds the wheel, installs it in an environment of its own with the locked versions, and plays a newcomer's first
# minutes there, outside of the clone. Needs `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/torch_source.sh
torch_source .venv/bin/pip
clone=$PWD
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

mkdir "$stage/source"
cp -r LICENSE README.md pyproject.toml src examples "$stage/source"
rm -rf "$stage"/source/src/*.egg-info         # what an earlier build left is no part of the wheel
cd "$stage"
export PATH="$stage/venv/bin:$clone/.venv/bin:$PATH" OMP_NUM_THREADS=1 NO_COLOR=1
unset PYTHONPATH VIRTUAL_ENV
uv build -q --wheel --no-build-isolation --python "$clone/.venv/bin/python" --out-dir dist source
uv venv -q --python "$clone/.venv/bin/python" venv

install() { # the wheel with an extra
  uv pip install -q --python venv/bin/python -c "$clone/requirements/lock.txt" "${torch[@]}" "$(echo dist/*.whl)$1"
}

says() { # runs a command that has to end with exit code $1 and to print $2
  local code=0 told
  echo "${*:3}"
  told=$("${@:3}" 2>&1) || code=$?
  [ "$code" = "$1" ] && [[ $told == *"$2"* ]] && return
  printf '%s\n' "$told" "exit code $code, not $1, or «$2» is not there" >&2
  exit 1
}

install ""   # the core alone: it starts, and says what brings the rest
says 0 /venv/lib/ python -c 'import tallystick; print(tallystick.__file__)'
says 0 llama-tiny tally example
says 0 "next: tally train" tally example demo
says 4 "pip install 'tallystick[record]'" tally train demo.toml --out run
says 4 "pip install 'tallystick[disputes]'" tally demo

install "[record]"
says 0 sha256: tally train demo.toml --out run
says 0 ACCEPTED tally audit run --samples 8
says 0 "" tally export-model run model
says 0 "" tally new-key provider.key
says 4 "pip install 'tallystick[serve]'" tally serve-model model --key provider.key
says 4 "pip install 'tallystick[coordinator]'" tally demo

install "[disputes]"
says 0 "verdicts as expected" tally demo
