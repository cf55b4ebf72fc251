"""The random numbers of a step: a stream that follows from the seed of a run and the number of the step alone.

See `spec/spec.md`; its vectors stand in `vectors/philox/`.
"""

from __future__ import annotations

import numpy as np

from tallystick.commitments.digests import digest, digest_bytes
from tallystick.commitments.encoding import encode
from tallystick.commitments.philox import KEY_BYTES
from tallystick.tensors.tensor import Tensor


def step_key(seed: int, step: int) -> bytes:
    """The 32 bytes that key the stream of a step, which is counted from 1."""
    return digest_bytes(digest("seed", encode({"seed": seed, "step": step})))


def step_seed(seed: int, step: int) -> Tensor:
    """The key of a step's stream as its graph reads it: I64[2], the two little-endian words."""
    return Tensor.of(np.frombuffer(step_key(seed, step)[:KEY_BYTES], "<i8"))
