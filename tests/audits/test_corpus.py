"""The audit of a run on a corpus: what the verifier's own copy of the shards shows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.opened_segment import audit_opened_segment
from tallystick.audits.policy import Policy
from tallystick.audits.training import audit_training
from tallystick.formats.store.directories import SegmentDirectory
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.segment_opening import open_segment
from tallystick.verdicts.replayer import VerifierStack

DERIVED = "tokens of the corpus"
Audit = Callable[..., Any]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "corpus"
    folder.mkdir()
    for name in "abc":
        lines = [f'{{"text":"notch {number} of stick {name}"}}\n' for number in range(12)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, recipe_of: Any, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tallystick.recording.training import Config, train

    out = tmp_path_factory.mktemp("run") / "run"
    train(Config(recipe_of({"data": {"kind": "corpus", "validation": 0}, "training": {"steps": 4}}), corpus), out)
    return out


@pytest.fixture
def audit(run: Path, corpus: Path) -> Audit:
    from tallystick.engines.torch.environment import describe_environment
    from tallystick.engines.torch.training.verifier_stack import torch_verifier_stack

    stack: VerifierStack = torch_verifier_stack(describe_environment("cpu"))

    def ask(corpus: Path | None = corpus, **policy: Any) -> Any:
        asked = Policy(**({"samples": 1, "replay": "recipe"} | policy))
        return audit_training(RunDirectory(run), asked, bytes(32), replace(stack, corpus=corpus)).verdict

    return ask


def test_an_honest_run_on_a_corpus_is_accepted_and_says_what_was_not_derived(audit: Audit) -> None:
    verdict = audit()
    assert verdict.outcome == "accepted"
    assert sum(finding.name == DERIVED for finding in verdict.findings) == 4
    assert not any("corpus" in line for line in verdict.not_checked)
    verdict = audit(shards=1)
    assert verdict.outcome == "accepted"
    assert any("the tokens of 2 of 3 shards are those of the corpus: --shards" in line for line in verdict.not_checked)
    verdict = audit(None)
    assert verdict.outcome == "accepted"
    assert any("give its directory with --corpus" in line for line in verdict.not_checked)


def test_a_full_audit_without_the_corpus_decides_nothing(audit: Audit) -> None:
    assert audit(full=True, shards=1).outcome == "accepted"
    verdict = audit(None, full=True)
    assert verdict.outcome == "inconclusive"
    assert any("--corpus" in line for line in verdict.unavailable)


def test_a_changed_document_rejects_and_a_missing_shard_decides_nothing(
    audit: Audit, corpus: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy)
    assert audit(copy).outcome == "accepted"
    content = (copy / "b.jsonl").read_bytes()
    (copy / "b.jsonl").write_bytes(content.replace(b"notch 7", b"notch 8"))
    verdict = audit(copy)
    assert verdict.outcome == "rejected"
    (found,) = (finding for finding in verdict.findings if not finding.agrees and finding.name == DERIVED)
    assert found.detail.startswith("'b.jsonl' differs from the one committed to, first in chunk 0")
    (copy / "b.jsonl").unlink()
    verdict = audit(copy)
    assert verdict.outcome == "inconclusive"
    assert any("'b.jsonl': not there" in line for line in verdict.unavailable)


def test_a_segment_alone_holds_the_tokens_of_its_windows(run: Path, tmp_path: Path, one_thread: None) -> None:
    from tallystick.engines.torch.environment import describe_environment
    from tallystick.engines.torch.training.verifier_stack import TorchReplayer

    def audited() -> Any:
        return audit_opened_segment(SegmentDirectory(alone), Policy(replay="recipe"), stack).verdict

    alone, stack = tmp_path / "alone", VerifierStack(describe_environment("cpu"), TorchReplayer)
    open_segment(RunDirectory(run), 0, 4, alone)
    assert audited().outcome == "accepted"
    path = next((alone / "data" / "tokens").iterdir())
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b"\x00\x00")
    assert audited().outcome == "rejected"
    path.unlink()
    assert audited().outcome == "inconclusive"


def test_a_shard_that_cannot_be_read_here_decides_nothing(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    from tallystick.core.lazy import not_installed
    from tallystick.formats.data import preparation as corpus_verify

    def missing(*_: object) -> None:
        raise not_installed("pyarrow")

    monkeypatch.setattr(corpus_verify, "read_texts", missing)
    verdict = audit()
    assert verdict.outcome == "inconclusive"
    assert any("pyarrow is not installed: pip install" in line for line in verdict.unavailable)


def test_a_verifier_that_reads_no_tokenizers_decides_nothing(audit: Audit, run: Path, corpus: Path) -> None:
    from tallystick.engines.torch.environment import describe_environment
    from tallystick.engines.torch.training.verifier_stack import TorchReplayer

    bare = VerifierStack(describe_environment("cpu"), TorchReplayer, corpus=corpus)
    verdict = audit_training(RunDirectory(run), Policy(samples=1, replay="recipe"), bytes(32), bare).verdict
    assert verdict.outcome == "inconclusive"
