"""Recorded calls are replayed before they are claimed: what does not replay is no claim, and its reason is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.errors import UnavailableError

torch = pytest.importorskip("torch")
nn = torch.nn
Call = Callable[[Any], Any]
X = [[0.5, -1.0, 2.0]]


@pytest.fixture(autouse=True)
def alone(one_thread: None) -> None:
    """Calls are recorded and audited with one thread."""


class Scaled(nn.Module):  # type: ignore[misc]
    """A layer whose factor is a number of the call, and a buffer that each call writes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Any, factor: float = 1.0) -> Any:
        result = self.layer(x) * factor
        self.seen.copy_(result.detach().mean(0))
        return result + self.seen


class Branching(nn.Module):  # type: ignore[misc]
    """A layer that computes otherwise while it is exported, as some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        return self.layer(x) * (3.0 if torch.compiler.is_exporting() else 1.0)


def model() -> Any:
    torch.manual_seed(0)
    return Scaled().eval()


def record(out: Path, called: Any, *calls: Call, **settings: Any) -> None:
    with torch.no_grad(), tallystick.record_inference(called, out, **settings):
        for call in calls:
            call(called)


def audited(out: Path) -> Any:
    return tallystick.audit(out, tallystick.Policy(full=True)).report.verdict


def plain(called: Any) -> None:
    called(torch.tensor(X))


def doubled(called: Any) -> None:
    called(torch.tensor(X), factor=2.0)


def trains(called: Any) -> None:
    called.layer.weight.mul_(2)
    called(torch.tensor(X))


def hooked(called: Any) -> None:
    hook = called.register_forward_hook(lambda module, arguments, result: result * 2, prepend=True)
    called(torch.tensor(X))
    hook.remove()


def in_halves(called: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        called(torch.tensor(X))


@pytest.mark.parametrize("calls", [(plain,), (plain, plain), (doubled,)], ids=["one", "two", "number"])
def test_calls_that_their_graph_gives_are_claimed_and_accepted(tmp_path: Path, calls: tuple[Call, ...]) -> None:
    record(tmp_path / "run", model(), *calls)
    assert audited(tmp_path / "run").outcome == "accepted"


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ((plain, doubled), "factor is 2.0 in it, and not there in the first call, where it is a constant"),
        (
            (plain, trains),
            "layer.weight was changed after the first call; record the calls before and after that in runs of their",
        ),
        ((hooked,), "it ran with hooks or settings that are gone"),
    ],
    ids=["number", "weights", "hook"],
)
def test_a_call_that_its_graph_does_not_give_is_not_claimed(
    tmp_path: Path, calls: tuple[Call, ...], reason: str
) -> None:
    with pytest.raises(UnavailableError, match=reason) as refused:
        record(tmp_path / "run", model(), *calls)
    assert "the calls are written, and not claimed" in str(refused.value)
    assert not (tmp_path / "run/claim.json").exists()
    assert (tmp_path / "run/calls").is_dir()


@pytest.mark.parametrize("calls", [(doubled, doubled), (plain, plain)], ids=["number", "weights"])
def test_a_run_of_its_own_mends_a_number_or_weights_that_change(tmp_path: Path, calls: tuple[Call, ...]) -> None:
    called = model()
    record(tmp_path / "before", called, plain)
    with torch.no_grad():
        called.layer.weight.mul_(2)
    record(tmp_path / "after", called, *calls)
    assert [audited(tmp_path / each).outcome for each in ("before", "after")] == ["accepted", "accepted"]


def test_calls_under_autocast_are_refused_and_a_converted_model_mends_it(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"convert the model instead: model.to\(torch.bfloat16\)"):
        record(tmp_path / "autocast", model(), in_halves)
    halves = model().to(torch.bfloat16)
    record(tmp_path / "run", halves, lambda called: called(torch.tensor(X, dtype=torch.bfloat16)))
    assert audited(tmp_path / "run").outcome == "accepted"


def test_a_model_that_is_exported_as_another_program_is_not_claimed(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="computes otherwise while it is exported"):
        record(tmp_path / "run", Branching().eval(), plain)


def test_without_its_replay_a_recording_claims_what_an_audit_rejects(tmp_path: Path) -> None:
    record(tmp_path / "run", model(), hooked, self_audit=False)
    assert audited(tmp_path / "run").outcome == "rejected"


def test_a_model_with_longrope_is_recorded_and_accepted(tmp_path: Path) -> None:
    """Its frequencies are a buffer that every call writes."""
    transformers = pytest.importorskip("transformers")
    factors = [1.0 + 0.1 * index for index in range(8)]
    scaling = {"type": "longrope", "short_factor": factors, "long_factor": [2 * each for each in factors]}
    config = transformers.Phi3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        original_max_position_embeddings=16,
        rope_scaling=scaling,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    record(tmp_path / "run", transformers.Phi3ForCausalLM(config).eval(), *[lambda called: _tokens(called)] * 2)
    assert audited(tmp_path / "run").outcome == "accepted"


def _tokens(called: Any, **settings: Any) -> None:
    called(input_ids=torch.arange(1, 9)[None], **({"use_cache": False} | settings))


def test_a_cache_in_the_answer_is_refused_and_leaving_it_out_mends_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    called = transformers.GPT2LMHeadModel(config).eval()
    with pytest.raises(UnavailableError, match=r"returns a cache of keys and values; call it with use_cache=False"):
        record(tmp_path / "cached", called, lambda each: _tokens(each, use_cache=True))
    record(tmp_path / "run", called, _tokens)
    assert audited(tmp_path / "run").outcome == "accepted"


def test_dynamic_rope_is_named_and_no_remedy_promised(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        rope_scaling={"type": "dynamic", "factor": 2.0},
    )
    with pytest.raises(UnavailableError, match="rope_type='dynamic'"):
        record(tmp_path / "run", transformers.LlamaForCausalLM(config).eval(), _tokens)
