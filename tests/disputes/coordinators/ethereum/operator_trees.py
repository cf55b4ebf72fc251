"""Trees of operators to fight over: real records with provable faults among them, and trees as deep as there are."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tallystick.core.digests import (
    Digest,
    Hash,
    HashReader,
    LeafHashes,
    leaf_hash,
    node_hash,
    prove_inclusion,
    subtree_root,
)
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.disputes.game.game import record_bytes
from tallystick.disputes.game.moves import Cut, Evidence, RecordForm, TensorForm, ValueWriter

SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)
"""1, 2, 3, 2^k and 2^k ± 1."""
DEEP_SIZES = (2**32, 2**32 - 1, 2**31 + 1, 2**31, 2**31 - 1, 2**16 + 1)


class Tree(Protocol):
    """A tree that a prover can open anywhere."""

    size: int

    @property
    def reader(self) -> HashReader:
        """Its hashes."""
        ...

    def evidence(self, place: int) -> Evidence | None:
        """What can be shown about the operator at a place, true or not."""
        ...


def root(tree: Tree) -> str:
    """The root, as moves write it."""
    return subtree_root(tree.reader, 0, tree.size).hex()


def cut(tree: Tree, place: int) -> Cut:
    """A leaf with the proof of its place."""
    proof = prove_inclusion(tree.reader, place, tree.size)
    return Cut(leaf=tree.reader.hashes(0, place, 1)[0].hex(), proof=tuple(each.hex() for each in proof))


@dataclass(frozen=True)
class UniformHashes:
    """All leaves are one: a tree of any size, and of any depth, without its leaves."""

    leaf: Hash

    def hashes(self, level: int, start: int, count: int) -> list[Hash]:
        """The same hash `count` times."""
        found = self.leaf
        for _ in range(level):
            found = node_hash(found, found)
        return [found] * count


@dataclass(frozen=True)
class DeepTree:
    """A tree of up to 2^32 leaves, all of them one."""

    size: int
    leaf: Hash

    @property
    def reader(self) -> HashReader:
        """Its hashes."""
        return UniformHashes(self.leaf)

    def evidence(self, place: int) -> Evidence | None:
        """Nobody knows what the leaf stands for."""
        return None


@dataclass(frozen=True)
class OperatorTree:
    """Operators with what can be shown about each."""

    shown: tuple[Evidence, ...]

    @property
    def size(self) -> int:
        """How many operators there are."""
        return len(self.shown)

    @cached_property
    def reader(self) -> HashReader:
        """The hashes of the records."""
        return LeafHashes([leaf_hash(record_bytes(each.record)) for each in self.shown])

    def evidence(self, place: int) -> Evidence | None:
        """What can be shown about the operator at a place; an edge comes with its writer's proof."""
        shown = self.shown[place]
        if shown.writer is None:
            return shown
        proof = cut(self, shown.writer.index).proof
        return shown.model_copy(update={"writer": shown.writer.model_copy(update={"proof": proof})})


def operator_tree(rng: random.Random, size: int) -> OperatorTree:
    """Operators in a row; about half of them are faulty in a way that can be shown."""
    shown: list[Evidence] = []
    for place in range(size):
        made = [_cast, _product] if place == 0 else [_cast, _product, _edge]
        shown.append(rng.choice(made)(rng, place, [each.record for each in shown]))
    return OperatorTree(tuple(shown))


def _cast(rng: random.Random, place: int, _before: Sequence[RecordForm]) -> Evidence:
    source, target = rng.choice([("F64", "F32"), ("F32", "F64"), ("F64", "F64"), ("F32", "F32")])
    numbers = [_number(rng) for _ in range(rng.randint(1, 6))]
    tensors = (_tensor(source, numbers), _tensor(target, _spoiled(rng, numbers)))
    record = _record(place, "aten._to_copy.default", {"x": tensors[0]}, {f"v{place}": tensors[1]})
    return Evidence(ground="cast", record=record, tensors=tensors, element=rng.randint(0, len(numbers)))


def _product(rng: random.Random, place: int, _before: Sequence[RecordForm]) -> Evidence:
    left = [_number(rng) for _ in range(rng.randint(1, 4))]
    right = [_number(rng) for _ in left]
    results = [_rounded(a) * _rounded(b) for a, b in zip(left, right, strict=True)]
    tensors = [_tensor("F32", left), _tensor("F32", right), _tensor("F32", _spoiled(rng, results))]
    if rng.random() < 0.2:
        tensors[1] = TensorForm(dtype="F32", shape=(), data=tensors[1].data[:8])
    names = rng.sample(["a", "b", "ab", "a b", "Z~"], 2)
    record = _record(place, "aten.mul.Tensor", dict(zip(names, tensors, strict=False)), {f"v{place}": tensors[2]})
    return Evidence(ground="product", record=record, tensors=tuple(tensors), element=rng.randint(0, len(left)))


def _edge(rng: random.Random, place: int, before: Sequence[RecordForm]) -> Evidence:
    index = rng.randrange(place)
    [(name, given), *_] = before[index].outputs
    read = given if rng.random() < 0.5 else _digest(rng)
    inputs = [(name, read), ("other", _digest(rng)), ("%0:1", _digest(rng))]
    rng.shuffle(inputs)
    outputs = ((f"v{place}", _digest(rng)), (f"v{place}#1", _digest(rng)))
    record = RecordForm(node=place, operator="aten.add.Tensor", inputs=tuple(inputs), outputs=outputs)
    return Evidence(ground="edge", record=record, writer=ValueWriter(record=before[index], index=index, proof=()))


def _record(place: int, operator: str, read: dict[str, TensorForm], given: dict[str, TensorForm]) -> RecordForm:
    return RecordForm(
        node=place,
        operator=operator,
        inputs=tuple((name, form_digest(form)) for name, form in read.items()),
        outputs=tuple((name, form_digest(form)) for name, form in given.items()),
    )


def form_digest(form: TensorForm) -> Digest:
    """The digest of a tensor given by its parts."""
    return tensor_digest(Tensor(form.dtype, form.shape, bytes.fromhex(form.data)))


def _tensor(dtype: str, numbers: Sequence[float]) -> TensorForm:
    data = struct.pack(f"<{len(numbers)}{'f' if dtype == 'F32' else 'd'}", *numbers)
    return TensorForm(dtype=dtype, shape=(len(numbers),), data=data.hex())


def _spoiled(rng: random.Random, numbers: Sequence[float]) -> list[float]:
    """Most numbers as they are; some a few units in the last place, or much, away."""
    scale = rng.choice([0.0, 2.0**-23, 2.0**-22, 2.0**-21, 2.0**-20, 2.0])
    return [number * (1 + scale * rng.choice([0, 1, -1])) for number in numbers]


def _number(rng: random.Random) -> float:
    sizes = [0.0, 1.0, 1e-38, 3e-39, 1e18, 1.0, 1.0, 1.0]
    return rng.choice(sizes) * rng.choice([1, -1]) * (1 + rng.random())


def _rounded(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def _digest(rng: random.Random) -> Digest:
    return Digest("sha256:" + rng.randbytes(32).hex())
