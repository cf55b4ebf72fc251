"""Every fraud claims something else than the honest run, and the judge that knows the honest one sees it."""

from __future__ import annotations

import numpy as np
import pytest

from research.operators.attacks import CONTROL, objections, regions
from tallystick.core.errors import UsageError
from tallystick.programs.encoding import check_node, graph_root, prove_node
from tallystick.programs.graph import Role
from tallystick.programs.operators.rounding import DETERMINISTIC
from tallystick.verdicts.profiles import Profile
from tests.support.attacks.inference.cheats import CHEATS, Cheat
from tests.support.attacks.inference.regions import radii_of
from tests.support.attacks.inference.workload import StudyWorkload, run_values

by_name = pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)


@by_name
def test_a_cheat_claims_the_committed_weights_and_inputs(cheat: Cheat, workload: StudyWorkload) -> None:
    claimed = cheat.forge(workload)
    assert all(claimed[source.name] == workload.bindings[source.name] for source in workload.graph.sources)


@by_name
def test_a_cheat_changes_values(cheat: Cheat, workload: StudyWorkload) -> None:
    assert cheat.forge(workload) != run_values(workload)


@by_name
def test_a_calibrated_threshold_objects_to_every_cheat(cheat: Cheat, workload: StudyWorkload, profile: Profile) -> None:
    *_, calibrated = regions(profile)
    assert objections(workload.graph, cheat.forge(workload), calibrated)


def test_every_region_accepts_the_honest_run(workload: StudyWorkload, profile: Profile) -> None:
    assert [objections(workload.graph, CONTROL.forge(workload), region) for region in regions(profile)] == [()] * 4


@pytest.mark.parametrize("name", [cheat.name for cheat in CHEATS if not cheat.name.startswith("aligned")])
def test_the_proven_bound_objects_to_all_that_is_no_drift(name: str, workload: StudyWorkload, profile: Profile) -> None:
    deterministic, *_ = regions(profile)
    cheat = next(cheat for cheat in CHEATS if cheat.name == name)
    assert objections(workload.graph, cheat.forge(workload), deterministic)


def test_errors_that_all_point_one_way_stay_within_the_bound_and_are_seen_by_their_bias(
    workload: StudyWorkload, profile: Profile
) -> None:
    cheat = next(cheat for cheat in CHEATS if cheat.name == "aligned-20%")
    deterministic, _, _, calibrated = regions(profile)
    claimed = cheat.forge(workload)
    assert objections(workload.graph, claimed, deterministic) == ()
    assert len(objections(workload.graph, claimed, calibrated)) >= 4


def test_one_moved_element_is_found_where_it_is(workload: StudyWorkload, profile: Profile) -> None:
    cheat = next(cheat for cheat in CHEATS if cheat.name == "element-moved")
    honest, claimed = run_values(workload), cheat.forge(workload)
    first = next(ref for ref in radii_of(workload.graph, honest, DETERMINISTIC) if claimed[ref] != honest[ref])
    for region in regions(profile):
        (where,) = objections(workload.graph, claimed, region)
        assert where.startswith(f"{first} (")


def test_another_attribute_gives_another_root_and_its_node_does_not_open(workload: StudyWorkload) -> None:
    from dataclasses import replace

    from tallystick.core.errors import ProofError

    graph = workload.graph
    at = next(i for i, node in enumerate(graph.nodes) if "eps" in node.attributes)
    other = replace(graph.nodes[at], attributes={**graph.nodes[at].attributes, "eps": 1e-3})
    stated = replace(graph, nodes=(*graph.nodes[:at], other, *graph.nodes[at + 1 :]))
    check_node(prove_node(graph, other.number), graph_root(graph))
    assert graph_root(stated) != graph_root(graph)
    with pytest.raises(ProofError):
        check_node(prove_node(stated, other.number), graph_root(graph))


def test_a_graph_without_a_place_for_a_cheat_says_so(workload: StudyWorkload) -> None:
    from dataclasses import replace

    graph = replace(workload.graph, nodes=workload.graph.nodes[:1])
    small = replace(workload, graph=replace(graph, outputs=(replace(graph.outputs[0], value="n0"),)))
    skipped = next(cheat for cheat in CHEATS if cheat.name == "layer-skipped")
    with pytest.raises(UsageError, match="no residual branch"):
        skipped.forge(small)


def test_quantised_weights_have_as_many_levels_as_said(workload: StudyWorkload) -> None:
    from tests.support.attacks.inference import cheats

    name = next(source.name for source in workload.graph.inputs if source.role is Role.WEIGHT and source.spec.size > 96)
    rows = cheats.quantised(workload.bindings[name], 4).array()
    assert max(len(np.unique(row)) for row in rows) <= 15
