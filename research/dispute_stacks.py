"""Disputes between stacks that really differ: does an honest party ever lose its bond, and does a cheat ever keep it?

    python -m research.dispute_stacks docs/data/dispute_stacks.json

An honest training, honest calls and two frauds are recorded on the base stack. On every stack a prover replays what is
disputed (its bits differ from the records), and on every stack a challenger doubts each claim, then contests the honest
ones all the same along seeded paths; a referee and a member of a committee on the challenger's stack judge.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from tallystick.core.errors import UnavailableError
from tallystick.disputes.evidence.doubting import doubter_for
from tallystick.disputes.evidence.judging import DisputeJudge
from tallystick.disputes.evidence.locate import distance_in_units
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.evidence.traces import KeptOperators, torch_engine, trace_of
from tallystick.disputes.evidence.view import OpeningView
from tallystick.disputes.game.protocols import Doubt
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.execution import execute
from tallystick.programs.operators.precision import FORMATS
from tallystick.tally.attacks.forging import place_of_step, read_records
from tallystick.tally.attacks.provers import (
    forge_swapped_layer,
    forge_wrong_rate,
    swapped_layer_trace,
    wrong_rate_trace,
)
from tallystick.tally.calibration.stacks import BASE, Stack, enter, stack_named, stacks_here, variables_of
from tests.support.attacks.disputes.scene import STEP, TRAINED, WEIGHT, Scene
from tests.support.attacks.disputes.stubborn import StubbornDoubter
from tests.support.attacks.reference import train_by
from tests.support.rehearsal import Rehearsal, children_of

SEEDS = 1
LONG = 8
"""Steps of a run whose last one is as far from its anchor as limits are calibrated for."""
WAYS = (2, 16)
BESIDES = "besides.json"


def main() -> None:
    """Measure all pairs of stacks, or be one of the processes that do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stacks", type=int, default=len(_stacks()), help="Only so many of them.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="Paths of a wrong challenger for each pair.")
    parser.add_argument("--run", type=Path, help="A run with a step graph, of which drift is measured besides.")
    parser.add_argument("--step", type=int, default=5, help="Its step.")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        job, stack = asked.job
        _work(job, stack, asked.out, asked.seeds)
        return
    with tempfile.TemporaryDirectory(prefix="tally-stacks-") as folder:
        besides = {} if asked.run is None else {"run": str(asked.run.resolve()), "step": asked.step}
        (Path(folder) / BESIDES).write_text(json.dumps(besides))
        found = _measure(Path(folder), _stacks()[: asked.stacks], asked.seeds)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(json.dumps({name: found[name] for name in ("honest", "frauds")}, indent=1))


def _stacks() -> list[Stack]:
    """Those that run the same graph by other kernels: a recipe's switches do not change a graph."""
    same = [s for s in stacks_here() if s.attention == "eager" and s.micro_batches == 1 and not s.reverses_rows]
    return [stack for stack in same if stack.device == "cpu"]


def _measure(folder: Path, stacks: list[Stack], seeds: int) -> dict[str, Any]:
    _run(BASE, "record", folder, seeds)
    for stack in stacks:
        _run(stack, "prove", folder, seeds)
    parts = [_run(stack, "challenge", folder, seeds) for stack in stacks]
    roots = {json.dumps(json.loads((folder / "proved" / _tag(s) / "roots.json").read_text())) for s in stacks}
    honest = [each for part in parts for each in part["honest"]]
    frauds = [each for part in parts for each in part["frauds"]]
    return {
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version()},
        "stacks": [stack.name for stack in stacks],
        "replays_with_other_bits": len(roots),
        "pairs": len(stacks) ** 2,
        "honest": _counted(honest),
        "frauds": _counted(frauds),
        "largest_drift": _largest([each for part in parts for each in part["drift"]]),
        "largest_drift_by_claim": _by_claim([each for part in parts for each in part["drift"]]),
        "details": {"honest": honest, "frauds": frauds},
    }


def _counted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How often what was found, with n."""
    kinds = sorted({row["kind"] for row in rows})
    return {
        kind: {
            "n": sum(row["kind"] == kind for row in rows),
            **{
                who: dict(sorted(Counter(str(row[who]) for row in rows if row["kind"] == kind).items()))
                for who in ("referee", "member", "doubt")
                if any(who in row for row in rows if row["kind"] == kind)
            },
        }
        for kind in kinds
    }


def _largest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest e ÷ √k of the children of honest stacks (`disputes.evidence.locate`), and of how many children."""
    worst = max(rows, key=lambda row: row["worst"])
    return {**worst, "children": sum(row["children"] for row in rows)}


def _by_claim(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same, claim by claim."""
    claims = sorted({row["claim"] for row in rows})
    return {claim: _largest([row for row in rows if row["claim"] == claim]) for claim in claims}


def _run(stack: Stack, job: str, folder: Path, seeds: int) -> dict[str, Any]:
    asked = [str(folder), "--job", job, stack.name, "--seeds", str(seeds)]
    command = [sys.executable, "-m", "research.dispute_stacks", *asked]
    done = subprocess.run(command, env=variables_of(stack), capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"{job} on {stack.name}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    print(f"{job} on {stack.name}", file=sys.stderr)
    found: dict[str, Any] = json.loads(done.stdout or "{}")
    return found


def _work(job: str, name: str, folder: Path, seeds: int) -> None:
    stack = stack_named(name)
    enter(stack)
    _hold_threads(stack)
    found = {"record": _record, "prove": _prove, "challenge": _challenge}[job](folder, stack, seeds)
    print(json.dumps(found))


def _hold_threads(stack: Stack) -> None:
    """Replays take as many threads as a run states; a stack with others is another prover."""
    import torch

    assert torch.get_num_threads() == stack.threads
    torch.set_num_threads = lambda nthreads: None


def _record(folder: Path, _stack: Stack, _seeds: int) -> dict[str, Any]:
    scene = Scene.make(folder)
    longer = {"training": TRAINED["training"] | {"steps": LONG}, "record": TRAINED["record"] | {"anchor_stride": LONG}}
    train_by(TRAINED | longer, folder / "long")
    forge_wrong_rate(scene.run, folder / "wrong-rate", STEP)
    forge_swapped_layer(scene.calls, folder / "swapped-layer", WEIGHT)
    return {}


def _traces(folder: Path, stack_tag: str) -> dict[str, Any]:
    """The provers of one stack by the claims that they defend."""
    work = folder / "proved" / stack_tag
    besides = json.loads((folder / BESIDES).read_text())
    return {
        **({"besides": trace_of(statement_at(Path(besides["run"])), work / "besides")} if besides else {}),
        "run": trace_of(statement_at(folder / "run"), work / "run"),
        "long": trace_of(statement_at(folder / "long"), work / "long"),
        "calls": trace_of(statement_at(folder / "calls"), work / "calls"),
        "wrong-rate": wrong_rate_trace(folder / "wrong-rate", work / "wrong-rate", STEP),
        "swapped-layer": swapped_layer_trace(folder / "swapped-layer", work / "swapped-layer", WEIGHT),
    }


def _places(folder: Path) -> dict[str, list[int]]:
    """Which records of a claim are disputed: steps behind an anchor and far from it, and two calls."""

    def steps(run: str, *numbers: int) -> list[int]:
        records = read_records(RunDirectory(folder / run))
        return [place_of_step(records, number) for number in numbers]

    found = {"run": steps("run", 3, 4), "long": steps("long", LONG), "calls": [0, 1]}
    if besides := json.loads((folder / BESIDES).read_text()):
        found["besides"] = steps(besides["run"], besides["step"])
    return found


def _prove(folder: Path, stack: Stack, _seeds: int) -> dict[str, Any]:
    traces, roots = _traces(folder, _tag(stack)), {}
    for claim, places in _places(folder).items():
        for place in places:
            roots[f"{claim} {place}"] = traces[claim].operators(place).root
    (folder / "proved" / _tag(stack) / "roots.json").write_text(json.dumps(roots, sort_keys=True))
    return {}


def _challenge(folder: Path, stack: Stack, seeds: int) -> dict[str, Any]:
    provers = sorted(path.name for path in (folder / "proved").iterdir())
    honest = _doubts(folder, stack)
    for prover in provers:
        honest += _forced(folder, stack, prover, seeds)
    frauds = [row for prover in provers for row in _frauds(folder, stack, prover)]
    drift = [row for prover in provers for row in _drift(folder, stack, prover)]
    return {"honest": honest, "frauds": frauds, "drift": drift}


def _doubts(folder: Path, stack: Stack) -> list[dict[str, Any]]:
    """What an honest challenger says to honest claims."""
    rows = []
    for claim in ("run", "long", "calls"):
        state = Rehearsal(folder / claim, folder / "unused").state
        found = doubter_for().doubt(state.claims[0], folder / claim)
        rows.append(
            {"kind": f"doubt {claim}", "challenger": stack.name, "doubt": None if found is None else found.reason}
        )
    return rows


def _forced(folder: Path, stack: Stack, prover: str, seeds: int) -> list[dict[str, Any]]:
    """What judges say where a wrong challenger contests honest records."""
    rows, traces = [], _traces(folder, prover)
    contested = {claim: places for claim, places in _places(folder).items() if claim != "besides"}
    for claim, places in contested.items():
        for place in places:
            for seed in range(seeds):
                drawn = zlib.crc32(f"{prover}/{stack.name}/{claim}/{place}/{seed}".encode())
                doubter = StubbornDoubter(drawn, protest=0 if drawn % 4 == 0 else None)
                row = _judged(folder, claim, traces[claim], doubter, place)
                rows.append({"kind": f"forced {claim}", "prover": prover, "challenger": stack.name, **row})
    return rows


def _frauds(folder: Path, stack: Stack, prover: str) -> list[dict[str, Any]]:
    """What becomes of two frauds, from the doubt to the ruling."""
    rows, traces = [], _traces(folder, prover)
    for claim in ("wrong-rate", "swapped-layer"):
        row = _judged(folder, claim, traces[claim], doubter_for(), None)
        rows.append({"kind": claim, "prover": prover, "challenger": stack.name, **row})
    return rows


def _judged(folder: Path, claim: str, trace: Any, doubter: Any, place: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as board:
        rehearsal = Rehearsal(folder / claim, Path(board))
        doubt = None if place is None else Doubt(place, place + 1, "")
        outcome = rehearsal.play(trace, doubter, DisputeJudge(), doubt)
        if outcome is None:
            return {"referee": "not contested", "member": "not contested"}
        member, _ = DisputeJudge(torch_engine()).rule(outcome.answered)
        return {
            "referee": str(outcome.fault or "committee"),
            "member": str(member or "abstains"),
            "ground": outcome.dispute.ground,
            "reason": outcome.reason,
        }


def _drift(folder: Path, stack: Stack, prover: str) -> list[dict[str, Any]]:
    """The largest e ÷ √k of an honest prover's children, by the number of ways."""
    rows, engine = [], torch_engine()
    for claim in _places(folder):
        for kept in sorted((folder / "proved" / prover / claim / "operators").iterdir()):
            operators = KeptOperators.read(kept)
            for ways in (*WAYS, operators.size):
                rows.append({"ways": min(ways, operators.size), "claim": claim, **_children(operators, ways, engine)})
    return rows


def _children(kept: Any, ways: int, engine: Any) -> dict[str, Any]:
    view, worst, where = OpeningView(kept.operators, (kept.whole.folder,)), 0.0, ""
    children = children_of(0, kept.size, ways)
    for low, high in children:
        found, operator = _child(view, low, high, engine)
        if found > worst:
            worst, where = found, operator
    return {"worst": worst, "operator": where, "children": len(children)}


def _child(view: Any, low: int, high: int, engine: Any) -> tuple[float, str]:
    graph = view.cuts.child(low, high)
    if graph is None:
        return 0.0, ""
    own = execute(graph, view.values(each.name for each in graph.sources), engine)
    givers = {ref: node.operator for node in graph.nodes for ref in node.outputs}
    floats = {ref: value for ref, value in own.items() if value.dtype in FORMATS}
    units = {ref: distance_in_units(view.value(ref), value) for ref, value in floats.items()}
    ref = max(units, key=units.__getitem__, default="")
    return units.get(ref, 0.0) / math.sqrt(len(graph.nodes)), givers.get(ref, "")


def _tag(stack: Stack) -> str:
    return stack.name.replace(" ", "_").replace(",", "")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
