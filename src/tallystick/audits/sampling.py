"""Chooses the steps of an audit from a nonce drawn after the claim; with the nonce anybody can repeat the choice."""

from __future__ import annotations

import math
import secrets
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from tallystick.commitments.digests import Digest, digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.philox import sample
from tallystick.errors import UsageError

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
            held = ends.get(start)
            ends[start] = Segment(start, max(step, held.end if held else 0), False)
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
