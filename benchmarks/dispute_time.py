"""The time of two whole disputes on a local coordinator, by phase, beside the honest work that they are about.

One: a training by the recipe llama-tiny, with five layers, 120 steps and 1,882 operators in a step, of which one step
was taken at a wrong rate. Two: a provider's answers, computed with one layer of the model rounded to 4 bits. Prover,
challenger and referee are the programs behind `tally prover`, `tally challenger` and the coordinator's referee, in one
process and thread, at a coordinator with its board in a SQLite file; a clock that jumps stands in for waiting, so the
times are those of work, disk included. A phase is everything that a party's program does up to and with the move that
ends it. `posting` puts the whole statement at the board. `looking and contesting` is the challenger's audit of
everything that is claimed, which it makes of honest claims as well. `descending` is the prover's replay up to the
contested step, and its opening of all operators with their values.

Seconds are absolute and belong to this machine; the honest work that was claimed, on the same machine, stands beside
them. In brackets stand the least and the most over disputes with different faults.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.dispute_rounds import spread
from benchmarks.dispute_workload import ANSWER, Training
from benchmarks.figure import Figure
from benchmarks.measure import CLOCKS, Clock, Spent, time_arm
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.evidence.doubting import doubter_for
from tallystick.disputes.evidence.judging import DisputeJudge
from tallystick.disputes.game.protocols import Trace
from tallystick.disputes.game.state import Dispute, Rules
from tallystick.disputes.parties import programs
from tallystick.disputes.parties.game_view import BoardCache
from tallystick.disputes.parties.player import PartyRole, Player, Workspace
from tallystick.disputes.parties.programs import Clock as GameClock, play_out
from tallystick.disputes.parties.prover import offer_of
from tallystick.formats.signing import SigningKey
from tallystick.tally.attacks.provers import (
    forge_swapped_layer,
    forge_wrong_rate,
    swapped_layer_trace,
    wrong_rate_trace,
)
from tallystick.verdicts.verdict import Fault

PHASES = {
    "post": "posting",
    "contest": "looking and contesting",
    "descend": "descending",
    "partition": "partitions",
    "choose": "choices",
    "reveal": "revealing",
    "rule": "ruling",
    "withdraw": "taking the money out",
}
REST = "watching"
STEPS = (57, 23, 98)
WEIGHTS = tuple(f"weights.model.layers.{layer}.mlp.down_proj.weight" for layer in (4, 0, 7))
MONEY = 10_000_000


@dataclass(frozen=True)
class Scene:
    """An honest directory, and the forgers of it, each with what it answers from."""

    name: str
    honest: Path
    honestly: Spent
    forgers: Sequence[tuple[Callable[[Path, Path], None], Callable[[Path, Path], Trace]]]


def figures(quick: bool) -> Iterator[Figure]:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        for scene in [make(Path(folder), quick) for make in ((_answers,) if quick else (_answers, _training))]:
            found = [_disputed(scene.honest, Path(folder) / "dispute", *forger) for forger in scene.forgers]
            for clock in CLOCKS:
                yield _figure(scene, found, clock)


def _answers(folder: Path, quick: bool) -> Scene:
    out = folder / "answers"
    spent = time_arm(partial(ANSWER.record, out))
    forgers = [
        (partial(forge_swapped_layer, weight=weight), partial(swapped_layer_trace, weight=weight))
        for weight in WEIGHTS[: 1 if quick else None]
    ]
    return Scene(f"{ANSWER.calls} answers of a model with {ANSWER.layers} layers", out, spent, forgers)


def _training(folder: Path, _quick: bool) -> Scene:
    out, training = folder / "run", Training("llama-tiny.toml", layers=5, steps=120)
    spent = time_arm(partial(training.record, out))
    forgers = [(partial(forge_wrong_rate, step=step), partial(wrong_rate_trace, step=step)) for step in STEPS]
    return Scene(f"a training of {training.steps} steps", out, spent, forgers)


@dataclass(frozen=True)
class Played:
    """What each phase of a dispute took, how it ended, and what lies at the board."""

    spent: dict[str, Spent]
    dispute: Dispute
    moves: int
    board_bytes: int
    replayed: int
    operators: int

    @property
    def total(self) -> Spent:
        """All phases together."""
        return Spent(sum(each.cpu for each in self.spent.values()), sum(each.wall for each in self.spent.values()))


def _disputed(
    honest: Path, folder: Path, forge: Callable[[Path, Path], None], trace_of: Callable[[Path, Path], Trace]
) -> Played:
    """Forge, then claim, dispute and settle; the forging is not timed."""
    folder.mkdir()
    forge(honest, folder / "forged")
    table = Local(folder)
    trace, doubter = trace_of(folder / "forged", folder / "trace"), doubter_for()
    offer = offer_of(folder / "forged")
    table.connect("prover", lambda cache, work: programs.prover(cache, work, lambda _: trace, offer))
    table.connect("challenger", lambda cache, work: programs.challenger(cache, work, lambda _: doubter, DisputeJudge()))
    table.connect("referee", lambda cache, _: programs.referee(cache, DisputeJudge()))
    spent = table.play()
    (dispute,) = table.place.state.disputes
    assert dispute.fault is Fault.PROVER, "the forger was not convicted"
    moves, held = len(table.place.entries()), table.place.blobs.held_for(table.keys["prover"].public)
    table.close()
    shutil.rmtree(folder)
    return Played(spent, dispute, moves, held, doubter.work.replayed, doubter.work.operators)


@dataclass
class Local:
    """A local coordinator in a folder, with a timed program for each party; they play until nobody moves."""

    folder: Path
    clock: GameClock = field(default_factory=GameClock)
    players: list[Timed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keys = {name: SigningKey.generate() for name in ("prover", "challenger", "referee", "treasury")}
        rules = Rules(treasury=self.keys["treasury"].public, referee=self.keys["referee"].public)
        self.place = LocalCoordinator.create(self.folder / "coordinator.db", rules, clock=self.clock)
        self.spent: dict[str, Spent] = defaultdict(lambda: Spent(0.0, 0.0))

    def seat(self, name: str, roles: Callable[[BoardCache, Workspace], Sequence[PartyRole]]) -> None:
        """Let a party take part."""
        key = self.keys[name]
        self.place.grant(key.public, MONEY)
        workspace = Workspace(self.folder / name)
        cache = BoardCache(self.place.board(key), workspace.folder / "data")
        player = Player(self.place.connect(key), workspace, roles(cache, workspace), say=print)
        self.players.append(Timed(player, self.place, self.spent))

    def play(self) -> dict[str, Spent]:
        """Play until everything is settled and paid out; returns what each phase took."""
        play_out(self.players, self.clock.advance)  # type: ignore[arg-type]  # a player, timed
        return dict(self.spent)

    def close(self) -> None:
        """Let the folder go."""
        for each in self.players:
            each.player.workspace.close()
        with closing(self.place):
            pass


@dataclass(frozen=True)
class Timed:
    """A player whose steps are timed, each by the move that it ended with."""

    player: Player
    place: LocalCoordinator
    spent: dict[str, Spent]

    def step(self) -> bool:
        """One step of the player."""
        moved: list[bool] = []
        before = len(self.place.entries())
        took = time_arm(lambda: moved.append(self.player.step()))
        made = self.place.entries(before)
        phase = PHASES.get(made[0].move.kind, REST) if made else REST
        held = self.spent[phase]
        self.spent[phase] = Spent(held.cpu + took.cpu, held.wall + took.wall)
        return moved[0]

    def wakes(self) -> int | None:
        """When the player may have something to do."""
        return self.player.wakes()


def _figure(scene: Scene, found: Sequence[Played], clock: Clock) -> Figure:
    phases = {
        name: spread([getattr(each.spent.get(name, Spent(0.0, 0.0)), clock) for each in found])
        for name in (*PHASES.values(), REST)
    }
    dispute = found[0].dispute
    details = {
        "operators": dispute.size,
        "honest work, recording included, s": getattr(scene.honestly, clock),
        **phases,
        "moves": spread([float(each.moves) for each in found]),
        "mb at the board": spread([each.board_bytes / 1e6 for each in found]),
        "steps or calls replayed by the challenger": spread([float(each.replayed) for each in found]),
        "operators run by the challenger in choosing": spread([float(each.operators) for each in found]),
    }
    return Figure(
        f"dispute_time: {scene.name}, {clock}",
        f"claim, dispute, ruling and payment over {scene.name}",
        spread([getattr(each.total, clock) for each in found]),
        len(found),
        clock,
        unit="s",
        details=details,
    )
