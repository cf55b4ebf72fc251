#!/usr/bin/env python3
"""Load a real server of vLLM with receipts, judge its answers by transformers, and write `docs/vllm.md`.

Usage: python -m research.vllm_load answers --model DIR --out FOLDER [-- OPTION-OF-VLLM …]
       python -m research.vllm_load speed --model DIR --out FOLDER [-- OPTION-OF-VLLM …]
       python -m research.vllm_load judge --name NAME --model DIR --out FOLDER
       python -m research.vllm_load page

`answers` and `speed` run in an environment of `scripts/vllm_environment.sh`. `answers` keeps every answer as it comes
and asks for what is missing of COUNT in FOLDER, so that a run that broke off can be started again; `judge --go-on`
judges what was not judged yet, and `judge` everything anew, for instance after limits have changed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from research.vllm.judging import Judging, counted, keep, summary
from research.vllm.load import LONGEST, Answered, Load, plan, send_all
from research.vllm.page import render
from research.vllm.server import serving
from research.vllm.speed import compare
from tallystick.audits.answers.policy import ReceiptPolicy, read_receipt_policy
from tallystick.engines.torch.generation.language_models import load_language_model
from tallystick.tally.calibration.stacks import machine

COMMAND = "python -m research.vllm_load"
DATA, PAGE = Path("docs/data/vllm.json"), Path("docs/vllm.md")
TEXTS = Path("examples/data")
DTYPES = {"bfloat16": "BF16", "float32": "F32"}


def main() -> None:
    """Run one of the four parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("--name", default="BF16", help="judge: the name of the part in the data")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path, help="where answers and receipts are kept")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16")
    parser.add_argument("--count", type=int, default=500, help="answers, or rounds of the comparison")
    parser.add_argument("--most", type=int, help="judge: at most so many responses")
    parser.add_argument("--go-on", action="store_true", help="judge: leave out what was judged before")
    parser.add_argument("--policy", type=Path, help="judge: the rules, those of the package by default")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=int, default=LONGEST, help="answers: the most tokens that are asked for")
    parser.add_argument("--runner", choices=("V1", "V2"), default="V1", help="answers: vLLM's model runner")
    parser.add_argument("--port", type=int, default=8760)
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    arguments = parser.parse_args(given[:end])
    arguments.options = given[end + 1 :]
    PARTS[arguments.part](arguments)


def options_of(arguments: argparse.Namespace) -> Sequence[str]:
    """The options of both servers."""
    return ("--dtype", arguments.dtype, "--max-model-len", "1024", *arguments.options)


def answers(arguments: argparse.Namespace) -> None:
    """Ask for answers and keep them."""
    kept, whole = counted(arguments.out)
    if whole >= arguments.count:
        print(f"{whole} answers are in {arguments.out}")
        return

    def is_enough(load: Load) -> bool:
        return whole + sum(each.is_whole for each in load.answered) >= int(arguments.count)

    def take(answered: Answered) -> None:
        nonlocal kept
        keep(answered, arguments.out)
        kept += 1
        if kept % 10 == 0:
            print(f"{kept} answers of {arguments.count}", flush=True)

    given, asked = options_of(arguments), plan(arguments.seed + (kept << 20), TEXTS, longest=arguments.longest)
    with serving(
        arguments.model, arguments.out, arguments.port, given, receipts=True, runner=arguments.runner
    ) as server:
        begun = time.monotonic()
        load = asyncio.run(send_all(server.url, asked, arguments.clients, is_enough, take))
        seconds = time.monotonic() - begun
    print(f"{len(load.answered)} answers, {load.tokens} tokens, {load.tokens / seconds:.1f} a second")
    for line in load.refused:
        print(f"refused: {line[:300]}")


def judge(arguments: argparse.Namespace) -> None:
    """Judge what was kept by the shipped rules, and put the summary into the data."""
    model = load_language_model(arguments.model, DTYPES[arguments.dtype])  # type: ignore[arg-type]
    policy = ReceiptPolicy() if arguments.policy is None else read_receipt_policy(arguments.policy)
    judging = Judging(arguments.out, model, policy)
    rows = judging.judge(arguments.most, goes_on=arguments.go_on)
    found = summary(rows) | {"left": judging.cancelled(), "journal": judging.order(), "machine": machine()}
    _keep(arguments.name, found)
    print(json.dumps(found, indent=2, ensure_ascii=False))


def speed(arguments: argparse.Namespace) -> None:
    """Compare a server with receipts to one without, in turns, and put the figures into the data."""
    found = compare(arguments.model, arguments.out, options_of(arguments), arguments.count, arguments.clients)
    _keep("speed", found | {"machine": machine()})
    print(json.dumps(found, indent=2))


def write_page(_: argparse.Namespace | None = None) -> None:
    """Write the page from the data."""
    PAGE.write_text(render(json.loads(DATA.read_text()), COMMAND))


def _keep(name: str, found: dict[str, Any]) -> None:
    held = json.loads(DATA.read_text()) if DATA.is_file() else {}
    DATA.write_text(json.dumps(held | {name: found}, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    write_page()


PARTS: Final[Mapping[str, Callable[[argparse.Namespace], None]]] = {
    "answers": answers,
    "speed": speed,
    "judge": judge,
    "page": write_page,
}

if __name__ == "__main__":
    main()
