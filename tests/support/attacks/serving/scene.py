"""A provider at work: answers a batch of prompts token by token, and states what it wants to have done.

Torch is loaded by what is passed in; nothing here imports it before a scene is played.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tallystick.formats.receipt import Sampler

if TYPE_CHECKING:
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel

Choice: TypeAlias = Callable[[int, Any], Any]
"""Row number and logits [batch, vocabulary] to token ids [batch]."""


@dataclass(frozen=True)
class Scene:
    """The promised model, cheaper ones beside it, and what customers asked: prompts of one length."""

    promised: TorchLanguageModel
    smaller: TorchLanguageModel
    tuned: TorchLanguageModel
    prompts: tuple[tuple[int, ...], ...]
    samplers: tuple[Sampler, ...]
    tokens: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Served:
    """What a provider hands over: answers, hidden states [batch, tokens, width] by layer, and what it claims."""

    prompts: tuple[tuple[int, ...], ...]
    samplers: tuple[Sampler, ...]
    answers: tuple[tuple[int, ...], ...]
    hidden: Mapping[int, Any]


@dataclass
class Decoding:
    """A decode loop with a cache; each part can be replaced by a cheaper or other one."""

    model: Any
    layers: Sequence[int]
    prompts: Sequence[Sequence[int]]
    samplers: Sequence[Sampler]
    tokens: int
    after_step: Callable[[Any], None] = lambda _: None
    forced: Sequence[Sequence[int]] | None = None
    hidden: dict[int, list[Any]] = field(default_factory=dict)

    def run(self) -> tuple[tuple[int, ...], ...]:
        """The answers; `hidden` holds the rows they were chosen from, and `after_step` may change the cache."""
        import torch
        from transformers import DynamicCache

        from tallystick.engines.torch.generation.layer_tap import watching_layers

        cache, fed = DynamicCache(config=self.model.config), torch.tensor([list(each) for each in self.prompts])
        chosen: list[list[int]] = [[] for _ in self.prompts]
        with torch.inference_mode(), watching_layers(self.model, self.layers, self._keep):
            for row in range(self.tokens):
                logits = self.model(input_ids=fed, past_key_values=cache, use_cache=True).logits[:, -1].float()
                self.after_step(cache)
                fed = self._choose(row, logits, chosen)
                for answer, token in zip(chosen, fed[:, 0].tolist(), strict=True):
                    answer.append(token)
        return tuple(tuple(answer) for answer in chosen)

    def rows(self) -> dict[int, Any]:
        """The hidden states by layer, F32 [batch, tokens, width]."""
        import torch

        return {layer: torch.stack(rows, 1).float() for layer, rows in self.hidden.items()}

    def _keep(self, layer: int, states: Any) -> None:
        self.hidden.setdefault(layer, []).append(states[:, -1])

    def _choose(self, row: int, logits: Any, chosen: Sequence[Sequence[int]]) -> Any:
        import torch

        from tallystick.engines.torch.generation.sampler import TorchSampler

        if self.forced is not None:
            return torch.tensor([[answer[row]] for answer in self.forced])
        histories = [[*prompt, *answer] for prompt, answer in zip(self.prompts, chosen, strict=True)]
        return TorchSampler(self.samplers).choose(logits, [row] * len(logits), histories)[:, None]


def serve(
    scene: Scene,
    model: Any | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    samplers: Sequence[Sampler] | None = None,
    after_step: Callable[[Any], None] = lambda _: None,
    forced: Sequence[Sequence[int]] | None = None,
) -> Served:
    """Serve with whatever is given in place of the promised; the claims are always what the customers asked."""
    work = Decoding(
        model or scene.promised.model,
        scene.layers,
        prompts or scene.prompts,
        samplers or scene.samplers,
        scene.tokens,
        after_step,
        forced,
    )
    answers = work.run()
    return Served(scene.prompts, scene.samplers, answers, work.rows())
