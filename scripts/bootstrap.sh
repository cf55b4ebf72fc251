#!/usr/bin/env bash
# One virtual environment (.venv) from the hash-locked requirements, and the Ethereum tools of contracts/ where npm is
# there. A second call costs milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp_of() { cat "$@" | sha256sum | cut -c1-16; }

environment() {
  local venv=${VENV:-.venv} python=${PYTHON:-python3.11} stamp torch install folder
  stamp="$venv/.locked-$(stamp_of requirements/*.txt pyproject.toml)"
  [ -e "$stamp" ] && return

  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/pip" install --disable-pip-version-check -q --require-hashes -r requirements/uv.txt

  # uv does not read pip's find-links. Where one of these folders holds the CPU build of torch it is used;
  # elsewhere uv takes that file from PyTorch's own CPU index.
  torch=(--torch-backend cpu)
  for folder in $("$venv/bin/pip" config get global.find-links 2>/dev/null || true) ${PIP_FIND_LINKS:-}; do
    if compgen -G "$folder/torch-2.13.0+cpu-*.whl" >/dev/null; then torch=(--find-links "$folder"); fi
  done
  install=("$venv/bin/uv" pip install -q --python "$venv/bin/python")
  "${install[@]}" --compile-bytecode --require-hashes "${torch[@]}" -r requirements/lock.txt
  "${install[@]}" --no-deps --no-build-isolation -e .       # setuptools comes from the lock (torch needs it)
  rm -f "$venv"/.locked-*
  touch "$stamp"
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
ethereum_tools
