"""Where two runs part: their specs and environments, the first record, the first state, the first operator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.differences.difference import Difference, StateDifference
from tallystick.differences.fields import FieldDifference, differing_fields
from tallystick.differences.operators import diff_openings
from tallystick.differences.records import ReadRun, first_difference
from tallystick.differences.settings import ReplaySettings
from tallystick.differences.tensors import compare_states
from tallystick.errors import UnavailableError
from tallystick.store.anchors import Anchors
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.tensor import State
from tallystick.transcripts.environment import Environment

if TYPE_CHECKING:
    from tallystick.differences.replaying import Digests, PairedReplays


@dataclass(frozen=True)
class DiffRequest:
    """What is asked: replays between anchors on `device`, and the operator; files of replays go into `work`."""

    work: Path
    replay: bool = True
    operator: bool = False
    device: str = "cpu"


def diff_runs(first: RunDirectory, second: RunDirectory, asked: DiffRequest) -> Difference:
    """How two runs differ.

    Raises:
        MalformedError: a file is invalid.
        UnavailableError: a file is missing.
    """
    return _Comparison((ReadRun(first), ReadRun(second)), asked).difference()


@dataclass
class _Comparison:
    """Two runs while they are compared."""

    both: tuple[ReadRun, ReadRun]
    asked: DiffRequest

    def __post_init__(self) -> None:
        first, second = (each.run for each in self.both)
        self.specs = (first.spec(), second.spec())
        self.environments = (first.environment(), second.environment())
        self.notes: list[str] = []

    def difference(self) -> Difference:
        spec = differing_fields(self.specs[0].to_json(), self.specs[1].to_json())
        records = first_difference(*self.both, same_spec=not spec)
        shared = sorted(self.both[0].anchors.keys() & self.both[1].anchors.keys())
        found = Difference(
            names=(str(self.both[0].run.path), str(self.both[1].run.path)),
            steps=(self.both[0].steps, self.both[1].steps),
            anchors=len(shared),
            spec=spec,
            environment=_stack_fields(*self.environments),
            records=records,
            open=tuple(self._open(shared)),
        )
        parted = next((each for each in shared if not self._same_anchor(each)), None)
        equal = max((each for each in shared if parted is None or each < parted), default=None)
        if parted is None and records is None:
            return replace(found, notes=tuple(self.notes))
        return self._located(found, equal, parted)

    def _located(self, found: Difference, equal: int | None, parted: int | None) -> Difference:
        """The first state that differs, from anchors or by replaying from the last equal one; then the operator."""
        if parted is not None:
            first, second = (self._anchor(each, parted) for each in self.both)
            found = replace(found, state=StateDifference(parted, equal, "anchors", compare_states(first, second)))
        end = parted if parted is not None else found.records.step if found.records is not None else 0
        is_narrow = equal is None or end == equal + 1
        if self.asked.operator or (self.asked.replay and not is_narrow):
            found = self._replayed(found, equal, end)
        return replace(found, notes=tuple(self.notes))

    def _replayed(self, found: Difference, equal: int | None, end: int) -> Difference:
        try:
            return self._traced(found, equal, end)
        except UnavailableError as error:
            self.notes.append(f"not replayed: {error}")
            return found

    def _traced(self, found: Difference, equal: int | None, end: int) -> Difference:
        replays = self._replays()
        step = 1
        if equal is not None:
            digests = replays.digests(equal, end)
            self._note_reproduced(digests, end)
            parting = next((each for each in sorted(digests[0]) if digests[0][each] != digests[1][each]), None)
            if parting is None:
                self.notes.append(
                    f"replayed here from the equal state after step {equal}, both give the same states up to step "
                    f"{end}: the difference is in what computed the runs; open the step on each machine, `tally open "
                    f"RUN --step {equal + 1} --operators --out DIR`, and compare the two openings"
                )
                return found
            step = parting
            tensors = compare_states(*replays.states(step))
            found = replace(found, state=StateDifference(step, step - 1, "replays", tensors))
        elif self.asked.operator and replays.differ_in_settings:
            replays = replace(replays, runs=(replays.runs[0], replays.runs[0]))
            self.notes.append(
                f"the states differ before step 1, so both openings start from that of {found.names[0]}: one under its "
                f"own settings, one under those of {found.names[1]}"
            )
        if not self.asked.operator:
            return found
        return replace(found, operators=diff_openings(*replays.openings(step)), opened_step=step)

    def _replays(self) -> PairedReplays:
        from tallystick.differences.replaying import PairedReplays

        for each, spec in zip(self.both, self.specs, strict=True):
            if spec.graph is None:
                raise UnavailableError(f"{each.run.path} has no step graph")
        runs = (self.both[0].run.path, self.both[1].run.path)
        settings = (ReplaySettings.of(self.environments[0]), ReplaySettings.of(self.environments[1]))
        return PairedReplays(runs, settings, self.asked.work, self.asked.device)

    def _note_reproduced(self, digests: tuple[Digests, Digests], end: int) -> None:
        """Say which run's replay does not lead to the anchor that it recorded."""
        from tallystick.transcripts.opening import state_digest_of

        for each, found in zip(self.both, digests, strict=True):
            anchor = each.anchors.get(end)
            if anchor is not None and state_digest_of(found[end]) != anchor.digest:  # type: ignore[arg-type]
                self.notes.append(
                    f"{each.run.path}: replayed here, step {end} does not end in the anchor that it recorded: it was "
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
        found = [
            f"{each.run.path} is not finished: it ends after step {each.steps}"
            for each in self.both
            if not each.run.claim_path.is_file()
        ]
        if not shared:
            found.append("the states: the runs have no anchor of the same step")
        return found


def _stack_fields(first: Environment, second: Environment) -> tuple[FieldDifference, ...]:
    """The entries that decide bits, then every other field; of lists, the items that the other side lacks."""
    decisive = first.stack().keys() | second.stack().keys() | {"math_libraries", "variables"}
    found = [_without_shared(each) for each in differing_fields(first.to_json(), second.to_json())]
    return tuple(sorted(found, key=lambda each: {*each.name.split(".")}.isdisjoint(decisive)))


def _without_shared(field: FieldDifference) -> FieldDifference:
    mine, theirs = field.first, field.second
    if not (isinstance(mine, list) and isinstance(theirs, list)):
        return field
    only = [each for each in mine if each not in theirs], [each for each in theirs if each not in mine]
    return FieldDifference(field.name, *only)
