#!/usr/bin/env bash
# Rewrites requirements/*.txt from pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_CUSTOM_COMPILE_COMMAND="make lock"              # what the lock's header tells its reader to run
compile=(.venv/bin/uv pip compile -q --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28)
folder=$(.venv/bin/pip config get global.find-links 2>/dev/null || true)
if compgen -G "$folder/torch-2.13.0+cpu-*.whl" >/dev/null; then torch=(--find-links "$folder"); else torch=(--torch-backend cpu); fi
"${compile[@]}" "${torch[@]}" --all-extras --constraints requirements/constraints.in -o requirements/lock.txt pyproject.toml
echo "uv==0.13.8" | "${compile[@]}" -o requirements/uv.txt -
