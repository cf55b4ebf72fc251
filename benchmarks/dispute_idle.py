"""What the prover's side costs while nobody disputes.

`tally prover` has posted a claim at a coordinator in a SQLite file, and looks every two seconds whether somebody
contests it; it computes nothing. Three figures: the CPU time of one look, taken in a process of its own whose looks
follow each other at once, beside a few and beside a thousand claims of others; the CPU time and memory of the real
program over some minutes, as the system counts them; and the effect on a training on the same machine, on all cores:
units of steps with the program running and with the program stopped, in random order, once more without it as the
control. The effect is judged by the wall clock, since it is another process that takes the time.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.dispute_workload import ANSWER
from benchmarks.figure import Figure, Goal
from benchmarks.measure import CLOCKS, Interval, interval, median_ratio, take_rounds, time_arm, total, total_ratio
from benchmarks.workload import SEQUENCE, VOCABULARY, training_recipe
from tallystick.core.digests import digest
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.evidence.statement import statement_at
from tallystick.disputes.evidence.traces import trace_of
from tallystick.disputes.game.moves import Post
from tallystick.disputes.game.state import DAY, Rules
from tallystick.disputes.parties import programs
from tallystick.disputes.parties.game_view import BoardCache
from tallystick.disputes.parties.player import Player, Workspace
from tallystick.disputes.parties.prover import offer_of
from tallystick.engines.torch.training.trainer import Trainer
from tallystick.formats.signing import SigningKey

GOAL = Goal(0.0)
POLL_S = 2.0
LOOKS_AN_HOUR = 3600 / POLL_S
PROGRAM = "import sys; from tallystick.tally.cli.entry import main; sys.exit(main())"
MONEY = 10**12
OTHERS = (0, 1000)


def figures(quick: bool) -> Iterator[Figure]:
    with TemporaryDirectory() as folder:
        scene = Scene.make(Path(folder))
        with prover_process(scene) as process:
            yield _program(process, 6.0 if quick else 300.0)
            yield from _beside_training(process, quick)
        for others in OTHERS[: 1 if quick else None]:
            scene.crowd(others)
            yield _looks(scene, others, 50 if quick else 1000)


@dataclass(frozen=True)
class Scene:
    """A coordinator in a file, a party's key, and a directory that it claims."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Scene:
        """Set up a coordinator whose claims stay open for a month."""
        scene = cls(folder)
        ANSWER.record(scene.run)
        key = SigningKey.generate()
        key.write(scene.key)
        treasury = SigningKey.generate().public
        with closing(
            LocalCoordinator.create(scene.database, Rules(treasury=treasury, challenge_window=30 * DAY))
        ) as place:
            place.grant(key.public, MONEY)
        return scene

    @property
    def run(self) -> Path:
        """What the prover claims."""
        return self.folder / "run"

    @property
    def key(self) -> Path:
        """The prover's key."""
        return self.folder / "prover.key"

    @property
    def database(self) -> Path:
        """The coordinator."""
        return self.folder / "coordinator.db"

    def crowd(self, count: int) -> None:
        """Let another party post `count` claims."""
        with closing(LocalCoordinator.open(self.database)) as place:
            key = SigningKey.generate()
            place.grant(key.public, MONEY)
            connection, board = place.connect(key), place.board(key)
            statement = board.put(b'{"files":{},"kind":"manifest","version":1}')
            for number in range(count):
                root = digest("blob", str(number).encode()).removeprefix("sha256:")
                bond = place.rules.prover_bond
                connection.submit(
                    Post(actor=key.public, value=bond, root=root, size=100, statement=statement, seal=root)
                )


def _looks(scene: Scene, others: int, count: int) -> Figure:
    """The CPU time of looks that follow each other at once."""
    with (
        closing(LocalCoordinator.open(scene.database)) as place,
        Workspace(scene.folder / f"work-{others}") as workspace,
    ):
        key = SigningKey.read(scene.key)
        cache = BoardCache(place.board(key), workspace.folder / "data")
        trace = trace_of(statement_at(scene.run), workspace.folder / "trace")
        roles = programs.prover(cache, workspace, lambda _: trace, offer_of(scene.run))
        player = Player(place.connect(key), workspace, roles)
        player.look()
        looks = [{"look": time_arm(player.step)} for _ in range(count)]
    rng = random.Random(31)
    each = interval(looks, lambda rounds: 1000 * total(rounds, "look", "cpu") / len(rounds), rng)
    hour = LOOKS_AN_HOUR / 1000
    details = {
        "cpu seconds an hour": Interval(each.estimate * hour, each.low * hour, each.high * hour),
        "share of one core": each.estimate * hour / 3600,
        "claims of others": others,
        "seconds between looks": POLL_S,
    }
    what = f"CPU time of one look of the prover's program, beside {others:,} claims of others"
    return Figure(f"dispute_idle: look, {others}", what, each, count, "CPU", unit="ms", details=details)


def _program(process: subprocess.Popen[bytes], seconds: float) -> Figure:
    """The CPU time of the real program over some time, by the system's count in hundredths of a second."""
    before = _cpu_seconds(process.pid)
    time.sleep(seconds)
    spent = (_cpu_seconds(process.pid) - before) * 3600 / seconds
    tick = 3600 / seconds / os.sysconf("SC_CLK_TCK")
    details = {
        "seconds watched": seconds,
        "seconds between looks": POLL_S,
        "share of one core": spent / 3600,
        "resident mib": _resident_mib(process.pid),
    }
    return Figure(
        "dispute_idle: program",
        "CPU time of `tally prover` in an hour without disputes (in brackets: one tick of the system's count)",
        Interval(spent, max(0.0, spent - tick), spent + tick),
        1,
        "CPU",
        unit="s",
        goal=GOAL,
        details=details,
    )


def _beside_training(process: subprocess.Popen[bytes], quick: bool) -> Iterator[Figure]:
    """Units of training with the program running and with it stopped; it ends as it began, running."""
    training = Steps(0.5 if quick else 2 * POLL_S)

    def beside() -> None:
        process.send_signal(signal.SIGCONT)
        training.unit()

    count, rng = (2 if quick else 24), random.Random(37)
    arms = {"alone": training.unit, "again": training.unit, "beside": beside}
    rounds = take_rounds(arms, count, rng, between=lambda: process.send_signal(signal.SIGSTOP))
    process.send_signal(signal.SIGCONT)
    for clock in reversed(CLOCKS):
        control = interval(rounds, median_ratio("again", "alone", clock), rng)
        details = {
            "ratio of sums": interval(rounds, total_ratio("beside", "alone", clock), rng),
            "alone ÷ alone": control,
            "steps of a unit": training.steps,
            "unit s": total(rounds, "alone", clock) / len(rounds),
            "threads": torch.get_num_threads(),
        }
        yield Figure(
            f"dispute_idle: training, {clock}",
            "training steps beside the prover's program ÷ without it",
            interval(rounds, median_ratio("beside", "alone", clock), rng),
            len(rounds),
            clock,
            is_void=1.0 not in control,
            details=details,
        )


class Steps:
    """A training, in units of about so many seconds."""

    def __init__(self, seconds: float) -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        self.trainer = Trainer(training_recipe(4, 256, 4), VOCABULARY)
        draw = np.random.default_rng(5)
        self.batch = {name: draw.integers(0, VOCABULARY, (4, SEQUENCE)) for name in ("inputs", "targets")}
        self.steps = 1
        self.unit()
        self.steps = max(1, round(seconds / time_arm(self.unit).wall))

    def unit(self) -> None:
        """So many steps."""
        for _ in range(self.steps):
            self.trainer.step([self.batch])


@contextmanager
def prover_process(scene: Scene) -> Iterator[subprocess.Popen[bytes]]:
    """`tally prover`, once it has posted its claim and waits."""
    words = [str(scene.run), "--coordinator", str(scene.database), "--key", str(scene.key)]
    words += ["--work", str(scene.folder / "program"), "--poll", str(POLL_S)]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, "prover", *words], stdout=subprocess.DEVNULL)
    try:
        with closing(LocalCoordinator.open(scene.database)) as place:
            while not place.state.claims:
                assert process.poll() is None, "the prover's program ended"
                time.sleep(0.2)
        time.sleep(2 * POLL_S)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()


def _cpu_seconds(pid: int) -> float:
    """What all threads of a process have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
