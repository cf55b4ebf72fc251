"""Replays of two runs side by side: the states after each step, and the operators of one step.

    python -m tallystick.differences.replaying digests RUN DEVICE START END OUT
    python -m tallystick.differences.replaying state RUN DEVICE STEP OUT
    python -m tallystick.differences.replaying operators RUN DEVICE STEP OUT

Each run is replayed from its own anchors and graph. Runs that state the same settings are replayed in this process, so
that they differ in nothing else; others under their own settings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.differences.settings import ReplaySettings, run_each
from tallystick.disputes.evidence.gathering import gather_records
from tallystick.disputes.evidence.opening_sources import graph_replayer, replay_to, source_of_step
from tallystick.errors import ProofError, TallyError, UnavailableError
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.safetensors import read_state, write_state
from tallystick.tensors.tensor import State

MODULE: Final = "tallystick.differences.replaying"
Digests = Mapping[int, Mapping[str, str]]
"""The digest of every tensor of the state, by step."""


@dataclass(frozen=True)
class PairedReplays:
    """Two runs with the settings under which each is replayed on `device`; files go into `work`."""

    runs: tuple[Path, Path]
    settings: tuple[ReplaySettings, ReplaySettings]
    work: Path
    device: str = "cpu"

    @property
    def differ_in_settings(self) -> bool:
        """Whether the runs state other settings, so that each is replayed in a process of its own."""
        return self.settings[0] != self.settings[1]

    def digests(self, start: int, end: int) -> tuple[Digests, Digests]:
        """The states of both runs after each step from `start` + 1 to `end`; raises `UnavailableError`."""
        files = self._run("digests", [str(start), str(end)], "json")
        first, second = (_read_digests(file) for file in files)
        return first, second

    def states(self, step: int) -> tuple[State, State]:
        """The states of both runs after `step`; raises `UnavailableError`."""
        first, second = (read_state(file) for file in self._run("state", [str(step)], "safetensors"))
        return first, second

    def openings(self, step: int) -> tuple[Path, Path]:
        """The opened operators of `step` of both runs; raises `UnavailableError`."""
        return self._run("operators", [str(step)], "")

    def _run(self, what: str, words: Sequence[str], suffix: str) -> tuple[Path, Path]:
        files = tuple(self.work / f"{what}-{side}{'.' + suffix if suffix else ''}" for side in ("first", "second"))
        tasks = [[what, str(run), self.device, *words, str(file)] for run, file in zip(self.runs, files, strict=True)]
        if self.differ_in_settings:
            run_each(MODULE, list(zip(self.settings, tasks, strict=True)))
        else:
            for task in tasks:
                _work(task)
        return files[0], files[1]


def _work(words: Sequence[str]) -> None:
    """One task; raises `UnavailableError` with the run and the reason if it cannot be replayed."""
    what, run, *rest = words
    try:
        _TASKS[what](RunDirectory(Path(run)), *rest)
    except ProofError as error:
        raise UnavailableError(str(error)) from None


def _digests(run: RunDirectory, device: str, start: str, end: str, out: str) -> None:
    evidence = gather_records(run)
    replayer = graph_replayer(evidence, device)
    replayer.restore(evidence.state(int(start)))
    found = {}
    for step in range(int(start) + 1, int(end) + 1):
        replayer.step(step)
        found[step] = {name: str(tensor_digest(tensor)) for name, tensor in replayer.state().items()}
    Path(out).write_text(json.dumps(found))


def _state(run: RunDirectory, device: str, step: str, out: str) -> None:
    evidence = gather_records(run)
    replayer = graph_replayer(evidence, device)
    replay_to(evidence, replayer, int(step))
    write_state(Path(out), replayer.state(), durable=False)


def _operators(run: RunDirectory, device: str, step: str, out: str) -> None:
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.recorders.step_opening import open_operators

    source = source_of_step(gather_records(run), int(step), lambda evidence: graph_replayer(evidence, device))
    open_operators(source, Path(out), TorchEngine(device))


def _read_digests(file: Path) -> Digests:
    return {int(step): found for step, found in json.loads(file.read_text()).items()}


_TASKS: Final[Mapping[str, Callable[..., None]]] = {"digests": _digests, "state": _state, "operators": _operators}


def main() -> None:
    """One task as a process; a refusal is one line on stderr."""
    try:
        _work(sys.argv[1:])
    except TallyError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
