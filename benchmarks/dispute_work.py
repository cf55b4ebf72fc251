"""What a dispute costs its two parties, in units of one pass through the contested graph.

The challenger: an opening of all operators, in which one operator drawn at random is wrong, is contested as a whole and
bisected with the default number of children. Counted is the whole of its program's thinking: reading what the prover
opened, the graph included, following the digests through all operators, running children from the prover's own values,
comparing. The files lie in memory, as after a download. Each dispute stands beside two passes through the same graph by
the same engine, in random order, in one process. Nobody has read a challenger's files before it does; what reading the
graph takes of it stands beside it.

A claimed call of the real model is disputed as it is in practice: one matrix of the provider's is rounded to four bits.
The challenger has looked at the claim, so it has compared the weights with their digest, and contests the call; then
the prover opens it. Counted are all its choices, between two passes; looking stands beside them: reading the claim, and
one replay of the call. Without the package that holds the model there are no figures of it.

In one-round mode the challenger looks for the wrong operator itself, by running each from its claimed operands, and
asks the referee's check about those that are furthest off; that stands beside it.

The prover: all operators of a record are run once more; every value is digested and written to disk. Arms in random
order, the pass among them twice; `digests alone` writes nothing, and `SHA-256 of the opened bytes` is about the
least that an opening adds to the pass. The prover's answers after that are files it has.

All ratios by CPU time of the process in one thread; the median of per-round ratios with its bootstrap 95 % interval.
"""

from __future__ import annotations

import gc
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.dispute_board import Bisections
from benchmarks.dispute_workload import ANSWER, Calls, RealCalls, Training, can_be_wrong, faulty, subject
from benchmarks.figure import Figure, Goal
from benchmarks.measure import (
    CLOCKS,
    Arm,
    Clock,
    Round,
    Spent,
    interval,
    median_ratio,
    take_rounds,
    time_arm,
    total,
    total_ratio,
)
from tallystick.audits.opening import OpeningSource, open_operators
from tallystick.disputes.evidence.doubting import OpenedDoubter
from tallystick.disputes.evidence.judging import DisputeJudge
from tallystick.disputes.evidence.traces import KeptOperators, OperatorTrace
from tallystick.disputes.game.protocols import Doubt
from tallystick.disputes.game.state import PostedClaim
from tallystick.engines.torch.engine import TorchEngine
from tallystick.programs.execution import execute
from tallystick.tally.attacks.provers import forge_swapped_layer, swapped_layer_trace
from tallystick.verdicts.leaf.bundling import WholeOpening
from tallystick.verdicts.opening.files import VALUES
from tallystick.verdicts.verdict import Fault
from tests.support import real_model
from tests.support.rehearsal import PROVER, RULES, Outcome, Rehearsal

GOAL = Goal(1.05)
DISPUTES = 16
REAL_GOAL = Goal(1.5)
REAL = "a call of SmolLM2-135M, 256 tokens"
LARGE = 6
"""Disputes of subjects whose pass takes seconds; openings, half as many."""
WORKLOADS: dict[str, Training | Calls | RealCalls] = {
    "a step of llama-tiny with 5 layers": Training("llama-tiny.toml", layers=5, steps=12),
    "a call of 8 layers, width 128, 128 tokens": ANSWER,
    "a call of 4 layers, width 512, 256 tokens": Calls(4, hidden=512, batch=2),
    REAL: RealCalls(256),
    "a call of 8 layers, width 1024, 1,024 tokens": Calls(8, hidden=1024, batch=8),
}


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    for name in list(WORKLOADS)[1:2] if quick else list(WORKLOADS):
        if name == REAL and (why := real_model.missing()):
            print(f"left out: {REAL}: {why}")
            continue
        with TemporaryDirectory() as folder:
            disputes, openings = (3, 2) if quick else _rounds(name)
            what = subject(WORKLOADS[name], Path(folder) / "run")
            yield from _of_challenger(name, what, Path(folder), disputes)
            yield from _of_prover(name, what, Path(folder), openings)
            if name == REAL:
                yield from _of_claimed(name, what, Path(folder), disputes)


def _rounds(name: str) -> tuple[int, int]:
    """How many disputes and how many openings of a subject."""
    return (LARGE, LARGE // 2) if name in list(WORKLOADS)[3:] else (DISPUTES, DISPUTES // 2)


def _of_challenger(name: str, what: OpeningSource, folder: Path, count: int) -> Iterator[Figure]:
    rng = random.Random(17)
    wrong = [place for place, node in enumerate(what.graph.nodes) if can_be_wrong(node)]
    bench = Bench(what, folder)
    bench.forward()
    found = [bench.dispute(place, rng) for place in rng.sample(wrong, count)]
    size = len(what.graph.nodes)
    shared = {"operators": size, "ways": RULES.ways, "convicted": sum(each.is_convicted for each in found)}
    shared["faint faults"] = sum(each.is_faint for each in found)
    yield from _ratios("bisecting", f"the challenger's program ÷ one pass, {name}", found, shared)
    yield from _ratios("alone", f"the challenger's program in one-round mode ÷ one pass, {name}", found, shared)


def _ratios(arm: str, what: str, found: Sequence[Played], shared: dict[str, Any]) -> Iterator[Figure]:
    rng, rounds = random.Random(3), [each.spent for each in found]
    size = shared["operators"]
    runs = [(each.bisected if arm == "bisecting" else each.looked) / size for each in found]
    for clock in CLOCKS:
        control = interval(rounds, median_ratio("again", "forward", clock), rng)
        details = {
            **shared,
            "operators run ÷ operators": sum(runs) / len(runs),
            "ratio of sums": interval(rounds, total_ratio(arm, "forward", clock), rng),
            "reading the graph": interval(rounds, median_ratio("reading", "forward", clock), rng),
            "pass ÷ pass": control,
            "pass s": total(rounds, "forward", clock) / len(rounds),
        }
        value = interval(rounds, median_ratio(arm, "forward", clock), rng)
        yield Figure(
            f"dispute_work: {arm}, {what.partition(', ')[2]}, {clock}",
            what,
            value,
            len(rounds),
            clock,
            goal=REAL_GOAL if REAL in what else GOAL,
            is_void=1.0 not in control,
            details=details,
        )


def _of_claimed(name: str, what: OpeningSource, folder: Path, count: int) -> Iterator[Figure]:
    """Disputes over claimed calls, each with another matrix of the model rounded to four bits."""
    rng, engine = random.Random(29), TorchEngine()
    matrices = sorted(ref for ref in what.bindings if re.search(r"\.(mlp|self_attn)\..*\.weight$", ref))
    passing = partial(execute, what.graph, what.bindings, engine)
    rounds, shared = list[Round](), {"operators": len(what.graph.nodes), "ways": RULES.ways, "convicted": 0}
    for weight in rng.sample(matrices, count):
        found = _claimed(folder, weight, engine, passing, rng)
        rounds.append(found.spent)
        shared["convicted"] += found.is_convicted
    for clock in CLOCKS:
        control = interval(rounds, median_ratio("again", "forward", clock), rng)
        details: dict[str, Any] = {
            **shared,
            "looking at the claim": interval(rounds, median_ratio("looking", "forward", clock), rng),
            "ratio of sums": interval(rounds, total_ratio("bisecting", "forward", clock), rng),
            "pass ÷ pass": control,
            "pass s": total(rounds, "forward", clock) / len(rounds),
        }
        yield Figure(
            f"dispute_work: claimed, {name}, {clock}",
            f"the challenger's choices ÷ one pass, {name}, claimed with its weights",
            interval(rounds, median_ratio("bisecting", "forward", clock), rng),
            len(rounds),
            clock,
            goal=REAL_GOAL,
            is_void=1.0 not in control,
            details=details,
        )


@dataclass(frozen=True)
class Claimed:
    """One dispute over a claimed call: what its arms took, and whether the prover was convicted."""

    spent: Round
    is_convicted: bool


def _claimed(folder: Path, weight: str, engine: TorchEngine, passing: Arm, rng: random.Random) -> Claimed:
    forged, board, work = (folder / name for name in ("forged", "board", "work"))
    forge_swapped_layer(folder / "run", forged, weight)
    spent = {"forward": _time(passing)}
    rehearsal, doubter = Rehearsal(forged, board, RULES), OpenedDoubter(engine)
    timed, found = TimedDoubter(doubter), list[Doubt | None]()
    spent["looking"] = _time(lambda: found.append(doubter.doubt(rehearsal.state.claims[0], forged)))
    assert found[0] is not None, "the forger is not doubted"
    outcome = rehearsal.play(swapped_layer_trace(forged, work, weight), timed, DisputeJudge(), found[0])
    spent["again"] = _time(passing)
    for each in (forged, board, work):
        shutil.rmtree(each)
    assert outcome is not None
    return Claimed({**spent, "bisecting": timed.spent}, outcome.fault is Fault.PROVER)


@dataclass(frozen=True)
class Played:
    """One dispute: what its arms took, how many operators the challenger ran, and whether it found the fault.

    A faint fault stays within the tolerance of some child that holds it, so that the challenger runs all children.
    """

    spent: Round
    bisected: int
    looked: int
    is_convicted: bool
    is_faint: bool


@dataclass
class Bench:
    """A subject whose operators are opened with a fault at one place."""

    what: OpeningSource
    folder: Path
    engine: TorchEngine = field(default_factory=TorchEngine)

    def forward(self) -> None:
        """One pass through the graph."""
        execute(self.what.graph, self.what.bindings, self.engine)

    def dispute(self, place: int, rng: random.Random) -> Played:
        """A dispute over an opening in which the operator at `place` is wrong, among passes in random order."""
        kept = faulty(self.what, place, self.folder / "kept")
        _hold_in_memory(self.folder / "kept" / VALUES)
        timed, lone, ended = TimedDoubter(OpenedDoubter(self.engine)), OpenedDoubter(self.engine), list[Outcome]()
        contested, looked_at, read = map(self._posted, ("contested", "looked at", "read"))
        arms: dict[str, Arm] = {
            "forward": self.forward,
            "again": self.forward,
            "bisecting": lambda: ended.append(self._played(contested, timed)),
            "alone": partial(lone.doubt, self._claim(looked_at), looked_at),
            "reading": partial(WholeOpening.read, read),
        }
        spent = {name: _time(arms[name]) for name in rng.sample(sorted(arms), len(arms))}
        ran, expected = timed.doubter.work.operators, self._expected(kept, place)
        assert ran >= expected, "the challenger runs fewer operators than are counted for it"
        is_convicted = ended[0].fault is Fault.PROVER and ended[0].dispute.low == place
        for name in ("kept", "contested", "looked at", "read", "board"):
            shutil.rmtree(self.folder / name)
        return Played({**spent, "bisecting": timed.spent}, ran, lone.work.operators, is_convicted, ran > expected)

    def _expected(self, kept: KeptOperators, place: int) -> int:
        """How many operators `dispute_board` counts; a fault too small to leave its child's tolerance takes more."""
        bisections = Bisections(kept, RULES.ways, {})
        return bisections.executed(bisections.path(place), place, runs_last=False)

    def _posted(self, name: str) -> Path:
        """The same files in a folder that only one program reads."""
        return Path(shutil.copytree(self.folder / "kept", self.folder / name, copy_function=os.link))

    def _played(self, statement: Path, doubter: TimedDoubter) -> Outcome:
        rehearsal = Rehearsal(statement, self.folder / "board", RULES)
        doubt = Doubt(0, rehearsal.state.claims[0].size, "a result is wrong")
        outcome = rehearsal.play(OperatorTrace(self.folder / "kept"), doubter, DisputeJudge(), doubt)
        assert outcome is not None
        return outcome

    def _claim(self, statement: Path) -> PostedClaim:
        claim = Rehearsal(statement, self.folder / "unused", RULES).state.claims[0]
        assert claim.prover == PROVER
        return claim


@dataclass
class TimedDoubter:
    """A challenger whose choices are timed."""

    doubter: OpenedDoubter
    spent: Spent = field(default_factory=lambda: Spent(0.0, 0.0))

    def doubt(self, *arguments: Any) -> Doubt | None:
        """What to contest; not timed."""
        return self.doubter.doubt(*arguments)

    def unseen(self, *arguments: Any) -> tuple[str, ...]:
        """What it could not see; not timed."""
        return self.doubter.unseen(*arguments)

    def choose(self, *arguments: Any) -> Any:
        """A choice, timed."""
        chosen: list[Any] = []
        took = _time(lambda: chosen.append(self.doubter.choose(*arguments)))
        self.spent = Spent(self.spent.cpu + took.cpu, self.spent.wall + took.wall)
        return chosen[0]


def _hold_in_memory(path: Path) -> None:
    """Read a file, so that the system holds its bytes as it does after a download."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def _time(arm: Arm) -> Spent:
    """One arm; what others left behind is collected before."""
    gc.collect()
    return time_arm(arm)


def _of_prover(name: str, what: OpeningSource, folder: Path, count: int) -> Iterator[Figure]:
    rng, out, engine = random.Random(23), folder / "opening", TorchEngine()
    open_: Callable[..., Any] = partial(open_operators, what, out, engine)
    bare = partial(execute, what.graph, what.bindings, engine)
    open_()
    hashing = partial(_hash_bytes, (out / VALUES).stat().st_size)
    shutil.rmtree(out)
    arms: dict[str, Arm] = {"pass": bare, "again": bare, "opening": open_, "hashing": hashing}
    arms["digests"] = partial(open_, with_tensors=False)
    rounds = take_rounds(arms, count, rng, between=lambda: shutil.rmtree(out, ignore_errors=True))
    for clock in CLOCKS:
        yield _prover_figure(name, what, rounds, clock, rng)


def _hash_bytes(count: int) -> None:
    """SHA-256 of so many bytes, a mebibyte at a time, from memory that the processor holds."""
    chunk = bytes(1 << 20)
    for _ in range(count >> 20):
        sha256(chunk).digest()


def _prover_figure(name: str, what: OpeningSource, rounds: Sequence[Round], clock: Clock, rng: random.Random) -> Figure:
    control = interval(rounds, median_ratio("again", "pass", clock), rng)
    details = {
        "operators": len(what.graph.nodes),
        "ratio of sums": interval(rounds, total_ratio("opening", "pass", clock), rng),
        "SHA-256 of the opened bytes": interval(rounds, median_ratio("hashing", "pass", clock), rng),
        "digests alone": interval(rounds, median_ratio("digests", "pass", clock), rng),
        "pass ÷ pass": control,
        "pass s": total(rounds, "pass", clock) / len(rounds),
    }
    return Figure(
        f"dispute_work: opening, {name}, {clock}",
        f"the prover's opening of all operators ÷ one pass, {name}",
        interval(rounds, median_ratio("opening", "pass", clock), rng),
        len(rounds),
        clock,
        is_void=1.0 not in control,
        details=details,
    )
