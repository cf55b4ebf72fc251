"""Receipts: every byte of one is a provider's, and nothing but a whole one gets through the door."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError
from tallystick.formats.claims import ModelCard
from tallystick.formats.receipt import (
    FINGERPRINTS_MAX,
    RECEIPT_BYTES_MAX,
    TOKENS_MAX,
    Receipt,
    Sampler,
    SignedReceipt,
    Tokens,
    decode_base64,
    tokens_digest,
)

ZERO = "sha256:" + 64 * "0"
PROMPT, ANSWER = [5, 6, 7], [8, 9]


def tokens(ids: list[int]) -> dict[str, Any]:
    return {"count": len(ids), "digest": tokens_digest(ids), "ids": ids}


GOOD: dict[str, Any] = {
    "receipt": {
        "receipt": 1,
        "model": ZERO,
        "request": {"id": "r-1", "prompt": tokens(PROMPT), "max_tokens": 2, "nonce": "00ff"},
        "answer": {"tokens": tokens(ANSWER), "finish": "length"},
        "sampler": {
            "form": "gumbel",
            "temperature": 0.7,
            "top_k": 5,
            "top_p": 0.9,
            "min_p": 0,
            "repetition_penalty": 1,
            "seed": 4,
        },
        "engine": {
            "name": "transformers",
            "version": "5",
            "device": "cpu",
            "attention": "sdpa",
            "kv_cache": "native",
            "environment": ZERO,
        },
        "batch": {"largest": 2, "composition": ZERO},
        "fingerprints": [
            {
                "method": "projection",
                "layers": [0, 2],
                "block": 32,
                "tokens": 2,
                "width": 15,
                "bits": 8,
                "seed": 64 * "0",
                "data": base64.b64encode(bytes(32)).decode(),
            }
        ],
        "states": {"root": ZERO, "layers": [2], "block": 32, "rows": 2, "prompt": False, "dtype": "F32"},
        "sequence": 7,
        "previous": ZERO,
    },
    "key": 64 * "0",
    "signature": 128 * "0",
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good receipt with the entry at a dotted path replaced; `...` takes it away."""
    found = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    place: Any = found
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    key: Any = int(last) if isinstance(place, list) else last
    if value is ...:
        del place[key]
    else:
        place[key] = value
    return found


def refusal(document: Any) -> str:
    with pytest.raises(MalformedError) as caught:
        SignedReceipt.from_json(document, "receipt")
    return str(caught.value)


def test_a_whole_receipt_gets_through_and_comes_back_byte_for_byte() -> None:
    signed = SignedReceipt.from_json(GOOD, "receipt")
    assert signed.to_json() == GOOD
    assert SignedReceipt.from_bytes(encode(GOOD), "receipt") == signed
    assert signed.receipt.identity == digest("receipt", encode(GOOD["receipt"]))
    assert signed.receipt.signed_bytes() == b"tallystick/receipt/v1\n" + encode(GOOD["receipt"])


FIELDS = {
    "an unknown version": ("receipt.receipt", 2),
    "no version": ("receipt.receipt", "1"),
    "a model by name": ("receipt.model", "llama"),
    "a digest in capitals": ("receipt.model", "sha256:" + 64 * "A"),
    "no request": ("receipt.request", ...),
    "an id with a path in it": ("receipt.request.id", "../x"),
    "an endless id": ("receipt.request.id", 129 * "a"),
    "a nonce of half a byte": ("receipt.request.nonce", "0"),
    "an endless nonce": ("receipt.request.nonce", 130 * "0"),
    "an empty nonce": ("receipt.request.nonce", ""),
    "a negative limit": ("receipt.request.max_tokens", -1),
    "a limit beyond all": ("receipt.request.max_tokens", TOKENS_MAX + 1),
    "a limit that is half a token": ("receipt.request.max_tokens", 1.5),
    "a limit in words": ("receipt.request.max_tokens", "2"),
    "a limit that is true": ("receipt.request.max_tokens", True),
    "a negative count": ("receipt.answer.tokens.count", -2),
    "a count beyond all": ("receipt.answer.tokens.count", TOKENS_MAX + 1),
    "a negative token": ("receipt.answer.tokens.ids.0", -1),
    "a token beyond 31 bits": ("receipt.answer.tokens.ids.0", 1 << 31),
    "a token beyond all integers": ("receipt.answer.tokens.ids.0", 10**30),
    "a token that is a number with a point": ("receipt.answer.tokens.ids.0", 8.5),
    "an unknown end": ("receipt.answer.finish", "tired"),
    "a negative temperature": ("receipt.sampler.temperature", -0.5),
    "a temperature that is no number": ("receipt.sampler.temperature", float("nan")),
    "an infinite temperature": ("receipt.sampler.temperature", float("inf")),
    "a top-p above 1": ("receipt.sampler.top_p", 1.1),
    "a negative top-k": ("receipt.sampler.top_k", -1),
    "a seed beyond canonical integers": ("receipt.sampler.seed", 1 << 53),
    "no penalty": ("receipt.sampler.repetition_penalty", 0),
    "an unknown draw": ("receipt.sampler.form", "dice"),
    "a penalty beyond the API's": ("receipt.sampler.frequency_penalty", 2.5),
    "a bias of nothing": ("receipt.sampler.logit_bias", [[3, 0]]),
    "biases out of order": ("receipt.sampler.logit_bias", [[3, 1], [2, 1]]),
    "a token twice": ("receipt.sampler.allowed_token_ids", [3, 3]),
    "an endless name": ("receipt.engine.name", 257 * "x"),
    "an empty name": ("receipt.engine.version", ""),
    "a batch of nobody": ("receipt.batch.largest", 0),
    "an unknown method": ("receipt.fingerprints.0.method", "vibes"),
    "a fingerprint of no layer": ("receipt.fingerprints.0.layers", []),
    "a fingerprint of a negative layer": ("receipt.fingerprints.0.layers", [-1]),
    "a fingerprint of too many layers": ("receipt.fingerprints.0.layers", [0] * 1025),
    "blocks of nothing": ("receipt.fingerprints.0.block", 0),
    "a negative number of tokens bound": ("receipt.fingerprints.0.tokens", -1),
    "no width": ("receipt.fingerprints.0.width", 0),
    "an endless width": ("receipt.fingerprints.0.width", 4097),
    "two bits": ("receipt.fingerprints.0.bits", 2),
    "a short seed": ("receipt.fingerprints.0.seed", 63 * "0"),
    "numbers for bytes": ("receipt.fingerprints.0.data", 5),
    "too many fingerprints": ("receipt.fingerprints", GOOD["receipt"]["fingerprints"] * (FINGERPRINTS_MAX + 1)),
    "states of a dtype nobody has": ("receipt.states.dtype", "F8"),
    "states of a negative row": ("receipt.states.rows", -1),
    "states of endless rows": ("receipt.states.rows", TOKENS_MAX + 1),
    "the zeroth receipt": ("receipt.sequence", 0),
    "a negative sequence": ("receipt.sequence", -1),
    "a sequence beyond canonical integers": ("receipt.sequence", 1 << 53),
    "a short key": ("key", 62 * "0"),
    "a key in capitals": ("key", 64 * "A"),
    "a short signature": ("signature", 126 * "0"),
    "an unknown entry": ("receipt.price", 3),
    "an unknown entry outside": ("price", 3),
}


DISAGREEMENTS = {
    "a count that is not that of the ids": ("receipt.answer.tokens.count", 3),
    "fewer ids than counted": ("receipt.answer.tokens.ids", [8]),
    "other ids than digested": ("receipt.answer.tokens.ids", [8, 10]),
    "a prompt's ids in another order": ("receipt.request.prompt.ids", [6, 5, 7]),
    "a digest of other tokens": ("receipt.answer.tokens.digest", ZERO),
}


@pytest.mark.parametrize("what", FIELDS)
def test_a_malformed_receipt_is_refused_by_the_name_of_the_field(what: str) -> None:
    path, value = FIELDS[what]
    assert path in refusal(changed(path, value))


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_ids_count_and_digest_that_disagree_are_refused(what: str) -> None:
    path, value = DISAGREEMENTS[what]
    told = refusal(changed(path, value))
    assert "belong together" in told
    assert told.startswith(f"receipt: {path.rpartition('.')[0]}:")


def test_data_that_is_not_canonical_base64_is_refused() -> None:
    good = base64.b64encode(bytes(32)).decode()
    assert decode_base64(good, "data") == bytes(32)
    for text in (good[:-1], good + "\n", good.replace("=", ""), " " + good, good[:-2] + "B=", "é" + good[1:], "-_8="):
        receipt = SignedReceipt.from_json(changed("receipt.fingerprints.0.data", text), "receipt").receipt
        with pytest.raises(MalformedError, match=r"fingerprint\.data: (no|not canonical) base64"):
            receipt.fingerprints[0].raw  # noqa: B018


def test_a_receipt_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(MalformedError, match="more than the"):
        SignedReceipt.from_bytes(b" " * (RECEIPT_BYTES_MAX + 1), "receipt")
    bomb = b"[" * 100_000
    with pytest.raises(MalformedError, match="nest"):
        SignedReceipt.from_bytes(bomb, "receipt")


def test_other_spellings_of_the_same_receipt_are_refused() -> None:
    whole = encode(GOOD)
    spelt = {
        "with spaces": json.dumps(GOOD).encode(),
        "with a line feed": whole + b"\n",
        "with a byte behind": whole + b"x",
        "with an explicit null": encode(changed("receipt.request.nonce", None)),
        "with a default left out": encode(changed("receipt.engine.kv_cache", ...)),
        "with a key twice": whole.replace(b'{"key"', b'{"key":"","key"', 1),
        "with NaN": whole.replace(b'"top_p":0.9', b'"top_p":NaN'),
        "cut short": whole[:-1],
        "empty": b"",
        "with a byte order mark": b"\xef\xbb\xbf" + whole,
    }
    for how, data in spelt.items():
        with pytest.raises(MalformedError):
            SignedReceipt.from_bytes(data, how)


def test_a_private_receipt_says_the_same_of_its_tokens_without_them() -> None:
    public = Tokens.of(PROMPT)
    private = Tokens.of(PROMPT, private=True)
    assert (private.count, private.digest, private.ids) == (public.count, public.digest, None)
    found = changed("receipt.answer.tokens.ids", ...)
    assert SignedReceipt.from_json(found, "receipt").receipt.answer.tokens.ids is None


def test_every_field_is_under_the_signature() -> None:
    base = Receipt.from_json(GOOD["receipt"], "receipt").signed_bytes()
    others = {
        "request.nonce": "01",
        "request.id": "r-2",
        "answer.finish": "end",
        "sampler.seed": 5,
        "engine.kv_cache": "int8",
        "batch.largest": 3,
        "sequence": 8,
        "previous": "sha256:" + 64 * "1",
    }
    for path, value in others.items():
        other = Receipt.from_json(changed(f"receipt.{path}", value)["receipt"], "receipt")
        assert other.signed_bytes() != base


def test_sizes_are_told_per_token() -> None:
    receipt = Receipt.from_json(GOOD["receipt"], "receipt")
    assert receipt.fingerprint_bytes_per_token == 16


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=200)
def test_no_bytes_do_anything_but_be_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        SignedReceipt.from_bytes(data, "receipt")


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_a_receipt_with_bytes_changed_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(encode(GOOD))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        signed = SignedReceipt.from_bytes(bytes(whole), "receipt")
    except MalformedError:
        return
    assert signed.to_bytes() == bytes(whole)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PLACES = [path for path, _ in FIELDS.values()]


@given(st.sampled_from(PLACES), JSON)
@settings(deadline=None, max_examples=300)
def test_a_receipt_with_any_value_in_any_place_is_read_or_refused(path: str, value: Any) -> None:
    try:
        signed = SignedReceipt.from_json(changed(path, value), "receipt")
    except MalformedError:
        return
    assert SignedReceipt.from_bytes(signed.to_bytes(), "receipt") == signed


CARD = {
    "model": 1,
    "architecture": "llama",
    "config": ZERO,
    "weights": ZERO,
    "tokenizer": ZERO,
    "dtype": "F32",
    "vocabulary": 256,
    "layers": 2,
    "width": 32,
}


def test_a_model_card_is_named_by_all_it_says() -> None:
    card = ModelCard.from_json(CARD, "card")
    assert card.identity == digest("model", encode(CARD))
    for name, value in {"dtype": "BF16", "quantization": "int8", "template": ZERO, "vocabulary": 257}.items():
        assert ModelCard.from_json({**CARD, name: value}, "card").identity != card.identity


@pytest.mark.parametrize(
    ("field", "value"), [("vocabulary", 0), ("layers", -1), ("dtype", "F8"), ("model", 3), ("weights", "x"), ("no", 1)]
)
def test_a_malformed_card_is_refused_by_the_name_of_the_field(field: str, value: Any) -> None:
    with pytest.raises(MalformedError, match=f"card: {field}"):
        ModelCard.from_json({**CARD, field: value}, "card")


def test_a_digest_of_text_stands_without_ids() -> None:
    text = Tokens.from_json({"count": 2, "digest": str(digest("blob", b"hi")), "over": "text"}, "tokens")
    assert (text.over, text.ids) == ("text", None)
    with pytest.raises(MalformedError, match="the digest is of the text"):
        Tokens.from_json({**Tokens.of([1, 2]).to_json(), "over": "text"}, "tokens")  # type: ignore[dict-item]


def test_settings_that_are_off_are_left_out_and_have_one_spelling() -> None:
    plain = Sampler(seed=5)
    assert plain.to_bytes() == Sampler(seed=5, presence_penalty=0.0, logit_bias=(), min_tokens=0).to_bytes()
    assert b"presence" not in plain.to_bytes()
    spelled = encode({**Sampler(seed=5).model_dump(), "presence_penalty": 0})
    with pytest.raises(MalformedError, match="not in canonical form"):
        Sampler.from_bytes(spelled, "sampler")
    penalised = plain.model_copy(update={"presence_penalty": 0.5})
    assert Sampler.from_bytes(penalised.to_bytes(), "sampler") == penalised
    with pytest.raises(MalformedError, match="end_token_ids go with min_tokens"):
        Sampler.from_json({"end_token_ids": [2]}, "sampler")
