"""One architecture as it is tried: a small model, its loss, and batches of random examples by number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch
    from torch import nn

BATCH: Final = 3
LENGTH: Final = 7
VOCABULARY: Final = 64
CLASSES: Final = 10
PIXELS: Final = 8

Batch = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True)
class Example:
    """A model, its loss, batch number `i` (the inputs and `target`), and what the model is called with besides.

    `seeded`: a training step draws random numbers, which come from a seed.
    """

    model: nn.Module
    loss: Callable[[Any, Batch], torch.Tensor]
    batch: Callable[[int], dict[str, torch.Tensor]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = False

    def inputs(self, index: int) -> dict[str, torch.Tensor]:
        """A batch as a forward pass takes it."""
        return {name: value for name, value in self.batch(index).items() if name != "target"}


def generator(index: int) -> torch.Generator:
    """The random numbers of batch `index`."""
    import torch

    return torch.Generator().manual_seed(index)


def tokens(index: int) -> dict[str, torch.Tensor]:
    """I64 token ids, and those to predict."""
    import torch

    drawn = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator(index))
    return {"input_ids": drawn, "target": drawn.roll(1, 1)}


def padded_tokens(index: int) -> dict[str, torch.Tensor]:
    """The last places of some rows are padding."""
    import torch

    mask = torch.arange(LENGTH) < torch.tensor([LENGTH, LENGTH - 2, LENGTH - 3])[:, None]
    return {**tokens(index), "attention_mask": mask.long()}


def normal(index: int, *shape: int) -> torch.Tensor:
    """Normally distributed F32."""
    import torch

    return torch.randn(BATCH, *shape, generator=generator(index))


def classes(index: int) -> torch.Tensor:
    """One class per example."""
    import torch

    return torch.randint(CLASSES, (BATCH,), generator=generator(index + 100))


def called(model: Any, batch: Batch, **settings: Any) -> Any:
    """The model on all of a batch but its target."""
    return model(**{name: value for name, value in batch.items() if name != "target"}, **settings)


def loss_of_tokens(model: Any, batch: Batch) -> torch.Tensor:
    """Mean cross entropy over tokens."""
    from torch.nn import functional

    result = called(model, batch, **({"use_cache": False} if hasattr(model.config, "use_cache") else {}))
    values = result.logits if hasattr(result, "logits") else result.last_hidden_state
    return functional.cross_entropy(values.flatten(0, 1), batch["target"].flatten())


def loss_of_classes(model: Any, batch: Batch) -> torch.Tensor:
    """Mean cross entropy over examples."""
    from torch.nn import functional

    result = called(model, batch)
    return functional.cross_entropy(getattr(result, "logits", result), batch["target"])


def loss_of_samples(model: Any, batch: Batch) -> torch.Tensor:
    """Mean squared error of what is drawn."""
    from torch.nn import functional

    return functional.mse_loss(called(model, batch).sample, batch["target"])
