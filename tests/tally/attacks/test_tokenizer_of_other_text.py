"""Whether the byte pairs were learned from the committed source: seen by a full audit, left open by another library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.audits.report import Report
from tallystick.audits.training import audit_training
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.catalogue import Reference
from tallystick.tally.cli.entry import run as tally
from tallystick.verdicts.replayer import VerifierStack
from tests.support.attacks.reference import reference_policy, this_verifier_stack

Honest = Callable[[Reference], Path]
FULL = reference_policy(1).model_copy(update={"full": True})


def audited(run: Path, stack: VerifierStack) -> Report:
    return audit_training(RunDirectory(run), FULL, bytes(32), stack)


def with_library(stack: VerifierStack, version: str) -> VerifierStack:
    packages = stack.environment.packages
    assert isinstance(packages, dict)
    changed = stack.environment.model_copy(update={"packages": {**packages, "tokenizers": version}})
    return replace(stack, environment=changed)


def test_another_library_may_learn_other_pairs_and_nobody_is_rejected_for_it(
    honest: Honest, forged: Callable[[str], Path]
) -> None:
    elsewhere = with_library(this_verifier_stack(), "0.1")
    verdict = audited(forged("tokenizer-of-other-text"), elsewhere).verdict
    assert (verdict.outcome, len(verdict.unavailable)) == ("inconclusive", 1)
    assert verdict.unavailable[0].startswith("tokenizer of the source: ")
    assert "install that one to decide" in verdict.unavailable[0]
    assert audited(honest("bpe"), elsewhere).verdict.outcome == "accepted"  # the same pairs from any library


def test_a_verifier_that_trains_nothing_accepts_no_full_audit_of_byte_pairs(honest: Honest) -> None:
    blind = replace(this_verifier_stack(), train_bpe=None)
    assert audited(honest("bpe"), blind).verdict.outcome == "inconclusive"
    assert audited(honest("recipe"), blind).verdict.outcome == "accepted"


def test_a_sampled_audit_says_that_it_did_not_train_the_tokenizer(honest: Honest) -> None:
    for kind, is_trained in (("bpe", True), ("recipe", False)):
        report = audit_training(RunDirectory(honest(kind)), reference_policy(1), bytes(32), this_verifier_stack())  # type: ignore[arg-type]
        lines = [line for line in report.verdict.not_checked if "of the source" in line]
        assert [("the tokenizer and the tokens" in line) for line in lines] == [is_trained]


@pytest.mark.parametrize("forger", ["tokenizer-of-other-text", "tokens-not-of-the-source"])
def test_the_command_rejects_data_that_is_not_of_its_source(
    forger: str, honest: Honest, forged: Callable[[str], Path]
) -> None:
    assert tally(["verify-data", str(forged(forger))]) == 1
    assert tally(["verify-data", str(honest("bpe"))]) == 0
