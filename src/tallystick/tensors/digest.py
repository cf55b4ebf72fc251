"""Tensor and state digests: Merkle roots over 1 MiB chunks, computed by all cores and partially openable."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import encode
from tallystick.commitments.tree import LEAF_PREFIX, Hash, leaf_hash, tree_root
from tallystick.tensors.tensor import State, Tensor

CHUNK_BYTES: Final = 1 << 20
GROUP_BYTES: Final = 16 << 20  # what one thread is handed at a time; with less, threads wait for each other

Release: TypeAlias = Callable[[str, int, int], None]
"""Told that the bytes from … to … of the tensor of this name will not be read again."""


@dataclass(frozen=True)
class TensorDigest:
    """The tree of one tensor: its header and the leaf hash of each chunk."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Hash, ...]

    @property
    def header(self) -> bytes:
        """Leaf 0: what the bytes mean."""
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
    """The digests of all tensors of a state, by sorted name."""

    entries: tuple[tuple[str, TensorDigest], ...]

    @cached_property
    def digest(self) -> Digest:
        """The digest that names the state."""
        return _tree_digest("state", [_entry_leaf(name, tensor.digest) for name, tensor in self.entries])


def tensor_digest(tensor: Tensor, threads: int | None = None) -> Digest:
    """The digest of one tensor."""
    return digest_tensor(tensor, threads).digest


def digest_tensor(tensor: Tensor, threads: int | None = None) -> TensorDigest:
    """The tree of one tensor."""
    return _digest_all({"": tensor}, threads)[""]


def state_digest(state: State, threads: int | None = None) -> Digest:
    """The digest of a state."""
    return digest_state(state, threads).digest


def digest_state(
    state: State,
    threads: int | None = None,
    previous: StateDigests | None = None,
    changed: Collection[str] | None = None,
) -> StateDigests:
    """The trees of all tensors of a state, by as many threads as there are cores.

    Given the `previous` digests and the names that `changed` since, the chunks of all other tensors are not
    read again; a tensor with another dtype or shape is always hashed.
    """
    known = dict(previous.entries) if previous is not None and changed is not None else {}
    kept = {
        name: known[name]
        for name, tensor in state.items()
        if name in known
        and name not in (changed or ())
        and (known[name].dtype, known[name].shape) == (tensor.dtype, tensor.shape)
    }
    fresh = {name: tensor for name, tensor in state.items() if name not in kept}
    hashed = kept | _digest_all(fresh, threads)
    return StateDigests(tuple((name, hashed[name]) for name in sorted(hashed)))


def digest_file(path: Path, threads: int | None = None) -> StateDigests:
    """The digests of a safetensors file over its mapping.

    Every chunk's pages are given back as soon as they are hashed, so that about a mebibyte a thread is
    resident, however large the file or a tensor in it.

    Raises:
        MalformedError: the file is no safetensors file.
        UnavailableError: there is no such file.
    """
    from tallystick.tensors.safetensors import StateFile  # who digests tensors in memory reads no file

    with StateFile(path) as file:
        state = {name: file.tensor(name) for name in file.names}
        return StateDigests(tuple(_digest_all(state, threads, file.release).items()))


def _keep(_name: str, _begin: int, _end: int) -> None:
    """What is in memory anyway is not given back."""


def _digest_all(state: State, threads: int | None, release: Release = _keep) -> dict[str, TensorDigest]:
    jobs = [(name, begin) for name, tensor in state.items() for begin in range(0, tensor.nbytes, GROUP_BYTES)]

    def hash_group(job: tuple[str, int]) -> list[Hash]:
        name, begin = job
        return _hash_group(name, memoryview(state[name].data).cast("B"), begin, release)

    chunks: dict[str, list[Hash]] = {name: [] for name in state}
    workers = min(threads or os.cpu_count() or 1, len(jobs)) if _is_large(state) else 1
    if workers < 2:
        for job in jobs:
            chunks[job[0]].extend(hash_group(job))
    else:
        with ThreadPoolExecutor(workers) as pool:
            for (name, _), hashes in zip(jobs, pool.map(hash_group, jobs), strict=True):
                chunks[name].extend(hashes)
    return {name: TensorDigest(tensor.dtype, tensor.shape, tuple(chunks[name])) for name, tensor in state.items()}


def _is_large(state: State) -> bool:
    """Whether there is so much to hash that it is worth starting threads."""
    return sum(tensor.nbytes for tensor in state.values()) > CHUNK_BYTES


def _hash_group(name: str, data: memoryview, begin: int, release: Release) -> list[Hash]:
    hashes = []
    for start in range(begin, min(begin + GROUP_BYTES, data.nbytes), CHUNK_BYTES):
        end = min(start + CHUNK_BYTES, data.nbytes)
        hashes.append(_hash_chunk(data[start:end]))
        release(name, start, end)
    return hashes


def _hash_chunk(chunk: memoryview) -> Hash:
    """`leaf_hash` without copying the chunk behind the prefix."""
    hasher = sha256(LEAF_PREFIX)
    hasher.update(chunk)
    return Hash(hasher.digest())


@lru_cache(maxsize=1 << 12)
def _header_leaf(dtype: str, shape: tuple[int, ...]) -> Hash:
    """Remembered, because the thousands of values of one step have a few dozen specs."""
    return leaf_hash(TensorDigest(dtype, shape, ()).header)


@lru_cache(maxsize=1 << 16)
def _entry_leaf(name: str, tensor: Digest) -> Hash:
    """Remembered, because after a change of one tensor the leaves of all others are needed again."""
    return leaf_hash(encode([name, str(tensor)]))


def _tree_digest(noun: str, leaves: Collection[Hash]) -> Digest:
    """The canonical JSON is written out: a step has thousands of values, and each needs its digest."""
    return digest(noun, b'{"root":"%s","size":%d}' % (tree_root(tuple(leaves)).hex().encode(), len(leaves)))
