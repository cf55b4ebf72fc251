"""The summaries of a state that a recipe asks for, computed from a live model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from tallystick.commitments.digests import Digest
from tallystick.tensors.digest import state_digest
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.bucket import Bucket
from tallystick.transcripts.recipe import RecordRecipe
from tallystick.transcripts.summary import BucketSummary, StateSummary

if TYPE_CHECKING:
    from tallystick.frameworks.torch.training.sketch import Sketcher

Keep = Callable[[bytes], Digest]
"""Stores boundary hints and returns their digest."""


class Summariser:
    """Summarises the states of one model as its recipe asks."""

    def __init__(
        self,
        recorded: RecordRecipe,
        projection_seed: bytes,
        weights: Mapping[str, torch.Tensor],
        state: Callable[[], Mapping[str, Tensor]],
        keep: Keep,
    ) -> None:
        self._recorded = recorded
        self._weights = weights
        self._state = state
        self._keep = keep
        self._sketcher: Sketcher | None = None
        if "projection" in recorded.summaries:
            from tallystick.frameworks.torch.training.sketch import Sketcher
            from tallystick.tolerances.projection import Projection

            self._sketcher = Sketcher(Projection(projection_seed, recorded.projection_width), weights)

    def after_step(self, index: int, sketch: str | None = None) -> StateSummary:
        """The summaries due after step `index`; the weights are not read where their `sketch` is known."""
        wanted, recorded = self._recorded.summaries, self._recorded
        exact = "exact" in wanted and index % recorded.exact_stride == 0
        bucketed = "bucket" in wanted and index % recorded.bucket_stride == 0
        buckets = self._buckets() if bucketed else {}
        return StateSummary(
            exact=state_digest(self._state()) if exact else None,
            projection=sketch or self.projection(),
            fp16_rne=buckets.get("fp16_rne"),
            grid=buckets.get("grid"),
        )

    def at_anchor(self) -> StateSummary:
        """The summaries stored with an anchor: always its buckets, and the projection if steps record one."""
        sketch, buckets = self.projection(), self._buckets()
        return StateSummary(projection=sketch, fp16_rne=buckets.get("fp16_rne"), grid=buckets.get("grid"))

    def projection(self) -> str | None:
        """The sketch of the current weights; None if the recipe records none."""
        return None if self._sketcher is None else self._sketcher.sketch()

    def _buckets(self) -> dict[str, BucketSummary]:
        weights = {name: value.detach().float().cpu().numpy() for name, value in self._weights.items()}
        return {mode: self._bucket(bucket, weights) for mode, bucket in buckets_of(self._recorded).items()}

    def _bucket(self, bucket: Bucket, weights: Mapping[str, np.ndarray]) -> BucketSummary:
        claim = bucket.claim(weights)
        return BucketSummary(digest=claim.digest, hints=self._keep(claim.hints) if claim.hints else None)


def buckets_of(recorded: RecordRecipe) -> dict[str, Bucket]:
    """The bucket tolerances of a recipe, by mode."""
    return {mode: Bucket(mode, recorded.grid_eps, recorded.hint_margin) for mode in recorded.bucket_modes}
