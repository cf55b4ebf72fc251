from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer as Pipeline, models, pre_tokenizers

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.engines.tokenizers import TokenizerFile, to_pipeline, train_bpe

END = "<|end|>"


def made(**changes: Any) -> bytes:
    pipeline = to_pipeline(train_bpe("a stick was notched, then split " * 9, 280))
    pipeline.add_special_tokens([AddedToken(END, special=True)])
    table = json.loads(pipeline.to_str())
    table["model"] |= changes
    return json.dumps(table).encode()


def test_documents_are_encoded_as_the_library_does_each_with_its_end() -> None:
    file, library = TokenizerFile(made(), END), Pipeline.from_buffer(made())
    texts = ["a stick", "", "was z\u00f6lf"]
    wanted = [token for text in texts for token in [*library.encode(text).ids, library.token_to_id(END)]]
    assert file.encode(texts).tolist() == wanted
    assert file.vocabulary == library.get_vocab_size() == 1 + library.token_to_id(END)


def test_a_file_that_cuts_and_pads_does_neither_here() -> None:
    pipeline = Pipeline.from_buffer(made())
    pipeline.enable_truncation(2)
    pipeline.enable_padding(length=9)
    content = pipeline.to_str().encode()
    assert (
        TokenizerFile(content, END).encode(["a stick was"]).tolist()
        == TokenizerFile(made(), END).encode(["a stick was"]).tolist()
    )


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"model":{}}', made()[:-1]])
def test_a_file_that_is_no_tokenizer_is_refused(content: bytes) -> None:
    with pytest.raises(MalformedError, match="does not read it"):
        TokenizerFile(content, END)


def test_a_tokenizer_without_the_end_or_with_chance_is_refused() -> None:
    with pytest.raises(MalformedError, match="has no token '<eos>'"):
        TokenizerFile(made(), "<eos>")
    with pytest.raises(MalformedError, match="at random"):
        TokenizerFile(made(dropout=0.1), END)
    assert TokenizerFile(made(dropout=0.0), END).vocabulary == TokenizerFile(made(), END).vocabulary


def test_a_pattern_at_which_the_library_gives_up_is_unavailable(capfd: pytest.CaptureFixture[str]) -> None:
    pipeline = Pipeline(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    pipeline.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+b"), "isolated")
    file = TokenizerFile(pipeline.to_str().encode(), "b")
    assert file.encode(["aab"]).tolist() == [0, 0, 1, 1]
    with pytest.raises(UnavailableError, match="gave up on a document"):
        file.encode(["a" * 40])
    capfd.readouterr()
