#!/usr/bin/env python3
"""Write the test vectors of leaf bundles: files with the ruling on each, and files to refuse.

Usage: python scripts/make_bundle_vectors.py vectors/leaf-bundle

Every byte is computed from spec/leaf-bundle.md and the pages that it names, without the package.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

Document = dict[str, Any]
Tensor = tuple[str, list[int], bytes]
SIZES = {"F32": 4, "I64": 8, "U8": 1}
CHUNK = 1 << 20


def main() -> None:
    """Write both files."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, cases in vectors().items():
        (folder / f"{name}.json").write_text(json.dumps(cases, indent=1, ensure_ascii=True) + "\n")


def vectors() -> dict[str, list[Any]]:
    """The contents of both files by name."""
    ruled = [
        {"what": what, "file": file_of(state).hex(), "identity": identity(state), "fault": fault, "ground": ground}
        for what, (state, fault, ground) in rulings().items()
    ]
    refused = [{"what": what, "file": data.hex()} for what, data in refusals().items()]
    return {"rulings": ruled, "refused": refused}


# ---- bytes, digests, trees (encoding.md, digest.md, tree.md, tensor.md, state.md, anchor.md)


def canonical(value: Any) -> bytes:
    """The bytes of JSON without floats and with ASCII text."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def named(noun: str, data: bytes) -> str:
    """The digest under a domain."""
    return "sha256:" + sha256(f"tallystick/{noun}/v1\n".encode() + data).hexdigest()


def leaf_of(record: bytes) -> bytes:
    """The hash of a leaf."""
    return sha256(b"\x00" + record).digest()


def root_of(leaves: list[bytes]) -> bytes:
    """The root of RFC 6962, by its recursive definition."""
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256(b"").digest()
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\x01" + root_of(leaves[:split]) + root_of(leaves[split:])).digest()


def path_to(index: int, leaves: list[bytes]) -> list[str]:
    """The audit path of a leaf, lowest hash first, in hexadecimal digits."""
    if len(leaves) == 1:
        return []
    split = 1 << (len(leaves) - 1).bit_length() - 1
    if index < split:
        return [*path_to(index, leaves[:split]), root_of(leaves[split:]).hex()]
    return [*path_to(index - split, leaves[split:]), root_of(leaves[:split]).hex()]


def tensor_digest(tensor: Tensor) -> str:
    """The digest of a tensor of at most one chunk."""
    dtype, shape, data = tensor
    assert len(data) <= CHUNK
    header = canonical({"chunk_bytes": CHUNK, "dtype": dtype, "shape": shape})
    leaves = [leaf_of(header), *([leaf_of(data)] if data else [])]
    return named("tensor", canonical({"root": root_of(leaves).hex(), "size": len(leaves)}))


def state_digest(entries: Mapping[str, str]) -> str:
    """The digest of a state, given the digests of its tensors."""
    leaves = [leaf_of(canonical([name, entries[name]])) for name in sorted(entries)]
    return named("state", canonical({"root": root_of(leaves).hex(), "size": len(leaves)}))


def file_of(state: Mapping[str, Tensor]) -> bytes:
    """The canonical safetensors file."""
    entries, position = {}, 0
    for name in sorted(state):
        dtype, shape, data = state[name]
        entries[name] = {"data_offsets": [position, position + len(data)], "dtype": dtype, "shape": shape}
        position += len(data)
    header = canonical(entries)
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + b"".join(state[name][2] for name in sorted(state))


def identity(state: Mapping[str, Tensor]) -> str:
    """The identity of a bundle."""
    return named("bundle", canonical({"state": state_digest({n: tensor_digest(t) for n, t in state.items()})}))


def floats(*numbers: float) -> Tensor:
    """A vector of float32."""
    return "F32", [len(numbers)], struct.pack(f"<{len(numbers)}f", *numbers)


def whole(*numbers: int, shape: list[int] | None = None) -> Tensor:
    """Whole numbers."""
    return "I64", [len(numbers)] if shape is None else shape, struct.pack(f"<{len(numbers)}q", *numbers)


def line(value: Any) -> Tensor:
    """A document as bytes."""
    data = value if isinstance(value, bytes) else canonical(value)
    return "U8", [len(data)], data


# ---- an opening of a call with three operators


def node(number: int, operator: str, operands: Document, attributes: Document, spec: list[Any]) -> Document:
    """A node record."""
    return {
        "attributes": attributes,
        "number": number,
        "operands": operands,
        "operator": operator,
        "results": [spec],
    }


NODES = [
    node(0, "aten.relu.default", {"self": "inputs.x"}, {}, ["F32", 3]),
    node(4, "aten.add.Tensor", {"other": "inputs.x", "self": "n0"}, {"alpha": 1}, ["F32", 3]),
    node(5, "aten.argmax.default", {"self": "n4"}, {"dim": None, "keepdim": False}, ["I64"]),
]
HEADER: Document = {
    "constants": [],
    "dialect": "aten",
    "form": "logical",
    "graph": 1,
    "inputs": [{"name": "inputs.x", "role": "input", "spec": ["F32", 3]}],
    "outputs": [{"name": "outputs.class", "value": "n5"}],
}
HONEST = {
    "inputs.x": floats(1.5, -2.0, 0.25),
    "n0": floats(1.5, 0.0, 0.25),
    "n4": floats(3.0, -2.0, 0.5),
    "n5": whole(0, shape=[]),
}


@dataclass(frozen=True)
class Opened:
    """What a prover opens: values, and what its records say of them unless told otherwise."""

    values: Mapping[str, Tensor] = field(default_factory=lambda: dict(HONEST))
    nodes: tuple[Document, ...] = tuple(NODES)
    stated: Mapping[tuple[int, str], str] = field(default_factory=dict)

    def digests(self) -> dict[str, str]:
        """The digest of every value."""
        return {ref: tensor_digest(value) for ref, value in self.values.items()}

    def records(self) -> list[Document]:
        """The operator records."""
        found = []
        for each in self.nodes:
            number, digests = each["number"], self.digests()
            read = {ref: self.stated.get((number, ref), digests[ref]) for ref in each["operands"].values()}
            given = {f"n{number}": digests[f"n{number}"]}
            kind = {"kind": "operator", "node": number, "operator": each["operator"]}
            found.append(kind | {"inputs": read, "outputs": given})
        return found

    def state(self, place: int) -> dict[str, Tensor]:
        """The bundle of one operator."""
        graph = [leaf_of(canonical(each)) for each in (HEADER, *self.nodes)]
        root = root_of(graph).hex()
        records, digests = self.records(), self.digests()
        lines = [leaf_of(canonical(record)) for record in records]
        call = canonical(
            {
                "index": 1,
                "inputs": state_digest({"x": digests["inputs.x"]}),
                "kind": "call",
                "outputs": state_digest({"outputs.class": digests["n5"]}),
            }
        )
        opening = {
            "claim": named("claim", b"{}"),
            "graph": named("graph", canonical({"root": root, "size": len(graph)})),
            "index": 0,
            "opening": "operators",
            "operators": {"root": "sha256:" + root_of(lines).hex(), "size": len(lines)},
            "proof": [],
            "record": call.decode(),
            "rest_after": {},
            "rest_before": {},
            "results": {"outputs.class": digests["n5"]},
            "sources": {"inputs.x": digests["inputs.x"]},
            "transcript": {"root": "sha256:" + leaf_of(call).hex(), "size": 1},
            "version": 1,
        }
        chosen = self.nodes[place]
        proof = {"index": place + 1, "proof": path_to(place + 1, graph), "record": chosen, "root": root}
        operator = {
            "index": place,
            "node": proof | {"size": len(graph)},
            "opening": "operator",
            "proof": path_to(place, lines),
            "record": records[place],
            "version": 1,
        }
        givers = sorted({self.place_of(ref) for ref in chosen["operands"].values() if ref.startswith("n")})
        producers = [{"index": each, "proof": path_to(each, lines), "record": records[each]} for each in givers]
        refs = [*chosen["operands"].values(), f"n{chosen['number']}"]
        return {
            "edges": line({"edges": "producers", "producers": producers, "version": 1}),
            "graph": line({"graph": "header", "proof": path_to(0, graph), "record": HEADER, "version": 1}),
            "opening": line(opening),
            "operator": line(operator),
            "question": line({"nonce": "", "question": "leaf", "version": 1}),
        } | {f"values.{ref}": self.values[ref] for ref in refs}

    def place_of(self, ref: str) -> int:
        """The place of the node that gives a value."""
        return next(place for place, each in enumerate(self.nodes) if f"n{each['number']}" == ref)


def with_values(**values: Tensor) -> Opened:
    """The honest opening with other values, committed to."""
    return Opened({**HONEST, **values})


def changed(state: Mapping[str, Tensor], name: str, change: Callable[[Document], object]) -> dict[str, Tensor]:
    """A bundle with one document changed."""
    document = json.loads(state[name][2])
    change(document)
    return {**state, name: line(document)}


def without(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """A bundle with one tensor left out."""
    return {each: tensor for each, tensor in state.items() if each != name}


def rulings() -> dict[str, tuple[dict[str, Tensor], str, str]]:
    """Bundles with who is at fault, and on what ground."""
    honest, sum_ = Opened(), Opened().state(1)
    near = struct.unpack("<f", struct.pack("<I", 0x40400001))[0]  # the next number after 3
    tied = {"inputs.x": floats(1.5, near / 2, 0.25), "n0": floats(1.5, near / 2, 0.25), "n4": floats(3.0, near, 0.5)}
    far = {"inputs.x": floats(1.5, 1.75, 0.25), "n0": floats(1.5, 1.75, 0.25), "n4": floats(3.0, 3.5, 0.5)}
    other_input = replace(honest, stated={(4, "n0"): tensor_digest(HONEST["n4"])})
    read = other_input.state(1) | {"values.n0": HONEST["n4"]}
    return {
        "an honest relu": (honest.state(0), "challenger", "holds"),
        "an honest sum": (sum_, "challenger", "holds"),
        "an honest choice": (honest.state(2), "challenger", "holds"),
        "a sum one unit off": (with_values(n4=floats(near, -2.0, 0.5)).state(1), "prover", "bound"),
        "a relu of another sign": (with_values(n0=floats(1.5, -2.0, 0.25)).state(0), "prover", "bound"),
        "a choice between numbers one rounding apart": (with_values(**tied).state(2), "nobody", "tie"),
        "a choice of the smaller number": (with_values(**far).state(2), "prover", "bound"),
        "a result that is not opened": (without(sum_, "values.n4"), "prover", "data"),
        "an operand that is not opened": (without(sum_, "values.n0"), "prover", "data"),
        "a value of other bytes": (sum_ | {"values.n4": HONEST["n0"]}, "prover", "structure"),
        "no producer": (changed(sum_, "edges", lambda d: d.update(producers=[])), "prover", "structure"),
        "a producer twice": (
            changed(sum_, "edges", lambda d: d["producers"].append(d["producers"][0])),
            *("prover", "structure"),
        ),
        "a proof that is too short": (changed(sum_, "operator", lambda d: d["proof"].pop()), "prover", "structure"),
        "a proof that is too long": (
            changed(sum_, "operator", lambda d: d["proof"].append("00" * 32)),
            *("prover", "structure"),
        ),
        "another place": (changed(sum_, "operator", lambda d: d.update(index=0)), "prover", "structure"),
        "another attribute": (
            changed(sum_, "operator", lambda d: d["node"]["record"]["attributes"].update(alpha=2)),
            *("prover", "structure"),
        ),
        "an operand that was not given": (read, "prover", "structure"),
        "a source that the graph does not have": (
            changed(sum_, "opening", lambda d: d["sources"].update(n0=d["sources"]["inputs.x"])),
            *("prover", "structure"),
        ),
        "another result of the graph": (
            changed(honest.state(2), "opening", lambda d: d["results"].update({"outputs.class": named("tensor", b"")})),
            *("prover", "structure"),
        ),
    }


def refusals() -> dict[str, bytes]:
    """Bytes that are no leaf bundle."""
    state = Opened().state(1)
    data = file_of(state)
    return {
        "nothing": b"",
        "a byte too many": data + b"\x00",
        "a byte too few": data[:-1],
        "a tensor without a place": file_of(state | {"more": floats(1.0)}),
        "no opening": file_of(without(state, "opening")),
        "no edges": file_of(without(state, "edges")),
        "a document of floats": file_of(state | {"question": floats(1.0)}),
        "a document that is not canonical": file_of(state | {"question": line(b'{ "question":"leaf"}')}),
        "an unknown field": file_of(changed(state, "question", lambda d: d.update(more=1))),
        "another version": file_of(changed(state, "edges", lambda d: d.update(version=2))),
        "half a byte of nonce": file_of(changed(state, "question", lambda d: d.update(nonce="0"))),
        "a hash of 31 bytes": file_of(changed(state, "operator", lambda d: d.update(proof=["00" * 31]))),
        "a proof of 65 hashes": file_of(changed(state, "operator", lambda d: d.update(proof=["00" * 32] * 65))),
    }


if __name__ == "__main__":
    main()
