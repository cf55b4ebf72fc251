"""One-round mode: all operators are committed to beforehand, and a dispute opens at one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tallystick.audits.opening import (  # noqa: E402
    gather_whole,
    open_operators,
    source_of_call,
)
from tallystick.core.errors import ProofError  # noqa: E402
from tallystick.disputes.evidence.doubting import CONFIRMED_MAX, doubter_for  # noqa: E402
from tallystick.disputes.evidence.judging import DisputeJudge  # noqa: E402
from tallystick.disputes.evidence.locate import ChallengerWork, deviation_of, deviations  # noqa: E402
from tallystick.disputes.evidence.statement import statement_at  # noqa: E402
from tallystick.disputes.evidence.traces import trace_of  # noqa: E402
from tallystick.disputes.evidence.view import (  # noqa: E402
    OpeningView,
    read_operators,
)
from tallystick.disputes.game.protocols import Doubt  # noqa: E402
from tallystick.engines.torch.engine import TorchEngine  # noqa: E402
from tallystick.formats.store.directories import InferenceDirectory  # noqa: E402
from tallystick.programs.encoding import graph_root  # noqa: E402
from tallystick.verdicts.opening.budget import budget_of  # noqa: E402
from tallystick.verdicts.profiles import (  # noqa: E402
    Budget,
    Calibrated,
    Profile,
)
from tallystick.verdicts.verdict import Fault  # noqa: E402
from tests.support.attacks.disputes.aligned import aligned_engine, measured, open_one_round  # noqa: E402
from tests.support.attacks.disputes.answers import answered, record, within_bound  # noqa: E402
from tests.support.attacks.disputes.engines import Change, ChangingEngine  # noqa: E402
from tests.support.attacks.disputes.scene import Scene  # noqa: E402
from tests.support.attacks.disputes.values import changing, moved_by  # noqa: E402
from tests.support.opened_values import read_values, write_values  # noqa: E402
from tests.support.rehearsal import Outcome, Rehearsal  # noqa: E402


def play(statement: Path, folder: Path, *budgets: Budget, doubt: Doubt | None = None) -> Outcome | None:
    trace, judge = trace_of(statement_at(statement), folder / "work"), DisputeJudge(budgets=budgets)
    return Rehearsal(statement, folder / "board").play(trace, doubter_for(budgets=budgets), judge, doubt)


def test_the_one_wrong_operator_is_contested_at_once_and_convicted(scene: Scene, tmp_path: Path) -> None:
    number = next(node.number for node in scene.recorded.graph.nodes if "linear" in node.operator)
    open_one_round(scene, tmp_path / "claim", changing(number, moved_by(2.0)))
    outcome = play(tmp_path / "claim", tmp_path)
    assert outcome is not None
    assert (outcome.fault, outcome.dispute.low) == (Fault.PROVER, number), outcome.reason
    assert [move.kind for move in outcome.moves] == ["post", "contest", "reveal"]


def test_a_wrong_operator_is_found_behind_more_decoys_than_are_asked_about_at_leisure(tmp_path: Path) -> None:
    count = CONFIRMED_MAX + 1
    layers = (torch.nn.Linear(512, 512) for _ in range(count + 1))
    record(torch.nn.Sequential(torch.nn.Embedding(32, 512), *layers), tmp_path / "honest", calls=1)
    honest = gather_whole(InferenceDirectory(tmp_path / "honest"))
    *decoys, wrong = (node.number for node in honest.graph.nodes if "linear" in node.operator)

    def claim(name: str, changes: dict[int, Change]) -> Path:
        engine = ChangingEngine(lambda node: changes.get(node.number))
        calls = gather_whole(InferenceDirectory(answered(honest, tmp_path / name, engine).statement))
        open_operators(source_of_call(calls, 1), tmp_path / name / "claim", engine)
        return tmp_path / name / "claim"

    hidden = dict.fromkeys(decoys, within_bound)
    outcome = play(
        claim("forged", {**hidden, wrong: lambda _, __, results: (1.0002 * results[0],)}), tmp_path / "forged"
    )
    assert outcome is not None
    assert (outcome.fault, outcome.dispute.low) == (Fault.PROVER, wrong), outcome.reason
    assert play(claim("decoys", hidden), tmp_path / "decoys") is None


def test_each_operator_is_compared_from_its_claimed_operands(scene: Scene, tmp_path: Path) -> None:
    number = next(node.number for node in scene.recorded.graph.nodes if "linear" in node.operator)
    open_one_round(scene, tmp_path / "claim", changing(number, moved_by(2.0)))
    view, engine, work = (
        OpeningView(read_operators(tmp_path / "claim"), (tmp_path / "claim",)),
        TorchEngine(),
        ChallengerWork(),
    )
    far = list(deviations(view, engine, work))
    place = view.whole.places[number]
    assert [each for each, distance in enumerate(far) if distance] == [place]
    assert far[place] == deviation_of(view, place, place + 1, engine, ChallengerWork())
    assert work.operators == sum(view.cuts.crossing(each, each) != () for each in range(len(far)))


def test_a_value_that_is_not_opened_is_missed(scene: Scene, tmp_path: Path) -> None:
    open_one_round(scene, tmp_path / "claim")
    view = OpeningView(read_operators(tmp_path / "claim"), (tmp_path / "claim",))
    ref = next(ref for ref, place in view.cuts.given.items() if view.cuts.last_read.get(ref, -1) > place)
    values = read_values(tmp_path / "claim")
    del values[view.digests[ref]]
    write_values(tmp_path / "claim", values)
    with pytest.raises(ProofError, match=f"{ref} is not opened"):
        list(deviations(view, TorchEngine(), ChallengerWork()))


def test_honest_operators_are_not_contested_and_hold_where_they_are(scene: Scene, tmp_path: Path) -> None:
    open_one_round(scene, tmp_path / "claim")
    assert play(tmp_path / "claim", tmp_path) is None
    outcome = play(tmp_path / "claim", tmp_path, doubt=Doubt(0, len(scene.recorded.graph.nodes), ""))
    assert outcome is not None
    assert outcome.fault is Fault.CHALLENGER, outcome.reason


def test_a_threshold_leaves_open_what_the_bound_allows(scene: Scene, tmp_path: Path) -> None:
    node = next(node for node in scene.recorded.graph.nodes if "linear" in node.operator)
    open_one_round(scene, tmp_path / "claim", aligned_engine())
    tiny = (1e-3, 1e-3, 1e-3, 1e-3)
    narrow = Calibrated(share=tiny, absolute=tiny, relative=tiny, ulp=tiny, bias=1e-3, elements=1000)
    kinds = {f"{node.operator} F32": narrow}
    profile = Profile(stacks=("one",), machines=("here",), inputs=1, safety=1.0, operators=kinds)
    found = []
    for given in (None, profile):
        rehearsal = Rehearsal(tmp_path / "claim", tmp_path / f"board{len(found)}")
        trace, doubt = (
            trace_of(statement_at(tmp_path / "claim"), tmp_path / "work"),
            Doubt(node.number, node.number + 1, ""),
        )
        outcome = rehearsal.play(trace, doubter_for(), DisputeJudge(profile=given), doubt)
        assert outcome is not None
        found.append(outcome.fault)
    assert found == [Fault.CHALLENGER, None]


def test_errors_that_stay_inside_every_tolerance_are_convicted_together(scene: Scene, tmp_path: Path) -> None:
    budget = honest_budget(scene, tmp_path)
    open_one_round(scene, tmp_path / "claim", aligned_engine())
    assert play(tmp_path / "claim", tmp_path / "without") is None, "no operator shows it"
    outcome = play(tmp_path / "claim", tmp_path / "with", budget)
    assert outcome is not None
    assert (outcome.fault, outcome.dispute.ground) == (Fault.PROVER, "budget"), outcome.reason


def test_a_budget_of_another_graph_says_nothing(scene: Scene, tmp_path: Path) -> None:
    other = honest_budget(scene, tmp_path).model_copy(update={"graph": "sha256:" + "00" * 32})
    open_one_round(scene, tmp_path / "claim", aligned_engine())
    assert play(tmp_path / "claim", tmp_path / "other", other) is None


def test_honest_operators_stay_within_their_budget(scene: Scene, tmp_path: Path) -> None:
    budget = honest_budget(scene, tmp_path)
    open_one_round(scene, tmp_path / "claim")
    assert play(tmp_path / "claim", tmp_path, budget) is None


def honest_budget(scene: Scene, folder: Path) -> Budget:
    """Calibrated on the other calls."""
    for call in (1, 3):
        open_one_round(scene, folder / f"honest{call}", call=call)
    runs = [measured(folder / f"honest{call}") for call in (1, 3)]
    return budget_of(graph_root(scene.recorded.graph), runs)
