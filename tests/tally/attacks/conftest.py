"""One honest reference run, each forgery of it written once, and a way to audit them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.catalogue import Audit, Reference, find_attack
from tests.support.attacks.examine import Answer, examine
from tests.support.attacks.reference import reference_policy, stack_for, train_reference

NONCE = bytes(range(32))
Forge = Callable[[str], Path]
Ask = Callable[[str, Audit], Answer]


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    out = tmp_path_factory.mktemp("reference") / "honest"
    train_reference(out)
    return out


@pytest.fixture(scope="session")
def honest(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Reference], Path]:
    folder = tmp_path_factory.mktemp("references")

    @cache
    def train(kind: Reference) -> Path:
        if kind == "recipe":
            return reference
        train_reference(folder / kind, kind)
        return folder / kind

    return train


@pytest.fixture(scope="session")
def forged(honest: Callable[[Reference], Path], tmp_path_factory: pytest.TempPathFactory) -> Forge:
    folder = tmp_path_factory.mktemp("forged")

    @cache
    def forge(name: str) -> Path:
        attack = find_attack(name)
        attack.forge(honest(attack.reference), folder / name)
        return folder / name

    return forge


@pytest.fixture(scope="session")
def ask(honest: Callable[[Reference], Path], forged: Forge, graphs_read_once: None) -> Ask:
    @cache
    def answer(name: str, audit: Audit) -> Answer:
        reference = find_attack(name).reference
        kept = RunDirectory(honest(reference)).claim().identity
        stack = stack_for(honest(reference), reference)
        return examine(forged(name), audit, reference_policy(), kept, NONCE, stack)

    return answer
