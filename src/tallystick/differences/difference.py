"""What `tally diff` finds between two runs, or between two openings of one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tallystick.commitments.encoding import Json
from tallystick.differences.fields import FieldDifference
from tallystick.differences.operators import OpeningsDifference
from tallystick.differences.records import StepDifference
from tallystick.differences.tensors import TensorDifference

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
            "tensors": [each.to_json() for each in self.tensors],
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
            causes = [each.name.partition(".")[0] for each in records.fields]
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
            "environment": [each.to_json() for each in self.environment],
            "found": self.found,
            "names": list(self.names),
            "notes": list(self.notes),
            "open": list(self.open),
            "opened_step": self.opened_step,
            "operators": None if self.operators is None else self.operators.to_json(),
            "records": None if self.records is None else self.records.to_json(),
            "spec": [each.to_json() for each in self.spec],
            "state": None if self.state is None else self.state.to_json(),
            "steps": list(self.steps),
        }
