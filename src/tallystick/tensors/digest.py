"""Tensor and state digests: Merkle roots over 1 MiB chunks, computed by all cores and partially openable."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Final

from tallystick.commitments import Digest, Hash, digest, encode, leaf_hash, tree_root
from tallystick.commitments.tree import LEAF_PREFIX
from tallystick.tensors.safetensors import StateFile
from tallystick.tensors.tensor import State, Tensor

CHUNK_BYTES: Final = 1 << 20
GROUP_CHUNKS: Final = 16  # what one thread is handed at a time; less, and the threads wait for each other


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
        return (leaf_hash(self.header), *self.chunks)

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
        leaves = [leaf_hash(encode([name, str(tensor.digest)])) for name, tensor in self.entries]
        return _tree_digest("state", leaves)


def tensor_digest(tensor: Tensor, threads: int | None = None) -> Digest:
    """The digest of one tensor."""
    return digest_tensor(tensor, threads).digest


def digest_tensor(tensor: Tensor, threads: int | None = None) -> TensorDigest:
    """The tree of one tensor."""
    return digest_state({"": tensor}, threads).entries[0][1]


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

    Given the `previous` digests and the names that `changed` since, the chunks of all other tensors are not read
    again; a tensor with another dtype or shape is always hashed.
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
    """The digests of a safetensors file over its mapping; pages are given back as soon as they are hashed.

    Raises:
        MalformedError: the file is no safetensors file.
        UnavailableError: there is no such file.
    """
    with StateFile(path) as file:
        entries = []
        for name in file.names:
            entries.append((name, digest_tensor(file.tensor(name), threads)))
            file.release()
        return StateDigests(tuple(entries))


def _digest_all(state: State, threads: int | None) -> dict[str, TensorDigest]:
    jobs = [(name, group) for name, tensor in state.items() for group in _groups(memoryview(tensor.data))]
    chunks: dict[str, list[Hash]] = {name: [] for name in state}
    workers = threads or os.cpu_count() or 1
    if workers == 1 or len(jobs) < 2:
        hashed: Iterable[list[Hash]] = map(_hash_group, (group for _, group in jobs))
        _collect(chunks, jobs, hashed)
    else:
        with ThreadPoolExecutor(workers) as pool:
            _collect(chunks, jobs, pool.map(_hash_group, (group for _, group in jobs)))
    return {name: TensorDigest(tensor.dtype, tensor.shape, tuple(chunks[name])) for name, tensor in state.items()}


def _collect(
    chunks: dict[str, list[Hash]], jobs: list[tuple[str, memoryview]], hashed: Iterable[list[Hash]]
) -> None:
    for (name, _), hashes in zip(jobs, hashed, strict=True):
        chunks[name].extend(hashes)


def _groups(data: memoryview) -> Iterator[memoryview]:
    flat, width = data.cast("B") if data.nbytes else data, GROUP_CHUNKS * CHUNK_BYTES
    return (flat[start : start + width] for start in range(0, data.nbytes, width))


def _hash_group(group: memoryview) -> list[Hash]:
    return [_hash_chunk(group[start : start + CHUNK_BYTES]) for start in range(0, group.nbytes, CHUNK_BYTES)]


def _hash_chunk(chunk: memoryview) -> Hash:
    """`leaf_hash` without copying the chunk behind the prefix."""
    hasher = sha256(LEAF_PREFIX)
    hasher.update(chunk)
    return Hash(hasher.digest())


def _tree_digest(noun: str, leaves: Collection[Hash]) -> Digest:
    return digest(noun, encode({"root": tree_root(tuple(leaves)).hex(), "size": len(leaves)}))
