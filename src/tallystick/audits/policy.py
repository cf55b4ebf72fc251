"""The verifier's policy, and the steps that a nonce chooses under it."""

from __future__ import annotations

import math
import secrets
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from tallystick.audits.limits import Calibration
from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, digest, digest_bytes
from tallystick.core.documents import DigestText, Document, Positive, read_settings
from tallystick.core.errors import UsageError
from tallystick.programs.random_words import sample
from tallystick.verdicts.registry import require_tolerance

# The verifier's policy: what is sampled, what is allowed, and how much work is spent.
#
# Nothing in a run directory changes a policy, whatever tolerance a claim asks for.

Share = Annotated[float, Field(ge=0.0, le=1.0)]


def _read_calibration(value: Any) -> Calibration | None:
    """The verifier's own limits; their form is loaded where a policy brings some."""
    if value is None:
        return None

    return value if isinstance(value, Calibration) else Calibration.from_json(value, "calibration")


CalibrationField = Annotated[Any, PlainValidator(_read_calibration)]


class Policy(Document):
    """What one verifier asks of a run.

    `tolerance` names what a tolerant audit compares opened states by (`verdicts.registry`) in place of the calibrated
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

            require_tolerance(self.tolerance)
        return self


def read_policy(path: Path) -> Policy:
    """Read a policy from TOML or JSON; raises `MalformedError` naming the field."""
    return read_settings(path, Policy)


# Chooses the steps of an audit from a nonce drawn after the claim; with the nonce anybody can repeat the choice.

NONCE_BYTES = 32


def draw_nonce() -> bytes:
    """32 random bytes from the operating system."""
    return secrets.token_bytes(NONCE_BYTES)


def parse_nonce(text: str) -> bytes:
    """A nonce of 32 bytes in hexadecimal; raises `UsageError`."""
    try:
        nonce = bytes.fromhex(text)
    except ValueError:
        raise UsageError("--nonce: 64 hexadecimal digits are needed") from None
    if len(nonce) != NONCE_BYTES:
        raise UsageError(f"--nonce: {NONCE_BYTES} bytes are needed, not {len(nonce)}")
    return nonce


def sample_steps(nonce: bytes, claim: Digest, steps: int, count: int) -> tuple[int, ...]:
    """`count` distinct steps of 1…`steps`, uniformly distributed to anyone without the nonce."""
    key = digest("sample", encode({"claim": str(claim), "nonce": nonce.hex()}))
    return tuple(int(position) + 1 for position in sample(digest_bytes(key), steps, min(count, steps)))


@dataclass(frozen=True, order=True)
class Segment:
    """Steps `start + 1` … `end`, replayed from the anchor of state `start`."""

    start: int
    end: int
    reaches_anchor: bool

    @property
    def steps(self) -> int:
        """How many steps a replay takes."""
        return self.end - self.start


@dataclass(frozen=True)
class Selection:
    """The segments to replay for a sample, and the sampled steps out of reach of the window."""

    sampled: tuple[int, ...]
    segments: tuple[Segment, ...]
    out_of_reach: tuple[int, ...]

    @property
    def ends(self) -> frozenset[int]:
        """The anchors at which segments end."""
        return frozenset(segment.end for segment in self.segments if segment.reaches_anchor)

    @property
    def marks(self) -> frozenset[int]:
        """The anchors that a replay of the segments needs."""
        return self.ends | {segment.start for segment in self.segments}


NOTHING_SELECTED: Final = Selection((), (), ())


@dataclass(frozen=True)
class AuditPlan:
    """What an audit replays of a run: what the policy and a nonce selected, or a caller did, without a nonce.

    `ends` are anchors that are read though no segment needs them; `begins` is the first anchor of a segment that is
    judged alone, and 0 for a run.
    """

    policy: Policy
    selection: Selection = NOTHING_SELECTED
    nonce: bytes = b""
    ends: frozenset[int] = frozenset()
    begins: int = 0


def select_segments(sampled: Iterable[int], anchors: Iterable[int], window: int) -> Selection:
    """The shortest replays that cover the sampled steps.

    A replay goes on to the next anchor where the window allows it, because the whole state is compared only there.
    """
    marks, chosen = sorted(anchors), tuple(sampled)
    ends: dict[int, Segment] = {}
    for step in chosen:
        place = bisect_left(marks, step)
        if place == 0:
            continue
        start, end = marks[place - 1], marks[place] if place < len(marks) else None
        if end is not None and end - start <= window:
            ends[start] = Segment(start, end, True)
        elif step - start <= window:
            earlier = ends.get(start)
            ends[start] = Segment(start, max(step, earlier.end if earlier else 0), False)
    lost = tuple(s for s in chosen if not any(e.start < s <= e.end for e in ends.values()))
    return Selection(chosen, tuple(sorted(ends.values())), lost)


def unreachable_share(anchors: Iterable[int], steps: int, window: int) -> float:
    """The share of steps that no audit with this window can replay."""
    marks = sorted(anchors)
    gaps = [b - a for a, b in pairwise(marks)]
    return sum(max(0, gap - window) for gap in gaps) / steps if steps else 0.0


def detection_probability(steps: int, sampled: int, bad_share: float) -> float:
    """Chance that a sample without replacement holds a bad step: 1 − C(n−b, k)/C(n, k)."""
    bad = math.ceil(bad_share * steps)
    missed = math.prod(max(0, steps - bad - drawn) / (steps - drawn) for drawn in range(min(sampled, steps)))
    return 1.0 - missed
