"""The examples on top of the pages about runs are documents that the code reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError
from tallystick.formats.claims import Claim
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.records import StepRecord, TraceEntry, read_record
from tallystick.formats.spec import Environment, Spec

SPEC = Path(__file__).parents[2] / "spec"
DIGEST = "sha256:" + "ab" * 32


def example(name: str) -> str:
    """The indented block of a page, with whole digests in place of shortened ones and what was left out left out."""
    text = "".join(re.findall(r"^ {4}(.*\n)", (SPEC / f"{name}.md").read_text(), re.MULTILINE))
    text = re.sub(r'"sha256:[0-9a-f]*…"', f'"{DIGEST}"', text)
    return text.replace(",…", "").replace('…"', '"')


def examples(name: str) -> list[Any]:
    """Every JSON value of the block, one behind the other."""
    text, values = example(name).replace("{…}", "{}").strip(), []
    while text:
        value, end = json.JSONDecoder().raw_decode(text)
        values.append(value)
        text = text[end:].strip()
    return values


def test_spec(commitment: DatasetCommitment) -> None:
    (found,) = examples("spec")
    whole: Any = commitment.to_json()
    assert found["data"].keys() == whole.keys()
    spec = Spec.from_json(found | {"data": whole}, "spec.md")
    assert spec.recipe is not None
    assert set(found["recipe"]) == set(spec.recipe.to_json())  # type: ignore[arg-type]
    for section in ("optimizer", "schedule", "tokenizer", "training"):
        assert found["recipe"][section] == spec.recipe.to_json()[section]  # type: ignore[call-overload,index]


def test_environment() -> None:
    (found,) = examples("environment")
    assert found.keys() == Environment.model_fields.keys()
    assert Environment.from_json(found, "environment.md").device == "cpu"
    assert '"unknown"' in (SPEC / "environment.md").read_text()


def test_records() -> None:
    header, anchor, step = examples("record")
    step["pre"] = step["post"]
    read = [read_record(encode(record), "record.md") for record in (header, anchor, step)]
    assert [record.kind for record in read] == ["header", "anchor", "step"]


def test_the_page_names_every_field_of_a_step() -> None:
    page = (SPEC / "record.md").read_text()
    assert [name for name in StepRecord.model_fields if name != "kind" and f"`{name}`" not in page] == []


def test_a_timeline_entry_is_the_very_bytes_of_the_page() -> None:
    line = example("transcript").strip().encode()
    assert TraceEntry.from_bytes(line, "transcript.md").to_bytes() == line


def test_claim() -> None:
    (found,) = examples("claim")
    assert found.keys() == Claim.model_fields.keys() - {"no_graph", "withdrawn"}
    assert "`no_graph`" in (SPEC / "claim.md").read_text()
    assert Claim.from_json(found, "claim.md").transcript.size == 134
    with pytest.raises(MalformedError):
        Claim.from_json({**found, "signature": ""}, "claim.md")


def test_a_run_directory_holds_what_its_page_lists_and_nothing_else(honest: Path) -> None:
    listed = set(re.findall(r"^ {6}([a-z_.-]+)(?:/[a-z/]*)? ", (SPEC / "run-directory.md").read_text(), re.MULTILINE))
    found = {path.name for path in honest.iterdir()}
    assert listed - {"loss.png", "graphs", "batches", "traces"} <= found
    assert found - listed <= {"trace.index"}
    assert {path.name for path in (honest / "tiles").iterdir()} == {"transcript", "trace"}


def test_documents_end_without_a_line_feed(honest: Path) -> None:
    for name in ("claim", "spec", "environment"):
        data = (honest / f"{name}.json").read_bytes()
        assert encode(json.loads(data)) == data
