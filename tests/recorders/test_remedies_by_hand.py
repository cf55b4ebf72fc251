"""Remedies that take more than another loop: two runs, an approval, a model of transformers, a Trainer, calls."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.errors import UnavailableError, UsageError
from tests.recorders import honest, test_call_audit as calls, test_every_loop as loops
from tests.recorders.honest import Loop
from tests.recorders.test_other_remedies import Unsteady, of_three_lengths
from tests.recorders.test_remedies import PLAIN, said_by

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
Steps = Callable[[Any, Any, Any], None]


@pytest.fixture(autouse=True)
def alone(one_thread: None) -> None:
    """One thread, as an audit has it."""


def by_hand(out: Path, steps: Steps, model: Any = None, **settings: Any) -> list[str]:
    """The lines that are said while `steps` runs in a recording of a model and its optimizer."""
    torch.manual_seed(0)
    model = honest.network() if model is None else model
    optimizer = honest.adamw(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tallystick.record_training(out, model, optimizer, **{"anchor_stride": 100} | settings) as recorder:
            steps(recorder, model, optimizer)
    return [str(each.message) for each in caught if each.category is RuntimeWarning]


def step(recorder: Any, model: Any, optimizer: Any, batch: Any = None) -> None:
    batch = honest.rows()[0] if batch is None else batch
    optimizer.zero_grad()
    loss = honest.squares(0, model, batch)
    loss.backward()
    optimizer.step()
    recorder.step(loss, batch)


def outcome(out: Path, **policy: Any) -> str:
    return str(tallystick.audit(out, tallystick.Policy(full=True, **policy)).report.verdict.outcome)


# When a recording begins and ends.


def test_what_mends_a_forward_pass_before_the_recording(tmp_path: Path) -> None:
    model = honest.network()
    loss = honest.squares(0, model, honest.rows()[0])
    loss.backward()

    def late(recorder: Any, _model: Any, optimizer: Any) -> None:
        optimizer.step()
        recorder.step(loss.detach(), honest.rows()[0])

    (line,) = by_hand(tmp_path / "broken", late, model)
    assert line.endswith("begin the recording before the first forward pass")
    assert outcome(tmp_path / "broken") == "inconclusive"
    assert by_hand(tmp_path / "mended", step) == []
    assert outcome(tmp_path / "mended") == "accepted"


def changed_at_the_end(recorder: Any, model: Any, optimizer: Any) -> None:
    step(recorder, model, optimizer)
    halve(model)


def halve(model: Any) -> None:
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(0.5)


def test_what_mends_weights_that_are_changed_after_the_last_record(tmp_path: Path) -> None:
    (line,) = by_hand(tmp_path / "broken", changed_at_the_end)
    assert "do that after the recording, or record the last step" in line
    assert outcome(tmp_path / "broken") == "inconclusive"
    model = honest.network()
    assert by_hand(tmp_path / "after", step, model) == []
    halve(model)

    def recorded(recorder: Any, model: Any, optimizer: Any) -> None:
        """What changed the weights was a step that had not been recorded."""
        for batch in honest.rows(2):
            step(recorder, model, optimizer, batch)

    assert by_hand(tmp_path / "recorded", recorded) == []
    assert [outcome(tmp_path / each) for each in ("after", "recorded")] == ["accepted", "accepted"]


def test_a_second_run_takes_a_new_recorder(tmp_path: Path) -> None:
    kept: list[Any] = []

    def keeps(recorder: Any, model: Any, optimizer: Any) -> None:
        step(recorder, model, optimizer)
        kept.append((recorder, model, optimizer))

    by_hand(tmp_path / "first", keeps)
    with pytest.warns(RuntimeWarning, match="a second run takes a new recorder"):
        step(*kept[0])
    assert by_hand(tmp_path / "second", step, kept[0][1]) == []
    assert [outcome(tmp_path / each) for each in ("first", "second")] == ["accepted", "accepted"]


def test_a_recording_without_a_step_is_mended_by_recording_one(tmp_path: Path) -> None:
    (line,) = by_hand(tmp_path / "none", lambda *_: None)
    assert "no step was recorded: call `recorder.step(loss, batch)` after each optimizer step" in line
    assert by_hand(tmp_path / "one", step) == []
    assert outcome(tmp_path / "one") == "accepted"


def test_a_stated_loss_takes_an_example_and_another_directory(tmp_path: Path) -> None:
    stated = {"loss": lambda model, batch: honest.squares(0, model, batch), "example": honest.rows()[0]}
    for name, value in stated.items():
        with pytest.raises(UsageError, match="a step graph takes `loss` and `example`"):
            by_hand(tmp_path / "run", step, **{name: value})
    assert by_hand(tmp_path / "run", step, **stated) == []
    with pytest.raises(UsageError, match="not empty"):
        by_hand(tmp_path / "run", step)
    assert by_hand(tmp_path / "other", step) == []
    assert [outcome(tmp_path / each) for each in ("run", "other")] == ["accepted", "accepted"]


def test_accumulation_is_stated_beside_a_stated_loss(tmp_path: Path) -> None:
    """Two backward passes and one record of both: with `accumulation=2` and a list of them."""
    halves = [[each.chunk(2)[part] for each in honest.rows()[0]] for part in (0, 1)]

    def in_two(given: Any, optimizer_steps: int) -> Steps:
        def steps(recorder: Any, model: Any, optimizer: Any) -> None:
            for _ in range(optimizer_steps):
                optimizer.zero_grad()
                losses = [honest.squares(0, model, half) for half in halves]
                sum(losses).div(2).backward() if given is None else [(each / 2).backward() for each in losses]
                optimizer.step()
            recorder.step(sum(losses).detach() / 2, honest.rows()[0] if given is None else given)

        return steps

    (line,) = by_hand(tmp_path / "broken", in_two(None, 2))
    assert "(`accumulation=` beside `loss=`)" in line
    stated = {"loss": lambda model, batch: honest.squares(0, model, batch), "example": halves, "accumulation": 2}
    assert by_hand(tmp_path / "mended", in_two(halves, 1), **stated) == []
    assert outcome(tmp_path / "mended") == "accepted"


def test_what_mends_first_weights_of_another_directory(tmp_path: Path) -> None:
    model = honest.network()
    by_hand(tmp_path / "origin", step, model)
    trained = copy.deepcopy(model)
    (line,) = by_hand(tmp_path / "broken", step, honest.network(), initial=tmp_path / "origin")
    assert line.endswith("load the model from there before recording")
    assert by_hand(tmp_path / "mended", step, trained, initial=tmp_path / "origin") == []
    audited = tallystick.audit(tmp_path / "mended", tallystick.Policy(full=True), initial=tmp_path / "origin")
    assert audited.report.verdict.outcome == "accepted"


# Runs of their own, and an approval.


@pytest.mark.parametrize(
    ("once", "remedy"),
    [
        (lambda model, optimizer: loops.prunes(0, model, optimizer), "what is done once begins a run of its own"),
        (
            lambda model, optimizer: optimizer.param_groups[0].update(betas=(0.8, 0.9)),
            "or record a run of its own from there",
        ),
    ],
    ids=["weights", "settings"],
)
def test_what_is_done_once_begins_a_run_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: Any, remedy: str
) -> None:
    monkeypatch.setattr("tallystick.recorders.step_graphs.SETTINGS_MAX", 1)

    def meddles(recorder: Any, model: Any, optimizer: Any) -> None:
        for number, batch in enumerate(honest.rows(4)):
            if number == 2:
                once(model, optimizer)
            step(recorder, model, optimizer, batch)

    said = by_hand(tmp_path / "broken", meddles)
    assert any(remedy in line for line in said), said
    assert outcome(tmp_path / "broken") == "inconclusive"

    def first(recorder: Any, model: Any, optimizer: Any) -> None:
        for batch in honest.rows(2):
            step(recorder, model, optimizer, batch)

    model = honest.network()
    assert by_hand(tmp_path / "first", first, model) == []
    optimizer = honest.adamw(model)
    once(model, optimizer)
    with tallystick.record_training(tmp_path / "second", model, optimizer) as recorder:
        for batch in honest.rows(2):
            step(recorder, model, optimizer, batch)
    assert [outcome(tmp_path / each) for each in ("first", "second")] == ["accepted", "accepted"]


def test_another_program_is_accepted_after_its_approval(tmp_path: Path) -> None:
    def penalised_where_short(_step: int, model: Any, batch: Any) -> Any:
        loss = honest.squares(0, model, batch)
        return loss + 0.1 * model[0].weight.square().sum() if len(batch[0]) == 7 else loss

    (line,) = [
        each
        for each in said_by(Loop(loss=penalised_where_short, batches=of_three_lengths), tmp_path / "run")
        if "--graph" in each
    ]
    assert outcome(tmp_path / "run") == "inconclusive"
    root = re.search(r"--graph (sha256:[0-9a-f]{64})", line)
    assert root is not None
    assert outcome(tmp_path / "run", graphs=(root[1],)) == "accepted"


# Models of transformers.


def gpt2(**settings: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "bos_token_id": 0}
    kept = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "eos_token_id": 0, "use_cache": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**sizes, **kept, **settings}))


def tokens() -> Any:
    return torch.randint(1, 64, (2, 8), generator=torch.Generator().manual_seed(0))


def masked(model: Any, batch: Any) -> Any:
    """The loss with a mask that is computed from the tokens."""
    return model(input_ids=batch["ids"], attention_mask=(batch["ids"] != 0).long(), labels=batch["ids"]).loss


def with_mask(model: Any, batch: Any) -> Any:
    return model(input_ids=batch["ids"], attention_mask=batch["mask"], labels=batch["ids"]).loss


def language(loss: Any, batch: Any) -> Steps:
    def steps(recorder: Any, model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        found = loss(model, batch)
        found.backward()
        optimizer.step()
        recorder.step(found, batch)

    return steps


@pytest.mark.parametrize("remedy", ["batch", "eager"])
def test_what_mends_a_mask_that_is_not_in_the_batch(tmp_path: Path, remedy: str) -> None:
    batch = {"ids": tokens()}
    said = by_hand(tmp_path / "broken", language(masked, batch), gpt2(), loss=masked, example=batch)
    assert any("give it in batch=, or take attn_implementation='eager'" in line for line in said), said
    if remedy == "batch":
        batch, loss, model = {**batch, "mask": torch.ones(2, 8, dtype=torch.long)}, with_mask, gpt2()
    else:
        loss, model = masked, gpt2(attn_implementation="eager")
    assert by_hand(tmp_path / "mended", language(loss, batch), model, loss=loss, example=batch) == []
    assert outcome(tmp_path / "mended") == "accepted"


def test_what_mends_a_cache_in_a_stated_loss(tmp_path: Path) -> None:
    batch = {"ids": tokens()}
    said = by_hand(tmp_path / "broken", language(masked, batch), gpt2(use_cache=True), loss=masked, example=batch)
    assert any("call it with use_cache=False" in line for line in said), said

    def without(model: Any, given: Any) -> Any:
        return model(input_ids=given["ids"], labels=given["ids"], use_cache=False).loss

    model = gpt2(use_cache=True)
    assert by_hand(tmp_path / "mended", language(without, batch), model, loss=without, example=batch) == []
    assert outcome(tmp_path / "mended") == "accepted"


def test_what_mends_dropout_of_a_config(tmp_path: Path, unknown_draws: None) -> None:
    batch = {"ids": tokens()}
    drops = gpt2(resid_pdrop=0.1, attn_pdrop=0.1)
    (found,) = tallystick.preflight(drops, honest.adamw(drops))
    remedy = re.search(r"make the config with ([\w=, ]+?), or", found.mends)
    assert remedy is not None, found.mends
    settings = dict(each.split("=") for each in remedy[1].split(", "))
    model = gpt2(**{"resid_pdrop": 0.1, "attn_pdrop": 0.1} | {name: float(value) for name, value in settings.items()})
    assert tallystick.preflight(model, honest.adamw(model)) == []
    assert by_hand(tmp_path / "mended", language(masked, batch), model) == []
    assert outcome(tmp_path / "mended") == "accepted"


def test_a_last_batch_that_is_dropped_blocks_nothing() -> None:
    def loader(**settings: Any) -> Any:
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(10, 3)), 4, **settings)

    def lines(model: Any, given: Any) -> list[str]:
        return [str(each) for each in tallystick.preflight(model, honest.adamw(model), given)]

    assert any("set drop_last=True, or give" in line for line in lines(loops.dropping(), loader()))
    assert not any("drop_last" in line for line in lines(loops.dropping(), loader(drop_last=True)))
    assert lines(honest.network(), loader()) == []  # such a step is watched, too: see "a short last batch"


# Calls.


class Recurrent(nn.Module):  # type: ignore[misc]
    """A recurrent layer in one call, or cell by cell."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.more = layer, nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        if isinstance(self.layer, nn.RNNBase):
            return self.layer(x)[0]
        state = x.new_zeros(x.shape[0], 4)
        for each in x.unbind(1):
            if isinstance(self.layer, nn.Linear):
                state = torch.tanh(self.layer(each) + self.more(state))
            else:
                state = self.layer(each, state)
        return state


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("cell", ["RNNCell", "Linear"])
def test_what_mends_a_recurrent_layer_in_recorded_calls(tmp_path: Path, kind: str, cell: str) -> None:
    def call(model: Any) -> Any:
        return model(torch.ones(2, 5, 3))

    with pytest.raises(UnavailableError, match=r"write the cells with nn\.Linear, or use nn\.RNNCell"):
        calls.record(tmp_path / "broken", Recurrent(getattr(nn, kind)(3, 4, batch_first=True)).eval(), call)
    calls.record(tmp_path / "mended", Recurrent(getattr(nn, cell)(3, 4)).eval(), call)
    assert outcome(tmp_path / "mended") == "accepted"


def test_what_mends_calls_with_other_bits_each_time(tmp_path: Path, two_threads: None) -> None:
    with pytest.raises(UnavailableError, match=r"use torch\.use_deterministic_algorithms\(True\)"):
        calls.record(tmp_path / "broken", Unsteady().eval(), calls.plain, calls.plain)
    torch.use_deterministic_algorithms(True)
    try:
        calls.record(tmp_path / "mended", Unsteady().eval(), calls.plain, calls.plain)
        assert outcome(tmp_path / "mended") == "accepted"
    finally:
        torch.use_deterministic_algorithms(False)


class Filtered(nn.Module):  # type: ignore[misc]
    """Rows that a mask selects, or rows with a weight."""

    def __init__(self, selects: bool) -> None:
        super().__init__()
        self.layer, self.selects = nn.Linear(3, 4), selects

    def forward(self, x: Any) -> Any:
        found = self.layer(x)
        return found[x[:, 0] > 0] if self.selects else found * (x[:, :1] > 0).float()


def test_what_mends_rows_that_are_selected_in_calls(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="or a weight of 0 and 1, so that shapes stay the same"):
        calls.record(tmp_path / "broken", Filtered(True).eval(), calls.plain)
    calls.record(tmp_path / "mended", Filtered(False).eval(), calls.plain)
    assert outcome(tmp_path / "mended") == "accepted"


def test_calls_take_a_directory_of_their_own(tmp_path: Path) -> None:
    calls.record(tmp_path / "run", calls.model(), calls.plain)
    with pytest.raises(UsageError, match="choose another directory"):
        calls.record(tmp_path / "run", calls.model(), calls.plain)
    calls.record(tmp_path / "other", calls.model(), calls.plain)
    assert outcome(tmp_path / "other") == "accepted"


def test_what_mends_experts_in_a_loop(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
        num_experts_per_tok=1,
        max_position_embeddings=16,
        use_cache=False,
    )

    def model(experts: str) -> Any:
        torch.manual_seed(0)
        made = transformers.MixtralForCausalLM(config).to(torch.bfloat16).eval()
        made.set_experts_implementation(experts)
        return made

    def call(called: Any) -> Any:
        return called(input_ids=tokens())

    with pytest.raises(UnavailableError, match="experts_implementation='grouped_mm'"):
        calls.record(tmp_path / "broken", model("eager"), call)
    calls.record(tmp_path / "mended", model("grouped_mm"), call)
    assert outcome(tmp_path / "mended") == "accepted"


def test_a_plain_loop_is_what_most_remedies_come_to(tmp_path: Path) -> None:
    assert said_by(PLAIN, tmp_path / "run") == []
    assert outcome(tmp_path / "run") == "accepted"
