"""O-01 of a large operator: one wrong element, which nobody draws, convicts where the challenger names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.disputes.evidence.judging import DisputeJudge, Element, OpenedDispute
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.evidence.traces import trace_of
from tallystick.disputes.game.moves import Pinpoint
from tallystick.disputes.game.protocols import DisputeView, Doubt, Ground
from tallystick.disputes.game.state import PostedClaim
from tallystick.disputes.parties import programs
from tallystick.disputes.parties.player import DueMoves, Player
from tallystick.disputes.parties.programs import play_out
from tallystick.disputes.parties.prover import offer_of
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.graph import Graph, GraphForm, Input, Output, Role
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import operator
from tallystick.verdicts.leaf.request import LeafLimits, Ruling
from tallystick.verdicts.verdict import Fault
from tests.disputes.parties.in_memory_game import BEACON, CHALLENGER, MEMBERS, REFEREE, InMemoryGame, rules
from tests.support.in_memory import InMemoryCoordinator
from tests.verdicts.leaf.leaves import node, opened, shifted

SIDE, CHANNELS = 32, 64
PLACE, NONCE = 31_234, "17" * 32
"""The wrong element of 65,536, and a nonce that does not draw it."""


def convolution() -> Graph:
    """One operator of 75 million operations: more than a referee computes as a whole where it need not."""
    image, kernel = TensorSpec("F32", (1, CHANNELS, SIDE, SIDE)), TensorSpec("F32", (CHANNELS, CHANNELS, 3, 3))
    said = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "output_padding": (0, 0)}
    operands = {"input": "inputs.x", "weight": "weights.w", "bias": None}
    one = node(0, "convolution.default", operands, [["F32", *image.shape]], transposed=False, groups=1, **said)
    inputs = (Input("inputs.x", Role.INPUT, image), Input("weights.w", Role.WEIGHT, kernel))
    return read_graph(graph_bytes(Graph("aten", GraphForm.LOGICAL, inputs, (), (one,), (Output("outputs.y", "n0"),))))


@dataclass(frozen=True)
class Claims:
    """Openings of the operator: an honest one, and one with an element at three times its bound."""

    honest: Path
    wrong: Path


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Claims:
    folder, chance = tmp_path_factory.mktemp("claims"), np.random.default_rng(3)
    given = {
        name: Tensor.of(chance.normal(size=shape).astype(np.float32))
        for name, shape in {
            "inputs.x": (1, CHANNELS, SIDE, SIDE),
            "weights.w": (CHANNELS, CHANNELS, 3, 3),
        }.items()
    }
    graph = convolution()
    opened(folder / "honest", graph=graph, given=given)
    opened(folder / "wrong", {0: shifted(3 * radius(graph, given), place=PLACE)}, graph, given)
    return Claims(folder / "honest", folder / "wrong")


def radius(graph: Graph, given: Mapping[str, Tensor]) -> float:
    """How far the element may lie from the exact one."""
    (one,) = graph.nodes
    read = {name: given.get(str(ref)) for name, ref in one.operands.items()}
    (found,) = bound(operator(one.operator), {**read, **one.attributes})  # type: ignore[arg-type]
    assert found is not None
    return float(found.radius.reshape(-1)[PLACE])


@dataclass
class Counting(DisputeJudge):
    """A judge that notes how many elements it looked at each time."""

    judged: list[int] = field(default_factory=list)

    def ruling(self, opened: OpenedDispute, element: Element | None, nonce: str | None = None) -> Ruling:
        found = super().ruling(opened, element, nonce)
        self.judged.append(found.work.judged)
        return found


class Accuser:
    """Contests the operator of every claim."""

    def unseen(self, claim: PostedClaim, statement: Path) -> tuple[str, ...]:
        return ()

    def doubt(self, claim: PostedClaim, statement: Path) -> Doubt:
        return Doubt(0, 1, "I say so")

    def choose(self, answered: DisputeView, children: Sequence[tuple[int, int]]) -> int | Ground:
        raise AssertionError("one leaf needs no choice")


Naming = Callable[[DisputeView], tuple[int, int] | None]


@dataclass
class DisputeSetup:
    """All parties of a dispute over one claim; judges of committees and the referee count what they look at."""

    folder: Path
    claim: Path
    naming: Naming | None
    has_referee: bool
    pleads: DisputeJudge | None = None
    judges: list[Counting] = field(default_factory=list)
    coordinator: InMemoryCoordinator = field(init=False)

    def __post_init__(self) -> None:
        self.coordinator = InMemoryCoordinator(
            rules(referee=REFEREE if self.has_referee else None, committee=3, appeals=0)
        )

    def play(self) -> Fault | None:
        """The dispute, to its end."""
        game, offer = InMemoryGame(self.folder, self.coordinator), offer_of(self.claim)
        trace, doubter = trace_of(statement_at(self.claim), self.folder / "work"), Accuser()
        prover = game.player("9" * 64, lambda *at: programs.prover(*at, lambda _: trace, offer))
        accuser = game.player(
            CHALLENGER, lambda *at: programs.challenger(*at, lambda _: doubter, self.pleads, naming=self.naming)
        )
        judges = [self._judge(game)] if self.has_referee else [self._member(game, name) for name in MEMBERS[:3]]
        keeper = DueMoves(everybody=True, nonce=lambda: NONCE)
        play_out([prover, accuser, *judges, game.player(BEACON, lambda *_: (keeper,))], self.coordinator.clock.advance)
        game.leave()
        return self.coordinator.state.disputes[0].fault

    @property
    def named(self) -> list[tuple[int, int]]:
        """What the challenger named, in order."""
        moves = [entry.move for entry in self.coordinator.entries]
        return [(move.result, move.element) for move in moves if isinstance(move, Pinpoint)]

    @property
    def judged(self) -> set[int]:
        """How many elements were looked at by each judge."""
        return {count for judge in self.judges for count in judge.judged}

    def _own(self) -> Counting:
        self.judges.append(Counting())
        return self.judges[-1]

    def _judge(self, game: InMemoryGame) -> Player:
        own = self._own()
        return game.player(REFEREE, lambda cache, _: programs.referee(cache, own, own.is_large))

    def _member(self, game: InMemoryGame, name: str) -> Player:
        own = self._own()
        return game.player(name, lambda cache, work: programs.member(cache, work, own))


def test_o01_a_wrong_element_is_named_once_and_the_referee_looks_at_nothing_else(
    tmp_path: Path, claims: Claims
) -> None:
    setup = DisputeSetup(tmp_path, claims.wrong, DisputeJudge().worst, has_referee=True, pleads=DisputeJudge())
    assert setup.play() is Fault.PROVER
    assert setup.named == [(0, PLACE)]
    assert setup.judged == {1}


def test_o01_a_committee_looks_at_it_besides_what_the_nonce_draws(tmp_path: Path, claims: Claims) -> None:
    setup = DisputeSetup(tmp_path / "named", claims.wrong, DisputeJudge().worst, has_referee=False)
    assert setup.play() is Fault.PROVER
    (drawn_and_named,) = setup.judged
    blind = DisputeSetup(tmp_path / "blind", claims.wrong, None, has_referee=False)
    assert blind.play() is Fault.CHALLENGER, "this nonce misses it"
    assert blind.judged == {drawn_and_named - 1}
    assert drawn_and_named < CHANNELS * SIDE * SIDE // 32


@pytest.mark.parametrize("has_referee", [True, False], ids=["referee", "committee"])
def test_o01_twin_an_honest_operator_stands_whatever_is_named(
    tmp_path: Path, claims: Claims, has_referee: bool
) -> None:
    for number, named in enumerate([(0, PLACE), (0, CHANNELS * SIDE * SIDE), (1, 0)]):
        setup = DisputeSetup(tmp_path / str(number), claims.honest, lambda _, at=named: at, has_referee)
        assert setup.play() is Fault.CHALLENGER
        assert setup.coordinator.state.claims[0].status == "final"
        assert setup.named == [named]
        assert max(setup.judged) <= (1 if has_referee else 1025)


def test_o01_twin_an_honest_challenger_has_nothing_to_name(tmp_path: Path, claims: Claims) -> None:
    setup = DisputeSetup(tmp_path, claims.honest, DisputeJudge().worst, has_referee=True)
    assert setup.play() is Fault.CHALLENGER
    assert setup.named == []
    assert setup.judged == {CHANNELS * SIDE * SIDE}, "the referee looked for itself, when half of its window was over"
    ruled = next(entry for entry in setup.coordinator.entries if entry.move.kind == "rule")
    revealed = next(entry for entry in setup.coordinator.entries if entry.move.kind == "reveal")
    assert 2 * (ruled.time - revealed.time) >= setup.coordinator.rules.referee_window


def test_a_judge_that_computes_the_whole_anyway_has_nothing_named(tmp_path: Path, claims: Claims) -> None:
    """Naming would cost a move, and tell nobody anything."""
    large = DisputeJudge(limits=LeafLimits(whole_flops=1 << 30))
    setup = DisputeSetup(tmp_path, claims.wrong, large.worst, has_referee=True)
    assert setup.play() is Fault.PROVER
    assert setup.named == []
