"""What a ruling takes: work and bytes of a referee, for every operator of a graph.

A referee reads the bundle of one operator and rules on it. `proof` counts the hashes that lead from the operator to the
root over all operators, from its node to the root of the graph, and from the operators that gave its operands to the
first root, at 32 bytes each: all that a referee needs besides the operator itself, its record and its values. Those,
as the documents of the file, stand beside it, and so do the opening and the header of the graph, which all operators of
a claim share. One operator is evaluated, once, in float64; its time is set against one pass through the whole graph by
PyTorch, in rounds in random order, each over one operator drawn at random. One thread.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.dispute_rounds import spread
from benchmarks.dispute_workload import ANSWER, LARGE, Calls, Training, opened, subject
from benchmarks.figure import Figure, Goal
from benchmarks.measure import CLOCKS, Interval, Round, interval, median_ratio, time_arm, total
from tallystick.audits.opening import OpeningSource
from tallystick.engines.torch.engine import TorchEngine
from tallystick.programs.execution import execute
from tallystick.verdicts.leaf.bundle import HASH_BYTES, LeafBundle, read_bundle, write_bundle
from tallystick.verdicts.leaf.bundling import WholeOpening
from tallystick.verdicts.leaf.judge import rule_leaf
from tallystick.verdicts.leaf.request import LeafRequest, Ruling

PROOF_GOAL = Goal(2048)
WORKLOADS: dict[str, Training | Calls] = {"a step of llama-tiny with 8 layers": LARGE, "a call of 8 layers": ANSWER}


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    for name in list(WORKLOADS)[1 if quick else 0 :]:
        with TemporaryDirectory() as folder:
            what = subject(WORKLOADS[name], Path(folder) / "run")
            whole = opened(what, Path(folder) / "opened").whole
            yield from _sizes(name, whole, 20 if quick else 1)
            yield from _times(name, what, whole, Path(folder), 20 if quick else 400)


def _sizes(name: str, whole: WholeOpening, stride: int) -> Iterator[Figure]:
    """The bytes of the bundles of all operators."""
    numbers = [node.number for node in whole.graph.nodes[::stride]]
    found = [_measured(whole.bundle(number)) for number in numbers]
    size, hashes = len(whole.lines), [each["hashes"] for each in found]
    within = sum(each <= PROOF_GOAL.limit for each in hashes)
    details = {
        "operators": size,
        "mean": mean(hashes),
        "median": median(hashes),
        "operators within the goal": within,
        "share within the goal": within / len(found),
        "from the operator to the root": max(each["operator"] for each in found),
        "documents": spread([each["documents"] for each in found]),
        "values": spread([each["values"] for each in found]),
        "shared": spread([each["shared"] for each in found]),
    }
    most = max(hashes)
    yield Figure(
        f"dispute_referee: proof, {size}",
        f"most bytes of proof of an operator, {name}, V = {size:,}",
        Interval(most, most, most),
        len(found),
        "count",
        unit="bytes",
        goal=PROOF_GOAL,
        details=details,
    )


def _measured(bundle: LeafBundle) -> Mapping[str, float]:
    sizes = bundle.sizes
    return {
        "hashes": float(sizes.hashes),
        "operator": float(HASH_BYTES * len(bundle.operator.proof)),
        "documents": float(sizes.proof),
        "values": float(sizes.values),
        "shared": float(sizes.statement),
    }


@dataclass(frozen=True)
class Ruled:
    """One operator that was ruled upon: what the arms took, and the ruling."""

    spent: Round
    ruling: Ruling


def _times(name: str, what: OpeningSource, whole: WholeOpening, folder: Path, count: int) -> Iterator[Figure]:
    rng, path, engine = random.Random(29), folder / "bundle", TorchEngine()
    forward = partial(execute, what.graph, what.bindings, engine)
    numbers = [node.number for node in whole.graph.nodes]
    forward()
    found = []
    for number in rng.sample(numbers, min(count, len(numbers))):
        write_bundle(path, whole.bundle(number))
        found.append(_ruled(path, forward, rng))
    for clock in CLOCKS:
        yield _time(name, found, clock, rng)


def _ruled(path: Path, forward: Any, rng: random.Random) -> Ruled:
    """Read the bundle and rule on it, among passes through the whole graph."""
    rulings: list[Ruling] = []
    arms = {
        "ruling": lambda: rulings.append(rule_leaf(read_bundle(path), LeafRequest())),
        "pass": forward,
        "again": forward,
    }
    spent = {name: time_arm(arms[name]) for name in rng.sample(sorted(arms), len(arms))}
    return Ruled(spent, rulings[0])


def _time(name: str, found: Sequence[Ruled], clock: Any, rng: random.Random) -> Figure:
    rounds = [each.spent for each in found]
    seconds = sorted(getattr(each["ruling"], clock) for each in rounds)
    control = interval(rounds, median_ratio("again", "pass", clock), rng)
    grounds = [str(each.ruling.ground) for each in found]
    details = {
        "seconds of a ruling, median": median(seconds),
        "seconds of a ruling, 99 of 100": seconds[len(seconds) * 99 // 100],
        "seconds of a ruling, most": seconds[-1],
        "pass s": total(rounds, "pass", clock) / len(rounds),
        "pass ÷ pass": control,
        "operators evaluated": 1,
        "rulings": {ground: grounds.count(ground) for ground in sorted(set(grounds))},
    }
    return Figure(
        f"dispute_referee: time, {name}, {clock}",
        f"reading and ruling on one operator ÷ one pass through all, {name}",
        interval(rounds, median_ratio("ruling", "pass", clock), rng),
        len(rounds),
        clock,
        is_void=1.0 not in control,
        details=details,
    )
