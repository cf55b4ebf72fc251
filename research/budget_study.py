#!/usr/bin/env python3
"""Measure the error budget of whole openings on honest stacks, attack it with aligned errors, and write the page.

Usage: python -m research.budget_study [--out docs] [--quick]

Writes <out>/budget.md and <out>/data/budget.json. Exits 1 if the referee holds an honest stack to be wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.audits.opening import OpeningSource, open_operators
from tallystick.core.digests import Digest, digest, digest_from, leaf_hash, tree_root
from tallystick.core.errors import TallyError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.claims import Log
from tallystick.formats.records import CallRecord
from tallystick.formats.store.log import OpenedLine
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import graph_root
from tallystick.programs.execution import Engine
from tallystick.programs.files import load_program, save_program
from tallystick.programs.graph import Graph, float_results, operands_of
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.precision import FORMATS
from tallystick.programs.operators.rounding import DETERMINISTIC
from tallystick.tally.calibration.operator_runs import all_values, base_engine, engine_of
from tallystick.tally.calibration.stacks import OPERATOR_STACKS, machine, stack_named, stacks_here, variables_of
from tallystick.verdicts.bounds import SAFETY, Errors, Threshold, errors_of, rounding_errors
from tallystick.verdicts.evidence import clopper_pearson
from tallystick.verdicts.leaf.bundling import WholeOpening
from tallystick.verdicts.leaf.judge import conclude, rule_leaf
from tallystick.verdicts.leaf.request import BANDS, LeafLimits, LeafRequest
from tallystick.verdicts.opening.budget import (
    Accumulated,
    OperatorBias,
    PathError,
    accumulate,
    budget_of,
    compare_with_budget,
    relative_distance,
)
from tallystick.verdicts.operator.judge import OperatorJudge
from tallystick.verdicts.profiles import Budget
from tallystick.verdicts.verdict import Findings
from tests.support.attacks.inference.regions import place, radii_of, ranks_of
from tests.support.attacks.inference.workload import StudyWorkload, ValuesByRef

COMMAND = "python -m research.budget_study"
SIZES = (0.01, 0.03, 0.1, 0.2, 0.5, 1.0)
BUDGET_SAFETY = 2.0
SIDE, NODES = 2048, 3000
ROUNDS = 8
OUTSIDE = {("IREE", "aten.cos.default"), ("IREE", "aten.sin.default")}
"""What docs/bounds.md says to be farther from exact than an honest function may be."""
Figures = dict[str, Any]
started = time.perf_counter()


def main() -> int:
    """Run the study, or the part of one stack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--quick", action="store_true", help="few inputs and stacks, to see that it runs")
    parser.add_argument("--stack", help=argparse.SUPPRESS)
    parser.add_argument("--case", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stack:
        return measure_stack(arguments.stack, arguments.case)
    inputs, steps = (2, 2) if arguments.quick else (12, 6)
    with tempfile.TemporaryDirectory() as folder:
        cases = [case for make in (language_case, step_case) for case in [make(Path(folder), inputs, steps)]]
        figures: dict[str, Any] = {"machine": machine(), "cases": [study(case, arguments.quick) for case in cases]}
        figures |= {"proofs": proof_sizes(Path(folder)), "referee": referee_cost(Path(folder))}
    (arguments.out / "data").mkdir(parents=True, exist_ok=True)
    (arguments.out / "data" / "budget.json").write_text(json.dumps(rounded(figures), indent=1) + "\n")
    (arguments.out / "budget.md").write_text(render(figures))
    convicted = {(row["stack"], name) for case in figures["cases"] for row in case["stacks"] for name in row["names"]}
    return int(bool(convicted - OUTSIDE))


def tell(what: str) -> None:
    """Progress, on stderr."""
    print(f"{time.perf_counter() - started:6.0f} s  {what}", file=sys.stderr, flush=True)


# ---- what is run


@dataclass(frozen=True)
class Case:
    """A graph with sets of everything that it reads, on disk; `decision` names the output whose damage is measured.

    The first `attacked` sets are those that adversaries try.
    """

    name: str
    folder: Path
    count: int
    attacked: int
    decision: str

    @property
    def graph(self) -> Graph:
        """The graph."""
        return load_program(self.folder / "program.json")[0]

    def bindings(self, number: int) -> dict[str, Tensor]:
        """One set."""
        return read_state(self.folder / f"{number:02d}.safetensors")

    def write(self, graph: Graph, sets: Iterator[Mapping[str, Tensor]]) -> Case:
        """Write graph and sets."""
        for number, bindings in zip(range(self.count), sets, strict=False):
            save_program(self.folder / "program.json", graph, bindings)
            write_state(self.folder / f"{number:02d}.safetensors", bindings)
        return self


def language_case(folder: Path, inputs: int, _: int) -> Case:
    """The model of the demo on windows of its text."""
    from research.operators.workloads import language_model

    model = language_model(folder, inputs)
    sets = ({**model.constants, **model.weights, **each} for each in model.inputs)
    return Case("inference of the demo's model", folder / "language", inputs, inputs // 2, model.decision).write(
        model.graph, sets
    )


def step_case(folder: Path, _: int, steps: int) -> Case:
    """Training steps of a small model: forward, backward and AdamW in one graph."""
    from tests.support.attacks.openings.scene import Scene, train_opened

    train_opened(folder / "run")
    scene = Scene(folder / "run", folder, folder)
    sets = (scene.bindings(step) for step in range(1, steps + 1))
    return Case("training step of a small model", folder / "step", steps, steps // 2, "loss").write(
        scene.program.graph, sets
    )


# ---- one stack, in a process of its own


def measure_stack(name: str, folder: Path) -> int:
    """Run every set on one stack; write what the budget, the thresholds and the referee see of it."""
    graph, _ = load_program(folder / "program.json")
    engine = engine_of(stack_named(name), graph)
    found = [measure(graph, read_state(path), engine) for path in sorted(folder.glob("??.safetensors"))]
    print(json.dumps(found))
    return 0


def measure(graph: Graph, bindings: Mapping[str, Tensor], engine: Engine) -> Figures:
    """One run: biases, errors of paths and of each result, and how many results the referee holds to be wrong."""
    values = all_values(graph, bindings, engine)
    found = accumulate(graph, values.get)
    return {
        "leans": [asdict(bias) for bias in found.biases],
        "drifts": [asdict(error) for error in found.path_errors],
        "errors": {ref: errors.row().tolist() for ref, errors in local_errors(graph, values)},
        "referee": referee_of(graph, values),
    }


def local_errors(graph: Graph, values: ValuesByRef) -> Iterator[tuple[str, Errors]]:
    """The errors of every result on its own operands."""
    for node in graph.nodes:
        wanted = float_results(node)
        if not wanted:
            continue
        limits = bound(operator(node.operator), {**operands_of(node, values), **node.attributes})
        for ref, spec in wanted:
            limit = limits[node.outputs.index(ref)]
            assert limit is not None  # a result that the node has is a result that its definition gives
            unit = FORMATS[spec.dtype].unit
            yield ref, errors_of(values[ref].values(), limit.value, limit.radius, unit)


def referee_of(graph: Graph, values: ValuesByRef) -> Figures:
    """What the referee says to every operator of an honest run."""
    judge = OperatorJudge(graph_root(graph))
    counts: Figures = {"operators": 0, "wrong": 0, "tied": 0, "undecided": 0, "names": []}
    for node in graph.nodes:
        held = {ref: values[ref] for ref in (*node.refs, *filter(None, node.outputs))}
        found = conclude(Findings(), judge, node, held, BANDS)
        counts["operators"] += 1
        for kind in ("wrong", "tied", "undecided"):
            counts[kind] += bool(getattr(found, kind))
        counts["names"] += [node.operator] * bool(found.wrong)
    return counts


def run_stack(name: str, folder: Path) -> list[Figures] | str:
    """What a stack found, or why it could not."""
    command = [sys.executable, "-m", "research.budget_study", "--stack", name, "--case", str(folder)]
    done = subprocess.run(command, env=variables_of(stack_named(name)), capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1][:120]
    found: list[Figures] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---- one case


def study(case: Case, quick: bool) -> Figures:
    """Honest stacks, false accusations with one left out, and adversaries."""
    names = [stack.name for stack in stacks_here(OPERATOR_STACKS)]
    names = names[:3] if quick else names
    with ThreadPoolExecutor(2) as pool:
        answers = dict(zip(names, pool.map(lambda name: run_stack(name, case.folder), names), strict=True))
    runs = {name: found for name, found in answers.items() if not isinstance(found, str)}
    tell(f"{case.name}: {len(runs)} stacks")
    honest = {name: [accumulated(one) for one in found] for name, found in runs.items()}
    groups = alike(honest)
    graph = case.graph
    root = graph_root(graph)
    budget = budget_of(root, (run for found in honest.values() for run in found), BUDGET_SAFETY, names)
    figures = {
        "case": case.name,
        "operators": len(graph.nodes),
        "length": max(error.length for error in next(iter(honest.values()))[0].path_errors),
        "inputs": case.count,
        "stacks": [stack_row(name, runs[name], honest[name]) for name in runs],
        "groups": groups,
        "skipped": {name: why for name, why in answers.items() if isinstance(why, str)},
        "budget": {"one_direction": budget.one_direction, "any_direction": budget.any_direction, "path": budget.path},
        "left_out": leave_out(root, honest, groups),
    }
    thresholds = calibrate(graph, case, runs)
    figures["adversaries"] = attack(case, graph, thresholds, budget)
    return figures


def accumulated(run: Figures) -> Accumulated:
    """What a stack wrote."""
    return Accumulated(
        tuple(OperatorBias(**row) for row in run["leans"]), tuple(PathError(**row) for row in run["drifts"])
    )


def stack_row(name: str, runs: list[Figures], honest: list[Accumulated]) -> Figures:
    """One row of the table of stacks: the largest of everything."""
    return {
        "stack": name,
        "operators": sum(run["referee"]["operators"] for run in runs),
        "convicted": sum(run["referee"]["wrong"] for run in runs),
        "tied": sum(run["referee"]["tied"] for run in runs),
        "undecided": sum(run["referee"]["undecided"] for run in runs),
        "one_direction": max(run.one_direction for run in honest),
        "any_direction": max(run.any_direction for run in honest),
        "path": max(error.steps for run in honest for error in run.path_errors),
        "names": sorted({name for run in runs for name in run["referee"]["names"]}),
    }


def alike(honest: Mapping[str, list[Accumulated]]) -> list[list[str]]:
    """Stacks in groups that gave the same errors: one that repeats another was not left out without it."""
    groups: dict[str, list[str]] = {}
    for name, runs in honest.items():
        groups.setdefault(repr([(run.biases, run.path_errors) for run in runs]), []).append(name)
    return list(groups.values())


def leave_out(root: Digest, honest: Mapping[str, list[Accumulated]], groups: list[list[str]]) -> Figures:
    """Every group judged by a budget of the others."""
    accused, total = 0, 0
    for group in groups:
        others = [run for name, runs in honest.items() if name not in group for run in runs]
        if not others:
            continue
        budget = budget_of(root, others, BUDGET_SAFETY)
        verdicts = [compare_with_budget(run, budget).outcome for run in honest[group[0]]]
        accused, total = accused + verdicts.count("rejected"), total + len(verdicts)
    return {"runs": total, "accused": accused, "interval": list(clopper_pearson(accused, max(total, 1)))}


def calibrate(graph: Graph, case: Case, runs: Mapping[str, list[Figures]]) -> dict[str, Threshold]:
    """The threshold of every result over all stacks and inputs, none narrower than one rounding."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    values = all_values(graph, case.bindings(0), base_engine())
    for node in graph.nodes:
        wanted = float_results(node)
        limits = bound(operator(node.operator), {**operands_of(node, values), **node.attributes}) if wanted else ()
        for ref, spec in wanted:
            limit = limits[node.outputs.index(ref)]
            assert limit is not None  # a result that the node has is a result that its definition gives
            found[ref] = rounding_errors(limit.value, limit.radius, FORMATS[spec.dtype].unit).row()
    for stack in runs.values():
        for run in stack:
            for ref, row in run["errors"].items():
                found[ref] = np.maximum(found[ref], np.array(row))
    return {ref: Threshold(Errors.of(row), SAFETY) for ref, row in found.items()}


# ---- adversaries


def attack(case: Case, graph: Graph, thresholds: Mapping[str, Threshold], budget: Budget) -> list[Figures]:
    """Each kind of alignment at each size, on every input."""
    rows = []
    for kind, align in ALIGNMENTS.items():
        for size in SIZES:
            tried = [try_one(case, graph, thresholds, budget, align, size, number) for number in range(case.attacked)]
            done = [one for one in tried if one is not None]
            if not done:
                break
            rows.append(summed(kind, size, done))
        tell(f"{case.name}: {kind}")
    return rows


def try_one(
    case: Case,
    graph: Graph,
    thresholds: Mapping[str, Threshold],
    budget: Budget,
    align: Align,
    size: float,
    number: int,
) -> Figures | None:
    """One adversary: who objects, and what it reached."""
    workload = StudyWorkload(case.name, graph, case.bindings(number), base_engine(), case.decision)
    honest = all_values(graph, workload.bindings, workload.engine)
    radii = radii_of(graph, honest, DETERMINISTIC)
    signs = align(workload, radii)
    if signs is None:
        return None
    shares = {ref: share_of(thresholds[ref], size * signs[ref], number) for ref in radii}
    values, left = settled(workload, shares, thresholds)
    verdict = compare_with_budget(accumulate(graph, values.get), budget)
    checks = sorted({finding.name for finding in verdict.objections})
    return {"checks": checks, "threshold": left, "placed": len(shares)} | damage(workload, honest, values)


def share_of(threshold: Threshold, signed: Any, seed: int) -> Any:
    """What a threshold allows by rank to the elements in random order, as far as its limit on the mean goes."""
    ranks = ranks_of(threshold, signed.size)
    share = signed * ranks.shares[np.random.default_rng(seed).permutation(signed.size)].reshape(signed.shape)
    lean = abs(float(share.mean()))
    return share if lean <= ranks.bias else share * ranks.bias / lean


def settled(
    workload: StudyWorkload, shares: dict[str, Any], thresholds: Mapping[str, Threshold]
) -> tuple[ValuesByRef, int]:
    """The run with these shares; results that leave their thresholds are given up, and computed honestly.

    Numbers have digits: a share can come out larger than it was meant to be.
    """
    for _ in range(ROUNDS):
        with np.errstate(over="ignore"):
            values = place(workload, shares, DETERMINISTIC)
        outside = [ref for ref in exceeding(workload.graph, values, thresholds) if ref in shares]
        if not outside:
            break
        for ref in outside:
            del shares[ref]
    return values, len(exceeding(workload.graph, values, thresholds))


def one_sign(_: StudyWorkload, radii: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every element is moved upwards."""
    return {ref: np.ones(radius.shape) for ref, radius in radii.items()}


def random_signs(_: StudyWorkload, radii: Mapping[str, Any]) -> Mapping[str, Any]:
    """The control: errors as large, in no direction."""
    rng = np.random.default_rng(1)
    return {ref: rng.choice([-1.0, 1.0], radius.shape) for ref, radius in radii.items()}


def towards(workload: StudyWorkload, radii: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Along the gradient of the margin of the second-best answer, or of the loss; `None` where there is none."""
    import torch

    from research.perturbation import PerturbedRun

    run = PerturbedRun(workload.graph, workload.bindings, radii)
    shares = {ref: torch.zeros(run.radii[ref].shape, dtype=torch.float64, requires_grad=True) for ref in radii}
    try:
        result = run.values(shares)[workload.decision_ref]
        scores = result.reshape(-1, result.shape[-1])[-1].topk(2).values if result.ndim else None
        goal = result if scores is None else scores[1] - scores[0]
        gradients = torch.autograd.grad(goal, list(shares.values()), allow_unused=True)
    except (RuntimeError, TallyError) as error:
        tell(f"no gradient: {str(error)[:80]}")
        return None
    return {
        ref: np.ones(radii[ref].shape) if gradient is None else np.where(gradient.numpy() < 0, -1.0, 1.0)
        for ref, gradient in zip(shares, gradients, strict=True)
    }


def exceeding(graph: Graph, values: ValuesByRef, thresholds: Mapping[str, Threshold]) -> list[str]:
    """The results that leave their thresholds."""
    return [ref for ref, errors in local_errors(graph, values) if not thresholds[ref].judge(errors).agrees]


def damage(workload: StudyWorkload, honest: ValuesByRef, values: ValuesByRef) -> Figures:
    """How far the outcome moved: the scores, the share of the margin, another answer; or loss and new weights."""
    before, after = (each[workload.decision_ref].values().astype(np.float64) for each in (honest, values))
    if before.ndim:
        rows = [each.reshape(-1, each.shape[-1]) for each in (before, after)]
        best = rows[0].argmax(axis=1)
        order = np.sort(rows[0], axis=1)
        margin = order[:, -1] - order[:, -2]
        others = rows[1].copy()
        others[np.arange(len(best)), best] = -np.inf
        left = rows[1][np.arange(len(best)), best] - others.max(axis=1)
        return {
            "moved": relative_distance(after, before),
            "margin": float(((margin - left) / margin).max()),
            "flips": int((rows[1].argmax(axis=1) != best).sum()),
            "answers": len(best),
        }
    updates = []
    for output in workload.graph.outputs:
        if output.name.startswith("weights."):
            old, new = workload.bindings[output.name].values(), honest[output.value].values()
            step = float(np.linalg.norm((new - old).astype(np.float64)))
            apart = float(np.linalg.norm((values[output.value].values() - new).astype(np.float64)))
            updates.append(apart / step if step else 0.0)
    loss = abs(float(after) - float(before)) / abs(float(before))
    return {"moved": loss, "update": max(updates, default=0.0)}


Align = Callable[[StudyWorkload, Mapping[str, Any]], "Mapping[str, Any] | None"]
ALIGNMENTS: Mapping[str, Align] = {
    "one sign": one_sign,
    "towards another result": towards,
    "random signs": random_signs,
}


def summed(kind: str, size: float, rows: list[Figures]) -> Figures:
    """One row of the table of adversaries."""

    def count(check: str) -> int:
        return sum(any(name.startswith(check) for name in row["checks"]) for row in rows)

    free = [row for row in rows if not row["checks"] and not row["threshold"]]
    found: Figures = {"kind": kind, "size": size, "runs": len(rows)}
    found |= {"placed": min(row["placed"] for row in rows), "threshold": sum(row["threshold"] > 0 for row in rows)}
    found |= {"bias": count("bias"), "path": count("path"), "budget": sum(bool(row["checks"]) for row in rows)}
    found |= {"escaped": len(free), "interval": list(clopper_pearson(found["budget"], len(rows)))}
    for part in ("moved", "margin", "update"):
        if part in rows[0]:
            found[part] = max(row[part] for row in rows)
            found[f"{part}_escaped"] = max((row[part] for row in free), default=None)
    if "flips" in rows[0]:
        found |= {"flips": sum(row["flips"] for row in rows), "answers": sum(row["answers"] for row in rows)}
        found["flips_escaped"] = sum(row["flips"] for row in free)
    return found


# ---- what a leaf costs


def proof_sizes(folder: Path) -> Figures:
    """Bytes of proof of the operators of a graph of 3,000, by how many producers they read."""
    whole = open_chain(folder / "chain", chain(NODES))
    sizes: dict[int, list[Any]] = {}
    for number in range(NODES // 3, 2 * NODES // 3, 7):
        bundle = whole.bundle(number)
        sizes.setdefault(len(bundle.edges.producers), []).append(bundle.sizes)
    rows = [
        {
            "producers": count,
            "hashes": max(size.hashes for size in found),
            "documents": max(size.proof for size in found),
        }
        for count, found in sorted(sizes.items())
    ]
    tell("proofs")
    return {"operators": NODES, "rows": rows, "statement": found_statement(whole)}


def found_statement(whole: WholeOpening) -> int:
    """Bytes of opening and header, which all leaves share."""
    return whole.bundle(0).sizes["statement_bytes"]


def referee_cost(folder: Path) -> Figures:
    """Seconds of a ruling on one product of matrices: all of its elements, or some and 20 vectors."""
    whole = open_chain(folder / "product", product(SIDE))
    bundle = whole.bundle(0)
    found: Figures = {"side": SIDE}
    for name, question in (
        ("whole", LeafRequest(limits=LeafLimits(whole_flops=1 << 40, whole_bytes=1 << 40))),
        ("sampled", LeafRequest(nonce=b"drawn later")),
    ):
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            ruling = rule_leaf(bundle, question)
            times.append(time.perf_counter() - begin)
        found |= {name: min(times), f"{name}_judged": ruling.work.judged}
    left, right = (bundle.values[name].values().astype(np.float64) for name in ("inputs.x", "weights.w"))
    begin = time.perf_counter()
    assert (left @ right).shape == (SIDE, SIDE)
    found["product"] = time.perf_counter() - begin
    tell("referee")
    return found


def chain(length: int) -> tuple[Graph, dict[str, Tensor]]:
    """Operators that read no, one, two or three results of others."""
    nodes: list[dict[str, Any]] = []
    for number in range(length):
        back = [f"n{max(number - step, 0)}" for step in (1, 2, 700)]
        name, operands, attributes = (
            ("add.Tensor", {"self": back[0], "other": back[1]}, {"alpha": 1}),
            ("mm.default", {"self": back[0], "mat2": "weights.w"}, {}),
            ("addcmul.default", {"self": back[0], "tensor1": back[1], "tensor2": back[2]}, {"value": 1}),
            ("mm.default", {"self": "inputs.x", "mat2": "weights.w"}, {}),
        )[3 if number < 3 else number % 4]
        nodes.append(node_json(number, name, operands, attributes, 4))
    return program(nodes, 4, f"n{length - 1}")


def product(side: int) -> tuple[Graph, dict[str, Tensor]]:
    """One product of square matrices."""
    return program([node_json(0, "mm.default", {"self": "inputs.x", "mat2": "weights.w"}, {}, side)], side, "n0")


def node_json(number: int, name: str, operands: Figures, attributes: Figures, side: int) -> Figures:
    """A node record over square matrices."""
    spec = [["F32", side, side]]
    node = {"attributes": attributes, "number": number, "operands": operands, "operator": f"aten.{name}"}
    return node | {"results": spec}


def program(nodes: list[Figures], side: int, result: str) -> tuple[Graph, dict[str, Tensor]]:
    """A graph over an input and weights, and numbers for both."""
    spec = ["F32", side, side]
    document = {
        "constants": [],
        "dialect": "aten",
        "form": "logical",
        "graph": 1,
        "inputs": [
            {"name": "inputs.x", "role": "input", "spec": spec},
            {"name": "weights.w", "role": "weight", "spec": spec},
        ],
        "nodes": nodes,
        "outputs": [{"name": "outputs.y", "value": result}],
    }
    rng = np.random.default_rng(0)
    numbers = {name: rng.normal(size=(side, side)) / (8 * side**0.5) for name in ("inputs.x", "weights.w")}
    graph = read_graph(json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
    return graph, {name: Tensor.of(value.astype(np.float32)) for name, value in numbers.items()}


def open_chain(folder: Path, made: tuple[Graph, dict[str, Tensor]]) -> WholeOpening:
    """Open all operators of one call of a graph."""
    graph, bindings = made
    values = all_values(graph, bindings, base_engine())
    results = {output.name: values[output.value] for output in graph.outputs}
    inputs = {"x": bindings["inputs.x"]}
    line = CallRecord(index=1, inputs=state_digest(inputs), outputs=state_digest(results)).to_bytes()
    log = Log(root=digest_from(tree_root([leaf_hash(line)])), size=1)
    subject = OpeningSource(digest("claim", b"{}"), log, OpenedLine(0, line, ()), graph, bindings)
    open_operators(subject, folder, base_engine())
    return WholeOpening.read(folder)


# ---- the page


def rounded(value: Any) -> Any:
    """Figures with four digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *[[shown(cell) for cell in row] for row in rows]]
    return "\n".join("|" + "|".join(line) + "|" for line in lines)


def shown(value: Any) -> str:
    """One cell."""
    if value is None:
        return "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def percent(low_high: list[float]) -> str:
    """An interval."""
    return f"{low_high[0]:.1%} to {low_high[1]:.1%}"


def render(figures: Figures) -> str:
    """The page."""
    parts = [PAGE.format(command=COMMAND, machine=figures["machine"], safety=BUDGET_SAFETY, threshold=SAFETY)]
    parts += [render_case(case) for case in figures["cases"]]
    return "\n".join([*parts, render_remains(figures), render_costs(figures)])


def render_case(case: Figures) -> str:
    """Both tables of one graph."""
    left, budget = case["left_out"], case["budget"]
    stacks = table(
        ["stack", "operators", "convicted", "tied", "undecided", "one direction", "any direction", "path", "of which"],
        [[", ".join(cell) if isinstance(cell, list) else cell for cell in row.values()] for row in case["stacks"]],
    )
    keys = ["kind", "size", "runs", "placed", "threshold", "bias", "path", "budget", "escaped", "moved"]
    last = "flips" if "flips" in case["adversaries"][0] else "update"
    head = ["alignment", "size, τ", *keys[2:], "… escaped"]
    head += ["answers changed", "… escaped"] if last == "flips" else ["update moved", "… escaped"]
    rows = [[row[key] for key in (*keys, "moved_escaped", last, f"{last}_escaped")] for row in case["adversaries"]]
    alike = "; ".join(", ".join(group) for group in case["groups"] if len(group) > 1) or "none"
    skipped = "; ".join(f"{name}: {why}" for name, why in case["skipped"].items()) or "none"
    return f"""
## {case["case"].capitalize()}

{case["operators"]} operators, {case["length"]} rounding ones on the longest path, {case["inputs"]} sets of inputs on
{len(case["stacks"])} stacks, of which {len(case["groups"])} gave different errors.

{stacks}

Stacks that gave the same errors: {alike}. Could not run: {skipped}.

With each group of stacks left out of the calibration in turn, {left["accused"]} of {left["runs"]} honest runs were
accused ({percent(left["interval"])}). Limits from all stacks: {budget["one_direction"]:.3g} in one direction,
{budget["any_direction"]:.3g} in any direction; path up to {budget["path"]:.3g}, for each result its own.

{table(head, rows)}
"""


def render_remains(figures: Figures) -> str:
    """What got through, in a sentence for each graph and alignment."""
    lines = []
    for case in figures["cases"]:
        for kind in dict.fromkeys(row["kind"] for row in case["adversaries"]):
            free = [row for row in case["adversaries"] if row["kind"] == kind and row["escaped"]]
            if not free:
                lines.append(f"- {case['case']}, {kind}: nothing from {SIZES[0]} τ on.")
                continue
            largest = max(free, key=lambda row: row["size"])
            what = f"{largest['size']} τ in {largest['escaped']} of {largest['runs']} runs"
            what += f"; outcome moved by {max(row['moved_escaped'] for row in free):.3g} of its size"
            if "flips" in largest:
                what += f", a margin by {max(row['margin_escaped'] for row in free):.3g} of itself"
                what += f", {sum(row['flips_escaped'] for row in free)} answers changed"
            else:
                what += f", an update of weights by {max(row['update_escaped'] for row in free):.3g} of itself"
            lines.append(f"- {case['case']}, {kind}: up to {what}.")
    return REMAINS.format(lines="\n".join(lines))


def render_costs(figures: Figures) -> str:
    """Proofs and seconds."""
    proofs, referee = figures["proofs"], figures["referee"]
    rows = [[row["producers"], row["hashes"], row["documents"]] for row in proofs["rows"]]
    sizes = table(["producers", "bytes of hashes", "bytes of documents in JSON"], rows)
    return f"""
## What a leaf costs

In a graph of {proofs["operators"]} operators, at most:

{sizes}

Opening and header of that graph have {proofs["statement"]} bytes; they are the same for all its leaves.

A ruling on a product of matrices of side {referee["side"]} takes {referee["whole"]:.3g} s over all of its elements and
{referee["sampled"]:.3g} s with a nonce ({referee["sampled_judged"]} elements and 20 vectors): the best of 3, with the
digests of all values. NumPy's product in float64 alone takes {referee["product"]:.3g} s.
"""


PAGE = """# The budget of a whole opening

Made by `{command}` on {machine}.
Data: [budget.json](data/budget.json).

The tolerance of an operator leaves room for errors. Errors that stay within it at every operator, but all point in one
direction, grow with L over L operators; honest errors grow with √L. `verdicts/opening/budget.py` measures two things
over a whole opening:

- **bias**: for each result, over its n elements, the mean m and the root mean square s of (claimed − exact) ÷ radius.
  Its score is m ÷ √(s²/n + (s/4)²): honest kernels have systematic errors, so a quarter of the size may be systematic,
  and no score exceeds 4. *One direction* is |Σ score| ÷ √N over N results, *any direction* the root mean square of the
  scores.
- **path**: ‖claimed − exact‖ ÷ ‖exact‖ of each result of the graph, exact being a run in float64 from the same inputs,
  in units of u√L, with L the rounding operators on the result's longest path.

Limits are {safety} times the largest that honest stacks showed, for each graph; they are statistics and no theorem.
What they reject goes to a committee, unless both parties agreed on the limits beforehand. `tally calibrate GRAPH
--inputs DIR --out FILE --budget FILE` makes the budget of any graph; challengers and judges of disputes read it with
`--budget`.

Honest runs are those of the stacks of `tally calibrate`, each computing the whole graph by itself; every operator is
also put to the referee, without thresholds (*convicted*, *tied*, *undecided*, and *of which* operators those convicted
are: IREE's sine and cosine lie outside of their bounds, as [bounds.md](bounds.md) says, and a prover who computes with
them is held to be wrong). Adversaries know the thresholds, τ: {threshold} times the largest error of any stack, by
rank, with a limit on the mean. They place every floating-point result that rounding can move so many τ from the exact
one on its own operands: all upwards (*one sign*), along the gradient of the margin of the second-best answer (*towards
another result*; a training step has no such gradient here), or at random as a control. A result whose digits do not
allow that is left out; *placed* is the smallest number of results that remained. *threshold* counts runs with a result
beyond its threshold, *bias*, *path* and *budget* count runs that the budget rejects, *escaped* counts runs that neither
rejects. *moved* is ‖Δ‖ ÷ ‖scores‖, or the relative change of the loss; *update moved* the largest ‖Δw‖ ÷ ‖step of w‖.
"""

REMAINS = """
## What remains possible

The largest errors, among the sizes tried, that neither thresholds nor budget rejected:

{lines}

An adversary who knows the limits can always stay just below them: it moves every result by up to its limit, in units of
u√L, and chooses the direction. So it can choose whatever is decided by little more than rounding: the answer if two
scores are that close, or the last digits of a loss. If only a few operators err in one direction, the bias averages
them with all others; only path and thresholds can detect them. Results after a choice that differs from the choice in
float64 are not compared. Nothing here was calibrated on hardware other than that named above: a budget holds for the
stacks that it was measured on.
"""


if __name__ == "__main__":
    sys.exit(main())
