from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError
from tallystick.formats.data.tokenizer import BYTES, TOKEN_BYTES_MAX, Tokenizer, encode_text

VECTORS = Path(__file__).parents[3] / "vectors" / "tokenizer"
DEFINITION = {"kind": "bpe", "merges": [[104, 105], [256, 33]], "pieces": "ascii/v1", "version": 1}


def read(definition: object) -> Tokenizer:
    return Tokenizer.from_bytes(json.dumps(definition, sort_keys=True, separators=(",", ":")).encode(), "tokenizer")


def test_a_definition_round_trips() -> None:
    for tokenizer in (BYTES, Tokenizer.bpe(()), Tokenizer.bpe(((104, 105), (256, 33)))):
        assert Tokenizer.from_bytes(tokenizer.to_bytes(), "tokenizer") == tokenizer
    assert read(DEFINITION).tokens[256:] == (b"hi", b"hi!")


def test_kind_and_merges_are_part_of_the_digest() -> None:
    tokenizers = (
        BYTES,
        Tokenizer.bpe(()),
        Tokenizer.bpe(((1, 2),)),
        Tokenizer.bpe(((2, 1),)),
    )
    assert len({tokenizer.identity for tokenizer in tokenizers}) == 4


def test_a_merge_whose_bytes_are_a_token_names_that_token() -> None:
    tokenizer = Tokenizer.bpe(((97, 98), (98, 99), (256, 99), (97, 257)))
    assert tokenizer.vocabulary == 259
    assert tokenizer.tokens[256:] == (b"ab", b"bc", b"abc")
    assert tokenizer.ranks[97, 257] == (3, 258)
    assert read({**DEFINITION, "merges": [list(pair) for pair in tokenizer.merges]}) == tokenizer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "unigram"}, "kind"),
        ({"kind": ["bpe"]}, "kind"),
        ({"version": 2}, "version"),
        ({"version": True}, "canonical form"),
        ({"pieces": "(a+)+$"}, "pieces"),
        ({"merges": {}}, "must be a list"),
        ({"merges": [[1]]}, "merges.0.1: is missing"),
        ({"merges": [[1, 256]]}, "merges.0."),
        ({"merges": [[-1, 2]]}, "merges.0."),
        ({"merges": [[1, "2"]]}, "merges.0."),
        ({"merges": [[1, 2], [1, 2]]}, "merges.1.: given before"),
        ({"added_tokens": []}, "no such field"),
    ],
)
def test_malformed_definitions_are_refused(change: dict[str, object], message: str) -> None:
    assert read(DEFINITION).kind == "bpe"
    with pytest.raises(MalformedError, match=message):
        read({**DEFINITION, **change})


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b'{"kind":"bytes"}', b'{"kind":"bytes","version":1} '])
def test_other_bytes_are_no_tokenizer(data: bytes) -> None:
    with pytest.raises(MalformedError, match="tokenizer"):
        Tokenizer.from_bytes(data, "tokenizer")


def test_merges_that_double_a_token_again_and_again_are_refused() -> None:
    doubling = [[97, 97], *([256 + rank, 256 + rank] for rank in range(64))]
    with pytest.raises(MalformedError, match=r"merges\[7\]: makes a token of 256 bytes"):
        read({**DEFINITION, "merges": doubling})
    assert TOKEN_BYTES_MAX == 132


def test_published_vectors_hold() -> None:
    for vector in json.loads((VECTORS / "tokenizers.json").read_bytes())["tokenizers"]:
        tokenizer = Tokenizer.from_bytes(encode(vector["definition"]), "tokenizer")
        assert tokenizer.identity == vector["digest"]
        assert tokenizer.vocabulary == vector["vocabulary"]
        for case in vector["texts"]:
            assert encode_text(tokenizer, case["text"]).tolist() == case["tokens"]
            assert b"".join(tokenizer.tokens[token] for token in case["tokens"]) == case["text"].encode()
