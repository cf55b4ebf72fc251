"""How a contested range is cut: into `ways` children as equal as integers allow, in the order of the leaves."""

from __future__ import annotations


def bounds(low: int, high: int, ways: int) -> tuple[int, ...]:
    """The places where the children of [low, high) begin, then `high`; there are min(ways, high − low), none empty."""
    parts = min(ways, high - low)
    return tuple(low + k * (high - low) // parts for k in range(parts + 1))


def cut_places(low: int, high: int, ways: int) -> tuple[int, ...]:
    """The leaves that a partition opens: the last of each child but the last child."""
    return tuple(end - 1 for end in bounds(low, high, ways)[1:-1])


def child(low: int, high: int, ways: int, number: int) -> tuple[int, int]:
    """The range of one child."""
    ends = bounds(low, high, ways)
    return ends[number], ends[number + 1]


def rounds(size: int, ways: int) -> int:
    """The largest number of partitions needed from `size` leaves to one."""
    count = 0
    while size > 1:
        size, count = -(-size // min(ways, size)), count + 1
    return count
