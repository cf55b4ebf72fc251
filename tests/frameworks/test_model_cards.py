"""A card is answered from the cache as long as no file of the directory changes, and never longer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tallystick.errors import MalformedError
from tallystick.frameworks import model_cards
from tallystick.frameworks.model_cards import SETTLED_NS, card_of

Change = Callable[[Path], object]
LATER = 10 * SETTLED_NS


@pytest.fixture
def copied(model_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_directory, tmp_path / "model"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """How often the files were read; the clock stands where they have settled."""
    from tallystick.frameworks.torch.generation import model_files

    seen: list[str] = []
    read = model_files.read_card

    def counted(path: Path, dtype: Any) -> Any:
        seen.append(dtype)
        return read(path, dtype)

    monkeypatch.setattr(model_files, "read_card", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    now = model_cards.time.time_ns() + LATER
    monkeypatch.setattr(model_cards.time, "time_ns", lambda: now)
    return seen


def test_unchanged_files_are_read_once_for_each_precision(copied: Path, reads: list[str], language_model: Any) -> None:
    assert [card_of(copied) for _ in range(3)] == [language_model.card] * 3
    assert card_of(copied, "BF16") == card_of(copied, "BF16") != language_model.card
    assert card_of(str(copied)) == language_model.card
    assert reads == ["F32", "BF16"]


def test_a_recheck_reads_again(copied: Path, reads: list[str]) -> None:
    assert card_of(copied) == card_of(copied, recheck=True)
    assert reads == ["F32", "F32"]


def weight_edited(folder: Path) -> None:
    """One bit of one weight, with the size and the times that the file had."""
    path = folder / "model.safetensors"
    held, data = path.stat(), bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(held.st_atime_ns, held.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        weight_edited,
        lambda folder: (folder / "chat_template.jinja").write_text("{{ messages }}"),
        lambda folder: (folder / "chat_template.jinja").unlink(),
        lambda folder: (folder / "config.json").write_text(
            (folder / "config.json").read_text().replace("1e-06", "1e-05")
        ),
    ],
)
def test_a_changed_file_is_never_answered_from_the_cache(copied: Path, reads: list[str], change: Change) -> None:
    before = card_of(copied)
    change(copied)
    assert card_of(copied) != before
    assert len(reads) == 2


def template_moved(folder: Path, template: Any) -> None:
    """The chat template stands in `tokenizer_config.json` alone."""
    (folder / "chat_template.jinja").unlink()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))


def test_a_template_in_the_configuration_of_the_tokenizer_is_bound(copied: Path, language_model: Any) -> None:
    from tallystick.frameworks.torch.generation.language_models import load_language_model

    template = (copied / "chat_template.jinja").read_text()
    template_moved(copied, template)
    assert card_of(copied) == load_language_model(copied).card == language_model.card
    (copied / "chat_template.jinja").write_text(template + " ")
    assert card_of(copied) != language_model.card, "the file goes before the configuration"
    roots = {card_of(copied).identity, language_model.card.identity}
    for other in (template + "!", [{"name": "default", "template": template}], None):
        template_moved(copied, other)
        roots.add(card_of(copied).identity)
        (copied / "chat_template.jinja").write_text(template)
    assert len(roots) == 5


def test_a_tokenizer_without_a_limit_and_a_template_file_is_read(copied: Path, language_model: Any) -> None:
    """Transformers writes 10³⁰, as a row of digits, for the length of a tokenizer that has no limit."""
    from tallystick.frameworks.torch.generation.language_models import load_language_model

    template_moved(copied, (copied / "chat_template.jinja").read_text())
    path = copied / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": int(1e30)}))
    assert "1000000000000000019884624838656" in path.read_text()
    assert card_of(copied) == load_language_model(copied).card == language_model.card
    path.write_text(path.read_text().replace("1000000000000000019884624838656", "1" + "0" * 400))
    with pytest.raises(MalformedError, match="overflows"):
        card_of(copied)


def test_another_folder_at_the_same_path_is_read(copied: Path, reads: list[str]) -> None:
    before = card_of(copied)
    copied.rename(copied.with_name("aside"))
    shutil.copytree(copied.with_name("aside"), copied)
    assert card_of(copied) == before
    assert len(reads) == 2


def test_a_file_that_just_changed_is_not_kept(copied: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    newest = max(each.stat().st_ctime_ns for each in copied.iterdir())
    monkeypatch.setattr(model_cards.time, "time_ns", lambda: newest + SETTLED_NS)
    assert card_of(copied) == card_of(copied)
    assert len(reads) == 2


def test_files_that_change_while_they_are_read_are_not_kept(
    copied: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.frameworks.torch.generation import model_files

    read = model_files.read_card

    def late(path: Path, dtype: Any) -> Any:
        card = read(path, dtype)
        weight_edited(path)
        return card

    monkeypatch.setattr(model_files, "read_card", late)
    before = card_of(copied)
    monkeypatch.setattr(model_files, "read_card", read)
    assert card_of(copied) != before


def test_a_damaged_or_forbidden_cache_costs_time_only(copied: Path, reads: list[str], tmp_path: Path) -> None:
    before = card_of(copied)
    (kept,) = (tmp_path / "cache").rglob("*.json")
    kept.write_bytes(kept.read_bytes()[:-9])
    assert card_of(copied) == before
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").touch()
    assert card_of(copied) == before
    assert len(reads) == 3
