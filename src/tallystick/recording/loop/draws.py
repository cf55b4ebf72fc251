"""The random numbers of a recorded training: from a seed, or from PyTorch's generator.

With a seed, each step draws from a stream that follows from it. Without one, dropout draws from PyTorch's generator as
it does without the recorder, and the run holds the state of the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from tallystick.core.errors import UsageError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.randomness import ExplicitRandomness, SeededForward, live_state, seed_tensor
from tallystick.engines.torch.watching.operator_log import OperatorLog
from tallystick.formats.data.step_program import step_key
from tallystick.programs.graph import Graph
from tallystick.programs.operators.tally.generator import NATIVE, words_of as generator_words
from tallystick.programs.random_words import BLOCK, GOES_ON, SKIPPED_MAX, WORDS_PER_BLOCK, State, distance, seeded
from tallystick.programs.step_names import GENERATOR, GENERATOR_MOVE
from tallystick.recording.loop.watchers import StepSeen, Watcher

Move: TypeAlias = npt.NDArray[np.int64]
"""I64 [2]: a seed or -1, and how many words are skipped from there."""
STAYS: Final[Move] = np.asarray((GOES_ON, 0))
SEED_MAX: Final = 2**53 - 1
SEARCHED: Final = 1 << 26
"""How many words from the last step on are searched for the state in which the next one begins."""
LOST_MAX: Final = 3
"""After so many steps that begin in an unknown state no later one is searched for."""
DRAWS: Final = frozenset({"tally.philox_uniform", "tally.dropout_mask"})
OTHER_DRAW: Final = (
    "{} draws random numbers that do not follow from the seed; dropout, `torch.rand`, `uniform_` and `bernoulli_` do"
)
OTHER_STATE: Final = (
    "step {} begins with a state of PyTorch's generator that is no {:,} words behind the last step or behind a seed "
    "(`torch.set_rng_state`, or longer draws); call torch.manual_seed instead, or give the recorder a seed (`seed=1`)"
)
OTHER_NATIVE: Final = (
    "random numbers are drawn between the forward passes of this step, or others than in the captured one: draw them "
    "before the step, or give the recorder a seed (`seed=1`)"
)
OTHER_COUNT: Final = (
    "{} random words were drawn in this step, and {} in the captured one: the model ran in training mode outside of "
    "the step (call model.eval() before that and model.train() after it), or not all of it ran"
)


def require_seed(seed: int | None, who: str) -> int | None:
    """The seed of a run; raises `UsageError` naming `who` unless it is a number that a spec can state."""
    if seed is not None and not (isinstance(seed, int) and 0 <= seed <= SEED_MAX):
        raise UsageError(f"{who}: a seed is a whole number from 0 to 2**53 - 1, not {seed!r:.40}")
    return seed


def words_of(graph: Graph) -> int:
    """How many random words a step draws from the stream of a seed by its graph: up to the end of its last draw."""
    nodes = (node for node in graph.nodes if node.operator in DRAWS)
    ends = [int(str(node.attributes["offset"])) + (node.results[0].size if node.results[0] else 0) for node in nodes]
    return -(-max(ends, default=0) // WORDS_PER_BLOCK) * WORDS_PER_BLOCK


def native_words_of(graph: Graph) -> int:
    """How many words a step draws from PyTorch's generator by its graph, modulo the words of a block."""
    masks = (node.results[0] for node in graph.nodes if node.operator in NATIVE)
    kind = next((node.operator for node in graph.nodes if node.operator in NATIVE), "")
    return sum(generator_words(kind, mask.shape, mask.dtype) for mask in masks if mask is not None) % BLOCK


def draws_natively(graph: Graph) -> bool:
    """Whether a step graph draws from PyTorch's generator."""
    return any(each.name == GENERATOR for each in graph.inputs)


class Draws(Watcher):
    """Gives each step of somebody else's loop the stream of its seed; without a seed, follows PyTorch's generator.

    `state` is that of the generator after the last step, and `before` that before it. Before the first step it is that
    of the seed, if the generator came from there. `move` says how the generator was moved from there until the step
    began: to another seed, or -1, and by how many words that no step drew.
    """

    def __init__(
        self, model: torch.nn.Module, seed: int | None, contain_errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._model, self._seed, self._forward = model, seed, SeededForward(model, contain_errors)
        if seed is None:
            origin, live = seeded(torch.initial_seed()), live_state()
            drawn = distance(origin, live, SKIPPED_MAX)
            self.before = self.state = live if drawn is None else origin
            self._drawn, self._last = drawn or 0, live
            self.move, self._lost = STAYS, 0

    def start(self, log: OperatorLog | None) -> None:
        """Hook the model; while a `log` watches the first step, it answers the draws."""
        self.answer_by(log)
        self._forward.start()

    def answer_by(self, log: OperatorLog | None) -> None:
        """Let a log that watches a step answer the draws of the model, or none."""
        self._forward.asked = None if log is None else log.draws

    def begin(self, index: int) -> None:
        """Draw from the stream of step `index`, or follow the generator through it."""
        step = _LiveStream() if self._seed is None else _StepStream(seed_tensor(step_key(self._seed, index)))
        self._forward.begin(step)

    def enter(self) -> None:
        """The model begins to run; hooks that were added inside of a hook miss that."""
        self._forward.entered(self._model)

    def end(self, step: StepSeen) -> StepSeen:
        """The step with its random words, modulo those of a block if the generator drew them, and what is wrong.

        What runs from now on draws from no stream, until the next step begins: captures run the model too.
        """
        stream, self._forward.stream = self._forward.stream, None
        if isinstance(stream, _StepStream):
            words, other = stream.offset, stream.other and OTHER_DRAW.format(stream.other)
        else:
            assert isinstance(stream, _LiveStream)
            words, other = self._follow(stream, step.index)
        return replace(step, words=words, change=step.change or (other and f"step {step.index}: {other}"))

    def close(self) -> None:
        """Let the loop draw as before."""
        self._forward.close()

    def state_of(self, graph: Graph, before: bool = False) -> dict[str, Tensor]:
        """What a state holds of PyTorch's generator after the last step, or `before` it, if `graph` draws from it."""
        is_native = self._seed is None and draws_natively(graph)
        return {GENERATOR: Tensor.of(self.before if before else self.state)} if is_native else {}

    def moves(self, graph: Graph) -> dict[str, Tensor]:
        """What the batch of the last step says of PyTorch's generator, where a graph draws from it."""
        return {GENERATOR_MOVE: Tensor.of(self.move)} if self._seed is None and draws_natively(graph) else {}

    def _follow(self, stream: _LiveStream, index: int) -> tuple[int, str]:
        """How many words a step drew, and why its draws follow from no state."""
        self.before, self.move = self.state, STAYS
        if stream.first is None or stream.last is None:  # the model did not run
            return 0, ""
        move = self._move_to(stream.first)
        self.state = self._last = stream.last
        words, self._drawn = int(stream.last[BLOCK] - stream.first[BLOCK]) % BLOCK, 0
        if move is None:
            self._lost += 1
            return words, OTHER_STATE.format(index, SEARCHED)
        self.move = move
        return words, ""

    def _move_to(self, first: State) -> Move | None:
        """How the generator came from the last step to the state in which this one begins; `None` if unknown."""
        if self._lost >= LOST_MAX:
            return None
        if (words := distance(self._last, first, SEARCHED)) is not None:
            return np.asarray((GOES_ON, self._drawn + words))
        seed = torch.initial_seed() & 0xFFFFFFFF
        words = distance(seeded(seed), first, SEARCHED)
        return None if words is None else np.asarray((seed, words))


class _StepStream(ExplicitRandomness):  # type: ignore[no-untyped-call]
    """A stream that notes a draw which cannot follow from the seed, and lets a generator make it."""

    other = ""

    def refuse(self, name: str) -> None:
        self.other = name


class _LiveStream(ExplicitRandomness):
    """Leaves all draws to PyTorch, and notes the state of its generator around those of the model."""

    def __init__(self) -> None:
        super().__init__(torch.empty(0))  # type: ignore[no-untyped-call]
        self.first: State | None = None
        self.last: State | None = None

    def __enter__(self) -> _LiveStream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def at(self, place: object) -> ExplicitRandomness:
        """PyTorch restores its generator itself for what runs a second time."""
        return _LiveStream()

    def call(self, called: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The operator as it is."""
        return called(*args, **kwargs)

    def begins(self) -> None:
        """Note the state before the first forward pass."""
        if self.first is None:
            self.first = live_state()

    def ends(self) -> None:
        """Note the state after the last one."""
        self.last = live_state()
