"""Receipts mutated at random: bytes flipped, cut and doubled; JSON values replaced by others, signed anew or not.

Under the old signature nothing may be accepted but what reads as the honest receipt. Signed anew by the provider, other
statements may be accepted where no check of one receipt covers them, such as what the engine is called; whatever is
checked has to be as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from tallystick.core.canonical_json import Json, encode, parse
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.formats.receipt import Fingerprint, Receipt, SignedReceipt
from tests.support.attacks.receipts.catalogue import judge
from tests.support.attacks.receipts.forging import changed, sign
from tests.support.attacks.receipts.scene import Answered, Presented, Scene

Kind = Literal["bytes", "fields", "signed"]
Path: TypeAlias = tuple[str | int, ...]
KINDS: Final[tuple[Kind, ...]] = ("bytes", "fields", "signed")
NEAR: Final = 32
"""Cells of the standard grid in F32, which are as wide as what honest stacks may differ by."""
STRANGE: Final[tuple[Any, ...]] = (
    *(None, True, "", "0", -1, 0, 1, 2, 0.5, 1 << 31, (1 << 53) - 1, [], {}, [0], {"a": 1}),
    *("nan", "sha256:" + "0" * 64, "A" * 5, "\ud7ff\u0000", -0.0, 1e300, [[]] * 3),
)


@dataclass
class Fuzzed:
    """How many mutants were answered how, and in which of their fields the accepted ones were mutated.

    `equal` counts those accepted that read as the honest receipt, and `unchecked` those in which nothing differs that a
    check covers. `accepted` counts the other accepted ones, of which there may be none.
    """

    kind: Kind
    tried: int = 0
    equal: int = 0
    unchecked: int = 0
    refused: int = 0
    rejected: int = 0
    inconclusive: int = 0
    accepted: int = 0
    fields: Counter[str] = field(default_factory=Counter)

    @property
    def is_sound(self) -> bool:
        """Whether nothing was accepted but what may be."""
        return self.accepted == 0 and (self.unchecked == 0 or self.kind == "signed")


def fuzz(scene: Scene, kind: Kind, count: int, seed: int = 0) -> Fuzzed:
    """Judge `count` mutants of the first answer's receipt."""
    rng, found = np.random.default_rng([seed, KINDS.index(kind)]), Fuzzed(kind)
    for _ in range(count):
        where, mutant = _mutant(scene, kind, rng)
        outcome = _outcome(scene, mutant)
        found.tried += 1
        setattr(found, outcome, getattr(found, outcome) + 1)
        if outcome in ("accepted", "unchecked"):
            found.fields[where] += 1
    return found


def mutate_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes flipped, cut out, doubled, replaced or lost at the end."""
    held = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        start = int(rng.integers(0, len(held)))
        stop = min(len(held), start + int(rng.integers(1, 9)))
        match int(rng.integers(0, 5)):
            case 0:
                held[start] ^= 1 << int(rng.integers(0, 8))
            case 1:
                del held[start:stop]
            case 2:
                held[start:start] = held[start:stop]
            case 3:
                held[start:stop] = rng.bytes(stop - start)
            case _:
                del held[max(1, start) :]
    return bytes(held)


def mutate_field(value: Any, rng: np.random.Generator) -> tuple[str, Any]:
    """One value somewhere inside replaced by another, taken away, or doubled; and its first field's name."""
    places = list(_places(value))
    path = places[int(rng.integers(0, len(places)))]
    dotted = ".".join(map(str, path))
    held = _at(value, path)
    if rng.random() < 0.15 and isinstance(path[-1], str):
        return str(path[0]), changed(value, {dotted: None})
    return str(path[0]), changed(value, {dotted: _other(held, rng)})


def _mutant(scene: Scene, kind: Kind, rng: np.random.Generator) -> tuple[str, bytes]:
    signed: Any = scene.first.body["receipt"]
    if kind == "bytes":
        return "bytes", mutate_bytes(encode(signed), rng)
    if kind == "fields":
        where, value = mutate_field(signed, rng)
        return where, _text(value)
    where, value = mutate_field(signed["receipt"], rng)
    try:
        return where, encode(sign(value, scene.key))
    except MalformedError:
        return where, _text({**signed, "receipt": value})


def _outcome(scene: Scene, mutant: bytes) -> str:
    try:
        body = {**scene.first.body, "receipt": parse(mutant, "receipt")}
        outcome = judge((Presented(body, scene.first.request),), scene.promised, scene.policy).outcome
    except (MalformedError, UnavailableError):
        return "refused"
    return _kind_of_accepted(body["receipt"], scene.first) if outcome == "accepted" else outcome


def _kind_of_accepted(mutant: Json, honest: Answered) -> str:
    read, held = (SignedReceipt.from_json(each, "receipt") for each in (mutant, honest.body["receipt"]))
    if read.to_bytes() == held.to_bytes():
        return "equal"
    settings = tuple(honest.request.settings_of())
    is_same = _checked(read.receipt, settings) == _checked(held.receipt, settings)
    return "unchecked" if is_same and _agree(read.receipt, held.receipt) else "accepted"


def _checked(receipt: Receipt, settings: Sequence[str]) -> tuple[Any, ...]:
    """What checks of one receipt cover, its fingerprints left out; ids stand for their digest."""
    prompt, answer = receipt.request.prompt, receipt.answer
    asked = receipt.request.id, receipt.request.max_tokens, receipt.request.nonce, prompt.count, prompt.digest
    told = receipt.model, answer.tokens.count, answer.tokens.digest, answer.finish, receipt.engine.kv_cache
    sampler = receipt.sampler.model_dump()
    return asked, told, {name: sampler[name] for name in settings}


def _agree(one: Receipt, other: Receipt) -> bool:
    """Whether each fingerprint of one is as good as one of the other; the same twice says nothing more."""
    pairs = ((one.fingerprints, other.fingerprints), (other.fingerprints, one.fingerprints))
    return all(any(_is_near(a, b) for b in others) for own, others in pairs for a in own)


def _is_near(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether codes lie within honest rounding of each other: distances are compared, not bytes."""
    if one.model_copy(update={"data": other.data}) != other or len(one.raw) != len(other.raw):
        return False
    apart = np.frombuffer(one.raw, np.uint8) - np.frombuffer(other.raw, np.uint8)
    return bool((np.minimum(apart, -apart) <= NEAR).all())


def _places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of everything inside; of long lists, of the first entries."""
    entries: Sequence[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))[:4]
    for name, entry in entries:
        yield (*path, name)
        yield from _places(entry, (*path, name))


def _at(value: Any, path: Path) -> Any:
    for name in path:
        value = value[name]
    return value


def _other(held: Any, rng: np.random.Generator) -> Any:
    """Something near what is there, or something strange."""
    choice = int(rng.integers(0, 3))
    if choice and isinstance(held, int) and not isinstance(held, bool):
        return held + int(rng.choice([-1, 1, 7, 1 << 20]))
    if choice and isinstance(held, str) and held:
        place = int(rng.integers(0, len(held)))
        other = "0123456789abcdefABZ+/="[int(rng.integers(0, 22))]
        return held[:place] + other + held[place + 1 :]
    if choice == 1 and isinstance(held, list) and held:
        return held[:-1]
    if choice == 2 and isinstance(held, list):
        return [*held, *held[:1]]
    return STRANGE[int(rng.integers(0, len(STRANGE)))]


def _text(value: Any) -> bytes:
    """JSON of anything, canonical or not."""
    import json

    return json.dumps(value).encode()


__all__ = ["KINDS", "Fuzzed", "fuzz", "mutate_bytes", "mutate_field"]
