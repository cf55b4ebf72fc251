"""How much a clock may be wrong before a trace is rejected for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TraceLimits:
    """What an audit of a trace allows.

    `resolution` and `skew` are nanoseconds: how far two times of one device, and of two devices, may be wrong.
    `unexplained` is the share of device time that no operator accounts for, up to which a trace is accepted.
    `saving` is how many times less work than its definition a kernel may do: Winograd's convolutions and causal
    attention do less. `cached` are the bytes that a kernel may find in caches. What takes `longer` times the time that
    its work needs is named, and the rest of its time counts as unexplained, but for `stall` nanoseconds a step: so long
    a busy machine may stop a process.
    """

    resolution: int = 1000
    skew: int = 100_000
    unexplained: float = 0.1
    saving: float = 4.0
    cached: int = 1 << 28
    longer: float = 100.0
    stall: int = 30_000_000


DEFAULT = TraceLimits()
