"""Which elements of a result a nonce chooses."""

from __future__ import annotations

import numpy as np

from tallystick.commitments.digests import digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.philox import words
from tallystick.judging.operator.places import Places


def chosen_places(nonce: bytes, subject: str, size: int, count: int, named: int | None = None) -> Places:
    """At most `count` places of `size` elements by the words of a nonce, and the `named` one; ascending.

    All of them where there are no more. Each is drawn from all, so that one that is drawn twice counts once. The key is
    the digest of nonce and `subject`: whoever committed to the elements before the nonce was known cannot foresee them.
    """
    if size <= count:
        return np.arange(size)
    key = digest_bytes(digest("draw", encode({"nonce": nonce.hex(), "subject": subject})))
    drawn = (words(key, count) % np.uint64(size)).astype(np.int64)
    extra = [] if named is None else [named]
    return np.unique(np.concatenate([drawn, np.array(extra, np.int64)]))
