"""The order of samples: every batch follows from (step, data root, seed) alone, on every machine.

See `spec/order.md`; its vectors stand in `vectors/order/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tallystick.commitments.digests import Digest, digest, digest_bytes
from tallystick.commitments.encoding import Json, encode
from tallystick.commitments.philox import permutation
from tallystick.errors import MalformedError

Indices = NDArray[np.int64]
Purpose = Literal["split", "epoch"]
SEED_MAX = 2**53 - 1


@dataclass(frozen=True)
class BatchPlan:
    """Which samples are kept for validation, and which ones every step trains on.

    One permutation of all `count` samples is drawn; its first `validation_count` are validation. The others
    are shuffled anew for every epoch, and batches flow over the end of one epoch into the next.
    """

    data_root: Digest
    seed: int
    count: int
    validation_count: int
    batch: int

    def __post_init__(self) -> None:
        if not 0 <= self.validation_count < self.count:
            raise MalformedError(
                f"{self.validation_count} of {self.count} samples for validation leave none to train on"
            )
        if self.batch < 1 or not 0 <= self.seed <= SEED_MAX:
            raise MalformedError(f"a batch of {self.batch} samples with seed {self.seed}: one of them is out of range")

    @property
    def train_count(self) -> int:
        """The number of samples that are trained on: one epoch."""
        return self.count - self.validation_count

    @property
    def validation(self) -> Indices:
        """The samples kept for validation, sorted."""
        return self._split[0]

    @property
    def train(self) -> Indices:
        """The samples that are trained on, sorted."""
        return self._split[1]

    def indices(self, step: int) -> Indices:
        """The samples of `step`, int64[batch]; the first step is 1."""
        assert step >= 1
        places = np.arange((step - 1) * self.batch, step * self.batch)
        epochs, positions = np.divmod(places, self.train_count)
        parts = [epoch_order(self, int(epoch))[positions[epochs == epoch]] for epoch in np.unique(epochs)]
        return np.concatenate(parts)

    def epoch(self, step: int) -> int:
        """The epoch, counted from 0, of the first sample of `step`."""
        return (step - 1) * self.batch // self.train_count

    def key(self, purpose: Purpose, epoch: int = 0) -> bytes:
        """The 32 bytes that key one permutation."""
        named: Json = {"data_root": self.data_root, "epoch": epoch, "purpose": purpose, "seed": self.seed}
        return digest_bytes(digest("permutation", encode(named)))

    @cached_property
    def _split(self) -> tuple[Indices, Indices]:
        split = permutation(self.key("split"), self.count)
        parts = split[: self.validation_count].copy(), split[self.validation_count :]
        for part in parts:
            part.sort()
        return parts


@lru_cache(maxsize=2)
def epoch_order(plan: BatchPlan, epoch: int) -> Indices:
    """The training samples in the order of `epoch`, int64[train_count], read-only."""
    order = plan.train[permutation(plan.key("epoch", epoch), plan.train_count)]
    order.setflags(write=False)
    return order
