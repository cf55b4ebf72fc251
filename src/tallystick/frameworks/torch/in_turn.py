"""Several optimizers that step in turn, as one: Muon for matrices and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class InTurn(torch.optim.Optimizer):
    """Optimizers over different parameters, each of which steps once in a step of the loop.

    Groups and states are those of the optimizers, in their order. It is only read: the loop steps them itself.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(optimizers)  # nothing of `Optimizer` is set up, because no step is taken here

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all optimizers."""
        return [group for each in self.optimizers for group in each.param_groups]

    @property
    def state(self) -> dict[torch.Tensor, Any]:  # type: ignore[override]
        """What the optimizers keep, by parameter."""
        return {parameter: kept for each in self.optimizers for parameter, kept in each.state.items()}

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook` before the first of the optimizers steps."""
        taken = [0] * len(self.optimizers)

        def steps(index: int, args: Any, kwargs: Any) -> None:
            if len(set(taken)) == 1:
                hook(self, args, kwargs)
            taken[index] += 1

        return self._registered("register_step_pre_hook", steps)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Any:
        """Call `hook` when all have stepped; also where one steps again before that, which is a step too many."""
        taken = [0] * len(self.optimizers)

        def stepped(index: int, args: Any, kwargs: Any) -> None:
            taken[index] += 1
            if len(set(taken)) == 1 or taken[index] > min(taken) + 1:
                hook(self, args, kwargs)

        return self._registered("register_step_post_hook", stepped)

    def _registered(self, register: str, hook: Callable[[int, Any, Any], None]) -> Any:
        """Register a hook that is told which of the optimizers steps."""

        def told(index: int) -> Callable[..., None]:
            return lambda _optimizer, args, kwargs: hook(index, args, kwargs)

        return HookHandles([getattr(each, register)(told(index)) for index, each in enumerate(self.optimizers)])


class HookHandles:
    """The handles of one hook on several optimizers."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Remove the hook from all."""
        for each in self._handles:
            each.remove()
