"""`tallystick.judge`: the opened operators of one recorded step or call, judged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.core.canonical_json import Json
from tallystick.core.digests import parse_digest
from tallystick.core.errors import UnavailableError, UsageError, refusal
from tallystick.core.files import read_document
from tallystick.formats.store.directories import OpeningDirectory, read_statement
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.files import load_graph, load_modules
from tallystick.programs.operators.precision import (
    BFLOAT_PRODUCTS,
    BFLOAT_SUMS,
    HALF_SUMS,
    PLAIN,
    STEPWISE,
    TENSOR_FLOAT,
    Precision,
)
from tallystick.verdicts.opening.files import GRAPH
from tallystick.verdicts.opening.judge import OpeningRequest, judge_opening
from tallystick.verdicts.opening.published import Published
from tallystick.verdicts.profiles import Budget, Profile
from tallystick.verdicts.verdict import Verdict

# What a verifier names when operators are judged: a precision, and files of thresholds, budgets and claims.


def read_precision(name: str) -> Precision:
    """What the prover computed in, by its name; raises `UsageError` for another."""
    known = {
        "stepwise": STEPWISE,
        "plain": PLAIN,
        "tf32": TENSOR_FLOAT,
        "bf16-products": BFLOAT_PRODUCTS,
        "bf16-sums": BFLOAT_SUMS,
        "fp16-sums": HALF_SUMS,
    }
    if name not in known:
        raise UsageError(f"--precision: {refusal(name, [*known])}")
    return known[name]


def read_profile(path: Path | str) -> Profile:
    """The calibrated thresholds in a file; raises `MalformedError` for anything else."""
    return Profile.from_bytes(read_document(Path(path)).removesuffix(b"\n"), Path(path).name)


def read_budgets(paths: Iterable[Path]) -> tuple[Budget, ...]:
    """The budgets in files, one for each graph; raises `UsageError` for two of one graph, `MalformedError` for none."""
    budgets = [Budget.from_bytes(read_document(path).removesuffix(b"\n"), path.name) for path in paths]
    if len({budget.graph for budget in budgets}) < len(budgets):
        raise UsageError("--budget: two budgets for one graph")
    return tuple(budgets)


def read_published(run: Path | str) -> Published:
    """What a run directory claims; raises `UnavailableError` where there is none, `UsageError` for opened operators."""
    path = Path(run)
    if not path.exists():
        raise UnavailableError(f"{path}: no such run directory")
    statement = read_statement(path)
    if isinstance(statement, OpeningDirectory):
        raise UsageError(f"--run {path}: holds opened operators, and not the run that they were opened of")
    return Published(statement.claim(), statement.spec() if isinstance(statement, RunDirectory) else None)


NODE: Final = re.compile(r"(?:node |n)(\d+)\b")
"""How a finding names a node, or a value that it gives."""


def judge(
    opening: Path | str,
    *,
    nodes: Iterable[int] = (),
    profile: Profile | Path | str | None = None,
    precision: str = "stepwise",
    properties: Iterable[str] = (),
    claim: str | None = None,
    run: Path | str | None = None,
) -> Verdict:
    """Judge each opened operator on its claimed operands: exactly, within its bound, or within a threshold.

    Args:
        opening: a directory that `tally open --operators` wrote.
        nodes: the operators to judge, by number; all of them by default.
        profile: calibrated thresholds besides the proven bounds, or their file.
        precision: what the prover computed in: `stepwise`, `plain`, `tf32`, `bf16-products`, `bf16-sums`, `fp16-sums`.
        properties: properties to check besides, by name, or `all`.
        claim: the digest of the claim that was published, as `sha256:…`.
        run: the directory of the run that is opened: its claim and spec say what was claimed.

    Raises:
        MalformedError: a file is not what it should be.
        UnavailableError: a file is missing.
        UsageError: a node, a property or a precision that does not exist is asked for.
    """
    asked = OpeningRequest(
        read_precision(precision),
        profile if profile is None or isinstance(profile, Profile) else read_profile(profile),
        frozenset(nodes),
        tuple(properties),
        None if claim is None else parse_digest(claim, "--claim"),
        None if run is None else read_published(run),
    )
    return judge_opening(Path(opening), asked)


@dataclass(frozen=True)
class NamedOperator:
    """An operator of a graph: its place among all of them, counted from 0, its name, and its module if known."""

    node: int
    place: int
    count: int
    operator: str
    module: str | None

    def __str__(self) -> str:
        """One line, such as `n163 is operator 163 of 174, aten.linear.default in model.layers.0.mlp.up_proj`."""
        where = f" in {self.module}" if self.module else ""
        return f"n{self.node} is operator {self.place} of {self.count}, {self.operator}{where}"

    def to_json(self) -> Json:
        """As JSON values."""
        return {
            "count": self.count,
            "module": self.module,
            "node": self.node,
            "operator": self.operator,
            "place": self.place,
        }


def operators_objected_to(verdict: Verdict, opening: Path) -> tuple[NamedOperator, ...]:
    """The operators that the objections of a verdict on `opening` name, in the order of the graph.

    There are none where one operator alone is opened: its graph is not there.
    """
    numbers = {int(match[1]) for each in verdict.objections if (match := NODE.match(each.where))}
    if not numbers or not (opening / GRAPH).is_file():
        return ()
    return tuple(each for each in operators_of(opening) if each.node in numbers)


def operators_of(folder: Path) -> tuple[NamedOperator, ...]:
    """All operators of the graph in a folder: that of a run, of recorded calls, or of an opening.

    Raises `MalformedError` if the graph is invalid, `UnavailableError` if there is none.
    """
    statement = read_statement(folder)
    path = folder / GRAPH if isinstance(statement, OpeningDirectory) else statement.graph_path
    graph = load_graph(path)
    named = load_modules(path, graph)
    return tuple(
        NamedOperator(node.number, place, len(graph.nodes), node.operator, named.paths.get(node.number))
        for place, node in enumerate(graph.nodes)
    )


def operator_at(folder: Path, place: int, count: int, name: str) -> NamedOperator:
    """The operator at one place of the graph in a folder; raises `UsageError` unless it is the one that is meant."""
    named = operators_of(folder)
    if place >= len(named) or (len(named), named[place].operator) != (count, name):
        raise UsageError(f"{folder}: its graph has no operator {place} of {count}, {name}")
    return named[place]
