"""Runs the benchmarks and keeps their figures in docs/data/benchmarks.json, from which docs/benchmarks.md is made."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from typing import Any

from benchmarks.figure import describe_machine, load, print_figure
from benchmarks.page import DATA, write_page

NAMES = (
    "train_commit",
    "hash_rate",
    "corpus_commit",
    "order_scale",
    "incremental",
    "audit_cost",
    "transcript_scale",
    "database_scale",
    "cold_start",
    "graph_replay",
    "capture_cost",
    "bounds_cost",
    "infer_record",
    "sampler_choose",
    "sampler_verify",
    "infer_commit",
    "verify_over_prefill",
    "real_model",
    "wrapped_client",
    "dispute_rounds",
    "dispute_gas",
    "dispute_board",
    "dispute_work",
    "dispute_referee",
    "dispute_time",
    "dispute_idle",
    "service_load",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds; nothing is kept")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark is called {min(unknown)}")
    for name in arguments.names or NAMES:
        result = run(name, arguments.quick)
        if result["figures"] and not arguments.quick:
            keep(name, result)
    if not arguments.quick:
        write_page()


def run(name: str, quick: bool) -> dict[str, Any]:
    module = import_module(f"benchmarks.{name}")
    before, seen = load(), []
    for figure in module.figures(quick):
        print_figure(figure)
        seen.append(figure.to_json())
    return {
        "how": (module.__doc__ or "").strip(),
        "load": [before, load()],
        "machine": describe_machine(),
        "figures": seen,
    }


def keep(name: str, result: dict[str, Any]) -> None:
    held = json.loads(DATA.read_text()) if DATA.is_file() else {}
    held[name] = result
    DATA.parent.mkdir(parents=True, exist_ok=True)
    DATA.write_text(json.dumps({key: held[key] for key in NAMES if key in held}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
