"""Dropout as it comes: a loop without a seed draws as it does without a recorder, and is replayed draw by draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.tensors import Tensor
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.random_words import seeded
from tallystick.programs.step_names import GENERATOR, GENERATOR_MOVE
from tests.recording import test_seeded_draws
from tests.recording.test_seeded_draws import Audit, batch_of, fit, squares

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
audit = test_seeded_draws.audit


class Dropping(nn.Module):  # type: ignore[misc]
    """Dropout of layers, and of an axis order that is not the one in memory."""

    def __init__(self, rate: float = 0.3) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(3, 8), nn.Linear(8, 1), nn.Dropout(rate)

    def forward(self, x: Any) -> Any:
        h = self.drop(torch.tanh(self.first(x)))
        return self.last(self.drop(h.reshape(len(h), 2, 4).transpose(1, 2)).reshape(len(h), 8))


class Checkpointed(Dropping):
    """Runs a layer that drops again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh())

    def forward(self, x: Any) -> Any:
        return super().forward(torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False))


class Noisy(Dropping):
    """Draws numbers besides dropout."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) + 0 * torch.rand(1)


def model_of(kind: Any = Dropping) -> Any:
    torch.manual_seed(4)
    return kind()


def validates(step: int, model: Any) -> None:
    with torch.no_grad():
        model.train()(batch_of(step)[0])


def draws_much(step: int, model: Any) -> None:
    torch.rand(100_000 if step == 3 else 7)


def seeds_again(step: int, model: Any) -> None:
    if step in (2, 4):
        torch.manual_seed(step)
        torch.randn(5)


def seeds_each_step(step: int, model: Any) -> None:
    torch.manual_seed(9)


HONEST = {
    "watched": {},
    "given": {"loss": squares, "example": batch_of(0)},
    "parts": {"count": 2},
    "validates in training mode": {"between": validates},
    "draws between steps": {"between": draws_much},
    "seeds again": {"between": seeds_again},
    "seeds each step": {"between": seeds_each_step},
}


@pytest.mark.parametrize("given", HONEST.values(), ids=HONEST.keys())
def test_dropout_without_a_seed_is_replayed(tmp_path: Path, audit: Audit, given: dict[str, Any]) -> None:
    assert fit(tmp_path / "run", model_of(), seed=None, **given) == []
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.coverage.done) == ("accepted", 6)
    assert RunDirectory(tmp_path / "run").spec().seed is None


def test_layers_that_run_again_are_given_the_same_words(tmp_path: Path, audit: Audit) -> None:
    given = {"loss": squares, "example": batch_of(0)}
    assert fit(tmp_path / "run", model_of(Checkpointed), seed=None, **given) == []
    assert audit(tmp_path / "run").outcome == "accepted"


@pytest.mark.parametrize("seed", [None, 5])
def test_a_batch_of_another_size_moves_no_later_draw(tmp_path: Path, audit: Audit, seed: int | None) -> None:
    """The capture for the new size runs the model too, and may not draw from the stream of the next step."""

    def ragged(model: Any, batch: Any) -> Any:
        return squares(model, batch)

    torch.manual_seed(4)
    model = Dropping()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    import tallystick

    with tallystick.record_training(
        tmp_path / "run", model, optimizer, anchor_stride=2, seed=seed, loss=ragged, example=batch_of(0)
    ) as recorder:
        for step in range(6):
            batch = tuple(part[: 5 if step == 2 else 8] for part in batch_of(step))
            optimizer.zero_grad()
            loss = squares(model, batch)
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch)
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.coverage.done) == ("accepted", 6)


def test_the_loop_trains_as_without_the_recorder(tmp_path: Path) -> None:
    weights = []
    for run in (None, tmp_path / "run"):
        model = model_of()
        if run is not None:
            fit(run, model, seed=None)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            for step in range(6):
                optimizer.zero_grad()
                squares(model, batch_of(10 * step)).backward()
                optimizer.step()
        weights.append([value.detach().clone() for value in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_the_report_says_how_the_generator_was_moved(tmp_path: Path, audit: Audit) -> None:
    fit(tmp_path / "run", model_of(), seed=None, between=seeds_again)
    (line,) = [line for line in audit(tmp_path / "run").not_checked if "dropout" in line]
    assert "moved on before 1 (first step 1) of 6 steps" in line
    assert "given 2 further seeds (2 before step 3, 4 before step 5)" in line


def sets_an_older_state(step: int, model: Any, states: list[Any] = []) -> None:  # noqa: B006
    if step == 0:
        torch.manual_seed(77)
        states.append(torch.get_rng_state())
        torch.manual_seed(4)
    if step == 3:
        state = states.pop().numpy().copy()
        state[64:128] = 3  # no seed leads here
        torch.set_rng_state(torch.from_numpy(state))


def test_a_state_out_of_nowhere_is_named_and_a_seed_mends_it(
    tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.recording.loop.draws.SEARCHED", 1 << 20)  # an older state is behind none of them
    (line,) = fit(tmp_path / "run", model_of(), seed=None, between=sets_an_older_state)
    assert "torch.set_rng_state" in line
    assert "call torch.manual_seed instead, or give the recorder a seed (`seed=1`)" in line
    assert audit(tmp_path / "run").outcome == "inconclusive"
    assert fit(tmp_path / "manual", model_of(), seed=None, between=seeds_again) == []
    assert audit(tmp_path / "manual").outcome == "accepted"
    assert fit(tmp_path / "seeded", model_of(), seed=1, between=sets_an_older_state) == []
    assert audit(tmp_path / "seeded").outcome == "accepted"


def draws_within(model: Any, batch: Any) -> Any:
    torch.rand(3)
    return squares(model, batch)


def test_draws_between_the_passes_of_a_step_are_named_and_mended(tmp_path: Path, audit: Audit) -> None:
    (line,) = fit(tmp_path / "run", model_of(), seed=None, count=2, loss_of=draws_within)
    assert "between the forward passes of this step" in line
    assert "draw them before the step, or give the recorder a seed (`seed=1`)" in line
    assert audit(tmp_path / "run").outcome == "inconclusive"
    assert fit(tmp_path / "before", model_of(), seed=None, count=2, between=draws_much) == []
    assert audit(tmp_path / "before").outcome == "accepted"
    assert fit(tmp_path / "seeded", model_of(), seed=1, count=2, loss_of=draws_within) == []
    assert audit(tmp_path / "seeded").outcome == "accepted"


def test_other_draws_of_the_model_need_a_seed(tmp_path: Path, audit: Audit) -> None:
    (line,) = fit(tmp_path / "run", model_of(Noisy), seed=None)
    assert "draws other random numbers than dropout does; give the recorder a seed (`seed=1`)" in line
    assert audit(tmp_path / "run").outcome == "inconclusive"
    assert fit(tmp_path / "seeded", model_of(Noisy), seed=1) == []
    assert audit(tmp_path / "seeded").outcome == "accepted"


def test_on_a_processor_whose_draws_are_unknown_both_remedies_mend(
    tmp_path: Path,
    audit: Audit,
    unknown_draws: None,
) -> None:
    (line,) = fit(tmp_path / "run", model_of(), seed=None)
    assert "dropout draws random numbers (layer drop)" in line
    assert "set its probability to 0 (p=0), or give the recorder a seed (`seed=1`)" in line
    assert audit(tmp_path / "run").outcome == "inconclusive"
    assert fit(tmp_path / "seeded", model_of(), seed=1) == []
    assert audit(tmp_path / "seeded").outcome == "accepted"
    assert fit(tmp_path / "none", Dropping(0.0), seed=None) == []
    assert audit(tmp_path / "none").outcome == "accepted"


def test_a_capture_with_native_draws_is_refused_there(unknown_draws: None) -> None:
    import tallystick.torch
    from tallystick.core.errors import UnavailableError

    model = Dropping()
    optimizer = torch.optim.AdamW(model.parameters())

    def loss(called: Any, batch: Any) -> Any:
        return squares(called, (batch["x0"], batch["x1"]))

    batch = dict(zip(("x0", "x1"), batch_of(0), strict=True))
    with pytest.raises(UnavailableError, match=r"give the recorder a seed \(`seed=1`\)"):
        tallystick.torch.capture_training_step(model, loss, optimizer, batch, draws="generator")


# ---- liars


@pytest.fixture
def honest(tmp_path: Path, one_thread: None) -> Path:
    fit(tmp_path / "honest", model_of(), seed=None)
    return tmp_path / "honest"


def stating_moves(run: RunDirectory, moves: dict[int, tuple[int, int]]) -> None:
    """Let records name batches with other moves, and seal the run anew."""
    from tallystick.core.safetensors import read_state
    from tallystick.formats.records import Batch, StepRecord, batch_file
    from tallystick.recording.loop.step_graph import keep_batch
    from tallystick.tally.attacks.forging import read_records, write_records

    def stated(record: Any) -> Any:
        if not isinstance(record, StepRecord) or record.index not in moves:
            return record
        assert record.batch.digest is not None
        named = dict(read_state(run.path / batch_file(record.batch.digest)))
        named[GENERATOR_MOVE] = Tensor.of(np.asarray(moves[record.index], np.int64))
        return record.model_copy(update={"batch": Batch(digest=keep_batch(run, named))})

    write_records(run, [stated(record) for record in read_records(run)])


def retaken(honest: Path, out: Path) -> RunDirectory:
    """The run of an adversary who takes every step anew, from the first state and the batches that lie there."""
    from research.attacks.graphs import program_of, remake

    program = program_of(honest)
    remake(honest, out, program, program, RunDirectory(honest).spec())
    return RunDirectory(out)


def test_a_state_that_no_draw_gives_is_rejected(honest: Path, audit: Audit) -> None:
    from tallystick.core.safetensors import write_state
    from tallystick.core.tensor_digests import state_digest
    from tallystick.formats.records import AnchorRecord, anchor_file
    from tallystick.tally.attacks.forging import read_anchor, read_records, write_records

    run = RunDirectory(honest)
    state = dict(read_anchor(run, 4)) | {GENERATOR: Tensor.of(seeded(1))}
    write_state(honest / anchor_file(4), state)
    named = {"digest": state_digest(state)}
    records = read_records(run)
    other = [r.model_copy(update=named) if isinstance(r, AnchorRecord) and r.index == 4 else r for r in records]
    write_records(run, other)
    verdict = audit(honest)
    assert verdict.outcome == "rejected"
    assert any(GENERATOR in str(line) for line in verdict.objections)


def test_chosen_masks_are_stated_where_a_prover_skips_to_them(honest: Path, audit: Audit, tmp_path: Path) -> None:
    """A prover may search for masks by skipping words. It is replayed, and stands in the report."""
    stating_moves(RunDirectory(honest), {3: (-1, 41), 5: (123, 0)})
    assert audit(honest).outcome == "rejected"  # the steps were taken with other masks
    verdict = audit(retaken(honest, tmp_path / "searched").path)
    assert verdict.outcome == "accepted"
    (line,) = [line for line in verdict.not_checked if "dropout" in line]
    assert "moved on before 2 (first step 1) of 6" in line
    assert "1 further seed (123 before step 5)" in line


def test_a_first_state_that_no_seed_gives_is_named(honest: Path, audit: Audit, tmp_path: Path) -> None:
    from tallystick.core.safetensors import write_state
    from tallystick.formats.records import anchor_file
    from tallystick.tally.attacks.forging import read_anchor

    def lines(run: Path) -> list[str]:
        verdict = audit(run)
        assert verdict.outcome == "accepted"
        return [line for line in verdict.not_checked if GENERATOR in line]

    assert lines(retaken(honest, tmp_path / "twin").path) == []
    chosen = np.append(np.zeros(624, np.int64), 0)  # every element is kept
    write_state(honest / anchor_file(0), dict(read_anchor(RunDirectory(honest), 0)) | {GENERATOR: Tensor.of(chosen)})
    assert len(lines(retaken(honest, tmp_path / "chosen").path)) == 1


@pytest.mark.parametrize("move", [(-1, 1 << 40), (1 << 40, 0), (-1, -5), (-7, 0)])
def test_a_move_that_cannot_be_made_is_never_a_pass(honest: Path, audit: Audit, move: tuple[int, int]) -> None:
    stating_moves(RunDirectory(honest), {3: move})
    assert audit(honest).outcome != "accepted"
