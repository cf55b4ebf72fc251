"""A `transformers.Trainer` recorded by a callback, and its run audited from the captured graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.errors import UsageError
from tallystick.store.log import read_lines
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import StepRecord, read_record

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("default")
Replayed = Callable[..., Any]


class Tokens(torch.utils.data.Dataset):  # type: ignore[misc]
    def __init__(self, count: int, pads: bool = False) -> None:
        generator = torch.Generator().manual_seed(3)
        self._rows = torch.randint(1, 64, (count, 16), generator=generator)
        self._pads = pads

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._rows[index]
        labels = row.clone()
        if self._pads:
            labels[12 - index % 4 :] = -100
        return {"input_ids": row, "labels": labels}


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    return transformers.LlamaForCausalLM(config)


def fit(out: Path, model: Any, data: Any, callbacks: list[Any], **settings: Any) -> None:
    transformers.set_seed(1)
    arguments = transformers.TrainingArguments(
        output_dir=str(out / "trainer"),
        **{
            "per_device_train_batch_size": 4,
            "max_steps": 5,
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "warmup_steps": 2,
            "max_grad_norm": 0.5,
            "optim": "adamw_torch",
            "use_cpu": True,
            "report_to": [],
            "save_strategy": "no",
            "logging_steps": 1,
            "disable_tqdm": True,
            "seed": 7,
        }
        | settings,
    )
    transformers.Trainer(model, arguments, train_dataset=data, callbacks=callbacks).train()


def record(out: Path, model: Any, data: Any, **settings: Any) -> Path:
    from tallystick.recorders.huggingface import TallyCallback

    fit(out, model, data, [TallyCallback(out / "run", anchor_stride=2, summaries=["exact", "projection"])], **settings)
    return out / "run"


def steps_of(run: Path) -> list[StepRecord]:
    records = (read_record(line, "record") for line in read_lines(run / "transcript.jsonl"))
    return [record for record in records if isinstance(record, StepRecord)]


@pytest.fixture
def replayed(one_thread: None) -> Replayed:
    from tallystick.api.replaying import verifier_stack
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import audit_training

    def audit(path: Path, **policy: Any) -> Any:
        run, asked = RunDirectory(path), Policy.from_json({"full": True, **policy}, "policy")
        return audit_training(run, asked, bytes(32), verifier_stack(run, None, asked))

    return audit


@pytest.mark.parametrize("build", [gpt2, pytest.param(llama, marks=pytest.mark.slow)])
def test_a_trainer_is_recorded_and_replayed_from_its_graph_bit_for_bit(
    build: Callable[[], Any], tmp_path: Path, replayed: Replayed
) -> None:
    transformers.set_seed(0)
    run = record(tmp_path, build(), Tokens(40))
    spec = RunDirectory(run).spec()
    assert spec.optimizer is not None
    assert [rule.weight_decay for rule in spec.optimizer] == [0.1, 0.0]
    assert [step.learning_rate for step in steps_of(run)[:3]] == [0.0, 5e-4, 1e-3]
    report = replayed(run)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 5)
    assert report.replayed == f"graph {spec.graph}"


def test_the_callback_leaves_the_training_as_it_is(one_thread: None, tmp_path: Path) -> None:
    transformers.set_seed(0)
    watched = gpt2()
    transformers.set_seed(0)
    alone = gpt2()
    record(tmp_path / "a", watched, Tokens(40))
    fit(tmp_path / "b", alone, Tokens(40), [])
    pairs = zip(watched.state_dict().items(), alone.state_dict().items(), strict=True)
    assert [name for (name, ours), (_, theirs) in pairs if not torch.equal(ours, theirs)] == []


def test_accumulated_and_padded_batches_are_replayed_with_the_number_of_items(
    tmp_path: Path, replayed: Replayed
) -> None:
    transformers.set_seed(0)
    run = record(tmp_path, gpt2(), Tokens(40, pads=True), gradient_accumulation_steps=2, max_steps=4)
    names = {name for batch in (run / "batches").iterdir() for name in _names(batch)}
    assert "1.num_items_in_batch" in names
    assert replayed(run).verdict.outcome == "accepted"


def _names(path: Path) -> tuple[str, ...]:
    from tallystick.tensors.safetensors import read_state

    return tuple(read_state(path, canonical=True))


@pytest.fixture
def meddling() -> Any:
    class Meddling(transformers.TrainerCallback):  # type: ignore[misc]
        def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **live: Any) -> None:
            if state.global_step == 2:
                next(model.parameters()).data.add_(1e-4)  # where PyTorch counts no write

    return Meddling()


@pytest.mark.parametrize(("checked", "outcome"), [(1, "rejected"), (3, "inconclusive")])
def test_weights_that_were_changed_on_the_way_are_never_accepted(
    tmp_path: Path, replayed: Replayed, meddling: Any, monkeypatch: pytest.MonkeyPatch, checked: int, outcome: str
) -> None:
    from tallystick.recorders.huggingface import TallyCallback

    monkeypatch.setattr("tallystick.recorders.self_check.SelfCheck.is_due", lambda _, index: index == checked)
    transformers.set_seed(0)
    fit(tmp_path, gpt2(), Tokens(40), [TallyCallback(tmp_path / "run", anchor_stride=2), meddling])
    report = replayed(tmp_path / "run")
    assert report.verdict.outcome == outcome
    if outcome == "inconclusive":
        assert "the state was changed through `.data`" in RunDirectory(tmp_path / "run").claim().no_graph
        return
    assert "state" in {finding.name for finding in report.verdict.objections}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"optim": "adamw_torch_fused"}, 'use optim="adamw_torch"'),
        ({"gradient_accumulation_steps": 3}, "3 micro-batches a step are not captured exactly"),
        ({"optim": "adagrad"}, "Adagrad cannot be captured"),
    ],
)
def test_a_step_that_cannot_be_captured_is_recorded_without_a_graph(
    settings: dict[str, Any], reason: str, one_thread: None, tmp_path: Path
) -> None:
    with pytest.warns(RuntimeWarning, match=reason):
        run = record(tmp_path, gpt2(), Tokens(40), max_steps=1, **settings)
    assert RunDirectory(run).spec().graph is None
    assert len(steps_of(run)) == 1


def test_a_model_without_a_loss_is_refused(one_thread: None, tmp_path: Path) -> None:
    from tallystick.recorders.huggingface import loss_of

    assert loss_of({"loss": torch.tensor(1.0)}) == 1
    for output in ({"logits": torch.zeros(2)}, (torch.zeros(2),), torch.zeros(())):
        with pytest.raises(UsageError, match="the model returns no loss"):
            loss_of(output)


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    from tallystick.recorders.huggingface import TallyCallback

    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not empty"):
        TallyCallback(tmp_path)


def adafactor(model: Any) -> Any:
    from transformers.optimization import Adafactor

    found = Adafactor(model.parameters(), lr=None, relative_step=True, scale_parameter=True, warmup_init=True)
    return found, Unscheduled()


class Unscheduled:
    """A schedule for an optimizer that states no rate: those of PyTorch multiply it."""

    def step(self) -> None:
        """Leave the optimizer as it is."""

    def get_last_lr(self) -> list[float]:
        """What a Trainer logs."""
        return [0.0]


def trained_with(out: Path, callback: Any, optimizer: Any = None, model: Any = None, **settings: Any) -> Any:
    """A Trainer that has trained three steps, with an optimizer of its own."""
    transformers.set_seed(0)
    model = gpt2() if model is None else model
    arguments = transformers.TrainingArguments(
        output_dir=str(out / "trainer"),
        per_device_train_batch_size=4,
        max_steps=3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        optim="adamw_torch",
        **settings,
    )
    optimizers = (None, None) if optimizer is None else optimizer(model)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Tokens(40), callbacks=[callback], optimizers=optimizers
    )
    trainer.train()
    return trainer


def test_an_optimizer_without_a_rate_is_recorded_as_such(one_thread: None, tmp_path: Path, replayed: Replayed) -> None:
    from tallystick.recorders.huggingface import TallyCallback

    with pytest.warns(RuntimeWarning, match="Adafactor cannot be captured"):
        trained_with(tmp_path, TallyCallback(tmp_path / "run"), adafactor)
    assert [(step.learning_rate, step.tags) for step in steps_of(tmp_path / "run")] == [(0.0, ("no-rate",))] * 3
    assert replayed(tmp_path / "run").verdict.objections == ()


def test_a_compiled_trainer_is_recorded_without_a_graph(one_thread: None, tmp_path: Path, replayed: Replayed) -> None:
    with pytest.warns(RuntimeWarning, match="torch_compile=True round otherwise"):
        run = record(tmp_path, gpt2(), Tokens(40), torch_compile=True, torch_compile_backend="eager", max_steps=2)
    assert len(steps_of(run)) == 2
    assert replayed(run).verdict.outcome == "inconclusive"
    assert replayed(run).verdict.objections == ()


def test_a_second_training_goes_on_unrecorded_and_the_first_run_stays(tmp_path: Path, replayed: Replayed) -> None:
    from tallystick.recorders.huggingface import TallyCallback

    trainer = trained_with(tmp_path, TallyCallback(tmp_path / "run", anchor_stride=2))
    claim = (tmp_path / "run/claim.json").read_bytes()
    before = trainer.model.transformer.wte.weight.detach().clone()
    with pytest.warns(RuntimeWarning, match="one TallyCallback records one training"):
        trainer.train()
    assert not torch.equal(before, trainer.model.transformer.wte.weight)
    assert (tmp_path / "run/claim.json").read_bytes() == claim
    assert replayed(tmp_path / "run").verdict.outcome == "accepted"


def test_a_loss_that_the_model_does_not_return_leaves_the_training_alone(one_thread: None, tmp_path: Path) -> None:
    from tallystick.recorders.huggingface import TallyCallback

    class Unpaid(transformers.GPT2LMHeadModel):  # type: ignore[misc]
        def forward(self, *args: Any, labels: Any = None, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    class OwnLoss(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            logits = model(**inputs).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten())

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "trainer"),
        per_device_train_batch_size=4,
        max_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        optim="adamw_torch",
    )
    trainer = OwnLoss(
        Unpaid(gpt2().config), arguments, train_dataset=Tokens(40), callbacks=[TallyCallback(tmp_path / "run")]
    )
    with pytest.warns(RuntimeWarning, match="the model returns no loss"):
        assert trainer.train().global_step == 2
    assert not (tmp_path / "run/claim.json").exists()
