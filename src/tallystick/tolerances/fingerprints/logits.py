"""The logits as a layer of a fingerprint, behind the final norm: a sample of them, less its mean.

Logits are far wider than hidden states, so a fingerprint takes entries of the vocabulary that its seed draws. What is
common to all logits of a row changes no probability, and would drown the differences that do: it is taken off.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tallystick.commitments.digests import digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.philox import sample

ENTRIES_MAX: Final = 1024
Rows: TypeAlias = npt.NDArray[np.floating[Any]]


def logit_rows(logits: Rows, seed: str) -> Rows:
    """The rows of the layer from logits F32 [tokens, V] as the model gave them: F32 [tokens, sampled entries]."""
    drawn = np.take(logits, logit_entries(seed, logits.shape[1]), axis=1)
    return np.asarray(drawn - drawn.mean(axis=1, keepdims=True))


@lru_cache(maxsize=64)
def logit_entries(seed: str, vocabulary: int) -> npt.NDArray[np.int64]:
    """The sampled entries of a vocabulary, int64 [at most `ENTRIES_MAX`], ascending; all of a small vocabulary.

    The sample by Philox under the digest of `["logits", seed]`.
    """
    key = digest_bytes(digest("directions", encode(["logits", seed])))
    drawn = sample(key, vocabulary, min(vocabulary, ENTRIES_MAX))
    drawn.flags.writeable = False
    return drawn
