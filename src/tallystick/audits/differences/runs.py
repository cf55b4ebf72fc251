"""Where two runs part: their documents, the first record, and the states that a replay of both shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tallystick.audits.differences.difference import (
    Difference,
    FieldDifference,
    ReadRun,
    StateDifference,
    differing_fields,
    first_difference,
)
from tallystick.audits.differences.operators import compare_states, diff_openings
from tallystick.audits.opening import gather_records, graph_replayer, open_operators, replay_to, source_of_step
from tallystick.core.errors import ProofError, TallyError, UnavailableError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest, tensor_digest
from tallystick.core.tensors import State
from tallystick.formats.openings import state_digest_of
from tallystick.formats.spec import CAPABILITY, SWITCHES, THREADS, THREADS_MAX, VALUE, Environment
from tallystick.formats.store.run import Anchors, RunDirectory

# The settings of this process that decide bits, and running a replay under those of a run.
#
# Threads and instruction sets are chosen when PyTorch is loaded. So a replay under other settings than this process has
# runs in a process of its own.


@dataclass(frozen=True)
class ReplaySettings:
    """Variables and threads of a process that replays; an empty variable is not set."""

    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1

    @classmethod
    def of(cls, environment: Environment) -> ReplaySettings:
        """Those that a run states, as far as this machine can take them over."""
        stated = {name: environment.variables.get(name, "") for name in SWITCHES}
        if not stated[CAPABILITY] and environment.capability in ("DEFAULT", "AVX2") and _is_x86(environment):
            stated[CAPABILITY] = environment.capability.lower()
        usable = {name: value if VALUE.fullmatch(value) else "" for name, value in stated.items()}
        if usable[CAPABILITY] not in ("default", "avx2"):  # a processor may lack what lies above
            usable[CAPABILITY] = ""
        return cls(usable, min(environment.threads, THREADS_MAX))

    def variables_here(self) -> dict[str, str]:
        """The variables of a process with these settings."""
        kept = {name: value for name, value in os.environ.items() if name not in self.variables}
        return kept | {name: value for name, value in self.variables.items() if value} | {THREADS: str(self.threads)}


def run_each(module: str, work: Sequence[tuple[ReplaySettings, Sequence[str]]]) -> None:
    """Run `module` with these arguments under these settings, all at one time, each in a process of its own.

    Raises `UnavailableError` with the last line that a process said if it failed.
    """
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module, *words],
            env=settings.variables_here(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for settings, words in work
    ]
    errors = [process.communicate()[1] for process in running]
    for process, text in zip(running, errors, strict=True):
        if process.returncode:
            lines = [line for line in text.splitlines() if line.strip()]
            raise UnavailableError(lines[-1] if lines else "a replay ended without a word")


def _is_x86(environment: Environment) -> bool:
    return environment.machine.lower() in ("x86_64", "amd64")


# Replays of two runs side by side: the states after each step, and the operators of one step.
#
#     python -m tallystick.audits.differences.runs digests RUN DEVICE START END OUT
#     python -m tallystick.audits.differences.runs state RUN DEVICE STEP OUT
#     python -m tallystick.audits.differences.runs operators RUN DEVICE STEP OUT
#
# Each run is replayed from its own anchors and graph. Runs that state the same settings are replayed in this process,
# so that they differ in nothing else; others under their own settings.

MODULE: Final = "tallystick.audits.differences.runs"
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
    digests = {}
    for step in range(int(start) + 1, int(end) + 1):
        replayer.step(step)
        digests[step] = {name: str(tensor_digest(tensor)) for name, tensor in replayer.state().items()}
    Path(out).write_text(json.dumps(digests))


def _state(run: RunDirectory, device: str, step: str, out: str) -> None:
    evidence = gather_records(run)
    replayer = graph_replayer(evidence, device)
    replay_to(evidence, replayer, int(step))
    write_state(Path(out), replayer.state(), durable=False)


def _operators(run: RunDirectory, device: str, step: str, out: str) -> None:
    from tallystick.engines.torch.engine import TorchEngine

    source = source_of_step(gather_records(run), int(step), lambda evidence: graph_replayer(evidence, device))
    open_operators(source, Path(out), TorchEngine(device))


def _read_digests(file: Path) -> Digests:
    return {int(step): digests for step, digests in json.loads(file.read_text()).items()}


_TASKS: Final[Mapping[str, Callable[..., None]]] = {"digests": _digests, "state": _state, "operators": _operators}


def main() -> None:
    """One task as a process; a refusal is one line on stderr."""
    try:
        _work(sys.argv[1:])
    except TallyError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


# Where two runs part: their specs and environments, the first record, the first state, the first operator.


@dataclass(frozen=True)
class DiffRequest:
    """What a reader wants: replays between anchors on `device`, and the operator; files of replays go into `work`."""

    work: Path
    replay: bool = True
    operator: bool = False
    device: str = "cpu"


def diff_runs(first: RunDirectory, second: RunDirectory, request: DiffRequest) -> Difference:
    """How two runs differ.

    Raises:
        MalformedError: a file is invalid.
        UnavailableError: a file is missing.
    """
    return _Comparison((ReadRun(first), ReadRun(second)), request).difference()


@dataclass
class _Comparison:
    """Two runs while they are compared."""

    both: tuple[ReadRun, ReadRun]
    request: DiffRequest

    def __post_init__(self) -> None:
        first, second = (run.run for run in self.both)
        self.specs = (first.spec(), second.spec())
        self.environments = (first.environment(), second.environment())
        self.notes: list[str] = []

    def difference(self) -> Difference:
        spec = differing_fields(self.specs[0].to_json(), self.specs[1].to_json())
        records = first_difference(*self.both, same_spec=not spec)
        shared = sorted(self.both[0].anchors.keys() & self.both[1].anchors.keys())
        difference = Difference(
            names=(str(self.both[0].run.path), str(self.both[1].run.path)),
            steps=(self.both[0].steps, self.both[1].steps),
            anchors=len(shared),
            spec=spec,
            environment=_stack_fields(*self.environments),
            records=records,
            open=tuple(self._open(shared)),
        )
        parted = next((mark for mark in shared if not self._same_anchor(mark)), None)
        equal = max((mark for mark in shared if parted is None or mark < parted), default=None)
        if parted is None and records is None:
            return replace(difference, notes=tuple(self.notes))
        return self._located(difference, equal, parted)

    def _located(self, difference: Difference, equal: int | None, parted: int | None) -> Difference:
        """The first state that differs, from anchors or by replaying from the last equal one; then the operator."""
        if parted is not None:
            first, second = (self._anchor(run, parted) for run in self.both)
            difference = replace(
                difference, state=StateDifference(parted, equal, "anchors", compare_states(first, second))
            )
        end = parted if parted is not None else difference.records.step if difference.records is not None else 0
        is_narrow = equal is None or end == equal + 1
        if self.request.operator or (self.request.replay and not is_narrow):
            difference = self._replayed(difference, equal, end)
        return replace(difference, notes=tuple(self.notes))

    def _replayed(self, difference: Difference, equal: int | None, end: int) -> Difference:
        try:
            return self._traced(difference, equal, end)
        except UnavailableError as error:
            self.notes.append(f"not replayed: {error}")
            return difference

    def _traced(self, difference: Difference, equal: int | None, end: int) -> Difference:
        replays = self._replays()
        step = 1
        if equal is not None:
            digests = replays.digests(equal, end)
            self._note_reproduced(digests, end)
            parting = next((step for step in sorted(digests[0]) if digests[0][step] != digests[1][step]), None)
            if parting is None:
                self.notes.append(
                    f"replayed here from the equal state after step {equal}, both give the same states up to step "
                    f"{end}: the difference is in what computed the runs; open the step on each machine, `tally open "
                    f"RUN --step {equal + 1} --operators --out DIR`, and compare the two openings"
                )
                return difference
            step = parting
            tensors = compare_states(*replays.states(step))
            difference = replace(difference, state=StateDifference(step, step - 1, "replays", tensors))
        elif self.request.operator and replays.differ_in_settings:
            replays = replace(replays, runs=(replays.runs[0], replays.runs[0]))
            self.notes.append(
                "the states differ before step 1, so both openings start from that of "
                f"{difference.names[0]}: one under its own settings, one under those of {difference.names[1]}"
            )
        if not self.request.operator:
            return difference
        return replace(difference, operators=diff_openings(*replays.openings(step)), opened_step=step)

    def _replays(self) -> PairedReplays:

        for run, spec in zip(self.both, self.specs, strict=True):
            if spec.graph is None:
                raise UnavailableError(f"{run.run.path} has no step graph")
        runs = (self.both[0].run.path, self.both[1].run.path)
        settings = (ReplaySettings.of(self.environments[0]), ReplaySettings.of(self.environments[1]))
        return PairedReplays(runs, settings, self.request.work, self.request.device)

    def _note_reproduced(self, digests: tuple[Digests, Digests], end: int) -> None:
        """Say which run's replay does not lead to the anchor that it recorded."""
        for run, reached in zip(self.both, digests, strict=True):
            anchor = run.anchors.get(end)
            if anchor is not None and state_digest_of(reached[end]) != anchor.digest:  # type: ignore[arg-type]
                self.notes.append(
                    f"{run.run.path}: replayed here, step {end} does not end in the anchor that it recorded: it was "
                    "computed on another stack, or not as it says (`tally audit`)"
                )

    def _anchor(self, run: ReadRun, index: int) -> State:
        """The state of an anchor; a note says so where it is not the recorded one."""
        record = run.anchors[index]
        state = Anchors(run.run.path).read(index)
        if state_digest(state) != record.digest:
            self.notes.append(
                f"{run.run.path}: {record.file} does not hold the state that its record names: `tally audit`"
            )
        return state

    def _same_anchor(self, index: int) -> bool:
        return self.both[0].anchors[index].digest == self.both[1].anchors[index].digest

    def _open(self, shared: list[int]) -> list[str]:
        lines = [
            f"{run.run.path} is not finished: it ends after step {run.steps}"
            for run in self.both
            if not run.run.claim_path.is_file()
        ]
        if not shared:
            lines.append("the states: the runs have no anchor of the same step")
        return lines


def _stack_fields(first: Environment, second: Environment) -> tuple[FieldDifference, ...]:
    """The entries that decide bits, then every other field; of lists, the items that the other side lacks."""
    decisive = first.stack().keys() | second.stack().keys() | {"math_libraries", "variables"}
    fields = [_without_shared(field) for field in differing_fields(first.to_json(), second.to_json())]
    return tuple(sorted(fields, key=lambda field: {*field.name.split(".")}.isdisjoint(decisive)))


def _without_shared(field: FieldDifference) -> FieldDifference:
    mine, theirs = field.first, field.second
    if not (isinstance(mine, list) and isinstance(theirs, list)):
        return field
    only = [item for item in mine if item not in theirs], [item for item in theirs if item not in mine]
    return FieldDifference(field.name, *only)


if __name__ == "__main__":
    main()
