"""The verifier's policy: what is sampled, what is allowed, and how much work is spent.

Nothing in a run directory changes a policy, whatever tolerance a claim asks for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from tallystick.documents.document import DigestText, Document, Positive
from tallystick.errors import UsageError

Share = Annotated[float, Field(ge=0.0, le=1.0)]

if TYPE_CHECKING:
    from tallystick.audits.calibration import Calibration


def _read_calibration(value: Any) -> Calibration | None:
    """The verifier's own limits; their form is loaded where a policy brings some."""
    if value is None:
        return None
    from tallystick.audits.calibration import Calibration

    return value if isinstance(value, Calibration) else Calibration.from_json(value, "calibration")


CalibrationField = Annotated[Any, PlainValidator(_read_calibration)]


class Policy(Document):
    """What one verifier asks of a run.

    `tolerance` names what a tolerant audit compares opened states by (`tolerances.registry`) in place of the calibrated
    residual. `replay` says whether a run that has both a step graph and a recipe is replayed from the graph or the
    recipe. `shards` is how many shards of a corpus are tokenized again, where the verifier has the corpus; a full audit
    takes all. `graphs` are the roots of step graphs that the verifier has read: a loop may use them beside that of its
    spec. `one_graph`, `one_rule` and `scheduled_rates` demand of a loop one graph, one rule of the optimizer, and
    learning rates that follow a schedule; without them the run is inconclusive. `outputs` is how far a model's outputs
    may lie from a replay on another stack, relative to their norm. `properties` are checked of values without a replay.

    Raises `UsageError` for a tolerance that is not known here, or that an exact audit would not ask.
    """

    mode: Literal["exact", "tolerant"] = "exact"
    tolerance: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    replay: Literal["graph", "recipe"] = "graph"
    samples: Positive = 16
    window: Positive = 64
    full: bool = False
    shards: Positive = 16
    claim: DigestText | None = None
    parameters_max: Positive = 2_000_000_000
    records_max: Positive = 100_000_000
    anchor_bytes_max: Positive = 1 << 40
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")
    calibration: CalibrationField = None
    update_floor: Share = 1e-6
    graphs: tuple[DigestText, ...] = ()
    one_graph: bool = False
    one_rule: bool = False
    scheduled_rates: bool = False
    outputs: Share | None = None
    properties: tuple[Annotated[str, Field(max_length=64)], ...] = ()

    @model_validator(mode="after")
    def _names_a_tolerance(self) -> Self:
        if self.tolerance is not None:
            if self.mode == "exact":
                raise UsageError("tolerance: an exact audit compares bytes; ask for the mode tolerant")
            from tallystick.tolerances.registry import require_tolerance

            require_tolerance(self.tolerance)
        return self


def read_policy(path: Path) -> Policy:
    """Read a policy from TOML or JSON; raises `MalformedError` naming the field."""
    from tallystick.documents.settings import read_settings

    return read_settings(path, Policy)
