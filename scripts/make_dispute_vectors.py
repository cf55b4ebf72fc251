#!/usr/bin/env python3
"""Write the test vectors of disputes: moves, partitions, evidence, committees, and whole games.

Usage: python scripts/make_dispute_vectors.py vectors

Everything but the games is computed from spec/move.md, spec/dispute.md, spec/committee.md, spec/evidence.md and the
pages they name, without the package. The games are played by the package itself: every move that was tried, with its
second and either the code of its refusal or the digest of the state after it.
"""

from __future__ import annotations

import json
import math
import random
import struct
import sys
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from dispute_games import games

Case = dict[str, Any]
CODES = {"prover": b"\x01", "challenger": b"\x02", "nobody": b"\x03"}
FORMATS = {"F32": ("<f", 23, 127, 24), "F64": ("<d", 52, 1023, 53)}


def main() -> None:
    """Write one file per kind."""
    folder = Path(sys.argv[1])
    for name, cases in vectors().items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(cases, indent=1, ensure_ascii=True) + "\n")


def vectors() -> dict[str, list[Case]]:
    """The contents of the files by name."""
    return {
        "dispute/moves": [{"what": move["kind"], "text": canonical(move).decode(), **hashed(move)} for move in moves()],
        "dispute/refused": [{"what": what, "hex": data.hex()} for what, data in refused().items()],
        "dispute/partitions": partitions(),
        "dispute/evidence": evidence_cases(),
        "dispute/games": games(),
        "committee/draws": draws(),
        "committee/votes": votes(),
        "committee/seals": seals(),
        "committee/findings": findings(),
    }


# ---- pages that these rest on
def canonical(value: Any) -> bytes:
    """The bytes of JSON with ASCII text and whole numbers (encoding.md)."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def digest(noun: str, data: bytes) -> str:
    """The digest under a domain (digest.md)."""
    return "sha256:" + sha256(f"tallystick/{noun}/v1\n".encode() + data).hexdigest()


def hashed(move: Case) -> Case:
    """The bytes of a move by their digest as a blob."""
    return {"blob": digest("blob", canonical(move))}


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf (tree.md)."""
    return sha256(b"\x00" + data).digest()


def root_of(leaves: list[bytes]) -> bytes:
    """The root of a tree (RFC 6962 §2.1)."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\x01" + root_of(leaves[:split]) + root_of(leaves[split:])).digest()


def proof_of(leaves: list[bytes], place: int) -> list[bytes]:
    """The audit path of a leaf, lowest first (RFC 6962 §2.1.1)."""
    if len(leaves) == 1:
        return []
    split = 1 << (len(leaves) - 1).bit_length() - 1
    if place < split:
        return [*proof_of(leaves[:split], place), root_of(leaves[split:])]
    return [*proof_of(leaves[split:], place - split), root_of(leaves[:split])]


# ---- moves
ACTOR, ADDRESS = "00" * 31 + "05", "0x" + "ab" * 20
HASH, DATA = "ab" * 32, digest("blob", b"")
LEAF = {"leaf": HASH, "proof": ["cd" * 32, "ef" * 32], "data": DATA}
TURN = {"dispute": 3, "turn": 4}
RECORD = {
    "inputs": [["v0", digest("blob", b"0")]],
    "node": 1,
    "operator": "aten.add.Tensor",
    "outputs": [["v1", digest("blob", b"1")]],
}


def moves() -> list[Case]:
    """Every kind of move, some of them twice."""
    post = {"value": 1_000_000, "root": HASH, "size": 9, "levels": 2, "statement": DATA, "seal": "00" * 32}
    proof = {"element": 0, "ground": "edge", "record": RECORD, "tensors": []}
    writer = {"index": 0, "proof": ["ab" * 32], "record": {**RECORD, "node": 0}}
    tensor = {"dtype": "F32", "shape": [2], "data": "0000803f00000040"}
    shown: list[tuple[str, Case]] = [
        ("post", post),
        ("post", {**post, "levels": 1, "size": 1 << 32, "value": 2**53 - 1}),
        ("contest", {"value": 164_000, "claim": 0, "low": 0, "high": 9}),
        ("contest", {"value": 0, "claim": 2**53 - 1, "low": (1 << 32) - 1, "high": 1 << 32}),
        ("partition", {**TURN, "cuts": [{"leaf": HASH, "proof": ["cd" * 32]}], "data": DATA}),
        ("partition", {**TURN, "cuts": [{"leaf": HASH, "proof": []}] * 31, "data": DATA}),
        ("choose", {**TURN, "child": 31}),
        ("protest", {**TURN, "ground": "structure"}),
        ("protest", {**TURN, "ground": "budget"}),
        ("descend", {**TURN, **LEAF, "root": HASH, "size": 7}),
        ("reveal", {**TURN, **LEAF}),
        ("reveal", {**TURN, **LEAF, "proof": ["ab" * 32] * 64}),
        ("pinpoint", {"dispute": 0, "result": 0, "element": 0}),
        ("pinpoint", {"dispute": 0, "result": 2**32 - 1, "element": 2**48 - 1}),
        ("concede", {"dispute": 0}),
        ("timeout", {"dispute": 0}),
        *[("rule", {"dispute": 0, "fault": fault, "reason": DATA}) for fault in CODES],
        ("prove", {"dispute": 0, "evidence": {**proof, "writer": writer}}),
        ("prove", {"dispute": 0, "evidence": {**proof, "ground": "cast", "tensors": [tensor, tensor], "element": 1}}),
        ("convene", {"dispute": 0}),
        ("draw", {"dispute": 0, "nonce": HASH}),
        ("vote", {"dispute": 0, "commitment": HASH}),
        ("disclose", {"dispute": 0, "vote": "nobody", "salt": HASH}),
        ("tally", {"dispute": 0}),
        ("appeal", {"dispute": 0, "value": 130_000}),
        ("settle", {"dispute": 0}),
        ("dismiss", {"dispute": 0}),
        ("unseal", {"dispute": 0, "answer": "challenger", "salt": HASH}),
        ("finalise", {"claim": 0}),
        ("enlist", {"value": 200_000}),
        *[(kind, {}) for kind in ("retire", "withdraw", "pause", "resume")],
    ]
    made = [{"kind": kind, "actor": ACTOR, **fields} for kind, fields in shown]
    return [*made, {"kind": "withdraw", "actor": ADDRESS}]


def refused() -> dict[str, bytes]:
    """Bytes that are no move."""
    post = moves()[0]
    cut = {"leaf": HASH, "proof": []}
    partition = {"kind": "partition", "actor": ACTOR, **TURN, "cuts": [cut], "data": DATA}
    pinpoint = {"kind": "pinpoint", "actor": ACTOR, "dispute": 0, "result": 0, "element": 0}
    line = canonical(post)

    def but(move: Case, **changes: Any) -> bytes:
        return canonical({**move, **changes})

    return {
        "nothing": b"",
        "no object": b"[]",
        "no kind": canonical({"actor": ACTOR}),
        "a kind that there is not": but(post, kind="refund"),
        "fields of another kind": but(post, kind="withdraw"),
        "an unknown key": but(post, memo="x"),
        "a missing key": canonical({key: value for key, value in post.items() if key != "levels"}),
        "a null": but(post, seal=None),
        "a space": line.replace(b",", b", ", 1),
        "a line feed at the end": line + b"\n",
        "a byte order mark": b"\xef\xbb\xbf" + line,
        "a doubled key": b'{"actor":"' + ACTOR.encode() + b'",' + line[1:],
        "keys out of order": json.dumps(dict(sorted(post.items(), reverse=True)), separators=(",", ":")).encode(),
        "a number with a point": line.replace(b'"size":9', b'"size":9.0'),
        "a number with an exponent": line.replace(b'"size":9', b'"size":9e0'),
        "a number as text": but(post, size="9"),
        "a truth value for a number": but(post, size=True),
        "no records": but(post, size=0),
        "more records than there can be": but(post, size=(1 << 32) + 1),
        "money that is owed": but(post, value=-1),
        "more money than there can be": but(post, value=2**53),
        "three levels": but(post, levels=3),
        "an actor in capitals": but(post, actor="AB" * 32),
        "an actor that is too short": but(post, actor="ab" * 31),
        "an address with a capital X": but(post, actor="0X" + "ab" * 20),
        "a root with a prefix": but(post, root="0x" + HASH),
        "a statement without its prefix": but(post, statement=HASH),
        "no cuts": but(partition, cuts=[]),
        "too many cuts": but(partition, cuts=[cut] * 32),
        "a proof that is too long": but(partition, cuts=[{**cut, "proof": [HASH] * 65}]),
        "a hash that is too short": but(partition, cuts=[{**cut, "leaf": "ab"}]),
        "a turn below zero": but(partition, turn=-1),
        "a child beyond the last": canonical({"kind": "choose", "actor": ACTOR, **TURN, "child": 32}),
        "an element before the first": but(pinpoint, element=-1),
        "an element beyond any tensor": but(pinpoint, element=2**48),
        "a result beyond any operator": but(pinpoint, result=2**32),
        "another ground": canonical({"kind": "protest", "actor": ACTOR, **TURN, "ground": "leaf"}),
        "a vote for both": canonical({"kind": "rule", "actor": ACTOR, "dispute": 0, "fault": "both", "reason": DATA}),
        "not UTF-8": line[:-2] + b"\xff}",
        "NaN": b'{"kind":NaN}',
    }


# ---- partitions
def partitions() -> list[Case]:
    """Ranges around powers of two, with their bounds and the rounds that they need."""
    found = []
    for ways in (2, 3, 4, 7, 16, 31, 32):
        for size in (1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 1000, (1 << 32) - 1, 1 << 32):
            for low in (0, 5) if size < 1 << 20 else (0,):
                parts = min(ways, size)
                bounds = [low + k * size // parts for k in range(parts + 1)]
                found.append(
                    {"low": low, "high": low + size, "ways": ways, "bounds": bounds, "rounds": rounds(size, ways)}
                )
    return found


def rounds(size: int, ways: int) -> int:
    """The least n with ways^n ≥ size."""
    count = 0
    while ways**count < size:
        count += 1
    return count


# ---- committees
def uint64(number: int) -> bytes:
    """Eight bytes, big-endian."""
    return struct.pack(">Q", number)


def party_bytes(party: str) -> bytes:
    """The 20 or 32 bytes of a party."""
    return bytes.fromhex(party.removeprefix("0x"))


def drawn(pool: list[str], seats: int, nonce: str, dispute: int, number: int) -> list[str]:
    """The shuffle of spec/committee.md."""
    left = list(pool)
    for i in range(seats):
        message = bytes.fromhex(nonce) + uint64(dispute) + uint64(number) + uint64(i)
        word = int.from_bytes(sha256(b"tallystick/draw/v1\n" + message).digest(), "big")
        j = i + word % (len(pool) - i)
        left[i], left[j] = left[j], left[i]
    return left[:seats]


def draws() -> list[Case]:
    """Committees of every size out of pools of several."""
    found = []
    chance = random.Random(3)
    for size, seats in ((1, 1), (3, 3), (5, 3), (9, 7), (40, 15), (255, 63)):
        for number in range(3):
            pool = [f"{1000 + place:064x}" for place in range(size)]
            given = {"nonce": chance.randbytes(32).hex(), "dispute": chance.choice((0, 7, 2**53 - 1)), "round": number}
            chosen = drawn(pool, seats, given["nonce"], given["dispute"], number)
            found.append({"pool": size, "seats": seats, **given, "drawn": [pool.index(name) for name in chosen]})
    return found


def votes() -> list[Case]:
    """Commitments to votes."""
    chance, found = random.Random(4), []
    for vote, code in CODES.items():
        for member in (ACTOR, ADDRESS):
            for dispute, number in ((0, 0), (2**53 - 1, 4)):
                salt = chance.randbytes(32)
                message = uint64(dispute) + uint64(number) + party_bytes(member) + code + salt
                commitment = sha256(b"tallystick/vote/v1\n" + message).hexdigest()
                given = {"dispute": dispute, "round": number, "member": member, "vote": vote, "salt": salt.hex()}
                found.append({**given, "commitment": commitment})
    return found


def seals() -> list[Case]:
    """Seals of planted claims."""
    chance, found = random.Random(5), []
    for answer, code in CODES.items():
        for prover in (ACTOR, ADDRESS):
            salt = chance.randbytes(32)
            seal = sha256(b"tallystick/seal/v1\n" + party_bytes(prover) + code + salt).hexdigest()
            found.append({"prover": prover, "answer": answer, "salt": salt.hex(), "seal": seal})
    return found


def findings() -> list[Case]:
    """What votes say; `null` is a vote that was not disclosed."""
    chance, found = random.Random(6), []
    for size in (1, 3, 5, 7, 15):
        for _ in range(8):
            cast = [chance.choice(["prover", "prover", "challenger", "nobody", None]) for _ in range(size)]
            winner = next((fault for fault in CODES if 2 * cast.count(fault) > size), "nobody")
            found.append({"votes": cast, "finding": winner})
    return found


# ---- evidence
def tensor_form(numbers: list[float], dtype: str, shape: list[int] | None = None) -> Case:
    """A small tensor."""
    data = b"".join(struct.pack(FORMATS[dtype][0], number) for number in numbers)
    return {"dtype": dtype, "shape": [len(numbers)] if shape is None else shape, "data": data.hex()}


def tensor_digest(form: Case) -> str:
    """The digest of a tensor of one chunk (tensor.md): a tree over header and chunk."""
    header = canonical({"chunk_bytes": 1 << 20, "dtype": form["dtype"], "shape": form["shape"]})
    root = root_of([leaf_hash(header), leaf_hash(bytes.fromhex(form["data"]))])
    return digest("tensor", canonical({"root": root.hex(), "size": 2}))


def record_bytes(form: Case) -> bytes:
    """The canonical bytes of an operator record (record.md)."""
    named = {"inputs": dict(form["inputs"]), "outputs": dict(form["outputs"])}
    return canonical({"kind": "operator", "node": form["node"], "operator": form["operator"], **named})


def operator(kind: str, read: list[Case], given: list[Case]) -> Case:
    """A record of an operator on these tensors."""
    return {
        "inputs": [[f"in{place}", tensor_digest(each)] for place, each in enumerate(read)],
        "node": 2,
        "operator": kind,
        "outputs": [[f"out{place}", tensor_digest(each)] for place, each in enumerate(given)],
    }


def number_of(form: Case, element: int) -> Fraction | None:
    """An exact number, if it is normal."""
    kind, bits, bias, _ = FORMATS[form["dtype"]]
    width = struct.calcsize(kind)
    data = bytes.fromhex(form["data"])[element * width : (element + 1) * width]
    if len(data) < width:
        return None
    exponent = int.from_bytes(data, "little") >> bits & 2 * bias + 1
    return Fraction(struct.unpack(kind, data)[0]) if 0 < exponent < 2 * bias + 1 else None


def floor_log2(number: Fraction) -> int:
    """⌊log₂ |x|⌋."""
    found = abs(number.numerator).bit_length() - number.denominator.bit_length()
    return found if abs(number) >= Fraction(2) ** found else found - 1


def is_far(exact: Fraction | None, found: Fraction | None, dtype: str, last: int) -> bool:
    """Far, as the page defines it; what it refuses is not far. `last` is the exponent of the last place of `exact`."""
    if exact is None or found is None:
        return False
    _, bits, bias, _ = FORMATS[dtype]
    place = floor_log2(found) - bits
    if not 1 - bias < floor_log2(exact) < bias or abs(last - place) > 128:
        return False
    if (exact < 0) != (found < 0):
        return True
    return abs(exact - found) > 2 * Fraction(2) ** place


def last_place(number: Fraction | None, dtype: str) -> int:
    """The exponent of the last place of a normal number."""
    return 0 if number is None else floor_log2(number) - FORMATS[dtype][1]


def case(what: str, shown: Case, is_convicted: bool, **about: Any) -> Case:
    """One piece of evidence about the only leaf of a tree, unless said otherwise."""
    leaf = leaf_hash(record_bytes(shown["record"])).hex()
    standing = {"leaf": leaf, "root": leaf, "low": 0, "size": 1, **about}
    return {"what": what, **standing, "evidence": shown, "verdict": "convicted" if is_convicted else "refused"}


def evidence_cases() -> list[Case]:
    """All grounds, at their edges."""
    return [*casts(), *products(), *edges()]


def moved(number: float, ulps: int, dtype: str = "F32") -> float:
    """The number so many places further from zero."""
    kind = FORMATS[dtype][0]
    data = struct.pack(kind, number)
    word = int.from_bytes(data, "little") + ulps
    return float(struct.unpack(kind, word.to_bytes(len(data), "little"))[0])


def nearest(number: float) -> float:
    """The nearest binary32, infinite where there is none."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def casts() -> list[Case]:
    """Conversions: at powers of two, at the ends of the range, and of everything that is left to a committee."""
    numbers = [1.0, -1.0, 1.5, 2 - 2.0**-24, 1 + 2.0**-24, 0.1, -3e30, 2.0**-125, 2.0**-126, 2.0**126, 2.0**127, 1e-45]
    numbers += [1e300, 0.0, math.inf, math.nan, 2.0**-1074]
    found = []
    for number in numbers:
        near = nearest(number)
        for ulps in (0, 1, -1, 2, -2, 3, -3):
            if ulps and (not math.isfinite(near) or abs(near) < 1e-40):
                continue
            found.append(cast_case(f"{number!r} and {ulps} places", number, moved(near, ulps), ("F64", "F32")))
    found += [
        cast_case("another sign", 1.5, -1.5, ("F64", "F32")),
        cast_case("an exact copy", 1.25, 1.25, ("F32", "F64")),
    ]
    found.append(cast_case("no exact copy", 1.25, 1.25 + 2.0**-40, ("F32", "F64")))
    return found


def cast_case(what: str, source: float, result: float, dtypes: tuple[str, str]) -> Case:
    """One conversion."""
    forms = [tensor_form([source], dtypes[0]), tensor_form([result], dtypes[1])]
    exact, given = number_of(forms[0], 0), number_of(forms[1], 0)
    shown = {"element": 0, "ground": "cast", "record": operator("aten._to_copy.default", forms[:1], forms[1:])}
    is_convicted = is_far(exact, given, dtypes[1], last_place(exact, dtypes[0]))
    return case(f"cast: {what}", {**shown, "tensors": forms}, is_convicted)


def products() -> list[Case]:
    """Products of singles, of single numbers, and of shapes that do not fit."""
    found = []
    for left, right in (
        (1.5, 1.5),
        (0.1, -3.0),
        (1e20, 1e-20),
        (1e30, 1e30),
        (1e-30, 1e-30),
        (0.0, 1.0),
        (2.0**63, 2.0**63),
    ):
        a, b = nearest(left), nearest(right)
        near = nearest(a * b)
        for ulps in (0, 2, 3, -4):
            if ulps and (not math.isfinite(near) or abs(near) < 1e-40):
                continue
            forms = [tensor_form([value], "F32") for value in (a, b, moved(near, ulps) if ulps else near)]
            found.append(product_case(f"{left!r} · {right!r} and {ulps} places", forms, 0))
    row = tensor_form([1.0, 2.0], "F32")
    scalar, wrong = tensor_form([3.0], "F32", []), tensor_form([3.0, 7.0], "F32")
    found += [product_case(f"a number times element {element}", [scalar, row, wrong], element) for element in (0, 1, 2)]
    found.append(product_case("shapes that do not fit", [tensor_form([3.0], "F32"), row, wrong], 1, is_fitting=False))
    return found


def product_case(what: str, forms: list[Case], element: int, is_fitting: bool = True) -> Case:
    """One product."""
    places = [0 if not form["shape"] else element for form in forms]
    left, right, given = (number_of(form, place) for form, place in zip(forms, places, strict=True))
    exact = None if left is None or right is None else left * right
    last = last_place(left, "F32") + last_place(right, "F32")
    shown = {"element": element, "ground": "product", "record": operator("aten.mul.Tensor", forms[:2], forms[2:])}
    is_convicted = is_fitting and is_far(exact, given, "F32", last)
    return case(f"product: {what}", {**shown, "tensors": forms}, is_convicted)


def edges() -> list[Case]:
    """A row of operators, each reading what the one before gave, but for one; and evidence with something wrong."""
    found = []
    for size, place, is_broken in (
        (2, 1, True),
        (2, 1, False),
        (5, 3, True),
        (5, 4, True),
        (9, 8, True),
        (9, 8, False),
    ):
        records = row_of(size, place if is_broken else None)
        for writer in range(size):
            convicts = (is_broken and writer == place - 1) or False
            found.append(edge_case(f"{size} operators, {place} by {writer}", records, place, writer, convicts))
    records = row_of(3, None)
    records[0]["inputs"] = [list(records[2]["outputs"][0])]
    found.append(edge_case("a value that comes later", records, 0, 2, True))
    records = row_of(2, 1)
    right = edge_case("right", records, 1, 0, True)
    for what, name in (("an empty name", ""), ("a name to escape", 'a"'), ("a name beyond ASCII", "\u00e9")):
        changed = {**records[1], "inputs": [[name, records[1]["inputs"][0][1]]]}
        found.append(
            {
                **right,
                "what": f"edge: {what}",
                "evidence": {**right["evidence"], "record": changed},
                "verdict": "refused",
            }
        )
    surplus = {**right["evidence"], "tensors": [tensor_form([1.0], "F32")]}
    found.append({**right, "what": "edge: a tensor too many", "evidence": surplus, "verdict": "refused"})
    found.append({**right, "what": "edge: another leaf was opened", "leaf": "00" * 32, "verdict": "refused"})
    return found


def row_of(size: int, broken_at: int | None) -> list[Case]:
    """Records in a row."""
    return [
        {
            "inputs": [[f"v{place - 1}", digest("blob", f"{place - 1}{'!' * (place == broken_at)}".encode())]],
            "node": place,
            "operator": "aten.add.Tensor",
            "outputs": [[f"v{place}", digest("blob", f"{place}".encode())]],
        }
        for place in range(size)
    ]


def edge_case(what: str, records: list[Case], place: int, writer: int, is_convicted: bool) -> Case:
    """Evidence about the record at `place`, whose value the one at `writer` gave."""
    leaves = [leaf_hash(record_bytes(each)) for each in records]
    proof = [each.hex() for each in proof_of(leaves, writer)]
    shown = {"element": 0, "ground": "edge", "record": records[place], "tensors": []}
    given = {"index": writer, "proof": proof, "record": records[writer]}
    about = {"root": root_of(leaves).hex(), "size": len(records), "low": place}
    return case(f"edge: {what}", {**shown, "writer": given}, is_convicted, **about)


if __name__ == "__main__":
    main()
