from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings, strategies as st

from tallystick.engines.tokenizers import to_pipeline, train_bpe
from tallystick.formats.data.tokenizer import (
    BYTES,
    PIECE_CHARACTERS,
    Tokenizer,
    encode_text,
    merge_piece,
    split_pieces,
)

TOPICS = (Path(__file__).parents[3] / "examples" / "data" / "python-topics.txt").read_text("utf-8")
TRAINED = train_bpe(TOPICS[:60_000], 512)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=200) | st.text("ab  \n\t19.é(", max_size=200)


@given(TEXTS)
@settings(deadline=None)
def test_pieces_put_together_are_the_text(text: str) -> None:
    pieces = list(split_pieces(text))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= PIECE_CHARACTERS + 1 for piece in pieces)


@given(TEXTS)
@settings(deadline=None)
def test_decoding_gives_back_the_bytes(text: str) -> None:
    for tokenizer in (BYTES, TRAINED):
        assert b"".join(tokenizer.tokens[token] for token in encode_text(tokenizer, text)) == text.encode()


@given(TEXTS)
@settings(deadline=None)
def test_our_encoding_is_that_of_the_library(text: str) -> None:
    assert encode_text(TRAINED, text).tolist() == to_pipeline(TRAINED).encode(text).ids


def test_the_library_agrees_on_the_shipped_text() -> None:
    text = TOPICS[200_000:260_000]
    assert encode_text(TRAINED, text).tolist() == to_pipeline(TRAINED).encode(text).ids


def test_the_leftmost_of_the_most_urgent_merges_comes_first() -> None:
    aa_first = Tokenizer.bpe(((97, 97), (97, 98)))
    assert merge_piece(aa_first.ranks, b"aaab") == [256, 257]
    ab_first = Tokenizer.bpe(((97, 98), (97, 97)))
    assert merge_piece(ab_first.ranks, b"aaab") == [257, 256]


def test_a_run_without_spaces_is_cut_before_it_grows_expensive() -> None:
    assert {len(piece) for piece in split_pieces("x" * 64_000)} == {PIECE_CHARACTERS}


def test_the_same_text_has_the_same_pieces_whatever_the_unicode_version() -> None:
    assert list(split_pieces("né\u0378²\u2028x_1")) == ["né\u0378²\u2028x", "_", "1"]
