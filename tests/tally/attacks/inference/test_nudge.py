"""The bound-aware adversary stays inside what the judge allows, and flips near-ties inside a wide bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from research.operators.attacks import Region, objections, regions, search
from research.operators.workloads import Model
from tallystick.programs.operators.rounding import DETERMINISTIC
from tallystick.verdicts.bounds import NO_ERRORS, QUANTILES, Errors, Threshold, percentiles
from tallystick.verdicts.profiles import Profile
from tests.support.attacks.inference.nudge import Effort, Nudged, Target, nudge
from tests.support.attacks.inference.regions import Ranks, place, radii_of, ranks_of
from tests.support.attacks.inference.workload import StudyWorkload, answer, run_values

EFFORT = Effort(steps=20, restarts=2)


def whole(_: str, elements: int) -> Ranks:
    return ranks_of(None, elements)


def attacked(workload: StudyWorkload, region: Region, ranks: Callable[[str, int], Ranks] = whole) -> Nudged:
    radii = radii_of(workload.graph, run_values(workload), region.model)
    target = Target(region.model, radii, ranks, lambda values: not objections(workload.graph, values, region))
    return nudge(workload, target, EFFORT, 3)


def test_a_near_tie_is_flipped_within_the_deterministic_bound(near_tie: StudyWorkload, profile: Profile) -> None:
    deterministic, *_ = regions(profile)
    found = attacked(near_tie, deterministic)
    assert found.gained > 1
    assert found.flipped
    assert found.accepted
    assert answer(near_tie, found.values) != answer(near_tie, run_values(near_tie))
    assert objections(near_tie.graph, found.values, deterministic) == ()


def test_a_clear_answer_is_not(workload: StudyWorkload, profile: Profile) -> None:
    for region in regions(profile):
        found = attacked(workload, region)
        assert 0 < found.gained < 1
        assert not found.flipped


def test_narrower_regions_gain_less(workload: StudyWorkload, profile: Profile) -> None:
    tried = Model("block", workload.graph, {}, workload.bindings, ({},), workload.decision)
    rows = list(search(tried, regions(profile), EFFORT, lambda _: None))
    deterministic, _, variance, calibrated = (row.gained[0] for row in rows)
    assert deterministic > variance
    assert deterministic > 2 * calibrated
    assert all(row.succeeded == 0 for row in rows)


def test_a_tie_is_counted_apart(near_tie: StudyWorkload, workload: StudyWorkload, profile: Profile) -> None:
    tried = Model("block", workload.graph, {}, workload.bindings, ({}, near_tie.bindings), workload.decision)
    deterministic, *_ = regions(profile)
    (row,) = search(tried, [deterministic], EFFORT, lambda _: None)
    assert row.inputs == 2
    assert row.succeeded + row.ties == 1


@pytest.mark.parametrize("share", [0.9, -0.4])
def test_what_is_placed_lies_where_it_was_placed(workload: StudyWorkload, share: float) -> None:
    radii = radii_of(workload.graph, run_values(workload), DETERMINISTIC)
    placed = place(workload, {ref: np.full(radius.shape, share) for ref, radius in radii.items()}, DETERMINISTIC)
    first = workload.graph.nodes[0]
    from tallystick.programs.graph import operands_of
    from tallystick.programs.operators.balls.bound import bound
    from tallystick.programs.operators.definition import operator

    (exact,) = bound(operator(first.operator), {**operands_of(first, placed), **first.attributes})
    assert exact is not None
    found = (placed["n0"].array() - exact.value) / exact.radius
    assert np.all(np.abs(found) <= abs(share))
    assert np.median(found / share) > 0.9


@pytest.mark.parametrize("elements", [3, 40, 200, 5000])
def test_shares_by_rank_are_what_the_threshold_accepts_and_no_less(elements: int) -> None:
    shares, nothing = (0.01, 0.03, 0.05, 0.09), (0.0,) * 4
    calibrated = Errors(shares, nothing, nothing, nothing, bias=0.1, elements=elements)
    threshold = Threshold(calibrated)
    ranks = ranks_of(threshold, elements)

    def judged(shares: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
        from dataclasses import replace

        return threshold.judge(replace(NO_ERRORS, share=percentiles(shares), elements=elements)).agrees

    assert judged(ranks.shares)
    assert ranks.shares[0] == pytest.approx(0.27)
    for place_of in {int(q * (elements - 1)) for q in QUANTILES}:
        wider = ranks.shares.copy()
        wider[: elements - place_of] = np.maximum(wider[: elements - place_of], wider[0] * 1.01)
        assert not judged(wider)
