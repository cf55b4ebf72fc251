"""A tiny chat: a corpus of conversations, a model directory with tokenizer and template, and a loop on their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tallystick
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor

LENGTH = 24
WORDS = ("<pad>", "<eos>", "<user>", "<assistant>", *map(chr, range(32, 127)))
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
Change = Callable[[int, dict[str, Any]], None]


def write_model_directory(folder: Path, words: tuple[str, ...] = WORDS) -> Path:
    """A tokenizer with a token for each character and special token, and a chat template."""
    import tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=" "))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.add_special_tokens([*WORDS[:4]])
    (folder / "tokenizer.json").write_text(made.to_str())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    settings = {"pad_token": "<pad>", "eos_token": {"content": "<eos>"}, "model_max_length": 10**30}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_conversations(folder: Path, count: int = 12) -> Path:
    """Conversations of four turns in two shards of JSONL."""
    folder.mkdir(parents=True)
    for shard in range(2):
        lines = [json.dumps({"messages": talk(10 * shard + number)}) for number in range(count // 2)]
        (folder / f"{shard}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def talk(number: int) -> list[dict[str, str]]:
    """A conversation about a number."""
    turns = [("user", f"{number}+1?"), ("assistant", f"{number + 1}"), ("user", "ok"), ("assistant", "!")]
    return [{"role": role, "content": content} for role, content in turns]


def chat_model() -> Any:
    """A model of one hidden layer that reads tokens, and positions where it is given them."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head = torch.nn.Embedding(len(WORDS), 8), torch.nn.Linear(8, len(WORDS))
            self.place = torch.nn.Embedding(2 * LENGTH, 8)

        def forward(self, input_ids: Any, position_ids: Any = None) -> Any:
            held = self.embed(input_ids)
            return self.head(torch.tanh(held if position_ids is None else held + self.place(position_ids)))

    return Model()


def record_rows(
    out: Path,
    rows: Path,
    change: Change = lambda *_: None,
    initial: Path | None = None,
    *,
    size: int = 4,
    epochs: int = 1,
    stride: int = 1,
) -> Path:
    """Record a loop on rows into `out`; the first weights are written to `initial`, which the spec then states."""
    import torch

    model, data = chat_model(), tallystick.rows(rows)
    if data.recipe.packing != "apart":
        del model.place
    if initial is not None:
        write_state(initial / "model.safetensors", {n: Tensor.of(v.numpy()) for n, v in model.state_dict().items()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    shuffled = torch.Generator().manual_seed(1)
    loader = torch.utils.data.DataLoader(data, size, shuffle=True, generator=shuffled, drop_last=True)
    recording = tallystick.record_training(out, model, optimizer, anchor_stride=stride, data=rows, initial=initial)
    with recording as recorder:
        for step, batch in enumerate(each for _ in range(epochs) for each in loader):
            change(step, batch)
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=batch)
    return out


def loss_of(model: Any, batch: Mapping[str, Any]) -> Any:
    """Cross entropy of the labelled tokens; a padded row is weighed by its mask."""
    import torch

    logits = model(batch["input_ids"], batch.get("position_ids"))[:, :-1].transpose(1, 2)
    each = torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:], ignore_index=-100, reduction="none")
    if "attention_mask" not in batch:
        return each.sum() / each.numel()
    mask = batch["attention_mask"][:, 1:]
    return (each * mask).sum() / mask.sum()
