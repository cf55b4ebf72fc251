"""What `tally diff` finds between two runs or openings: fields, records, operators; and as lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from tallystick.audits.differences.operators import OpeningsDifference, TensorDifference
from tallystick.core.canonical_json import Json
from tallystick.core.errors import MalformedError
from tallystick.formats.records import AnchorRecord, FailedRecord, StateSummary, StepRecord, read_record
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory
from tallystick.verdicts.words import printable

# The fields in which two documents differ, by their dotted names.

NOT_THERE: Final = "not there"
TEXT_SHOWN: Final = 32
LIST_SHOWN: Final = 80


@dataclass(frozen=True)
class FieldDifference:
    """One field with its two values; a value that one side lacks is "not there"."""

    name: str
    first: Json
    second: Json

    def to_json(self) -> Json:
        """As JSON values."""
        return {"field": self.name, "first": self.first, "second": self.second}

    def __str__(self) -> str:
        return f"{self.name}: {_short(self.first)} / {_short(self.second)}"


def differing_fields(first: Json, second: Json) -> tuple[FieldDifference, ...]:
    """The differing fields of two JSON values, in the order of their names; a list is one field."""
    mine, theirs = dict(_flat(first, "")), dict(_flat(second, ""))
    return tuple(
        FieldDifference(name, mine.get(name, NOT_THERE), theirs.get(name, NOT_THERE))
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name, NOT_THERE) != theirs.get(name, NOT_THERE)
    )


def _flat(value: Json, name: str) -> Iterator[tuple[str, Json]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _short(value: Json) -> str:
    if value == "":
        return "empty"
    if isinstance(value, str):
        return value if len(value) <= TEXT_SHOWN else f"{value[: TEXT_SHOWN - 1]}…"
    shown = "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)
    return shown if len(shown) <= LIST_SHOWN else f"{shown[: LIST_SHOWN - 1]}…"


# The first step whose records differ, and the anchors that two runs have in common.

CAUSES: Final = ("pre", "batch", "learning_rate", "learning_rates", "loss", "activation", "gradient_norm", "post")
"""The fields of a step record, causes before what follows from them."""


@dataclass(frozen=True)
class StepDifference:
    """The first step whose records differ: the fields that differ, in the order of `CAUSES`, and those that agree."""

    step: int
    fields: tuple[FieldDifference, ...]
    agreeing: tuple[str, ...]

    def to_json(self) -> Json:
        """As JSON values."""
        return {
            "agreeing": list(self.agreeing),
            "differing": [part.to_json() for part in self.fields],
            "step": self.step,
        }


@dataclass
class ReadRun:
    """The records of one run, as far as they were read: steps, crashed steps and anchors."""

    run: RunDirectory
    steps: int = 0
    failed: int = 0
    anchors: dict[int, AnchorRecord] = field(default_factory=dict)

    def records(self) -> Iterator[StepRecord]:
        """The step records in order; raises `MalformedError` for a line that is no record, or that is out of order."""
        for number, line in enumerate(read_lines(self.run.transcript_path), 1):
            record = read_record(line, f"{self.run.path}: transcript.jsonl: line {number}")
            if isinstance(record, AnchorRecord):
                self.anchors[record.index] = record
            elif isinstance(record, FailedRecord):
                self.failed += 1
            elif isinstance(record, StepRecord):
                if record.index != self.steps + 1:
                    raise MalformedError(f"{self.run.path}: step {record.index} follows step {self.steps}")
                self.steps = record.index
                yield record


def first_difference(first: ReadRun, second: ReadRun, same_spec: bool) -> StepDifference | None:
    """The first step whose records differ, of those that both runs have; reads both to the end.

    Projections are compared if `same_spec`: the spec is their seed.
    """
    first_differing: StepDifference | None = None
    mine, theirs = first.records(), second.records()
    for ours, others in zip(mine, theirs, strict=False):
        first_differing = first_differing or _compared(ours, others, same_spec)
    for _ in (*mine, *theirs):
        pass  # the anchors of the rest
    return first_differing


def _compared(first: StepRecord, second: StepRecord, same_spec: bool) -> StepDifference | None:
    if same_spec and first == second:
        return None
    mine, theirs = _comparable(first, second, same_spec), _comparable(second, first, same_spec)
    differing: list[FieldDifference] = []
    agreeing: list[str] = []
    for name in CAUSES:
        fields = differing_fields({name: mine.get(name)}, {name: theirs.get(name)})
        differing += fields
        if not fields and mine.get(name):
            agreeing.append(name)
    return StepDifference(first.index, tuple(differing), tuple(agreeing)) if differing else None


def _comparable(record: StepRecord, other: StepRecord, same_spec: bool) -> dict[str, Json]:
    """A record as JSON, with only those summaries that the other has too."""
    document = record.to_json()
    assert isinstance(document, dict)  # as every document
    shared = {name: _summaries(getattr(record, name), getattr(other, name), same_spec) for name in ("pre", "post")}
    return {**document, **shared}


def _summaries(mine: StateSummary, theirs: StateSummary, same_spec: bool) -> Json:
    """The digests and sketches that both sides recorded and that can be compared."""
    ours, others = _digests(mine), _digests(theirs)
    shared = (ours.keys() & others.keys()) - (set() if same_spec else {"projection"})
    return {name: ours[name] for name in sorted(shared)}


def _digests(summary: StateSummary) -> dict[str, Json]:
    buckets = {"fp16_rne": summary.fp16_rne, "grid": summary.grid}
    plain = {"exact": summary.exact, "projection": summary.projection}
    digests: dict[str, Json] = {name: str(value) for name, value in plain.items() if value is not None}
    return digests | {name: str(bucket.digest) for name, bucket in buckets.items() if bucket is not None}


# What `tally diff` finds between two runs, or between two openings of one step.

Found = Literal["equal", "different", "inconclusive"]
SAME_INPUTS = "its recorded inputs are equal, and what it gives differs"
EXIT_CODES: dict[Found, int] = {"equal": 0, "different": 1, "inconclusive": 3}


@dataclass(frozen=True)
class StateDifference:
    """The first state that is known to differ, after `step`; `equal_until` is the last known equal state, if any.

    `source` says whether both were read from anchors or replayed here.
    """

    step: int
    equal_until: int | None
    source: Literal["anchors", "replays"]
    tensors: tuple[TensorDifference, ...]

    def to_json(self) -> Json:
        """As JSON values."""
        return {
            "equal_until": self.equal_until,
            "source": self.source,
            "step": self.step,
            "tensors": [part.to_json() for part in self.tensors],
        }


@dataclass(frozen=True)
class Difference:
    """How two runs differ. `spec` and `records` decide whether they do; another environment alone does not.

    `steps` and `anchors` count what both runs have. `open` says what could not be compared although it would decide,
    `notes` what else a reader should know.
    """

    names: tuple[str, str]
    steps: tuple[int, int] = (0, 0)
    anchors: int = 0
    spec: tuple[FieldDifference, ...] = ()
    environment: tuple[FieldDifference, ...] = ()
    records: StepDifference | None = None
    state: StateDifference | None = None
    operators: OpeningsDifference | None = None
    opened_step: int | None = None
    open: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def found(self) -> Found:
        """Equal, different, or inconclusive: nothing differs, and something that would decide is open."""
        differs = self.spec or self.records or self.state or self.steps[0] != self.steps[1]
        if differs or not (self.operators is None or self.operators.is_equal):
            return "different"
        return "inconclusive" if self.open else "equal"

    @property
    def begins(self) -> str:
        """Where the difference begins, as far as it is known; empty if nothing differs."""
        if self.state is not None and self.state.step == 0:
            return "before step 1: the initial states differ"
        records, state = self.records, self.state
        if records is not None and (state is None or records.step <= state.step):
            causes = [field.name.partition(".")[0] for field in records.fields]
            inputs = [name for name in ("batch", "learning_rate", "learning_rates") if name in causes]
            what = f"it gets another {' and another '.join(inputs).replace('_', ' ')}" if inputs else SAME_INPUTS
            return f"at step {records.step}: {what}"
        if state is not None:
            first = state.step if state.equal_until is None else state.equal_until + 1
            when = f"at step {state.step}" if first == state.step else f"between step {first} and step {state.step}"
            return f"{when}: {SAME_INPUTS}"
        return ""

    @property
    def is_equal(self) -> bool:
        """Whether the two are equal in everything that was compared."""
        return self.found == "equal"

    @property
    def exit_code(self) -> int:
        """0 equal, 1 different, 3 inconclusive."""
        return EXIT_CODES[self.found]

    def to_json(self) -> dict[str, Json]:
        """As JSON values."""
        return {
            "anchors": self.anchors,
            "begins": self.begins,
            "environment": [part.to_json() for part in self.environment],
            "found": self.found,
            "names": list(self.names),
            "notes": list(self.notes),
            "open": list(self.open),
            "opened_step": self.opened_step,
            "operators": None if self.operators is None else self.operators.to_json(),
            "records": None if self.records is None else self.records.to_json(),
            "spec": [part.to_json() for part in self.spec],
            "state": None if self.state is None else self.state.to_json(),
            "steps": list(self.steps),
        }


# A difference as lines for people, causes before what follows from them.

FIELDS_SHOWN: Final = 12
TENSORS_SHOWN: Final = 3
SOURCES_SHOWN: Final = 3


def difference_lines(difference: Difference) -> list[str]:
    """What differs, where it begins, what was not compared, and notes."""
    lines = [f"{difference.found.upper()}  {difference.names[0]} / {difference.names[1]}"]
    lines += [f"begins       {difference.begins}"] * bool(difference.begins)
    lines += _fields("spec", difference.spec)
    lines += _fields("environment", difference.environment)
    if difference.operators is None or difference.opened_step is not None:
        lines += _records(difference)
    if difference.state is not None:
        lines += _state(difference.state)
    if difference.operators is not None:
        lines += _operators(difference.operators, difference.opened_step)
    lines += [f"not compared: {line}" for line in difference.open]
    notes = (*difference.notes, *(difference.operators.notes if difference.operators is not None else ()))
    lines += [f"note: {line}" for line in notes]
    return [printable(line) for line in lines]


def _fields(title: str, fields: tuple[FieldDifference, ...]) -> list[str]:
    lines = [f"{title:<12} {field}" for field in fields[:FIELDS_SHOWN]]
    if len(fields) > FIELDS_SHOWN:
        lines.append(f"{title:<12} and {len(fields) - FIELDS_SHOWN} more; --json lists all of them")
    return lines


def _records(difference: Difference) -> list[str]:
    steps = " / ".join(dict.fromkeys(map(str, difference.steps)))
    if difference.records is None:
        return [f"records      no difference in {steps} steps"]
    agreeing = f"; equal there: {', '.join(difference.records.agreeing)}" if difference.records.agreeing else ""
    lines = [f"records      the first that differs is step {difference.records.step} of {steps}{agreeing}"]
    return [*lines, *(f"             {field}" for field in difference.records.fields)]


def _state(state: StateDifference) -> list[str]:
    when = f"after step {state.step}" if state.step else "before step 1"
    known = "" if state.equal_until is None else f", equal after step {state.equal_until}" * (state.equal_until > 0)
    known = known or (", equal before step 1" if state.equal_until == 0 else "")
    how = "by replaying here" if state.source == "replays" else "in the anchors"
    count = f"{len(state.tensors)} tensor{' differs' if len(state.tensors) == 1 else 's differ'}"
    lines = [f"states       {when} {count} ({how}){known}"]
    lines += [f"             {tensor}" for tensor in state.tensors[:TENSORS_SHOWN]]
    if len(state.tensors) > TENSORS_SHOWN:
        lines.append(f"             and {len(state.tensors) - TENSORS_SHOWN} more; --json lists all of them")
    return lines


def _operators(difference: OpeningsDifference, step: int | None) -> list[str]:
    where = "" if step is None else f" of step {step}"
    lines = [f"graphs       {value}" for value in difference.graphs]
    if difference.sources:
        more = ", …" if len(difference.sources) > SOURCES_SHOWN else ""
        shown = ", ".join(difference.sources[:SOURCES_SHOWN]) + more
        count = "1 input" if len(difference.sources) == 1 else f"{len(difference.sources)} inputs"
        lines.append(f"inputs       {count}{where} with other values: {shown}")
    if difference.operator is None:
        return lines if difference.graphs else [*lines, f"operator     none{where} gives another result"]
    named = difference.operator
    does = "reads equal values and gives others" if named.departs else "is the first with another result"
    lines.append(f"operator     {named.title} {does}")
    lines += [f"             {value}" for value in named.results]
    if named.shares is not None:
        mine, theirs = (f"{value:.3g}" for value in named.shares)
        lines.append(f"             {mine} / {theirs} of its error bound away from the exact result")
    return [*lines, f"             {named.others} operators after it differ too"]
