#!/usr/bin/env python3
"""Simulate disputes of everybody with everybody, from one seed, and write down what happened.

python -m research.simulate_disputes                            ten million events, docs/data/simulation.json
python -m research.simulate_disputes --events 1000000000        as many as before a release
python -m research.simulate_disputes --seed SEED --world 17     one world again, with all its moves
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

from tallystick.disputes.game.moves import Move
from tallystick.disputes.game.state import State
from tests.support.simulator.simulation import Report, simulate, world_of
from tests.support.simulator.world import World

OUT = Path(__file__).resolve().parent.parent / "docs" / "data" / "simulation.json"


def main() -> None:
    """Simulate, or show one world."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="tallystick")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--world", type=int, help="show this one world instead")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    if arguments.world is not None:
        show(world_of(arguments.seed, arguments.world))
        return
    report = simulate(arguments.seed, arguments.events)
    arguments.out.write_text(json.dumps(figures(report), indent=1) + "\n")
    print(f"{report.events:,} events in {report.worlds:,} worlds, {report.seconds:.0f} s; {arguments.out}")


def figures(report: Report) -> dict[str, object]:
    """What is kept of a simulation."""
    return {
        "command": "python -m research.simulate_disputes",
        "machine": f"{_processor()}, Python {platform.python_version()}",
        "seed": report.seed,
        "worlds": report.worlds,
        "events": report.events,
        "seconds": round(report.seconds),
        "accepted": report.total("accepted"),
        "refused": report.total("refused"),
        "longest_dispute_of_its_bound": round(report.slowest, 3),
        "counts": dict(sorted(report.counts.items())),
    }


def show(world: World) -> None:
    """Every move of one world, to its end or its failure."""
    accepted, refused, happened = world.accepted, world.refused, world.happened

    def say_accepted(before: State, move: Move, now: int, after: State) -> None:
        print(f"{now}  {move.kind:9} {_who(move)}")
        accepted(before, move, now, after)

    def say_refused(move: Move, now: int, code: str) -> None:
        print(f"{now}  {move.kind:9} {_who(move)}  refused: {code}")
        refused(move, now, code)

    def say_happened(what: str) -> None:
        print(f"{world.queue.now}  {what}")
        happened(what)

    vars(world).update(accepted=say_accepted, refused=say_refused, happened=say_happened)
    world.run()
    print(f"{world.queue.events:,} events; {world.digest.hexdigest()}")


def _who(move: Move) -> str:
    number = getattr(move, "dispute", getattr(move, "claim", None))
    return f"by {move.actor[-3:]}" + ("" if number is None else f" in {number}")


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} ({os.cpu_count()} CPUs)"


if __name__ == "__main__":
    main()
