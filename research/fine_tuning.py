#!/usr/bin/env python3
"""Fine-tune a real model with and without a recorder, audit what was recorded, and write what each takes.

Usage: python -m research.fine_tuning MODEL WORK [--only lora full] [--same-stack] [--out docs]

MODEL is a directory in the form of transformers. Every part runs in a process of its own, one at a time; WORK is an
empty folder with room for 12 GB. Writes <out>/data/fine_tuning.json and the page <out>/fine_tuning.md. A part that is
not run keeps its figures of before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from research.tuning.page import render
from tallystick.tally.calibration.stacks import machine

STEPS: Final = {"lora": 100, "full": 20}
STRIDE: Final = 10
OTHER_STACK: Final = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
MIDDLE: Final = {"lora": "50..60", "full": "10..20"}


@dataclass(frozen=True)
class Done:
    """What a process printed, and what it took: seconds, seconds of processors, and the most memory in bytes."""

    out: str
    seconds: float
    cpu: float
    memory: int
    code: int

    def figures(self) -> dict[str, float]:
        """What it took."""
        return {"seconds": round(self.seconds, 2), "cpu": round(self.cpu, 2), "memory": self.memory}


def main() -> None:
    """Run the kinds that are asked for, and write the page anew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=tuple(STEPS), default=[*STEPS])
    parser.add_argument("--same-stack", action="store_true", help="leave out the audit on another stack")
    parser.add_argument("--name", default="SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    options = parser.parse_args()
    path = options.out / "data" / "fine_tuning.json"
    held: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    options.work.mkdir(parents=True, exist_ok=True)
    for kind in options.only:
        held[kind] = {"model": options.name, "machine": machine()} | measured(kind, options)
        path.write_text(json.dumps(held, indent=1) + "\n")
        (options.out / "fine_tuning.md").write_text(render(held))


def measured(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one kind of training."""
    model, work = options.model, options.work
    run, segment, limits = work / kind, work / f"{kind}-segment", work / f"{kind}-limits.json"
    train = [sys.executable, "-m", "research.tuning.train", str(model), kind, str(STEPS[kind]), str(STRIDE)]
    plain, recorded = (process([*train, str(work / "trainer"), *more]) for more in ([], [str(run)]))
    found: dict[str, Any] = {"plain": trained(plain), "recorded": trained(recorded)}
    found["anchors"] = {each.name: each.stat().st_size for each in sorted((run / "anchors").iterdir())}
    audit = ["audit", str(run), "--initial", str(model)]
    found["audits"] = {
        "every step": audited([*audit, "--full"]),
        "two sampled steps": audited([*audit, "--samples", "2", "--nonce", "c0ffee15" * 8]),
    }
    tally("open", str(run), "--segment", MIDDLE[kind], "--out", str(segment))
    found["segment"] = sum(each.stat().st_size for each in segment.rglob("*") if each.is_file())
    found["audits"]["a segment alone"] = audited(["audit", str(segment)])
    shutil.rmtree(segment)
    if options.same_stack:
        return found
    found["calibration"] = tally("calibrate-training", str(limits), "--run", str(run), "--segments", "2").figures()
    tolerant = [*audit, "--tolerant", "--calibration", str(limits)]
    found["audits"]["every step, on another stack"] = audited([*tolerant, "--full"], OTHER_STACK)
    return found


def trained(done: Done) -> dict[str, Any]:
    """What a training took, and the seconds of its steps."""
    steps: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return done.figures() | steps


def audited(command: Sequence[str], variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What an audit took, its verdict, and how many steps it replayed."""
    done = tally(*command, "--json", variables=variables or {})
    report = json.loads(done.out)
    return done.figures() | {"verdict": report["verdict"], "replayed": report["replayed_steps"]}


def tally(*arguments: str, variables: Mapping[str, str] | None = None) -> Done:
    """Run a command of ours."""
    return process([sys.executable, "-m", "tallystick", *arguments], variables or {})


def process(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Done:
    """Run a process, and measure it alone; raises `SystemExit` with what it said where it fails."""
    print(" ".join(command), file=sys.stderr, flush=True)
    began = time.perf_counter()
    running = subprocess.Popen(command, env=os.environ | dict(variables or {}), stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None  # a pipe
    out = running.stdout.read()
    _, status, used = os.wait4(running.pid, 0)
    seconds, code = time.perf_counter() - began, os.waitstatus_to_exitcode(status)
    running.returncode = code
    if code not in (0, 1, 3):
        raise SystemExit(f"{' '.join(command)}: exit code {code}")
    return Done(out, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, code)


if __name__ == "__main__":
    main()
