"""Selects elements of a result by a nonce."""

from __future__ import annotations

import numpy as np

from tallystick.commitments.digests import digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.philox import words
from tallystick.judging.operator.places import Places


def chosen_places(nonce: bytes, subject: str, size: int, count: int, named: int | None = None) -> Places:
    """At most `count` of `size` places, drawn by the words of a nonce, and the `named` one; ascending.

    If there are at most `count` elements, all are returned. Draws are with replacement, so a place drawn twice counts
    once. The key is the digest of nonce and `subject`: a prover that committed to the elements before the nonce was
    known cannot predict the places.
    """
    if size <= count:
        return np.arange(size)
    key = digest_bytes(digest("draw", encode({"nonce": nonce.hex(), "subject": subject})))
    drawn = (words(key, count) % np.uint64(size)).astype(np.int64)
    extra = [] if named is None else [named]
    return np.unique(np.concatenate([drawn, np.array(extra, np.int64)]))
