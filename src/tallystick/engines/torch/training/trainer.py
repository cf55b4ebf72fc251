"""A trainer rebuilt from a recipe, with the model, optimizer and summaries that the recipe names."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_module_registration_hook

from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.engines.tokenizers import REFUSALS
from tallystick.engines.torch.kernels import CRASHES as KERNEL_CRASHES
from tallystick.engines.torch.tensors import (
    check_names,
    generator_state,
    live_tensors,
    restore_generators,
    restore_tensors,
    to_tensor,
)
from tallystick.formats.recipe import Recipe, RecordRecipe, learning_rate
from tallystick.formats.records import BucketSummary, StateSummary, encode_sketch
from tallystick.programs.step_names import POSITION
from tallystick.verdicts.buckets import Bucket
from tallystick.verdicts.distances import Projection

# Sketches of a live model, with one transfer from its device.
#
# The sketch is the `Projection` of DESIGN §6, summed in float64: matrix–vector products over blocks of a weight tensor,
# reading the weights once. In float64 the settings of the training loop (TF32, autocast, reduced precision) have no
# effect, and rounding does not grow with the model.

BLOCK = {"cpu": 1 << 20}
BLOCK_ELSEWHERE = 1 << 24
"""Elements converted at a time: as many as fit the CPU's cache; on a GPU, enough to keep it busy."""


class Sketcher:
    """Projects the weights of one model repeatedly; the signs are drawn once."""

    def __init__(self, projection: Projection, weights: Mapping[str, torch.Tensor]) -> None:
        self._width = projection.width
        self._signed: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name, weight in sorted(weights.items()):
            if weight.is_floating_point():
                signs = projection.signs(name, -(-weight.numel() // self._width))
                self._signed.append((weight, torch.from_numpy(signs).to(weight.device)))

    @torch.no_grad()
    def sketch(self) -> str:
        """The projection of the current weights: `width` little-endian float32 values in base64."""
        parts = [self._projected(*each) for each in self._signed]
        total = torch.stack(parts).sum(0) if parts else torch.zeros(self._width)
        return encode_sketch(total.cpu().numpy().astype("<f4").tobytes())

    def _projected(self, weight: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
        """Signs · rows of `width` elements, float64[width]; the signs are a byte each, one for a row."""
        flat, total = weight.detach().reshape(-1), torch.zeros(self._width, dtype=torch.float64, device=weight.device)
        whole = flat.numel() - flat.numel() % self._width
        rows = flat[:whole].view(-1, self._width)
        step = max(1, BLOCK.get(flat.device.type, BLOCK_ELSEWHERE) // self._width)
        for first in range(0, len(rows), step):
            block = slice(first, min(first + step, len(rows)))
            total += signs[block].double() @ rows[block].double()
        if rest := flat.numel() - whole:
            total[:rest] += signs[-1] * flat[whole:].double()
        return total


# The summaries of a state that a recipe asks for, computed from a live model.

Keep = Callable[[bytes], Digest]
"""Stores boundary hints and returns their digest."""


class Summariser:
    """Summarises the states of one model as its recipe asks."""

    def __init__(
        self,
        recorded: RecordRecipe,
        projection_seed: bytes,
        weights: Mapping[str, torch.Tensor],
        state: Callable[[], Mapping[str, Tensor]],
        keep: Keep,
    ) -> None:
        self._recorded = recorded
        self._weights = weights
        self._state = state
        self._keep = keep
        self._sketcher: Sketcher | None = None
        if "projection" in recorded.summaries:
            self._sketcher = Sketcher(Projection(projection_seed, recorded.projection_width), weights)

    def after_step(self, index: int, sketch: str | None = None) -> StateSummary:
        """The summaries due after step `index`; the weights are not read where their `sketch` is known."""
        wanted, recorded = self._recorded.summaries, self._recorded
        exact = "exact" in wanted and index % recorded.exact_stride == 0
        bucketed = "bucket" in wanted and index % recorded.bucket_stride == 0
        buckets = self._buckets() if bucketed else {}
        return StateSummary(
            exact=state_digest(self._state()) if exact else None,
            projection=sketch or self.projection(),
            fp16_rne=buckets.get("fp16_rne"),
            grid=buckets.get("grid"),
        )

    def at_anchor(self) -> StateSummary:
        """The summaries stored with an anchor: always its buckets, and the projection if steps record one."""
        sketch, buckets = self.projection(), self._buckets()
        return StateSummary(projection=sketch, fp16_rne=buckets.get("fp16_rne"), grid=buckets.get("grid"))

    def projection(self) -> str | None:
        """The sketch of the current weights; None if the recipe records none."""
        return None if self._sketcher is None else self._sketcher.sketch()

    def _buckets(self) -> dict[str, BucketSummary]:
        weights = {name: value.detach().float().cpu().numpy() for name, value in self._weights.items()}
        recorded, summaries = self._recorded, dict[str, BucketSummary]()
        for mode in recorded.bucket_modes:
            claim = Bucket(mode, recorded.grid_eps, recorded.hint_margin).claim(weights)
            hints = self._keep(claim.hints) if claim.hints else None
            summaries[mode] = BucketSummary(digest=claim.digest, hints=hints)
        return summaries


# Builds models from a recipe with the verifier's own libraries; it downloads nothing and loads no weights.

PARAMETERS_MAX = 2_000_000_000
MODULES_MAX = 20_000


class Classifier(nn.Module):
    """Two convolutions with batch norm and a linear layer: images [n, 1, 8, 8] float32 to logits [n, 10]."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(2 * channels * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits [n, 10] of images [n, 1, 8, 8]."""
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def build_model(recipe: Recipe, vocabulary: int, parameters_max: int = PARAMETERS_MAX) -> nn.Module:
    """The untrained model of a recipe, initialised from the global generators.

    Raises:
        MalformedError: the architecture or its configuration cannot be built.
        UnavailableError: the model has more than `parameters_max` parameters.
    """
    with torch.device("meta"), _few_modules():
        shape = _build(recipe, vocabulary)
    count = sum(parameter.numel() for parameter in shape.parameters())
    if count > parameters_max:
        raise UnavailableError(f"the model has {count} parameters, more than the {parameters_max} allowed")
    return _build(recipe, vocabulary)


@contextmanager
def _few_modules() -> Iterator[None]:
    """Raise `MalformedError` inside the block after `MODULES_MAX` modules, more than any real model has."""
    built = itertools.count(1)

    def register(_module: nn.Module, _name: str, _part: nn.Module | None) -> None:
        if next(built) > MODULES_MAX:
            raise MalformedError(f"model.config: more than {MODULES_MAX} modules")

    hook = register_module_module_registration_hook(register)
    try:
        yield
    finally:
        hook.remove()


def logits_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits of a batch: [n, 10] for images, [n · sequence, vocabulary] for tokens."""
    if "images" in batch:
        logits: torch.Tensor = model(batch["images"])
        return logits
    outputs = model(input_ids=batch["inputs"], use_cache=False)
    tokens: torch.Tensor = outputs.logits
    return tokens.flatten(0, 1)


def labels_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The class or token index that each row of the logits should predict."""
    return batch["labels"] if "labels" in batch else batch["targets"].flatten()


def _build(recipe: Recipe, vocabulary: int) -> nn.Module:
    if recipe.model.architecture == "cnn":
        return Classifier(*_classifier_shape(recipe.model.config))
    return _language_model(recipe, vocabulary)


def _classifier_shape(config: dict[str, Any]) -> tuple[int, float]:
    unknown = config.keys() - {"channels", "dropout"}
    if unknown:
        raise MalformedError(f"model.config.{min(unknown)}: not a setting of the CNN classifier")
    channels, dropout = config.get("channels", 16), config.get("dropout", 0.0)
    if not isinstance(channels, int) or not 1 <= channels <= 1024:
        raise MalformedError("model.config.channels: an integer from 1 to 1024 is needed")
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise MalformedError("model.config.dropout: a number from 0 up to 1 is needed")
    return channels, float(dropout)


def _language_model(recipe: Recipe, vocabulary: int) -> nn.Module:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    architecture = recipe.model.architecture
    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise MalformedError(f"model.architecture: {architecture!r} is no causal language model of transformers")
    # small vocabularies lack the default special tokens, and plain text needs none
    settings: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    settings |= {"vocab_size": vocabulary, "use_cache": False} | recipe.model.config
    if not isinstance(size := settings["vocab_size"], int) or size < vocabulary:
        raise MalformedError(f"model.config.vocab_size: smaller than the tokenizer's {vocabulary}")
    try:
        config = AutoConfig.for_model(architecture, **settings)
        model: nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation=recipe.model.attention)
    except (*REFUSALS, StrictDataclassError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise MalformedError(f"model.config: transformers cannot build a {architecture}: {reason[0][:200]}") from None
    return model


# PyTorch's own optimizers, with their state allocated before the first step.
#
# So an anchor of the untrained state holds the same tensors as every later anchor.


def build_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a recipe over all trainable parameters of `model`."""
    settings = recipe.optimizer
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.kind == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            parameters, settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    else:
        optimizer = torch.optim.AdamW(
            parameters,
            settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
    for parameter in parameters:
        zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        if settings.kind != "sgd":
            slots = {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": torch.zeros_like(zeros)}
        else:
            slots = {"momentum_buffer": zeros} if settings.momentum else {}
        optimizer.state[parameter] = slots
    return optimizer


# A trainer rebuilt from a recipe: the same code runs for the prover who trains and the verifier who replays.

CRASHES = (AssertionError, *KERNEL_CRASHES)
"""The errors of a model whose configuration can be built but does not run."""


@dataclass(frozen=True)
class Observation:
    """Values of one step: mean loss in nats, gradient norm before clipping, mean and RMS of the last logits."""

    loss: float
    gradient_norm: float
    learning_rate: float
    activation: tuple[float, float] | None


class Trainer:
    """Holds one model, its optimizer and its generators, and takes steps.

    Raises `UnavailableError` if the recipe asks for a device that is missing.
    """

    def __init__(
        self, recipe: Recipe, vocabulary: int, device: str | None = None, parameters_max: int = PARAMETERS_MAX
    ) -> None:
        self.recipe = recipe
        self.device = device or recipe.training.device
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UnavailableError("the recipe trains on cuda, and there is no CUDA device here")
        torch.manual_seed(recipe.training.seed % 2**63)
        self.model = build_model(recipe, vocabulary, parameters_max).to(self.device).train()
        self.optimizer = build_optimizer(recipe, self.model)
        self.index = 0

    def weights(self) -> dict[str, torch.Tensor]:
        """The trainable tensors, live."""
        return {name: value for name, value in self._live().items() if name.startswith("weights.")}

    def state(self) -> dict[str, Tensor]:
        """The full state: weights, buffers, optimizer, generators, position. Shares memory with the live tensors."""
        state = {name: to_tensor(value) for name, value in self._live().items()}
        state |= generator_state(self.device)
        state[POSITION] = Tensor.of(np.asarray(self.index, np.int64))
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`; raises `MalformedError` if it is not a state of this recipe."""
        check_names(expected=self.state().keys(), found=state.keys())
        position = state[POSITION]
        if (position.dtype, position.shape) != ("I64", ()) or position.array() < 0:
            raise MalformedError(f"anchor: {POSITION} is no number of steps")
        restore_tensors(self._live(), state)
        restore_generators(state, self.device)
        self.index = int(position.array())

    def step(self, micro_batches: Iterable[Mapping[str, np.ndarray]]) -> Observation:
        """One optimizer step over the mean gradient of the micro-batches."""
        rate = learning_rate(self.recipe, self.index + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        losses, activation = [], None
        for batch in micro_batches:
            loss, activation = self._accumulate(batch)
            losses.append(loss)
        norm = self._clip()
        self.optimizer.step()
        self.index += 1
        return Observation(float(torch.stack(losses).mean()), float(norm), rate, activation)

    def _accumulate(self, batch: Mapping[str, np.ndarray]) -> tuple[torch.Tensor, tuple[float, float] | None]:
        inputs = {name: torch.from_numpy(np.ascontiguousarray(value)).to(self.device) for name, value in batch.items()}
        with self.precision():
            logits = logits_of(self.model, inputs)
            loss = functional.cross_entropy(logits.float(), labels_of(inputs))
        (loss / self.recipe.training.accumulation).backward()  # type: ignore[no-untyped-call]
        activation = _moments(logits) if self.recipe.record.activation_checksum else None
        return loss.detach(), activation

    def _clip(self) -> torch.Tensor:
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        limit = self.recipe.optimizer.clip_norm
        if limit is not None:
            return torch.nn.utils.clip_grad_norm_(parameters, limit)
        return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

    def precision(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        half = self.recipe.training.dtype == "bf16"
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=half)

    def _live(self) -> dict[str, torch.Tensor]:
        return live_tensors(self.model, self.optimizer)


@torch.no_grad()
def _moments(logits: torch.Tensor) -> tuple[float, float]:
    values = logits.double()
    return float(values.mean()), float(values.square().mean().sqrt())


def first_line(error: BaseException) -> str:
    """The type of an error and the first line of its message, at most 200 characters."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
