"""Computes hidden states on one stack, in a process of its own (`calibration.stacks.run_all`).

Token ids come with the job, so that every producer feeds the same. The rows of all answers stand one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from research.architectures.engines import engine_of
from tallystick.core.errors import UnavailableError
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.capture.model import capture
from tallystick.engines.torch.generation.language_models import load_language_model
from tallystick.engines.torch.generation.layer_tap import LayerTap
from tallystick.formats.fingerprints import PUBLIC_SEED
from tallystick.programs.execution import execute
from tallystick.tally.attacks.provers import integer_weights
from tallystick.tally.calibration.stacks import Stack
from tallystick.verdicts.fingerprints import logit_rows

Rows: TypeAlias = npt.NDArray[np.float32]
Answer: TypeAlias = Mapping[str, Any]
"""`ids`: prompt and answer without its last token; `first`: the row of its first token; `count`: rows."""
BATCH = 32


def compute(job: dict[str, Any], attention: str) -> list[dict[str, str]]:
    """Write the rows of every producer, model and dtype of the job; one entry for each that could not be computed."""
    refused = []
    for producer in job["producers"]:
        for model, answers in job["models"].items():
            for dtype in producer["dtypes"]:
                out = Path(job["folder"]) / file_name(producer["name"], Path(model).name, dtype)
                try:
                    write_state(out, _rows_of(producer, model, dtype, answers, attention), durable=False)
                except UnavailableError as error:
                    refused.append({"file": out.name, "reason": str(error)})
    return refused


def file_name(producer: str, model: str, dtype: str) -> str:
    """Where the rows of a producer stand."""
    return f"{producer.replace(', ', '-').replace(' ', '_')}-{model}-{dtype}.safetensors"


def _rows_of(
    producer: Mapping[str, str], model: str, dtype: Any, answers: Sequence[Answer], attention: Any
) -> dict[str, Tensor]:
    language_model = load_language_model(Path(model), dtype, attention)
    behind = language_model.card.layers + 1
    layers = range(behind)
    way, cheat = producer["way"], producer["cheat"]
    served = integer_weights(language_model, int(cheat.removeprefix("int"))) if cheat else language_model.model
    if way == "prefill":
        passes = [language_model.prefill(each["ids"], each["first"], layers) for each in answers]
        whole = [{**each.hidden, behind: logit_rows(each.logits, PUBLIC_SEED)} for each in passes]
        found = [_first_rows(rows, each["count"]) for rows, each in zip(whole, answers, strict=True)]
    elif way in ("jax", "iree"):
        found = list(_on_engine(way, language_model, answers))
    else:
        size = BATCH if way == "batched" else 1
        groups = [answers[start : start + size] for start in range(0, len(answers), size)]
        found = [rows for group in groups for rows in _decoded(served, [*layers, behind], group)]
    joined = {layer: np.concatenate([rows[layer] for rows in found]) for layer in found[0]}
    return {str(layer): Tensor.of(rows) for layer, rows in joined.items()}


def _first_rows(rows: Mapping[int, Rows], count: int) -> dict[int, Rows]:
    return {layer: each[:count] for layer, each in rows.items()}


def _decoded(model: Any, layers: Sequence[int], group: Sequence[Answer]) -> Iterator[dict[int, Rows]]:
    """The rows of a group of answers to prompts of one length: a pass over the prompts, then a token at a time."""
    import torch

    first = group[0]["first"]
    assert {each["first"] for each in group} == {first}
    ids = torch.tensor([each["ids"] for each in group])
    with torch.inference_mode(), LayerTap(model, layers) as tap:
        cache = model(input_ids=ids[:, : first + 1], use_cache=True).past_key_values
        for place in range(first + 1, ids.shape[1]):
            cache = model(input_ids=ids[:, place : place + 1], past_key_values=cache, use_cache=True).past_key_values
    for number, each in enumerate(group):
        yield {layer: rows.float().numpy() for layer, rows in tap.rows(number, each["count"]).items()}


def _on_engine(name: str, language_model: Any, answers: Sequence[Answer]) -> Iterator[dict[int, Rows]]:
    """The rows by the captured graph of one pass on JAX or IREE; the last block's own output is not among them."""
    import torch

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = language_model.model

        def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
            result: tuple[torch.Tensor, ...] = self.model(
                input_ids=input_ids, use_cache=False, output_hidden_states=True
            ).hidden_states
            return result[1:]

    captured = capture(Layers().eval(), torch.tensor([answers[0]["ids"]]))
    engine, count = engine_of(name, captured.graph), language_model.card.layers
    for each in answers:
        fed = {"inputs.input_ids": Tensor.of(np.array([each["ids"]], np.int64))}
        found = execute(captured.graph, {**captured.bindings, **fed}, engine)
        states = [np.asarray(found[f"outputs.{place}"].values(), np.float32)[0] for place in range(count)]
        rows = slice(each["first"], each["first"] + each["count"])
        yield {(layer if layer < count - 1 else count): states[layer][rows] for layer in range(count)}


def states_on(stack: Stack, job: dict[str, Any]) -> Any:
    """The answers of a job on a stack (see `compute`)."""
    return compute(job, stack.attention)
