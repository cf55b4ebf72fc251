"""How a step record describes the batch of a step that has no graph to name its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import encode
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.recorders.step_graph import as_mapping
from tallystick.tensors.digest import tensor_digest
from tallystick.transcripts.record import Batch

Examples = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor] | Sequence[int]


def describe_batch(batch: Examples) -> Batch:
    """Positions are recorded as they are, tensors by one digest over all of them."""
    if isinstance(batch, Mapping):
        return Batch(digest=_digest_of(list(as_mapping(batch).values())))
    if isinstance(batch, torch.Tensor):
        return Batch(digest=_digest_of([batch]))
    items = list(batch) if isinstance(batch, Iterable) else []  # with no graph a batch may be anything
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    if tensors:
        return Batch(digest=_digest_of(tensors))
    return Batch(indices=tuple(int(item) for item in items if isinstance(item, int)))


def _digest_of(tensors: Sequence[torch.Tensor]) -> Digest:
    return digest("batch", encode([str(tensor_digest(to_tensor(tensor))) for tensor in tensors]))
