"""The random numbers of a recorded training: each step draws from a stream that follows from the seed of the run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import torch

from tallystick.commitments.philox import WORDS_PER_BLOCK
from tallystick.errors import UsageError
from tallystick.frameworks.torch.philox_operators import seed_tensor
from tallystick.frameworks.torch.randomness import ExplicitRandomness
from tallystick.frameworks.torch.seeded_forward import SeededForward
from tallystick.frameworks.torch.watching.operator_log import OperatorLog
from tallystick.graphs.graph import Graph
from tallystick.workloads.draws import step_key

SEED_MAX: Final = 2**53 - 1
DRAWS: Final = frozenset({"tally.philox_uniform", "tally.dropout_mask"})
OTHER_DRAW: Final = (
    "{} draws random numbers that do not follow from the seed; dropout, `torch.rand`, `uniform_` and `bernoulli_` do"
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
    """How many random words a step draws by its graph: up to the end of its last draw."""
    nodes = (node for node in graph.nodes if node.operator in DRAWS)
    ends = [int(str(node.attributes["offset"])) + (node.results[0].size if node.results[0] else 0) for node in nodes]
    return -(-max(ends, default=0) // WORDS_PER_BLOCK) * WORDS_PER_BLOCK


class SeededDraws:
    """Gives each step of somebody else's loop its stream, and raises nothing into it."""

    def __init__(
        self, model: torch.nn.Module, seed: int, sheltered: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._seed, self.words = seed, 0
        self._forward = SeededForward(model, sheltered)

    def start(self, log: OperatorLog | None) -> None:
        """Begin with the first step; while a `log` watches it, the log answers its draws."""
        self._forward.asked = None if log is None else log.draws
        self._begin(1)
        self._forward.start()

    def watched(self) -> None:
        """Answer draws without a log from now on."""
        self._forward.asked = None

    def enter(self, model: torch.nn.Module) -> None:
        """The model begins to run; hooks that were added inside of a hook miss that."""
        self._forward.entered(model)

    def after(self, step: int) -> str:
        """Go on to the next step, and say what step number `step` drew that does not follow from the seed; else empty.

        `words` is how many random words the step drew.
        """
        stream = self._forward.stream
        assert isinstance(stream, _StepStream)
        self._begin(step + 1)
        self.words = stream.offset
        return OTHER_DRAW.format(stream.other) if stream.other else ""

    def close(self) -> None:
        """Let the loop draw from generators again."""
        self._forward.close()

    def _begin(self, step: int) -> None:
        self._forward.begin(_StepStream(seed_tensor(step_key(self._seed, step))))


class _StepStream(ExplicitRandomness):  # type: ignore[no-untyped-call]
    """A stream that notes a draw which cannot follow from the seed, and lets a generator make it."""

    other = ""

    def refuse(self, name: str) -> None:
        self.other = name
