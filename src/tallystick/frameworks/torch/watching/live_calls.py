"""Selects the calls of a watched step that a tensor depends on, and finds equal values among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from tallystick.frameworks.torch.watching.calls import LoopCall, Place, mapped, places
from tallystick.frameworks.torch.watching.operator_log import Seen

COPIES: Final = frozenset(
    f"aten.{name}.default" for name in ("alias", "clone", "detach", "lift_fresh", "lift_fresh_copy", "_to_copy")
)
"""Operators whose result has the values of the operand, where the dtype is the same."""


def live_calls(
    calls: Sequence[LoopCall], seen: Sequence[Seen], root: int, buffers: Set[int], given: Set[int], span: range
) -> list[LoopCall]:
    """The calls before the end of `span` on which tensor `root` depends, in their order.

    A call that writes to the storage of a tensor that is read later is one of them, and so is every write in `span` to
    a storage of `buffers`, which the step leaves behind; what a buffer was before `span` is an input. Nothing before
    the tensors `given` is needed: they are inputs too.
    """
    needed, storages, found = {root}, set[int](), list[LoopCall]()
    for index in reversed(range(span.stop)):
        call = calls[index]
        results = {place.number for place in places(call.results)} - given
        left = storages | buffers if index in span else storages - buffers
        is_next_word = call.is_seeded and index in span  # a draw that nothing reads moves the stream too
        if results & needed or call.written & left or is_next_word:
            found.append(call)
            read = {place.number for place in call.operands} - given
            needed |= read
            storages |= {seen[number].storage for number in read}
    return found[::-1]


def sources_of(calls: Iterable[LoopCall], root: int) -> list[int]:
    """The tensors that calls read and none of them creates, in the order of reading."""
    made, found = set[int](), dict[int, None]()
    for call in calls:
        read = [place.number for place in call.operands]
        found |= dict.fromkeys(number for number in read if number not in made)
        made |= {place.number for place in places(call.results)} - found.keys()
    return [*found] if root in made or root in found else [*found, root]


@dataclass(frozen=True)
class EqualValues:
    """Which tensors of a watched step hold equal values, because the same operator was called on equal values.

    A storage that is written to in the step equals no other, nor does one that is not filled yet.
    """

    calls: Sequence[LoopCall]
    seen: Sequence[Seen]
    _first: dict[Any, int] = field(default_factory=dict)

    def first(self, number: int) -> int:
        """The first tensor that holds the value of tensor `number`."""
        return self._canonical.get(number, number)

    def same_as(self, number: int) -> set[int]:
        """The tensors of which tensor `number` is a copy, itself included, each as its first."""
        found = {self.first(number)}
        while (source := self._copied.get(number)) is not None and self.first(source) not in found:
            number = source
            found.add(self.first(number))
        return found

    @cached_property
    def _canonical(self) -> dict[int, int]:
        written = frozenset[int]().union(*(call.written for call in self.calls))
        first, canonical = dict[Any, int](), dict[int, int]()
        for call in self.calls:
            results = [place.number for place in places(call.results)]
            if (
                call.is_random
                or "empty" in call.name
                or not results
                or any(self.seen[number].storage in written for number in results)
            ):
                continue
            key = _key(call, canonical)
            for index, number in enumerate(results):
                canonical.setdefault(number, first.setdefault((key, index), number))
        return canonical

    @cached_property
    def _copied(self) -> Mapping[int, int]:
        """The operand of each copy by its result."""
        found = dict[int, int]()
        for call in self.calls:
            if call.name in COPIES:
                (made, *_), (read, *_) = list(places(call.results)), list(call.operands)
                if self.seen[made.number].dtype == self.seen[read.number].dtype and made.number != read.number:
                    found[made.number] = read.number
        return found


def _key(call: LoopCall, canonical: Mapping[int, int]) -> Any:
    def named(place: Place) -> str:
        return f"tensor {canonical.get(place.number, place.number)} after {place.writes} writes"

    return repr((call.name, mapped((call.args, dict(call.kwargs)), Place, named)))
