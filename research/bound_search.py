"""Search for honest results outside their bounds, and write docs/data/bound_search.json.

    python -m research.bound_search [--draws 4] [--check]      each setting runs in a process of its own

Every ATen operator runs on PyTorch with the examples of the tests, on operands and numbers drawn again; with masks that
hide everything, scales ≤ 0, rows without numbers; and in the shapes of layers of real models. All this in F32, BF16,
F16 and F64: at every vector level, with every instruction set of oneDNN, without oneDNN, on one and two threads, in
channels-last layout. What is kept of each is the largest error ÷ radius.
Exits 1 where one is above 1. With --check nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
DATA: Final = ROOT / "docs" / "data" / "bound_search.json"
sys.path.insert(0, str(ROOT))

from tests.programs.operators.searched import SETTINGS, Searched, Setting, machine, search  # noqa: E402


def main() -> int:
    """Run all settings, or, for a process of its own, one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=4, help="draws of operands for each example and dtype")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="operators whose names contain this")
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(search(SETTINGS[asked.one], asked.draws, asked.only).to_json()))
        return 0
    found = {name: _one(name, setting, asked) for name, setting in SETTINGS.items()}
    worst = _worst(found)
    for operator, share in sorted(worst.items(), key=lambda item: -item[1][0]):
        print(f"{share[0]:8.3g}  {operator}  {share[1]}")
    if not asked.check:
        DATA.write_text(json.dumps(_document(found, worst, asked.draws), indent=1) + "\n", "utf-8")
    return int(any(share > 1 for share, _ in worst.values()))


def _one(name: str, setting: Setting, asked: argparse.Namespace) -> Searched:
    environment = {**os.environ, **setting.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["OMP_NUM_THREADS"] = str(setting.threads)
    module = ["-W", "ignore", "-m", "research.bound_search"]
    command = [sys.executable, *module, "--one", name, "--draws", str(asked.draws)]
    done = subprocess.run(
        [*command, "--only", asked.only], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    found = Searched.from_json(json.loads(done.stdout.splitlines()[-1]))
    print(f"{name}: {found.calls} calls", file=sys.stderr, flush=True)
    return found


def _worst(found: dict[str, Searched]) -> dict[str, tuple[float, str]]:
    """Of each operator and dtype, the largest share over all settings, and where it was."""
    worst: dict[str, tuple[float, str]] = {}
    for setting, each in found.items():
        for operator, (share, call) in each.shares.items():
            if share > worst.get(operator, (-1.0, ""))[0]:
                worst[operator] = share, f"{setting}: {call}"
    return worst


def _document(found: dict[str, Searched], worst: dict[str, tuple[float, str]], draws: int) -> dict[str, Any]:
    return {
        "machine": machine(),
        "draws": draws,
        "settings": {name: each.calls for name, each in found.items()},
        "calls": sum(each.calls for each in found.values()),
        "largest": {name: float(f"{share:.3g}") for name, (share, _) in sorted(worst.items())},
    }


if __name__ == "__main__":
    sys.exit(main())
