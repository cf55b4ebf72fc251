"""Encode moves and rules for the contract, and decode them from its log; each kind of move is one function.

The arguments of a call are the fields of the move in their order, without its actor and its value, which belong to the
transaction. Hashes and digests are 32 bytes. The last argument of a move with data at a board is the board's
attestation, which the log leaves out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from eth_abi.abi import decode as abi_decode, encode as abi_encode
from eth_abi.exceptions import DecodingError, EncodingError
from eth_utils.abi import (
    abi_to_signature,
    event_abi_to_log_topic,
    function_abi_to_4byte_selector,
    get_abi_input_types,
    get_abi_output_types,
)

from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import digest_bytes, digest_from
from tallystick.core.errors import MalformedError, RuleError, UnavailableError
from tallystick.disputes.game.moves import Move, read_move
from tallystick.disputes.game.state import Rules
from tallystick.verdicts.verdict import Fault

ARTEFACT: Final = Path(__file__).with_name("Coordinator.json")
GWEI: Final = 10**9
"""Wei in one unit of the rules' money."""
CALL_BYTES_MAX: Final = 1 << 18
NOBODY: Final = "0x" + "00" * 20
ERROR_SELECTOR: Final = bytes.fromhex("08c379a0")
"""The selector of Error(string), the reason with which a contract reverts (Solidity documentation, "Revert")."""
_CODE: Final = re.compile(r"[a-z]{1,20}")


@dataclass(frozen=True)
class Codec:
    """Converts a field between its JSON value in a move and its ABI value."""

    to_abi: Callable[[Any], Any]
    to_json: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _choice(names: Sequence[str]) -> Codec:
    """An enumeration; its numbers begin at 1, and 0 is the empty string."""
    return Codec(lambda name: names.index(name) + 1, lambda number: names[number - 1] if number > 0 else "")


def _list(codec: Codec) -> Codec:
    return Codec(lambda values: list(map(codec.to_abi, values)), lambda values: list(map(codec.to_json, values)))


def _record(**fields: Codec) -> Codec:
    """An object with these fields, in ABI a tuple in their order."""
    return Codec(
        lambda value: tuple(codec.to_abi(value[name]) for name, codec in fields.items()),
        lambda values: {name: codec.to_json(v) for (name, codec), v in zip(fields.items(), values, strict=True)},
    )


def _pair(*codecs: Codec) -> Codec:
    return Codec(
        lambda pair: tuple(codec.to_abi(each) for codec, each in zip(codecs, pair, strict=True)),
        lambda pair: [codec.to_json(each) for codec, each in zip(codecs, pair, strict=True)],
    )


NUMBER = Codec(_same, _same)
TEXT = Codec(_same, _same)
HEX = Codec(bytes.fromhex, bytes.hex)
DIGEST = Codec(digest_bytes, digest_from)
FAULT = _choice([Fault.PROVER.value, Fault.CHALLENGER.value, Fault.NOBODY.value])
GROUND = _choice(["structure", "budget"])
ITEM_BYTES = Codec({"F32": 4, "F64": 8}.__getitem__, lambda size: {4: "F32", 8: "F64"}.get(size, ""))
NAMED = _list(_pair(TEXT, DIGEST))
RECORD = _record(node=NUMBER, operator=TEXT, inputs=NAMED, outputs=NAMED)
WRITER = _record(record=RECORD, index=NUMBER, proof=_list(HEX))
TENSOR = _record(dtype=ITEM_BYTES, shape=_list(NUMBER), data=HEX)
OFFENCE = Codec(["edge", "cast", "product"].index, lambda number: ["edge", "cast", "product"][number])
CUT = _record(leaf=HEX, proof=_list(HEX))
_EVIDENCE = _record(ground=OFFENCE, record=RECORD, writer=_list(WRITER), tensors=_list(TENSOR), element=NUMBER)


def _evidence_to_abi(value: Mapping[str, Any]) -> Any:
    return _EVIDENCE.to_abi({**value, "writer": [value["writer"]] if "writer" in value else []})


def _evidence_to_json(values: Any) -> Json:
    value = _EVIDENCE.to_json(values)
    writers = value.pop("writer")
    if len(writers) > 1:
        raise MalformedError("evidence: more than one operator that gave the value")
    return {**value, **({"writer": writers[0]} if writers else {})}


EVIDENCE = Codec(_evidence_to_abi, _evidence_to_json)

# fmt: off
ARGUMENTS: Final[Mapping[str, Mapping[str, Codec]]] = {
    "post":      {"root": HEX, "size": NUMBER, "levels": NUMBER, "statement": DIGEST, "seal": HEX},
    "contest":   {"claim": NUMBER, "low": NUMBER, "high": NUMBER},
    "partition": {"dispute": NUMBER, "turn": NUMBER, "cuts": _list(CUT), "data": DIGEST},
    "choose":    {"dispute": NUMBER, "turn": NUMBER, "child": NUMBER},
    "protest":   {"dispute": NUMBER, "turn": NUMBER, "ground": GROUND},
    "descend":   {"dispute": NUMBER, "turn": NUMBER, "leaf": HEX, "proof": _list(HEX), "root": HEX, "size": NUMBER,
                  "data": DIGEST},
    "reveal":    {"dispute": NUMBER, "turn": NUMBER, "leaf": HEX, "proof": _list(HEX), "data": DIGEST},
    "pinpoint":  {"dispute": NUMBER, "result": NUMBER, "element": NUMBER},
    "concede":   {"dispute": NUMBER},
    "timeout":   {"dispute": NUMBER},
    "rule":      {"dispute": NUMBER, "fault": FAULT, "reason": DIGEST},
    "prove":     {"dispute": NUMBER, "evidence": EVIDENCE},
    "convene":   {"dispute": NUMBER},
    "draw":      {"dispute": NUMBER, "nonce": HEX},
    "vote":      {"dispute": NUMBER, "commitment": HEX},
    "disclose":  {"dispute": NUMBER, "vote": FAULT, "salt": HEX},
    "tally":     {"dispute": NUMBER},
    "appeal":    {"dispute": NUMBER},
    "settle":    {"dispute": NUMBER},
    "dismiss":   {"dispute": NUMBER},
    "unseal":    {"dispute": NUMBER, "answer": FAULT, "salt": HEX},
    "finalise":  {"claim": NUMBER},
    "enlist":    {},
    "retire":    {},
    "withdraw":  {},
    "pause":     {},
    "resume":    {},
}
# fmt: on
ATTESTED: Final = frozenset({"partition", "descend", "reveal"})
PAID: Final = frozenset({"post", "contest", "appeal", "enlist"})


@dataclass(frozen=True)
class Artefact:
    """The compiled contract: the ABI entries by name, and the bytecode that creates it."""

    functions: Mapping[str, Mapping[str, Any]]
    events: Mapping[str, Mapping[str, Any]]
    constructor: Mapping[str, Any]
    bytecode: bytes

    def topic(self, event: str) -> str:
        """The first topic of an event's logs."""
        return "0x" + event_abi_to_log_topic(self.events[event]).hex()  # type: ignore[arg-type]  # a dictionary


@cache
def artefact() -> Artefact:
    """The compiled contract of this version of the package."""
    document = json.loads(ARTEFACT.read_bytes())
    by_type: dict[str, dict[str, Any]] = {"function": {}, "event": {}, "constructor": {}}
    for entry in document["abi"]:
        by_type.setdefault(entry["type"], {})[entry.get("name", "")] = entry
    return Artefact(
        by_type["function"], by_type["event"], by_type["constructor"][""], bytes.fromhex(document["bytecode"])
    )


def encode_call(function: str, values: Sequence[Any]) -> bytes:
    """A call of one of the contract's functions."""
    entry: Any = artefact().functions[function]
    return bytes(function_abi_to_4byte_selector(entry)) + abi_encode(get_abi_input_types(entry), values)


def decode_answer(function: str, data: bytes) -> tuple[Any, ...]:
    """The values that a function of the contract returned; raises `MalformedError`."""
    entry: Any = artefact().functions[function]
    return _decoded(get_abi_output_types(entry), data, abi_to_signature(entry))


def encode_move(move: Move, attestation: bytes = b"") -> bytes:
    """The call that makes a move.

    Raises:
        RuleError: A number of the move does not fit into its argument.
    """
    fields: Any = move.to_json()
    values = [codec.to_abi(fields[name]) for name, codec in ARGUMENTS[move.kind].items()]
    try:
        return encode_call(move.kind, [*values, attestation] if move.kind in ATTESTED else values)
    except EncodingError as error:
        raise RuleError("malformed", f"the move cannot be written for a contract: {error}") from None


def decode_move(call: bytes, actor: str, value: int) -> Move:
    """The move of `actor` that a call with `value` gwei made; raises `MalformedError`."""
    kind, types = _kind_of(call)
    values = _decoded(types, call[4:], kind)
    if kind in ATTESTED:
        *values, attestation = values  # type: ignore[assignment]
        if attestation:
            raise MalformedError(f"{kind}: the log repeats an attestation")
    fields = _fields(kind, values)
    paid: dict[str, Json] = {"value": value} if kind in PAID else {}
    move = read_move(encode({"kind": kind, "actor": actor, **paid, **fields}), kind)
    if encode_move(move) != call:
        raise MalformedError(f"{kind}: not in canonical encoding")
    return move


def encode_deployment(rules: Rules, board: str | None) -> bytes:
    """The data of a transaction that makes a contract with these rules."""
    entry: Any = artefact().constructor
    return artefact().bytecode + abi_encode(get_abi_input_types(entry), [rules_to_abi(rules), board or NOBODY])


def decode_deployment(data: bytes) -> tuple[Rules, str | None]:
    """The rules and the board with which a contract was made.

    Raises:
        MalformedError: It was made from other code, or with invalid rules.
    """
    contract = artefact()
    if not data.startswith(contract.bytecode):
        raise MalformedError("the contract was made from other code than this version of tallystick brings")
    entry: Any = contract.constructor
    values, board = _decoded(get_abi_input_types(entry), data[len(contract.bytecode) :], "rules")
    rules = rules_from_abi(values)
    kept = None if board == NOBODY else str(board)
    if encode_deployment(rules, kept) != data:
        raise MalformedError("the rules of the contract are not in canonical encoding")
    return rules, kept


def rules_to_abi(rules: Rules) -> tuple[Any, ...]:
    """The rules as the contract's tuple.

    Raises:
        MalformedError: A party is no Ethereum address.
    """
    fields: Any = rules.to_json()
    for name in (*rules.members, *(fields[name] for name in _PARTIES if name in fields)):
        if not name.startswith("0x"):
            raise MalformedError(f"rules: {name[:10]}… is no Ethereum address")
    return tuple(fields.get(name, NOBODY) for name in _RULES)


def rules_from_abi(values: Sequence[Any]) -> Rules:
    """The rules in a contract's tuple; raises `MalformedError`."""
    fields = dict(zip(_RULES, values, strict=True))
    fields["members"] = list(fields["members"])
    return Rules.from_json({name: value for name, value in fields.items() if value != NOBODY}, "rules of the contract")


def refusal(data: bytes) -> RuleError | UnavailableError:
    """The refusal in a contract's error data: `RuleError` with its code, or `UnavailableError` without one."""
    if data[:4] == ERROR_SELECTOR:
        try:
            code = str(abi_decode(["string"], data[4:])[0])
        except (DecodingError, UnicodeDecodeError):
            code = ""
        if _CODE.fullmatch(code):
            return RuleError(code, f"the contract refuses this move: {code}")
    return UnavailableError("the contract refuses this move and does not say why")


_RULES: Final = tuple(Rules.model_fields)
_PARTIES: Final = ("referee", "beacon", "planter", "guardian", "treasury")


def _fields(kind: str, values: Sequence[Any]) -> dict[str, Any]:
    try:
        return {
            name: codec.to_json(value) for (name, codec), value in zip(ARGUMENTS[kind].items(), values, strict=True)
        }
    except (IndexError, ValueError):
        raise MalformedError(f"{kind}: an argument has no meaning") from None


def _kind_of(call: bytes) -> tuple[str, list[str]]:
    if len(call) > CALL_BYTES_MAX:
        raise MalformedError(f"call: longer than {CALL_BYTES_MAX} bytes")
    known = _selectors().get(call[:4])
    if known is None:
        raise MalformedError("call: no move begins with these bytes")
    return known


@cache
def _selectors() -> Mapping[bytes, tuple[str, list[str]]]:
    entries: Any = {kind: artefact().functions[kind] for kind in ARGUMENTS}
    return {
        bytes(function_abi_to_4byte_selector(entry)): (kind, list(get_abi_input_types(entry)))
        for kind, entry in entries.items()
    }


def _decoded(types: Sequence[str], data: bytes, what: str) -> tuple[Any, ...]:
    try:
        return abi_decode(list(types), data)
    except (DecodingError, UnicodeDecodeError, OverflowError):
        raise MalformedError(f"{what}: not in ABI encoding") from None


def decode_event(topics: Sequence[str], data: bytes) -> tuple[int, str, int, int, bytes]:
    """Number, actor, time, value in gwei and call of a `Moved` event; raises `MalformedError`."""
    if len(topics) != 3:
        raise MalformedError("event: a move has three topics")
    time, value, call = _decoded(["uint64", "uint64", "bytes"], data, "event")
    return int(topics[1], 16), "0x" + topics[2][-40:], time, value, call
