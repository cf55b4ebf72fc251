"""A `transformers.Trainer` recorded by a callback, and its run audited from the captured graph."""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.core.errors import UsageError
from tallystick.formats.records import StepRecord, batch_file, read_record
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("default")
Replayed = Callable[..., Any]


class Tokens(torch.utils.data.Dataset):  # type: ignore[misc]
    def __init__(self, count: int, pads: bool = False, length: int = 16) -> None:
        generator = torch.Generator().manual_seed(3)
        self._rows = torch.randint(1, 64, (count, length), generator=generator)
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
        vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config)


def llama(length: int = 16) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=length,
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


def record(out: Path, model: Any, data: Any, others: Sequence[Any] = (), **settings: Any) -> Path:
    from tallystick.recording.loop.huggingface import TallyCallback

    recorder = TallyCallback(out / "run", anchor_stride=2, summaries=["exact", "projection"])
    fit(out, model, data, [recorder, *others], **settings)
    return out / "run"


def steps_of(run: Path) -> list[StepRecord]:
    records = (read_record(line, "record") for line in read_lines(run / "transcript.jsonl"))
    return [record for record in records if isinstance(record, StepRecord)]


@pytest.fixture
def replayed(one_thread: None) -> Replayed:
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import audit_training
    from tests.support.this_machine import verifier_stack

    def audit(path: Path, **policy: Any) -> Any:
        run, asked = RunDirectory(path), Policy.from_json({"full": True, **policy}, "policy")
        return audit_training(run, asked, bytes(32), verifier_stack(run, None, asked))

    return audit


@pytest.fixture(scope="module")
def plain(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run of five steps of a plain Trainer, and the trained model."""
    transformers.set_seed(0)
    model = gpt2()
    return record(tmp_path_factory.mktemp("plain"), model, Tokens(40)), model


@pytest.fixture(scope="module")
def fused(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps with PyTorch's fused AdamW."""
    transformers.set_seed(0)
    return record(tmp_path_factory.mktemp("fused"), gpt2(), Tokens(40), max_steps=3, optim="adamw_torch_fused")


def check_plain(run: Path, replayed: Replayed) -> None:
    spec = RunDirectory(run).spec()
    assert spec.optimizer is not None
    assert [rule.weight_decay for rule in spec.optimizer] == [0.1, 0.0]
    assert [step.learning_rate for step in steps_of(run)[:3]] == [0.0, 5e-4, 1e-3]
    report = replayed(run)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 5)
    assert report.replayed == f"graph {spec.graph}"


def test_a_trainer_is_recorded_and_replayed_from_its_graph_bit_for_bit(
    plain: tuple[Path, Any], replayed: Replayed
) -> None:
    check_plain(plain[0], replayed)


@pytest.mark.slow
def test_a_trainer_of_a_llama_is_replayed_bit_for_bit(tmp_path: Path, replayed: Replayed) -> None:
    transformers.set_seed(0)
    check_plain(record(tmp_path, llama(), Tokens(40)), replayed)


def test_the_callback_leaves_the_training_as_it_is(plain: tuple[Path, Any], tmp_path: Path) -> None:
    transformers.set_seed(0)
    alone = gpt2()
    fit(tmp_path, alone, Tokens(40), [])
    pairs = zip(plain[1].state_dict().items(), alone.state_dict().items(), strict=True)
    assert [name for (name, ours), (_, theirs) in pairs if not torch.equal(ours, theirs)] == []


def test_accumulated_and_padded_batches_are_replayed_with_the_number_of_items(
    tmp_path: Path, replayed: Replayed
) -> None:
    transformers.set_seed(0)
    run = record(tmp_path, gpt2(), Tokens(40, pads=True), gradient_accumulation_steps=2, max_steps=4)
    names = {name for batch in (run / "batches").iterdir() for name in _names(batch)}
    assert "1.num_items_in_batch" in names
    assert replayed(run).verdict.outcome == "accepted"


def test_a_fused_optimizer_is_replayed_bit_for_bit(fused: Path, replayed: Replayed) -> None:
    assert (report := replayed(fused)).verdict.outcome == "accepted"
    assert report.replayed_steps == 3


@pytest.mark.parametrize(
    "settings",
    [{"bf16": True}, {"gradient_accumulation_steps": 3}],
    ids=lambda settings: next(iter(settings)),
)
def test_what_the_trainer_offers_is_replayed_bit_for_bit(
    settings: dict[str, Any], plain: tuple[Path, Any], tmp_path: Path, replayed: Replayed
) -> None:
    transformers.set_seed(0)
    run = record(tmp_path, gpt2(), Tokens(40), max_steps=3, **settings)
    assert (report := replayed(run)).verdict.outcome == "accepted"
    assert report.replayed_steps == 3
    first = [step.loss for step in steps_of(plain[0])[:3]]
    assert [step.loss for step in steps_of(run)] != first  # of mixed precision, and of more rows


def test_long_rows_are_replayed_with_fused_attention(tmp_path: Path, replayed: Replayed) -> None:
    transformers.set_seed(0)
    run = record(tmp_path, llama(128), Tokens(8, length=128), max_steps=2)
    graph = RunDirectory(run).graph_path.read_bytes()
    assert b"_scaled_dot_product_flash_attention_for_cpu" in graph
    assert replayed(run).verdict.outcome == "accepted"


class Padded(torch.utils.data.Dataset):  # type: ignore[misc]
    """Rows with a mask; in every other batch of 4 some are padded."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = torch.arange(48) * (index + 3) % 63 + 1
        mask = torch.ones(48, dtype=torch.int64)
        mask[40 + index % 8 :] = (index // 4) % 2
        return {"input_ids": row, "labels": row.masked_fill(mask == 0, -100), "attention_mask": mask}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_full_and_padded_batches_of_one_shape_are_replayed_as_the_model_computes_them(
    attention: str, tmp_path: Path, replayed: Replayed
) -> None:
    """With fewer heads of keys than of queries, a mask of ones gives other bits than none."""
    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
    )
    run = record(
        tmp_path, transformers.LlamaForCausalLM(config), Padded(), max_steps=4, train_sampling_strategy="sequential"
    )
    assert len({step.graph for step in steps_of(run)}) == (2 if attention == "sdpa" else 1)
    report = replayed(run)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 4)


def _names(path: Path) -> tuple[str, ...]:
    from tallystick.core.safetensors import read_state

    return tuple(read_state(path, canonical=True))


@pytest.fixture
def meddling() -> Any:
    class Meddling(transformers.TrainerCallback):  # type: ignore[misc]
        def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **live: Any) -> None:
            if state.global_step == 2:
                next(model.parameters()).data.add_(1e-4)  # where PyTorch counts no write

    return Meddling()


@pytest.mark.parametrize("checked", [1, 3])
def test_weights_that_were_changed_on_the_way_are_never_accepted(
    tmp_path: Path, replayed: Replayed, meddling: Any, monkeypatch: pytest.MonkeyPatch, checked: int
) -> None:
    from tallystick.recording.loop.huggingface import TallyCallback

    monkeypatch.setattr("tallystick.recording.loop.self_check.SelfCheck.is_due", lambda _, index: index == checked)
    transformers.set_seed(0)
    fit(tmp_path, gpt2(), Tokens(40), [TallyCallback(tmp_path / "run", anchor_stride=2), meddling])
    verdict = replayed(tmp_path / "run").verdict
    assert (verdict.outcome, verdict.objections) == ("inconclusive", ())
    assert any("changed" in line for line in verdict.unavailable)


def test_a_step_that_cannot_be_captured_is_recorded_without_a_graph(
    one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.engines.torch import optimizers

    monkeypatch.setattr(optimizers, "KNOWN", {})
    with pytest.warns(RuntimeWarning, match="Adagrad cannot be captured"):
        run = record(tmp_path, gpt2(), Tokens(40), max_steps=1, optim="adagrad")
    assert RunDirectory(run).spec().graph is None
    assert len(steps_of(run)) == 1


def test_a_model_without_a_loss_is_refused(one_thread: None, tmp_path: Path) -> None:
    from tallystick.recording.loop.huggingface import loss_of

    assert loss_of({"loss": torch.tensor(1.0)}) == 1
    for output in ({"logits": torch.zeros(2)}, (torch.zeros(2),), torch.zeros(())):
        with pytest.raises(UsageError, match="the model returns no loss"):
            loss_of(output)


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    from tallystick.recording.loop.huggingface import TallyCallback

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
    from tallystick.recording.loop.huggingface import TallyCallback

    trained_with(tmp_path, TallyCallback(tmp_path / "run"), adafactor)
    assert [(step.learning_rate, step.tags) for step in steps_of(tmp_path / "run")] == [(0.0, ("no-rate",))] * 3
    assert replayed(tmp_path / "run").verdict.outcome == "accepted"


def test_a_compiled_trainer_is_recorded_without_a_graph(one_thread: None, tmp_path: Path, replayed: Replayed) -> None:
    with pytest.warns(RuntimeWarning, match="torch_compile=True round otherwise"):
        run = record(tmp_path, gpt2(), Tokens(40), torch_compile=True, torch_compile_backend="eager", max_steps=2)
    assert len(steps_of(run)) == 2
    assert replayed(run).verdict.outcome == "inconclusive"
    assert replayed(run).verdict.objections == ()


class Saving(transformers.TrainerCallback):  # type: ignore[misc]
    """Trains a copy of the model in every step, and saves the model with all its hooks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **live: Any) -> None:
        rows = torch.ones(1, 4, dtype=torch.int64)
        copy.deepcopy(model)(input_ids=rows, labels=rows).loss.backward()
        torch.save(model, self._path)


def test_a_model_is_copied_and_saved_while_it_is_recorded(fused: Path, tmp_path: Path) -> None:
    transformers.set_seed(0)
    model, saving = gpt2(), Saving(tmp_path / "model.pt")
    beside = record(tmp_path, model, Tokens(40), [saving], max_steps=3, optim="adamw_torch_fused")
    assert [(step.loss, step.batch) for step in steps_of(beside)] == [
        (step.loss, step.batch) for step in steps_of(fused)
    ]
    assert b"tallystick" not in (tmp_path / "model.pt").read_bytes()
    saved = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.isfinite(saved(input_ids=torch.ones(1, 4, dtype=torch.int64)).logits).all()


@pytest.mark.filterwarnings("ignore:FSDP is switching", "ignore::FutureWarning")
@pytest.mark.parametrize("version", [1, 2])
def test_a_sharded_trainer_goes_on_unrecorded(version: int, one_thread: None, tmp_path: Path) -> None:
    """FSDP 2 gathers the tensors for the forward pass, so that they look whole inside of it."""
    from tallystick.recording.loop.huggingface import TallyCallback

    distributed = torch.distributed
    settings = {"remove_unused_columns": False, "label_names": ["labels"]}
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model, callback = sharded(gpt2(), version), TallyCallback(tmp_path / "run")
        with pytest.warns(RuntimeWarning, match="sharded over processes.*train unsharded, in one process") as said:
            trainer = trained_with(tmp_path, callback, model=model, **settings)
    finally:
        distributed.destroy_process_group()
    assert trainer.state.global_step == 3
    assert sum("recorded" in str(each.message) for each in said) == 1
    assert not (tmp_path / "run/claim.json").exists()


def sharded(model: Any, version: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    if version == 1:
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def weighted(output: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    each = torch.nn.functional.cross_entropy(output.logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return (each * torch.linspace(0.5, 1.5, each.shape[1])).sum() / num_items_in_batch


class OwnLoss(transformers.Trainer):  # type: ignore[misc]
    """Computes its loss itself, and reads it for a log."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        loss = weighted(model(**inputs), labels, num_items_in_batch)
        self.seen = [*getattr(self, "seen", []), loss.item()]
        return loss


class Branching(OwnLoss):
    """Computes one loss or another, by what the first is."""

    def compute_loss(self, *args: Any, **settings: Any) -> Any:
        loss = super().compute_loss(*args, **settings)
        return loss if loss > 1e-3 else 2 * loss


def fit_with(out: Path, kind: Any, others: dict[str, Any], **settings: Any) -> Any:
    from tallystick.recording.loop.huggingface import TallyCallback

    quiet = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "max_steps": 3}
    arguments = transformers.TrainingArguments(str(out / "trainer"), per_device_train_batch_size=4, **quiet, **settings)
    callback = TallyCallback(out / "run", anchor_stride=2)
    transformers.set_seed(0)
    trainer = kind(gpt2(), arguments, train_dataset=Tokens(40), callbacks=[callback], **others)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("kind", "others", "settings"),
    [
        (transformers.Trainer, {}, {"label_smoothing_factor": 0.1}),
        (transformers.Trainer, {}, {"label_smoothing_factor": 0.1, "bf16": True, "gradient_accumulation_steps": 2}),
        (transformers.Trainer, {"compute_loss_func": weighted}, {}),
        (OwnLoss, {}, {}),
    ],
    ids=["smoothed", "mixed precision", "function", "method"],
)
def test_a_loss_that_the_model_does_not_return_is_replayed(
    kind: Any, others: dict[str, Any], settings: dict[str, Any], tmp_path: Path, replayed: Replayed
) -> None:
    trainer = fit_with(tmp_path, kind, others, **settings)
    report = replayed(tmp_path / "run")
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 3)
    assert "compute_loss" not in vars(trainer)


def test_a_loss_that_branches_leaves_the_training_alone_and_is_told(tmp_path: Path, replayed: Replayed) -> None:
    with pytest.warns(RuntimeWarning, match="the audit of this run will be inconclusive"):
        assert fit_with(tmp_path, Branching, {}).state.global_step == 3
    assert len(steps_of(tmp_path / "run")) == 3
    assert replayed(tmp_path / "run").verdict.outcome == "inconclusive"


def test_a_trainer_that_does_not_clip_is_replayed(tmp_path: Path, replayed: Replayed) -> None:
    fit_with(tmp_path, transformers.Trainer, {}, max_grad_norm=0.0)
    assert replayed(tmp_path / "run").verdict.outcome == "accepted"


def test_noise_and_dropout_from_a_seed_are_replayed_under_checkpointing(tmp_path: Path, replayed: Replayed) -> None:
    from tallystick.recording.loop.huggingface import TallyCallback

    transformers.set_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=16)
    )
    settings = {"neftune_noise_alpha": 5.0, "gradient_checkpointing": True, "max_steps": 3}
    fit(tmp_path, model, Tokens(40), [TallyCallback(tmp_path / "run", anchor_stride=2, seed=1)], **settings)
    assert replayed(tmp_path / "run").verdict.outcome == "accepted"


def patched(model: Any) -> Any:
    """A model whose `forward` a library has exchanged for a function that holds on to the model."""
    original = model.forward

    @functools.wraps(original)
    def forward(fused_lm_head: bool = False, **given: Any) -> Any:
        return original(**given)

    model.forward = forward
    return model


def test_a_model_with_an_exchanged_forward_is_captured_and_trains_as_without_recording(
    tmp_path: Path, replayed: Replayed
) -> None:
    torch.manual_seed(2)
    model = patched(llama())
    alone = patched(copy.deepcopy(llama()))
    alone.load_state_dict(model.state_dict())
    run = record(tmp_path, model, Tokens(40))
    fit(tmp_path / "alone", alone, Tokens(40), [])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), alone.parameters(), strict=True))
    assert replayed(run).verdict.outcome == "accepted"


def test_the_last_step_of_an_epoch_with_fewer_micro_batches_has_a_graph_of_its_own(tmp_path: Path) -> None:
    """10 rows in batches of 4: one step of two micro-batches, then one of one, with 2 rows."""
    from tallystick.recording.loop.huggingface import TallyCallback

    recorder = TallyCallback(tmp_path / "run", anchor_stride=1)
    settings = {"gradient_accumulation_steps": 2, "max_steps": -1, "num_train_epochs": 1}
    fit(tmp_path, llama(), Tokens(10, pads=True), [recorder], **settings)
    run = RunDirectory(tmp_path / "run")
    first, last = steps_of(tmp_path / "run")
    assert first.graph is None
    assert last.graph is not None
    result = tallystick.audit(run, tallystick.Policy(full=True))
    assert result.accepted, result.text()
    assert result.verdict.coverage is not None
    assert result.verdict.coverage.done == 2
    files = [tmp_path / "run" / batch_file(each.batch.digest) for each in (first, last) if each.batch.digest]
    files[1].write_bytes(files[0].read_bytes())
    assert tallystick.audit(run, tallystick.Policy(full=True)).outcome == "rejected"


class Positions(Tokens):
    """Rows of one shape: every second one holds two texts, as its positions say."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = self._rows.shape[1]
        places = torch.arange(length) % (length // 2 if index % 2 else length)
        return {**super().__getitem__(index), "position_ids": places}


def loop_of(out: Path, model: Any, rows: Sequence[dict[str, Any]]) -> Path:
    def loss_of(called: Any, batch: Any) -> Any:
        return called(**batch, use_cache=False).loss

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [{name: value[None] for name, value in row.items()} for row in rows]
    known = {"loss": loss_of, "example": batches[0]}
    with tallystick.record_training(out, model, optimizer, anchor_stride=2, **known) as recorder:
        for batch in batches:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch)
    return out


@pytest.mark.parametrize("is_trainer", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_packed_and_plain_rows_of_one_shape_have_a_graph_each(
    is_trainer: bool, tmp_path: Path, replayed: Replayed
) -> None:
    transformers.set_seed(0)
    data = Positions(8)
    if is_trainer:
        run = record(tmp_path, llama(), data, per_device_train_batch_size=1, max_steps=8)
    else:
        run = loop_of(tmp_path / "run", llama(), [data[index] for index in (0, 1, 2, 3)])
    assert len({step.graph for step in steps_of(run)}) == 2
    assert replayed(run).verdict.outcome == "accepted"


TWO = """
import sys, torch, transformers
from tallystick.recording.loop.huggingface import TallyCallback
from tests.recording.test_huggingface import Tokens, fit, gpt2
from pathlib import Path
transformers.set_seed(0)
out = Path(sys.argv[1])
fit(out, gpt2(), Tokens(40), [TallyCallback(out / "run")], max_steps=3, ddp_backend="gloo")
"""


@pytest.mark.slow
def test_of_two_processes_the_first_records_and_says_that_nothing_can_be_replayed(
    one_thread: None, tmp_path: Path
) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])}
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    why = "2 processes average their gradients, and a graph holds the step of one"
    assert done.stderr.count(why) == 1
    assert len(steps_of(tmp_path / "run")) == 3
    report = tallystick.audit(tmp_path / "run").report
    assert (report.verdict.outcome, report.verdict.objections) == ("inconclusive", ())
    assert any(why in line for line in report.verdict.unavailable)
