"""The loops and calls that the oracle records, through public names alone: `loop NAME` in its table of commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tallystick
import tallystick.graphs
import tallystick.torch

TOKENS, WIDTH, ROWS, SEQUENCE = 32, 16, 8, 12
STEPS, STRIDE = 24, 6
CLASS_WEIGHTS = tuple(0.5 + token / TOKENS for token in range(TOKENS))
WORDS = ("<pad>", "<eos>", "<user>", "<assistant>", *map(chr, range(32, 127)))
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_weights(model: torch.nn.Module, folder: str) -> Path:
    """The weights of a model as a checkpoint that a run may begin with."""
    from safetensors.torch import save_file

    Path(folder).mkdir(exist_ok=True)
    save_file({name: each.contiguous() for name, each in model.state_dict().items()}, f"{folder}/model.safetensors")
    return Path(folder)


def token_loss(model: Any, batch: Any) -> Any:
    """Cross entropy of the next token, with constant class weights."""
    inputs, targets = batch
    weights = torch.tensor(CLASS_WEIGHTS)
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), weight=weights)


def language_loop(out: str, initial: str | None = None, dropout: float = 0.0) -> None:
    """A language model of two layers, as the forgeries of loops make it again."""
    torch.manual_seed(0)
    middle = [torch.nn.Tanh(), *([torch.nn.Dropout(dropout)] if dropout else [])]
    model = torch.nn.Sequential(torch.nn.Embedding(TOKENS, WIDTH), *middle, torch.nn.Linear(WIDTH, TOKENS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randint(0, TOKENS, (ROWS, SEQUENCE), generator=generator) for _ in range(STEPS)]
    data = [(tokens, (3 * tokens + 1) % TOKENS) for tokens in drawn]
    start = write_weights(model, initial) if initial else None
    given: dict[str, Any] = {"loss": token_loss, "example": data[0], "initial": start}
    with tallystick.record_training(out, model, optimizer, anchor_stride=STRIDE, **given) as recorder:
        for batch in data:
            optimizer.zero_grad()
            loss = token_loss(model, batch)
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch)


def small_loop(out: str = "small", rate: float = 1e-2) -> None:
    """The three lines of the README: the step is captured from the first one that the loop takes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    with tallystick.record_training(out, model, optimizer, anchor_stride=4) as recorder:
        for _ in range(10):
            x = torch.rand(6, 1)
            loss: Any = torch.nn.functional.mse_loss(model(x), x.sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=(x, x.sin()))


def chat_files() -> None:
    """Conversations in two shards, and a directory with tokenizer and chat template."""
    import tokenizers

    for folder in ("rows-shards", "rows-model"):
        Path(folder).mkdir()
    for shard in range(2):
        talks = [_talk(10 * shard + number) for number in range(15)]
        Path(f"rows-shards/{shard}.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=" "))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.add_special_tokens([*WORDS[:4]])
    settings = {"pad_token": "<pad>", "eos_token": {"content": "<eos>"}, "model_max_length": 10**30}
    for name, text in (
        ("tokenizer.json", made.to_str()),
        ("chat_template.jinja", TEMPLATE),
        ("tokenizer_config.json", json.dumps(settings)),
    ):
        Path("rows-model", name).write_text(text)


def _talk(number: int) -> list[dict[str, str]]:
    turns = [("user", f"{number}+1?"), ("assistant", f"{number + 1}"), ("user", "ok"), ("assistant", "!")]
    return [{"role": role, "content": content} for role, content in turns]


class ChatModel(torch.nn.Module):
    """One hidden layer over tokens and positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(len(WORDS), 8), torch.nn.Linear(8, len(WORDS))
        self.place = torch.nn.Embedding(48, 8)

    def forward(self, input_ids: Any, position_ids: Any) -> Any:
        """Logits of the next token."""
        return self.head(torch.tanh(self.embed(input_ids) + self.place(position_ids)))


def rows_loop() -> None:
    """A loop on the packed rows that `tally rows` made of the conversations."""
    model = ChatModel()
    start = write_weights(model, "rows-model")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    shuffled = torch.Generator().manual_seed(1)
    loader: Any = torch.utils.data.DataLoader(
        tallystick.rows("rows-made"), 2, shuffle=True, generator=shuffled, drop_last=True
    )
    given: dict[str, Any] = {"anchor_stride": STRIDE, "data": "rows-made", "initial": start}
    with tallystick.record_training("rows", model, optimizer, **given) as recorder:
        for batch in (each for _ in range(5) for each in loader):
            logits = model(batch["input_ids"], batch["position_ids"])[:, :-1].transpose(1, 2)
            labels = batch["labels"][:, 1:]
            each = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="none")
            loss: Any = each.sum() / each.numel()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=batch)


def calls() -> None:
    """Two recorded calls, honest in `calls`, and with a normalization nudged in `nudged`; also the model's graph."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))
    model = torch.nn.Sequential(*layers, torch.nn.Softmax(-1)).eval()
    x = torch.randn(8, 16)
    captured = tallystick.torch.capture(model, x)
    tallystick.graphs.save_program(Path("classifier.json"), captured.graph, captured.constants, captured.modules)
    with tallystick.record_inference(model, "calls"):
        model(x)
        model(x + 1)
    with tallystick.record_inference(model, "nudged", self_audit=False):
        model[2].register_forward_hook(lambda module, arguments, result: result * 1.01)
        model(x)


def jax_graph() -> None:
    """A captured function of JAX, which the engine of JAX and the reference both execute."""
    import jax.numpy as jnp
    import numpy as np

    import tallystick.jax

    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    captured = tallystick.jax.capture(lambda x: jnp.tanh(x @ x.T).sum(0), x)
    tallystick.graphs.save_program(Path("jax.json"), captured.graph, captured.constants)


LOOPS: dict[str, Callable[[], None]] = {
    "loop": lambda: language_loop("loop"),
    "dropout": lambda: language_loop("dropout", dropout=0.1),
    "checkpoint": lambda: language_loop("checkpoint", "start"),
    "small": small_loop,
    "faster": lambda: small_loop("faster", 1.1e-2),
    "chat": chat_files,
    "rows": rows_loop,
    "calls": calls,
    "jax": jax_graph,
}
