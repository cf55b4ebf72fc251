"""Which record may follow which; the same rules over forged runs stand in `tests/audits/test_evidence.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tallystick.core.errors import ProofError
from tallystick.formats.records import (
    AnchorRecord,
    Batch,
    FailedRecord,
    HeaderRecord,
    Knobs,
    Record,
    StateSummary,
    StepRecord,
    anchor_file,
)
from tallystick.formats.spec import Chain, Spec

DIGEST: Any = "sha256:" + "ab" * 32
OWN = Spec.from_json({"description": {"model": "x"}, "record": {"anchor_stride": 2}}, "spec")


def header(**changes: Any) -> HeaderRecord:
    knobs = {"bucket_mode": "fp16_rne", "grid_eps": 1e-6, "loss_decimals": 4, "anchor_stride": 2} | changes.pop(
        "knobs", {}
    )
    return HeaderRecord(**{"spec": OWN.identity, "environment": DIGEST, "knobs": Knobs(**knobs)} | changes)


def state(index: int) -> StateSummary:
    return StateSummary(projection="AAAA" * (index + 1))


def step(index: int, **changes: Any) -> StepRecord:
    fields = {
        "index": index,
        "batch": Batch(),
        "pre": state(index - 1),
        "post": state(index),
        "loss": 1.0,
        "learning_rate": 0.1,
    }
    return StepRecord(**fields | changes)


def anchor(index: int) -> AnchorRecord:
    return AnchorRecord(index=index, file=anchor_file(index), digest=DIGEST, summary=state(index))


def failed(index: int) -> FailedRecord:
    return FailedRecord(index=index, error="no")


HONEST: list[Record] = [header(), anchor(0), step(1), step(2), anchor(2), step(3), anchor(3)]


def follow(records: list[Record], spec: Spec = OWN) -> Chain:
    chain = Chain(spec)
    for record in records:
        chain = chain.follow(record)
    return chain


def test_an_honest_transcript_follows_and_may_end() -> None:
    chain = follow(HONEST)
    chain.finish()
    assert chain.state == 3


def test_a_chain_is_a_value() -> None:
    chain = follow(HONEST[:3])
    chain.follow(HONEST[3])
    assert chain == follow(HONEST[:3])


def test_crashed_steps_may_stand_before_their_repetition() -> None:
    follow([*HONEST[:3], failed(2), failed(2), *HONEST[3:]]).finish()


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([step(1)], "instead of its header"),
        ([anchor(0)], "instead of its header"),
        ([failed(1)], "instead of its header"),
        ([header(), header()], "a second header"),
        ([header(spec=DIGEST)], "another spec"),
        ([header(data=DIGEST)], "another data root"),
        ([header(knobs={"anchor_stride": 3})], "anchor_stride"),
        ([header(knobs={"loss_decimals": 3})], "loss_decimals"),
        ([header(knobs={"bucket_mode": "grid"})], "bucket_mode"),
        ([header(knobs={"grid_eps": 0.5})], "grid_eps"),
        ([header(), step(1)], "anchor of step 0 is missing"),
        ([header(), failed(1)], "anchor of step 0 is missing"),
        ([header(), anchor(1)], "anchor 1 stands after step 0"),
        ([header(), anchor(0), anchor(0)], "not one the spec asks for"),
        ([*HONEST, anchor(3)], "not one the spec asks for"),
        ([*HONEST[:5], anchor(2)], "not one the spec asks for"),
        ([*HONEST, header()], "a second header"),
        ([header(), anchor(0), step(2)], "step 2 stands after step 0"),
        ([header(), anchor(0), step(1), step(1)], "step 1 stands after step 1"),
        ([header(), anchor(0), step(1), failed(3)], "step 3 stands after step 1"),
        ([header(), anchor(0), step(1), failed(1)], "step 1 stands after step 1"),
        ([*HONEST[:4], step(3)], "anchor of step 2 is missing"),
        ([*HONEST[:4], anchor(1)], "anchor 1 stands after step 2"),
        ([header(), anchor(0), step(1, pre=state(5))], "does not start from the state"),
        ([header(), anchor(0), step(1, data=DIGEST)], "another data root"),
    ],
)
def test_a_record_out_of_place_is_refused(records: list[Record], reason: str) -> None:
    with pytest.raises(ProofError, match=reason):
        follow(records)


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 6])
def test_a_transcript_that_stops_short_of_an_anchor_may_not_end_there(kept: int) -> None:
    with pytest.raises(ProofError, match="without the anchor"):
        follow(HONEST[:kept]).finish()


def test_a_spec_with_a_recipe_says_where_the_transcript_ends(honest: Any) -> None:
    from tallystick.formats.records import read_record
    from tallystick.formats.store.log import read_lines
    from tallystick.formats.store.run import RunDirectory

    run = RunDirectory(honest)
    records = [read_record(line, "record") for line in read_lines(run.transcript_path)]
    follow(records, run.spec()).finish()
    anchored = next(n for n, r in enumerate(records, 1) if isinstance(r, AnchorRecord) and r.index == 8)
    with pytest.raises(ProofError, match="ends at step 8 of 12"):
        follow(records[:anchored], run.spec()).finish()
    with pytest.raises(ProofError, match="behind the last step"):
        follow([*records, failed(13)], run.spec())


Build = Callable[..., Any]


def test_a_loop_of_somebodys_own_may_end_at_any_step_with_an_anchor() -> None:
    follow(HONEST[:5]).finish()
    follow([*HONEST[:3], anchor(1)]).finish()


def test_a_step_starts_from_the_summary_of_the_last_one_and_not_from_that_of_a_later_anchor() -> None:
    odd = anchor(2).model_copy(update={"summary": state(9)})
    follow([*HONEST[:4], odd, step(3)])
    with pytest.raises(ProofError, match="step 3 does not start"):
        follow([*HONEST[:4], odd, step(3, pre=state(9))])


def test_the_first_step_starts_from_anchor_0() -> None:
    odd = anchor(0).model_copy(update={"summary": state(9)})
    follow([header(), odd, step(1, pre=state(9))])
    with pytest.raises(ProofError, match="step 1 does not start"):
        follow([header(), odd, step(1)])


def test_a_whole_run_of_a_recipe_is_accepted_and_nothing_follows_it(
    spec: Spec, records: list[Record], step_of: Build
) -> None:
    follow(records, spec).finish()
    for extra in (step_of(spec, 4), failed(4)):
        with pytest.raises(ProofError, match="step 4 stands behind the last step"):
            follow([*records, extra], spec)


@pytest.mark.parametrize(("length", "step"), [(2, 0), (3, 1), (5, 2)])
def test_a_run_of_a_recipe_does_not_end_before_its_last_step(
    spec: Spec, records: list[Record], length: int, step: int
) -> None:
    with pytest.raises(ProofError, match=f"ends at step {step} of 3"):
        follow(records[:length], spec).finish()


@pytest.mark.parametrize("length", [0, 1, 4, 6])
def test_a_run_of_a_recipe_does_not_end_where_an_anchor_is_due(spec: Spec, records: list[Record], length: int) -> None:
    with pytest.raises(ProofError, match="without the anchor of its last state"):
        follow(records[:length], spec).finish()


def test_a_run_of_a_recipe_has_no_early_anchor(spec: Spec, records: list[Record], anchor_of: Build) -> None:
    with pytest.raises(ProofError, match="anchor 1 is not one the spec asks for"):
        follow([*records[:3], anchor_of(1)], spec)


def test_a_failed_step_is_not_taken(spec: Spec, records: list[Record]) -> None:
    with pytest.raises(ProofError, match="ends at step 2 of 3"):
        follow([*records[:5], failed(3)], spec).finish()


@pytest.mark.parametrize("root", [DIGEST, None])
def test_the_header_and_every_step_name_the_data_of_the_spec(
    spec: Spec, records: list[Record], header_of: Build, step_of: Build, root: Any
) -> None:
    for kept, other in ((0, header_of(spec, data=root)), (2, step_of(spec, 1, data=root))):
        follow(records[: kept + 1], spec)
        with pytest.raises(ProofError, match="another data root"):
            follow([*records[:kept], other], spec)
