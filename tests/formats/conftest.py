"""A spec, and the records of a three-step run, built by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tallystick.core.digests import digest, leaf_hash
from tallystick.formats.dataset import DatasetCommitment, RecordCommit, TokensCommit
from tallystick.formats.records import (
    AnchorRecord,
    Batch,
    HeaderRecord,
    Knobs,
    Record,
    StateSummary,
    StepRecord,
    anchor_file,
)
from tallystick.formats.spec import Spec


@pytest.fixture(scope="session")
def commitment() -> DatasetCommitment:
    """A text of 40 records and 1000 tokens that nobody ever wrote."""
    root = leaf_hash(b"text")
    return DatasetCommitment(
        kind="text",
        source=RecordCommit(kind="text", count=40, root=root),
        tokenizer=digest("tokenizer", b"bytes"),
        tokens=TokensCommit(count=1000, vocabulary=256, root=root),
    )


@pytest.fixture(scope="session")
def spec(recipe_of: Callable[..., Any], commitment: DatasetCommitment) -> Spec:
    """Three steps with an anchor at every second one, and at the last."""
    changes = {"training": {"steps": 3}, "record": {"anchor_stride": 2, "summaries": ["exact"]}}
    return Spec.of(recipe_of(changes), commitment)


@pytest.fixture(scope="session")
def loop_spec() -> Spec:
    """The spec of a custom training loop: a description, and an anchor at every second step."""
    return Spec.from_json(
        {
            "spec": "training",
            "version": 1,
            "description": {"loop": "a loop of my own"},
            "record": {"anchor_stride": 2, "summaries": ["exact"]},
        },
        "spec",
    )


@pytest.fixture(scope="session")
def summary() -> Callable[[int], StateSummary]:
    """The summary of state `number`."""
    return lambda number: StateSummary(exact=digest("state", bytes([number])))


@pytest.fixture(scope="session")
def header_of() -> Callable[..., HeaderRecord]:
    """The header that belongs to a spec, with some of its fields replaced."""

    def build(spec: Spec, **changes: Any) -> HeaderRecord:
        recorded = spec.recorded
        knobs = Knobs(
            bucket_mode=recorded.bucket_mode,
            grid_eps=recorded.grid_eps,
            loss_decimals=recorded.loss_decimals,
            anchor_stride=recorded.anchor_stride,
        )
        header = HeaderRecord(
            spec=spec.identity, environment=digest("environment", b""), data=spec.data_root, knobs=knobs
        )
        return header.model_copy(update=changes)

    return build


@pytest.fixture(scope="session")
def step_of(summary: Callable[[int], StateSummary]) -> Callable[..., StepRecord]:
    """Step `index` of a spec, with some of its fields replaced."""

    def build(spec: Spec, index: int, **changes: Any) -> StepRecord:
        step = StepRecord(
            index=index,
            data=spec.data_root,
            batch=Batch(indices=(1, 2)),
            pre=summary(index - 1),
            post=summary(index),
            loss=1.5,
            learning_rate=0.1,
        )
        return step.model_copy(update=changes)

    return build


@pytest.fixture(scope="session")
def anchor_of(summary: Callable[[int], StateSummary]) -> Callable[..., AnchorRecord]:
    """Anchor `index`, with some of its fields replaced."""

    def build(index: int, **changes: Any) -> AnchorRecord:
        anchor = AnchorRecord(
            index=index, file=anchor_file(index), digest=digest("state", bytes([index])), summary=summary(index)
        )
        return anchor.model_copy(update=changes)

    return build


@pytest.fixture
def records(
    spec: Spec, header_of: Callable[..., Any], step_of: Callable[..., Any], anchor_of: Callable[..., Any]
) -> list[Record]:
    """header · anchor 0 · step 1 · step 2 · anchor 2 · step 3 · anchor 3."""
    return [
        header_of(spec),
        anchor_of(0),
        step_of(spec, 1),
        step_of(spec, 2),
        anchor_of(2),
        step_of(spec, 3),
        anchor_of(3),
    ]
