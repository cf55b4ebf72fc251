"""Tensor and state digests: Merkle roots over 1 MiB chunks, hashed on all cores.

Because of the tree, one chunk can be proved without the rest of the tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

from tallystick.core.canonical_json import encode
from tallystick.core.digests import LEAF_PREFIX, Digest, Hash, digest, leaf_hash, tree_root
from tallystick.core.safetensors import StateFile
from tallystick.core.tensors import State, Tensor

CHUNK_BYTES: Final = 1 << 20
GROUP_BYTES: Final = 16 << 20  # one job of a thread; with smaller jobs threads wait for each other

Release: TypeAlias = Callable[[str, int, int], None]
"""Called with a tensor's name, begin and end when these of its bytes have been hashed: they are not read again."""


@dataclass(frozen=True)
class TensorDigest:
    """The tree of one tensor: its header and the leaf hash of each chunk."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Hash, ...]

    @property
    def header(self) -> bytes:
        """Leaf 0, canonical JSON: dtype, shape and chunk size."""
        return encode({"chunk_bytes": CHUNK_BYTES, "dtype": self.dtype, "shape": list(self.shape)})

    @property
    def leaves(self) -> tuple[Hash, ...]:
        """The leaf hashes: the header's, then the chunks'."""
        return (_header_leaf(self.dtype, self.shape), *self.chunks)

    @cached_property
    def digest(self) -> Digest:
        """The digest that names the tensor."""
        return _tree_digest("tensor", self.leaves)


@dataclass(frozen=True)
class StateDigests:
    """The digests of all tensors of a state, sorted by name."""

    entries: tuple[tuple[str, TensorDigest], ...]

    @cached_property
    def digest(self) -> Digest:
        """The digest that names the state."""
        return _tree_digest("state", [_entry_leaf(name, tensor.digest) for name, tensor in self.entries])


def tensor_digest(tensor: Tensor, threads: int | None = None) -> Digest:
    """The digest that names one tensor."""
    return digest_tensor(tensor, threads).digest


def digest_tensor(tensor: Tensor, threads: int | None = None) -> TensorDigest:
    """The tree of one tensor."""
    if 0 < tensor.nbytes <= CHUNK_BYTES:  # most values of a step: nothing is to be divided
        return TensorDigest(tensor.dtype, tensor.shape, (_hash_chunk(memoryview(tensor.data)),))
    return _digest_all({"": tensor}, threads)[""]


def state_digest(state: State, threads: int | None = None) -> Digest:
    """The digest that names a state."""
    return digest_state(state, threads).digest


def digest_state(
    state: State,
    threads: int | None = None,
    previous: StateDigests | None = None,
    changed: Collection[str] | None = None,
) -> StateDigests:
    """The trees of all tensors of a state; `threads` is the number of cores by default.

    With the `previous` digests and the names of the tensors that `changed` since, only these are hashed. A tensor whose
    dtype or shape is not the previous one is always hashed.
    """
    known = dict(previous.entries) if previous is not None and changed is not None else {}
    reused = {
        name: known[name]
        for name, tensor in state.items()
        if name in known
        and name not in (changed or ())
        and (known[name].dtype, known[name].shape) == (tensor.dtype, tensor.shape)
    }
    remaining = {name: tensor for name, tensor in state.items() if name not in reused}
    digests = reused | _digest_all(remaining, threads)
    return StateDigests(tuple((name, digests[name]) for name in sorted(digests)))


def digest_file(path: Path, threads: int | None = None) -> StateDigests:
    """The digests of all tensors in a safetensors file, which is mapped into memory.

    The pages of a chunk are released as soon as it is hashed. So about 1 MiB per thread is resident, however large
    the file or one of its tensors is.

    Raises:
        MalformedError: the file is not a safetensors file.
        UnavailableError: there is no such file.
    """
    with StateFile(path) as file:
        state = {name: file.tensor(name) for name in file.names}
        return StateDigests(tuple(_digest_all(state, threads, file.release).items()))


def _keep(_name: str, _begin: int, _end: int) -> None:
    """The `Release` for tensors that are not mapped from a file: does nothing."""


def _digest_all(state: State, threads: int | None, release: Release = _keep) -> dict[str, TensorDigest]:
    jobs = [(name, begin) for name, tensor in state.items() for begin in range(0, tensor.nbytes, GROUP_BYTES)]

    def hash_group(job: tuple[str, int]) -> list[Hash]:
        name, begin = job
        return _hash_group(name, memoryview(state[name].data).cast("B"), begin, release)

    chunks: dict[str, list[Hash]] = {name: [] for name in state}
    is_large = sum(tensor.nbytes for tensor in state.values()) > CHUNK_BYTES  # below that, starting threads costs more
    workers = min(threads or os.cpu_count() or 1, len(jobs)) if is_large else 1
    if workers < 2:
        for job in jobs:
            chunks[job[0]].extend(hash_group(job))
    else:
        with ThreadPoolExecutor(workers) as pool:
            for (name, _), hashes in zip(jobs, pool.map(hash_group, jobs), strict=True):
                chunks[name].extend(hashes)
    return {name: TensorDigest(tensor.dtype, tensor.shape, tuple(chunks[name])) for name, tensor in state.items()}


def _hash_group(name: str, data: memoryview, begin: int, release: Release) -> list[Hash]:
    hashes = []
    for start in range(begin, min(begin + GROUP_BYTES, data.nbytes), CHUNK_BYTES):
        end = min(start + CHUNK_BYTES, data.nbytes)
        hashes.append(_hash_chunk(data[start:end]))
        release(name, start, end)
    return hashes


def _hash_chunk(chunk: memoryview) -> Hash:
    """As `leaf_hash`, without a copy of the chunk."""
    hasher = sha256(LEAF_PREFIX)
    hasher.update(chunk)
    return Hash(hasher.digest())


@lru_cache(maxsize=1 << 12)
def _header_leaf(dtype: str, shape: tuple[int, ...]) -> Hash:
    """Cached: the thousands of values of one step have a few dozen specs."""
    return leaf_hash(TensorDigest(dtype, shape, ()).header)


@lru_cache(maxsize=1 << 16)
def _entry_leaf(name: str, tensor: Digest) -> Hash:
    """Cached: when one tensor of a state changes, the leaves of all others are needed again."""
    return leaf_hash(encode([name, str(tensor)]))


def _tree_digest(noun: str, leaves: Collection[Hash]) -> Digest:
    """The digest of a tree's root and size. The canonical JSON is formatted directly: a step has many values."""
    return digest(noun, b'{"root":"%s","size":%d}' % (tree_root(tuple(leaves)).hex().encode(), len(leaves)))
