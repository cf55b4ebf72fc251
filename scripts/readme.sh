#!/usr/bin/env bash
# Runs the README's blocks and puts their real output into the README.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m tests.support.pages README.md --write
