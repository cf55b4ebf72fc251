from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.recording.training import read_config

REST = """
[model]
architecture = "gpt2"
[training]
steps = 4
batch = 2
"""


def written(folder: Path, data: str, tokenizer: str = "") -> Path:
    path = folder / "config.toml"
    path.write_text(f"[data]\n{data}\n[tokenizer]\n{tokenizer}\n{REST}")
    return path


def test_paths_are_relative_to_the_config_and_no_part_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    tokenizer = 'kind = "huggingface"\npath = "tokenizer.json"\nend = "<end>"'
    config = read_config(written(tmp_path, 'kind = "corpus"\npath = "shards"', tokenizer))
    assert (config.source, config.tokenizer) == (tmp_path / "shards", tmp_path / "tokenizer.json")
    assert config.recipe.tokenizer.digest == digest("blob", b"{}")
    assert b"shards" not in config.recipe.to_bytes()


def test_a_digest_that_is_stated_is_kept(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    stated = digest("blob", b"another")
    tokenizer = f'kind = "huggingface"\npath = "tokenizer.json"\nend = "<end>"\ndigest = "{stated}"'
    assert read_config(written(tmp_path, 'kind = "corpus"\npath = "a"', tokenizer)).recipe.tokenizer.digest == stated


@pytest.mark.parametrize(
    ("data", "tokenizer", "error", "match"),
    [
        ('kind = "corpus"', "", UsageError, r"data\.path"),
        ('kind = "corpus"\npath = "a"', 'kind = "huggingface"', MalformedError, "has a file and an end"),
        ('kind = "corpus"\npath = "a"', 'end = "x"', MalformedError, "has a file and an end"),
        ('kind = "corpus"\npath = "a"', 'kind = "bpe"', MalformedError, "a corpus takes a tokenizer"),
        ('kind = "text"\npath = "a"\nfield = "b"', "", MalformedError, r"data\.field belongs to a corpus"),
        ('kind = "corpus"\npath = "a"', 'path = "none"', UnavailableError, "none"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    tmp_path: Path, data: str, tokenizer: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        read_config(written(tmp_path, data, tokenizer))
    assert read_config(written(tmp_path, 'kind = "corpus"\npath = "a"\nfield = "b"')).recipe.data.text_field == "b"
