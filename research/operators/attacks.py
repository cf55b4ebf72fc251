"""Inference frauds tried on real models, and what each kind of judge says to them.

Every fraud gives the values that a dishonest prover would open, operator by operator. They are judged by the proven
bounds and by calibrated thresholds; then a bound-aware adversary searches each of these regions for another answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from research.operators.rounding_models import Probabilistic, Variance
from research.operators.workloads import Model as Tried
from tallystick.core.errors import UsageError
from tallystick.programs.encoding import graph_root
from tallystick.programs.graph import Graph, Ref
from tallystick.programs.operators.rounding import DETERMINISTIC, Deterministic, Model
from tallystick.tally.calibration.operator_runs import base_engine
from tallystick.verdicts.opening.judge import judge_operator
from tallystick.verdicts.operator.judge import OperatorJudge
from tallystick.verdicts.profiles import Profile
from tallystick.verdicts.verdict import Findings
from tests.support.attacks.inference.cheats import CHEATS, Cheat, honest
from tests.support.attacks.inference.nudge import Effort, Nudged, Target, nudge
from tests.support.attacks.inference.regions import Radii, Ranks, radii_of, ranks_of
from tests.support.attacks.inference.workload import StudyWorkload, ValuesByRef, answer, run_values

Tell = Callable[[str], None]
CONTROL: Final = Cheat("honest", "nothing", honest)


@dataclass(frozen=True)
class Region:
    """One way to judge operators: an error model, and a calibrated profile where there is one."""

    name: str
    model: Model
    profile: Profile | None = None


@dataclass(frozen=True)
class Judged:
    """What one region says to one fraud on so many inputs: how often it objected, and how often the answer changed.

    `operators` is the mean number of results it objected to, where it did.
    """

    model: str
    cheat: str
    region: str
    inputs: int
    objected: int
    changed: int
    operators: float


@dataclass(frozen=True)
class Searched:
    """What a bound-aware adversary reached inside one region.

    `succeeded` counts the inputs whose answer changed while the judge accepted every operator. `ties` counts the inputs
    whose honest margin is within what the region allows at the scores themselves: nobody can decide them, and they are
    not among those that succeeded. `gained` holds, for each input, the share of its margin that was overcome.
    """

    model: str
    region: str
    inputs: int
    succeeded: int
    ties: int
    gained: tuple[float, ...]
    steps: int


def regions(profile: Profile) -> tuple[Region, ...]:
    """From the widest to the narrowest; the probability of failure is that of λ = 6 per element."""
    return (
        Region("deterministic bound", Deterministic()),
        Region("probabilistic bound", Probabilistic()),
        Region("variance bound", Variance()),
        Region("calibrated threshold", DETERMINISTIC, profile),
    )


def workloads(tried: Tried) -> Iterator[StudyWorkload]:
    """One workload for each set of inputs."""
    engine = base_engine()
    for inputs in tried.inputs:
        bindings = {**tried.constants, **tried.weights, **inputs}
        yield StudyWorkload(tried.name, tried.graph, bindings, engine, tried.decision)


def try_cheats(tried: Tried, judges: Iterable[Region], tell: Tell) -> Iterator[Judged]:
    """Every cheat on every input before every judge; a cheat that the graph offers no place for is left out."""
    cases = list(workloads(tried))
    judges = tuple(judges)
    for cheat in (CONTROL, *CHEATS):
        try:
            claims = [(answer(case, run_values(case)), cheat.forge(case)) for case in cases]
        except UsageError as error:
            tell(f"{cheat.name}: {error}")
            continue
        for region in judges:
            yield _judged(tried, cheat, region, cases, claims)
        tell(cheat.name)


def search(tried: Tried, judges: Iterable[Region], effort: Effort, tell: Tell) -> Iterator[Searched]:
    """The bound-aware adversary in each region, judged by that region."""
    for region in judges:
        found = [_search(case, region, effort, seed) for seed, case in enumerate(workloads(tried))]
        yield Searched(
            tried.name,
            region.name,
            len(found),
            sum(nudged.flipped and nudged.accepted and not is_tie for nudged, is_tie in found),
            sum(is_tie for _, is_tie in found),
            tuple(nudged.gained for nudged, _ in found),
            sum(nudged.steps for nudged, _ in found),
        )
        tell(f"searched the {region.name}: margins overcome up to {max(nudged.gained for nudged, _ in found):.3g}")


def objections(graph: Graph, values: Mapping[Ref, object], region: Region) -> tuple[str, ...]:
    """The results that a region objects to."""
    notes, judge = Findings(), OperatorJudge(graph_root(graph), profile=region.profile, model=region.model)
    for node in graph.nodes:
        judge_operator(notes, judge, node, values)  # type: ignore[arg-type]
    return tuple(finding.where for finding in notes.seen if not finding.agrees)


def _judged(
    tried: Tried, cheat: Cheat, region: Region, cases: list[StudyWorkload], claims: list[tuple[int, ValuesByRef]]
) -> Judged:
    counts = [len(objections(tried.graph, values, region)) for _, values in claims]
    changed = sum(answer(case, values) != right for case, (right, values) in zip(cases, claims, strict=True))
    objected = sum(count > 0 for count in counts)
    mean = sum(counts) / objected if objected else 0.0
    return Judged(tried.name, cheat.name, region.name, len(cases), objected, changed, mean)


def _search(case: StudyWorkload, region: Region, effort: Effort, seed: int) -> tuple[Nudged, bool]:
    honest_values = run_values(case)
    radii, ranks = radii_of(case.graph, honest_values, region.model), _ranks(case.graph, region)

    def accepts(values: ValuesByRef) -> bool:
        return not objections(case.graph, values, region)

    found = nudge(case, Target(region.model, radii, ranks, accepts), effort, seed)
    return found, _is_tie(case, honest_values, radii, ranks)


def _is_tie(case: StudyWorkload, values: ValuesByRef, radii: Radii, ranks: Callable[[Ref, int], Ranks]) -> bool:
    """Whether the two best scores are no further apart than both may be moved."""
    ref = case.decision_ref
    scores = values[ref].values().astype(np.float64)
    scores = scores.reshape(-1, scores.shape[-1])[-1]
    if ref not in radii:
        return False
    bands = radii[ref].reshape(-1, scores.size)[-1] * ranks(ref, radii[ref].size).shares[0]
    second, first = np.argsort(scores)[-2:]
    return bool(scores[first] - scores[second] <= bands[first] + bands[second])


def _ranks(graph: Graph, region: Region) -> Callable[[Ref, int], Ranks]:
    profile, root, specs = region.profile, graph_root(graph), graph.specs()
    if profile is None:
        return lambda _, elements: ranks_of(None, elements)
    operators = {ref: node.operator for node in graph.nodes for ref in node.outputs if ref is not None}

    def ranks(ref: Ref, elements: int) -> Ranks:
        return ranks_of(profile.threshold(root, ref[1:], operators[ref], specs[ref].dtype), elements)

    return ranks
