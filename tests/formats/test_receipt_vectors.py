"""Receipts and model cards are those of their pages, and of vectors made without the package."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError, ProofError
from tallystick.formats.claims import ModelCard
from tallystick.formats.hidden_states import commit_states
from tallystick.formats.receipt import Receipt, SignedReceipt
from tallystick.formats.signing import verify_receipt_signature

ROOT = Path(__file__).parents[2]


def vectors(name: str) -> list[Any]:
    found: list[Any] = json.loads((ROOT / "vectors" / "receipt" / f"{name}.json").read_text())
    return found


def test_making_the_vectors_again_gives_the_same_bytes() -> None:
    spec = importlib.util.spec_from_file_location("vectors_script", ROOT / "scripts" / "make_receipt_vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, Any] = module.vectors()
    assert {name: vectors(name) for name in made} == json.loads(json.dumps(made))
    assert len(list((ROOT / "vectors" / "receipt").iterdir())) == len(made)


@pytest.mark.parametrize("case", vectors("signed"), ids=lambda case: case["what"])
def test_a_signed_receipt_is_read_and_verified(case: Any) -> None:
    signed = SignedReceipt.from_bytes(case["text"].encode(), "vector")
    verify_receipt_signature(signed)
    assert signed.receipt.identity == case["identity"]
    assert signed.to_bytes().decode() == case["text"]


def test_the_receipts_are_a_chain() -> None:
    first, second, _ = (SignedReceipt.from_bytes(case["text"].encode(), "vector").receipt for case in vectors("signed"))
    assert (first.sequence, first.previous) == (1, None)
    assert (second.sequence, second.previous) == (2, first.identity)


def test_the_states_are_those_under_the_root() -> None:
    case = vectors("signed")[1]
    rows = json.loads(case["what"].partition("states of ")[2])
    stated = SignedReceipt.from_bytes(case["text"].encode(), "vector").receipt.states
    assert stated is not None
    states = {layer: np.array(each, np.float32) for layer, each in zip(stated.layers, rows, strict=True)}
    assert commit_states(states, stated.layers, stated.block).statement == stated


@pytest.mark.parametrize("case", vectors("refused"), ids=lambda case: case["what"])
def test_a_malformed_receipt_is_refused(case: Any) -> None:
    with pytest.raises(MalformedError, match=re.escape(f"vector: {case['field']}")):
        SignedReceipt.from_bytes(case["text"].encode(), "vector")


@pytest.mark.parametrize("case", vectors("forged"), ids=lambda case: case["what"])
def test_a_forged_receipt_is_read_and_does_not_verify(case: Any) -> None:
    signed = SignedReceipt.from_bytes(case["text"].encode(), "vector")
    with pytest.raises(ProofError, match="signature"):
        verify_receipt_signature(signed)


@pytest.mark.parametrize("case", vectors("cards"), ids=lambda case: case["what"])
def test_a_model_card_has_its_root(case: Any) -> None:
    assert ModelCard.from_json(case["card"], "vector").identity == case["root"]


# ---- pages
def example(name: str) -> Any:
    """The first block of a page, with whole digests, keys and signatures in place of shortened ones."""
    page = (ROOT / "spec" / f"{name}.md").read_text()
    block = "".join(re.findall(r"^ {4}(.*\n)", page.partition("\n## ")[0], re.MULTILINE))
    text = re.sub(r'"sha256:[0-9a-f]{4}…"', f'"sha256:{64 * "a"}"', block)
    text = re.sub(r'"signature":"[0-9a-f]{4}…"', f'"signature":"{128 * "a"}"', text)
    return json.loads(re.sub(r'"[0-9a-f]{4}…"', f'"{64 * "a"}"', text))


def test_the_example_of_the_receipts_page_is_a_whole_receipt() -> None:
    found = example("receipt")
    for tokens in (found["receipt"]["request"]["prompt"], found["receipt"]["answer"]["tokens"]):
        with pytest.raises(MalformedError, match="do not belong together"):
            SignedReceipt.from_json(found, "page")
        tokens["digest"] = tokens_digest(tokens["ids"])
    signed = SignedReceipt.from_json(found, "page")
    assert signed.to_json() == found
    left_out = {"graph"}
    assert set(found["receipt"]) == set(Receipt.model_fields)
    assert set(found["receipt"]["engine"]) | left_out == set(type(signed.receipt.engine).model_fields)


def tokens_digest(ids: list[int]) -> str:
    from tallystick.formats.receipt import tokens_digest as digest

    return digest(ids)


def test_the_page_names_every_field() -> None:
    page = (ROOT / "spec" / "receipt.md").read_text()
    for name in Receipt.model_fields:
        assert f"`{name}" in page, name


def test_the_sizes_of_the_page_are_those_of_receipts() -> None:
    signed = SignedReceipt.from_json(example_with_digests(), "page")
    bare = signed.receipt.model_copy(update={"fingerprints": (), "states": None})
    assert 1000 < len(signed.model_copy(update={"receipt": bare}).to_bytes()) < 1400
    states = signed.receipt.model_copy(update={"fingerprints": ()})
    assert 100 < len(states.to_bytes()) - len(bare.to_bytes()) < 200


def example_with_digests() -> Any:
    found = example("receipt")
    for tokens in (found["receipt"]["request"]["prompt"], found["receipt"]["answer"]["tokens"]):
        tokens["digest"] = tokens_digest(tokens["ids"])
    return found


def test_the_example_of_the_cards_page_is_a_card() -> None:
    found = example("model-card")
    assert set(found) | {"quantization"} == set(ModelCard.model_fields)
    assert ModelCard.from_json(found, "page").to_json() == found
