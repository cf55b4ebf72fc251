"""The inputs and outputs of a decode step: one token of every sequence, its place, and caches.

A cache either grows by one row at its end, or has slots, and the step writes the slot of the place. With slots the
place is one number, an input without axes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Self

from tallystick.errors import UnavailableError
from tallystick.graphs.decode_interface import CACHE, PLACES, TOKENS
from tallystick.graphs.graph import Constant, Graph, Input, Ref, Role
from tallystick.graphs.transforms.axes import StepSizes
from tallystick.graphs.transforms.known import Known
from tallystick.graphs.transforms.later import REFERENCE
from tallystick.graphs.transforms.steps import Stacked, Steps
from tallystick.tensors.spec import TensorSpec

SEEN: Final = "inputs.attention_mask"
WRITTEN: Final = "stablehlo.dynamic_update_slice"
INTEGERS: Final = frozenset({"I64", "I32"})
HELD: Final = frozenset({Role.WEIGHT, Role.BUFFER})


@dataclass(frozen=True)
class DecodeStep:
    """The sizes of a step, and the roles of its values.

    `keys` is the number of keys that a token sees in the captured step, or the number of slots. `caches` names the
    cache that each output continues, `axes` the axis along which a cache grows, or the axis that seems to hold slots.
    """

    batch: int
    past: int
    keys: int
    places: Ref | None
    caches: Mapping[str, Ref]
    axes: Mapping[Ref, int]
    sources: tuple[Input | Constant, ...]
    known: Mapping[Ref, Known]
    place: TensorSpec | None

    @classmethod
    def of(cls, graph: Graph) -> Self:
        """Read from the names of a decode graph's interface; raises `UnavailableError` naming what does not fit it."""
        inputs = {each.name: each for each in graph.inputs}
        batch = _batch(inputs.get(TOKENS))
        caches = {name.replace("inputs.", "outputs.", 1): name for name in inputs if CACHE.fullmatch(name)}
        given, specs = {each.name: each.value for each in graph.outputs}, graph.specs()
        slots = _slots(graph, caches.values())
        axes = {}
        for output, name in caches.items():
            if output not in given:
                raise UnavailableError(f"{name} does not go on as {output}")
            axes[name] = slots[name] if slots else _growing(name, inputs[name].spec, specs[given[output]])
        past = {inputs[name].spec.shape[axis] for name, axis in axes.items()}
        if len(past) != 1 or 0 in past:
            raise UnavailableError("a step reads caches of one number of places, and of at least one")
        count = past.pop()
        place = inputs[PLACES].spec if PLACES in inputs and not inputs[PLACES].spec.shape else None
        if bool(slots) != (place is not None):
            raise UnavailableError(
                f"{PLACES}: a step has one place without axes where its caches have slots, else none"
            )
        if PLACES in inputs and place is None and not _is_of_tokens(inputs[PLACES].spec, batch):
            raise UnavailableError(f"{PLACES} is {inputs[PLACES].spec}, no place of one token of each sequence")
        known = {}
        if SEEN in inputs:  # the mask of the keys of a step in which nothing is padded
            ones = REFERENCE.full(inputs[SEEN].spec.shape, 1, inputs[SEEN].spec.dtype)
            known[SEEN] = Known(ones, counted=True, sized=True)
        _check_others(graph, {TOKENS, PLACES, SEEN, *axes})
        sources = tuple(
            each for each in graph.sources if each.name not in known and (place is None or each.name != PLACES)
        )
        places = PLACES if PLACES in inputs and place is None else None
        return cls(batch, count, count if slots else count + 1, places, caches, axes, sources, known, place)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The sizes of the step."""
        return (self.batch, self.past, self.keys)

    @property
    def suspects(self) -> frozenset[int]:
        """Numbers that differ from step to step; none if caches have slots, because all steps then share one graph."""
        return frozenset() if self.place is not None else frozenset({self.past, self.keys})

    def stacked(self, marks: StepSizes, marks_sequences: bool) -> dict[Ref, Stacked]:
        """The inputs and constants, as values of all steps."""
        batch = marks.batch if marks_sequences else self.batch
        return {each.name: self._source(each, marks, batch) for each in self.sources}

    def _source(self, source: Input | Constant, marks: StepSizes, batch: int) -> Stacked:
        steps, spec = Steps(marks), source.spec
        if source.name in {TOKENS, PLACES} and isinstance(source, Input):
            rows = (batch if spec.shape[0] == self.batch else 1, marks.tokens)
            return steps.stacked(TensorSpec(spec.dtype, rows))
        if source.name not in self.axes:
            return steps.stacked(spec)
        axis = self.axes[source.name]
        sides = list(spec.shape)
        sides[axis] = marks.past
        if axis > 0 and sides[0] == self.batch:
            sides[0] = batch
        axes = tuple(marks.factors(side) for side in sides)
        return Stacked(TensorSpec(spec.dtype, tuple(sides)), axes, cache=source.name)


def _batch(tokens: Input | None) -> int:
    if tokens is None or len(tokens.spec.shape) != 2 or tokens.spec.shape[1] != 1 or not tokens.spec.shape[0]:
        raise UnavailableError(f"{TOKENS}: a step reads one token of each sequence, [B, 1]")
    return tokens.spec.shape[0]


def _is_of_tokens(spec: TensorSpec, batch: int) -> bool:
    return spec.dtype in INTEGERS and spec.shape in {(batch, 1), (1, 1)}


def _slots(graph: Graph, caches: Collection[Ref]) -> dict[Ref, int]:
    """The axes of slots if no cache grows. That the slot of the place is written is checked when nodes are followed."""
    specs, found = graph.specs(), dict[Ref, int]()
    for node in graph.nodes:
        old, new = (node.operands.get(name) for name in ("operand", "update"))
        if node.operator == WRITTEN and old in caches and isinstance(old, str) and isinstance(new, str):
            pairs = list(enumerate(zip(specs[old].shape, specs[new].shape, strict=True)))
            found[old] = next((axis for axis, (before, after) in pairs if before != after), 0)
    return found if found.keys() == set(caches) else {}


def _growing(name: str, old: TensorSpec, new: TensorSpec) -> int:
    """The one axis along which the new cache is longer by one."""
    pairs = list(zip(old.shape, new.shape, strict=False))
    longer = [axis for axis, (before, after) in enumerate(pairs) if before != after]
    if len(old.shape) != len(new.shape) or len(longer) != 1 or pairs[longer[0]][1] != pairs[longer[0]][0] + 1:
        raise UnavailableError(f"{name} is {old} and goes on as {new}: it does not grow by one row")
    return longer[0]


def _check_others(graph: Graph, names: set[Ref]) -> None:
    for each in graph.inputs:
        if each.name not in names and each.role not in HELD:
            raise UnavailableError(f"{each.name} is neither token, place, cache nor weight")
