"""A training that draws from a seed is replayed, draw by draw; other draws are told, and none of it breaks a loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.core.errors import UsageError
from tallystick.formats.store.run import RunDirectory

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

Audit = Callable[[Path], Any]


@pytest.fixture
def audit(one_thread: None) -> Audit:
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import audit_training
    from tests.support.this_machine import verifier_stack

    def judged(path: Path) -> Any:
        run, asked = RunDirectory(path), Policy(full=True)
        return audit_training(run, asked, bytes(32), verifier_stack(run, None, asked)).verdict

    return judged


class Drawing(nn.Module):  # type: ignore[misc]
    """Every draw that follows from a seed: dropout, noise, stochastic depth in three spellings."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(3, 8), nn.Linear(8, 1), nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        h = self.drop(torch.tanh(self.first(x)))
        if self.training:
            h = h + torch.zeros_like(h).uniform_(-0.1, 0.1)
            h = h * (0.9 + torch.rand(len(h), 1)).floor() / 0.9
            h = h * torch.bernoulli(torch.full((len(h), 1), 0.9)) + 0 * torch.rand_like(h)
            h = h * h.new_empty(len(h), 1).bernoulli_(0.9)
        return self.last(h)


class Checkpointed(Drawing):
    """Runs its forward pass again in the backward pass."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.inner, self._reentrant = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh()), reentrant

    def forward(self, x: Any) -> Any:
        x = x.requires_grad_() if self._reentrant else x
        return super().forward(torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=self._reentrant))


def batch_of(step: int) -> Any:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True)


def squares(model: Any, batch: Any) -> Any:
    return functional.mse_loss(model(batch[0]), batch[1])


def fit(
    out: Path,
    model: Any,
    seed: int | None = 5,
    loss_of: Callable[..., Any] = squares,
    count: int = 1,
    between: Callable[[int, Any], None] = lambda step, model: None,
    **given: Any,
) -> list[str]:
    """Train six steps of `count` micro-batches; what the recorder says."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recording = tallystick.record_training(out, model, optimizer, anchor_stride=2, seed=seed, **given)
    with warnings.catch_warnings(record=True) as caught, recording as recorder:
        warnings.simplefilter("always")
        for step in range(6):
            between(step, model)
            batches = [batch_of(10 * step + part) for part in range(count)]
            optimizer.zero_grad()
            losses = []
            for batch in batches:
                losses.append(loss_of(model, batch) / count)
                losses[-1].backward()
            optimizer.step()
            recorder.step(sum(losses), batches[0] if count == 1 else batches)
    return [str(each.message) for each in caught if each.category is RuntimeWarning]


def model_of(kind: Any = Drawing, **settings: Any) -> Any:
    torch.manual_seed(0)
    return kind(**settings)


@pytest.mark.parametrize(
    "given", [{}, {"loss": squares, "example": batch_of(0)}, {"count": 2}], ids=["watched", "given", "parts"]
)
def test_a_step_that_draws_from_a_seed_is_replayed(tmp_path: Path, audit: Audit, given: dict[str, Any]) -> None:
    assert fit(tmp_path / "run", model_of(), **given) == []
    verdict = audit(tmp_path / "run")
    assert (verdict.outcome, verdict.coverage.done) == ("accepted", 6)
    assert RunDirectory(tmp_path / "run").spec().seed == 5


def test_without_a_seed_the_line_names_the_way_out(tmp_path: Path, audit: Audit) -> None:
    (line,) = fit(tmp_path / "run", model_of(), seed=None)
    assert "draws other random numbers than dropout does; give the recorder a seed (`seed=1`)" in line
    assert RunDirectory(tmp_path / "run").spec().seed is None
    assert audit(tmp_path / "run").outcome == "inconclusive"


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_recomputed_in_the_backward_pass_draws_the_same_again(
    tmp_path: Path, audit: Audit, reentrant: bool
) -> None:
    given = {"loss": squares, "example": batch_of(0)}
    assert fit(tmp_path / "run", model_of(Checkpointed, reentrant=reentrant), **given) == []
    assert audit(tmp_path / "run").outcome == "accepted"


def test_a_claim_of_another_seed_is_rejected(tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    from tallystick.formats.data.step_program import step_key

    monkeypatch.setattr("tallystick.recording.loop.draws.step_key", lambda seed, step: step_key(seed + 1, step))
    monkeypatch.setattr("tallystick.recording.loop.self_check.SelfCheck.difference", lambda *_: "")
    monkeypatch.setattr("tallystick.recording.loop.self_check.SelfAudit.replay", lambda *_: None)
    fit(tmp_path / "run", model_of(), loss=squares, example=batch_of(0))
    assert audit(tmp_path / "run").outcome == "rejected"


def validates_in_training_mode(step: int, model: Any) -> None:
    if step == 4:
        model(batch_of(0)[0])


def validates(step: int, model: Any) -> None:
    model.eval()(batch_of(0)[0])
    with torch.no_grad():
        model.train()(batch_of(0)[0])


def test_a_forward_pass_beside_the_step_is_told_where_it_draws(
    tmp_path: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.recording.loop.self_check.SelfCheck.is_due", lambda _, index: index == 1)
    (line,) = fit(tmp_path / "run", model_of(), between=validates_in_training_mode)
    assert "step 5: 432 random words were drawn in this step, and 216 in the captured one" in line
    assert audit(tmp_path / "run").outcome == "inconclusive"
    assert fit(tmp_path / "other", model_of(), between=validates) == []
    assert audit(tmp_path / "other").outcome == "accepted"


class Noisy(Drawing):
    """Draws normal numbers, which follow from no seed."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) + torch.randn(1)


def test_a_draw_that_follows_from_no_seed_leaves_the_loop_alone_and_is_told(tmp_path: Path, audit: Audit) -> None:
    (line,) = fit(tmp_path / "run", model_of(Noisy))
    assert "aten.randn.default" in line
    assert audit(tmp_path / "run").outcome == "inconclusive"


class Failing(Drawing):
    """Fails once, inside a layer."""

    def forward(self, x: Any) -> Any:
        return super().forward(x if len(x) else x.reshape(3, 3))


def test_a_forward_pass_that_fails_leaves_the_stream(tmp_path: Path, audit: Audit) -> None:
    def fails(step: int, model: Any) -> None:
        if step != 3:
            return
        with pytest.raises(RuntimeError):
            model(torch.zeros(0, 3))
        drawn = torch.get_rng_state()
        torch.rand(1)
        assert not torch.equal(drawn, torch.get_rng_state())

    assert fit(tmp_path / "run", model_of(Failing), between=fails) == []
    assert audit(tmp_path / "run").outcome == "accepted"


def test_the_generator_of_the_loop_goes_on_as_if_nothing_was_drawn(tmp_path: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model = Drawing()
    torch.set_rng_state(before)
    fit(tmp_path / "run", model)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("seed", [-1, 2**53, "one", 0.5])
def test_a_seed_is_a_whole_number(tmp_path: Path, seed: Any) -> None:
    with pytest.raises(UsageError, match="a seed is a whole number from 0 to"):
        fit(tmp_path / "run", model_of(), seed=seed)
