"""Records hidden states of a language model while it generates, and returns the rows of each answer afterwards.

A hook appends the output of a block to a list. Of hidden states nothing is copied or moved, and no kernel is launched,
before rows are requested. Of the logits, a sample of entries is copied in every pass: a whole row would take as much
memory as fifty rows of hidden states.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import nn

from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.generation.fingerprints import logit_rows
from tallystick.frameworks.torch.generation.hidden_states import decoder_blocks, final_norm
from tallystick.tolerances.fingerprints.settings import PUBLIC_SEED

AXIS: Final = 1
"""Hidden states are [batch, positions, width]."""


class LayerTap:
    """Keeps the outputs of the chosen layers in every pass inside the `with` block.

    Layer 0 is the output of the first block; the layer numbered like the count of blocks is the final norm. A pass over
    n positions gives n rows; a token is chosen from the last row of a pass. The layer behind the final norm is the
    logits: one row a pass, the last, by `seed`.

    With `fold`, the last rows of every `fold` passes are moved to host memory together, and the states of a long prompt
    are dropped. With `prompt`, the rows of the prompt are kept too.

    Raises:
        MalformedError: a layer does not exist.
        UnavailableError: the model does not consist of blocks and a final norm.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Collection[int],
        *,
        seed: str = PUBLIC_SEED,
        prompt: bool = False,
        fold: int = 0,
    ) -> None:
        self.layers = tuple(sorted(set(layers)))
        blocks = decoder_blocks(model) if self.layers else []
        self._seed, self._logits, self._first_block = seed, len(blocks) + 1, blocks[:1]
        self._places = _places(model, self.layers)
        self._keeps_prompt, self._fold_every = prompt, fold
        self._handles: list[Any] = []
        self._seen: dict[int, list[Any]] = {layer: [] for layer in self.layers}
        self._folded: dict[int, list[torch.Tensor]] = {layer: [] for layer in self.layers}
        self._lengths: list[int] = []
        self._joined: dict[tuple[int, int], Mapping[int, torch.Tensor]] = {}

    def __enter__(self) -> Self:
        self._handles += [block.register_forward_hook(self._count) for block in self._first_block]
        for layer, place in self._places.items():
            is_last = self._fold_every and layer == self.layers[-1]
            hook = self._folding_hook(layer) if is_last else self._hook(layer)
            self._handles.append(place.register_forward_hook(hook))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def passes(self) -> int:
        """The number of recorded passes."""
        return len(self._lengths)

    def clear(self) -> None:
        """Drop all recorded states."""
        for held in (*self._seen.values(), *self._folded.values(), self._lengths):
            held.clear()
        self._joined.clear()

    def take(self) -> Mapping[int, torch.Tensor]:
        """The states [batch, positions, width] of the last pass by layer, of logits one row; drops all recorded states.

        For a custom generation loop in which the rows of the batch change. Raises `UnavailableError` if no pass was
        recorded.
        """
        self._check_whole()
        if self.layers and not self.passes:
            raise UnavailableError("no pass was seen")
        last = {layer: _states(seen[-1]) for layer, seen in self._seen.items()}
        self.clear()
        return last

    def rows(self, batch_row: int, count: int, fed: int | None = None) -> Mapping[int, torch.Tensor]:
        """The rows [count, width] by layer from which the `count` tokens of an answer were chosen.

        `fed` is the number of positions of the (padded) prompt, in one pass or several; by default those of the first
        pass. Raises `UnavailableError` if too few passes were recorded.
        """
        if not self.layers:
            return {}
        lengths = self._lengths
        start = _prompt_passes(lengths, fed) - 1
        if start + count > len(lengths):
            raise UnavailableError(f"{start + count} passes were asked for, and {len(lengths)} were seen")
        return {layer: states[batch_row, :count] for layer, states in self._join(start, lengths).items()}

    def prompt_rows(self, batch_row: int, tokens: int, fed: int | None = None) -> Mapping[int, torch.Tensor]:
        """The rows [tokens − 1, width] by layer of a prompt of `tokens` tokens without the last; left-padded.

        Of the prompt no logits are kept.

        Raises `UnavailableError` unless the tap keeps prompts and the whole prompt was fed.
        """
        if not self.layers:
            return {}
        lengths = self._lengths
        passes = _prompt_passes(lengths, fed)
        total = sum(lengths[:passes])
        if not self._keeps_prompt or total < tokens:
            raise UnavailableError(f"{tokens} rows of a prompt were asked for, and not all were kept")
        layers = [layer for layer in self.layers if layer != self._logits]
        whole = {layer: torch.cat(self._passes(layer)[:passes], AXIS)[batch_row].detach() for layer in layers}
        return {layer: states[total - tokens : total - 1] for layer, states in whole.items()}

    def _join(self, start: int, lengths: list[int]) -> Mapping[int, torch.Tensor]:
        """The last row of each pass from `start` on, [batch, passes, width] by layer; cached."""
        key = start, len(lengths)
        if key not in self._joined:
            self._check_whole()
            long = [place for place, length in enumerate(lengths[start:]) if length > 1]
            self._joined[key] = {layer: _last_rows(self._passes(layer)[start:], long) for layer in self.layers}
        return self._joined[key]

    def _passes(self, layer: int) -> list[torch.Tensor]:
        return [*self._folded[layer], *map(_states, self._seen[layer])]

    def _check_whole(self) -> None:
        if any(len(self._folded[layer]) + len(seen) != len(self._lengths) for layer, seen in self._seen.items()):
            raise UnavailableError("a pass broke off between two layers")

    def _count(self, _: nn.Module, __: Any, output: Any) -> None:
        self._lengths.append(_states(output).shape[AXIS])

    def _hook(self, layer: int) -> Any:
        seen = self._seen[layer]

        def keep(_: nn.Module, __: Any, output: Any) -> None:
            seen.append(self._sampled(output) if layer == self._logits else output)

        return keep

    def _sampled(self, output: Any) -> torch.Tensor:
        return logit_rows(_states(getattr(output, "logits", output))[:, -1:].detach(), self._seed)

    def _folding_hook(self, layer: int) -> Any:
        keep_one = self._hook(layer)

        def keep(module: nn.Module, given: Any, output: Any) -> None:
            keep_one(module, given, output)
            if len(self._seen[layer]) >= self._fold_every:
                self._fold()

        return keep

    def _fold(self) -> None:
        self._check_whole()
        for layer, seen in self._seen.items():
            kept = [_states(each).detach() for each in seen]
            self._folded[layer] += _to_host(kept if self._keeps_prompt else [each[:, -1:] for each in kept])
            seen.clear()


def _to_host(passes: list[torch.Tensor]) -> list[torch.Tensor]:
    """The passes in host memory, moved as one tensor."""
    lengths = [each.shape[AXIS] for each in passes]
    return list(torch.split(torch.cat(passes, AXIS).cpu(), lengths, AXIS))


def _prompt_passes(lengths: list[int], fed: int | None) -> int:
    """The number of passes, with `lengths` positions each, that a prompt of `fed` positions took."""
    if not lengths:
        raise UnavailableError("no pass was seen")
    seen = 0
    for number, length in enumerate(lengths, 1):
        seen += length
        if seen >= (lengths[0] if fed is None else fed):
            return number
    raise UnavailableError(f"{fed} positions of a prompt were asked for, and {seen} were seen")


def _last_rows(passes: list[torch.Tensor], long: list[int]) -> torch.Tensor:
    """The last row of every pass; the passes with indices `long` have several rows."""
    for place in long:
        passes[place] = passes[place][:, -1:]
    return torch.cat(passes, AXIS).detach()


def _states(output: Any) -> torch.Tensor:
    states: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return states


def _places(model: nn.Module, layers: Collection[int]) -> dict[int, nn.Module]:
    places = [*decoder_blocks(model), final_norm(model), model]
    wrong = [layer for layer in layers if not 0 <= layer < len(places)]
    if wrong:
        raise MalformedError(f"layers: {wrong[0]} is not from 0 to {len(places) - 1}")
    return {layer: places[layer] for layer in layers}
