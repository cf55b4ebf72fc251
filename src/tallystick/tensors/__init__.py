"""Tensors, their bytes, their digests and the files they are kept in."""

from tallystick.tensors.digest import (
    CHUNK_BYTES,
    StateDigests,
    TensorDigest,
    digest_file,
    digest_state,
    digest_tensor,
    state_digest,
    tensor_digest,
)
from tallystick.tensors.dtypes import (
    ROUNDOFF,
    bfloat16_to_float32,
    dtype_of,
    item_size,
    numpy_dtype,
    round_to_bfloat16,
    round_to_float16,
)
from tallystick.tensors.safetensors import Placement, StateFile, encode_header, read_state, write_state
from tallystick.tensors.single import read_single, write_single
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import State, Tensor

__all__ = [
    "CHUNK_BYTES",
    "ROUNDOFF",
    "Placement",
    "State",
    "StateDigests",
    "StateFile",
    "Tensor",
    "TensorDigest",
    "TensorSpec",
    "bfloat16_to_float32",
    "digest_file",
    "digest_state",
    "digest_tensor",
    "dtype_of",
    "encode_header",
    "item_size",
    "numpy_dtype",
    "read_single",
    "read_state",
    "round_to_bfloat16",
    "round_to_float16",
    "state_digest",
    "tensor_digest",
    "write_single",
    "write_state",
]
