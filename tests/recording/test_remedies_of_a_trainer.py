"""What mends a training by transformers' Trainer, where its callback says that it cannot be replayed."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import pytest

import tallystick

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from tests.recording.test_huggingface import Tokens, gpt2, trained_with  # noqa: E402

QUIET = {"use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "optim": "adamw_torch"}


class Called(transformers.Trainer):  # type: ignore[misc,name-defined]
    """A Trainer whose own step calls the model with positional arguments, or by name."""

    by_name = False

    def training_step(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        found = model.train()(**inputs) if self.by_name else model.train()(inputs["input_ids"], inputs["labels"])
        found["loss"].backward()
        return found["loss"].detach()


class ByName(Called):
    """The same, by name."""

    by_name = True


class Answering(torch.nn.Module):  # type: ignore[misc]
    """A model with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Embedding(64, 64)

    def forward(self, input_ids: Any, labels: Any) -> Any:
        scores = self.layer(input_ids)
        return {"loss": torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), "logits": scores}


class Fused(transformers.Trainer):  # type: ignore[misc,name-defined]
    """A Trainer that asks for the fused head of trl."""

    def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
        return model(**inputs, fused_lm_head=True).loss


class Plain(Fused):
    """A subclass with the loss of transformers."""

    compute_loss = transformers.Trainer.compute_loss


class Lossless(torch.nn.Module):  # type: ignore[misc]
    """A model that gives no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Embedding(64, 1)

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        return {"loss": None, "logits": self.layer(input_ids)}


def accepting(model: Any) -> Any:
    """A model that takes `fused_lm_head`, as one that trl has patched."""
    forward = model.forward

    @functools.wraps(forward)
    def patched(*args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    model.forward = patched
    return model


def fit(out: Path, trainer: Any = transformers.Trainer, model: Any = None, **settings: Any) -> list[str]:
    """The lines that are said while a Trainer takes two steps."""
    transformers.set_seed(0)
    arguments = transformers.TrainingArguments(
        str(out.parent / "trainer"), max_steps=2, per_device_train_batch_size=4, **QUIET, **settings
    )
    callback = tallystick.TallyCallback(out, anchor_stride=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(model or gpt2(), arguments, train_dataset=Tokens(8), callbacks=[callback]).train()
    return [str(each.message) for each in caught if each.category is RuntimeWarning]


def outcome(out: Path) -> str:
    return str(tallystick.audit(out, tallystick.Policy(full=True)).report.verdict.outcome)


REMEDIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "halves": ("take bf16, or leave fp16 off", {"fp16": True}, {"bf16": True}),
    "compiled": (  # what mends it leaves fp16 off, too
        "kernels of torch_compile=True round otherwise than those of a graph; leave it off",
        {"torch_compile": True, "torch_compile_backend": "eager"},
        {"torch_compile": False},
    ),
    "positions": ("call it with arguments by name", {"trainer": Called}, {"trainer": ByName}),
    "a fused head": (
        "(fused_lm_head); train by a subclass of SFTTrainer with `compute_loss = transformers.Trainer.compute_loss`",
        {"trainer": Fused},
        {"trainer": Plain},
    ),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_mends_what_the_callback_says(one_thread: None, tmp_path: Path, name: str) -> None:
    remedy, broken, mended = REMEDIES[name]
    models = {"a fused head": lambda: accepting(gpt2()), "positions": Answering}
    said = fit(tmp_path / "broken", model=models.get(name, gpt2)(), **broken)
    assert any(remedy in line for line in said), said
    assert outcome(tmp_path / "broken") == "inconclusive"
    assert fit(tmp_path / "mended", model=models.get(name, gpt2)(), **mended) == []
    assert outcome(tmp_path / "mended") == "accepted"


def test_a_model_without_a_loss_is_recorded_as_a_loop_of_its_own(one_thread: None, tmp_path: Path) -> None:
    class Own(transformers.Trainer):  # type: ignore[misc,name-defined]
        def training_step(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            loss = model.train()(**inputs)["logits"].square().mean()
            loss.backward()
            return loss.detach()

    said = fit(tmp_path / "broken", Own, Lossless())
    assert any("the model returns no loss; record a loop of your own with record_training" in line for line in said)
    model = Lossless()
    optimizer = torch.optim.AdamW(model.parameters())
    with tallystick.record_training(tmp_path / "mended", model, optimizer) as recorder:
        for index in range(2):
            batch = {"input_ids": Tokens(8)[index]["input_ids"][None]}
            optimizer.zero_grad()
            loss = model(**batch)["logits"].square().mean()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch)
    assert outcome(tmp_path / "mended") == "accepted"


def test_a_second_training_goes_on_unrecorded_and_takes_another_callback(one_thread: None, tmp_path: Path) -> None:
    trainer = trained_with(tmp_path, tallystick.TallyCallback(tmp_path / "first", anchor_stride=3))
    claim = (tmp_path / "first/claim.json").read_bytes()
    before = trainer.model.transformer.wte.weight.detach().clone()
    why = "one TallyCallback records one training; give the next one another, with a directory of its own"
    with pytest.warns(RuntimeWarning, match=why):
        trainer.train()
    assert not torch.equal(before, trainer.model.transformer.wte.weight)
    assert (tmp_path / "first/claim.json").read_bytes() == claim
    trained_with(tmp_path, tallystick.TallyCallback(tmp_path / "second", anchor_stride=3), model=trainer.model)
    assert [outcome(tmp_path / each) for each in ("first", "second")] == ["accepted", "accepted"]
