"""The recipe of a training run, and the learning rate of a step that follows from it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tallystick.core.documents import Count, DigestText, Document, Positive

# The recipe of a training run: everything that is decided before it starts.
#
# Every field is bounded, because a verifier reads recipes written by the prover.

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Rate = Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
Small = Annotated[int, Field(ge=1, le=1 << 20)]
Scalar = bool | int | float | str
FORBIDDEN_CONFIG = frozenset(
    {
        "attn_implementation",
        "auto_map",
        "dtype",
        "experts_implementation",
        "quantization_config",
        "torch_dtype",
        "trust_remote_code",
        "use_kernels",
    }
)
"""Settings that would fetch or load code, or override the precision that the recipe states."""
EXAMPLES_PER_STEP_MAX = 1 << 16
TOKENS_PER_BATCH_MAX = 1 << 24
CONFIG_INTEGER_MAX = 1 << 20
LAYERS_MAX = 256


class DataRecipe(Document):
    """The kind of source, the number of windows or examples kept for validation, and where a document has its text."""

    kind: Literal["text", "jsonl", "digits", "corpus"]
    validation: Count = 0
    field: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @property
    def text_field(self) -> str:
        """The member of JSON objects, or the column of Parquet files, that holds the text of a document."""
        return self.field or "text"


class TokenizerRecipe(Document):
    """The tokenizer: single bytes, byte-pair encoding trained on the source itself, or a file made elsewhere.

    Such a `tokenizer.json` of Hugging Face is named by its blob digest; `end` is the token that ends each document. Its
    tokens have its own vocabulary, or a larger one that is stated here.
    """

    kind: Literal["bytes", "bpe", "huggingface"] = "bytes"
    vocabulary: Annotated[int, Field(ge=256, le=1 << 20)] = 256
    digest: DigestText | None = None
    end: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _names_its_file(self) -> Self:
        named = {self.digest is not None, self.end is not None}
        if named != {self.kind == "huggingface"}:
            raise ValueError("a tokenizer of the kind huggingface has a file and an end of documents, and no other has")
        return self


class ModelRecipe(Document):
    """A causal language model of `transformers` built from its configuration, or the CNN classifier.

    Its first weights are drawn from the seed, or are those of which `initial` is the state digest.
    """

    architecture: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_\-]{0,63}$")]
    attention: Literal["eager", "sdpa"] = "eager"
    initial: DigestText | None = None
    config: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")], Scalar | list[Scalar] | dict[str, Any]] = {}

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        for name, value in self.config.items():
            _check_setting(name, value)
        return self


def _check_setting(name: str, value: Any) -> None:
    if name.rpartition(".")[2].lstrip("_") in FORBIDDEN_CONFIG:
        raise ValueError(f"config.{name} is not a setting of the model's shape")
    if isinstance(value, dict):
        for inner, item in value.items():
            _check_setting(f"{name}.{inner}", item)
    if isinstance(value, list):
        for item in value:
            _check_setting(name, item)
    if isinstance(value, int) and not -CONFIG_INTEGER_MAX <= value <= CONFIG_INTEGER_MAX:
        raise ValueError(f"config.{name} = {value} exceeds {CONFIG_INTEGER_MAX}")
    if isinstance(value, int) and "layer" in name and value > LAYERS_MAX:
        raise ValueError(f"config.{name} = {value} exceeds {LAYERS_MAX} layers")


class OptimizerRecipe(Document):
    """AdamW (Loshchilov & Hutter 2019) or SGD with momentum, with optional clipping of the gradient norm."""

    kind: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Rate = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-8
    weight_decay: Rate = 0.0
    momentum: Beta = 0.0
    clip_norm: Annotated[float, Field(gt=0.0, le=1e9)] | None = None


class ScheduleRecipe(Document):
    """The learning rate over the steps: a warm-up from zero, then constant, linear or cosine to `final_share`."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Count = 0
    final_share: Share = 0.0


class StepsRecipe(Document):
    """The number and shape of steps, the precision, the device and the seed."""

    steps: Positive
    batch: Small
    accumulation: Small = 1
    sequence: Small = 1
    dtype: Literal["fp32", "bf16"] = "fp32"
    device: Literal["cpu", "cuda"] = "cpu"
    seed: Count = 0


class RecordRecipe(Document):
    """What is recorded of every step, and how often the full state is saved as an anchor."""

    anchor_stride: Positive = 20
    summaries: tuple[Literal["exact", "bucket", "projection"], ...] = ("projection",)
    exact_stride: Positive = 1
    bucket_stride: Positive = 1
    bucket_mode: Literal["fp16_rne", "grid", "both"] = "fp16_rne"
    grid_eps: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-6
    hint_margin: Annotated[float, Field(ge=0.0, le=0.25)] = 0.0
    projection_width: Annotated[int, Field(ge=1, le=4096)] = 16
    loss_decimals: Annotated[int, Field(ge=0, le=12)] = 4
    activation_checksum: bool = False

    @property
    def bucket_modes(self) -> tuple[Literal["fp16_rne", "grid"], ...]:
        """The bucket functions in use; with both, both must agree (Arknet §4.2, dual bucket)."""
        return ("fp16_rne", "grid") if self.bucket_mode == "both" else (self.bucket_mode,)

    def summaries_due(self, step: int) -> frozenset[str]:
        """Exactly the fields that the state summary of step `step` must have."""
        exact = {"exact"} if "exact" in self.summaries and step % self.exact_stride == 0 else set()
        bucketed = "bucket" in self.summaries and step % self.bucket_stride == 0
        projected = {"projection"} if "projection" in self.summaries else set()
        return frozenset(exact | projected | set(self.bucket_modes if bucketed else ()))


class Recipe(Document):
    """Everything a verifier needs, besides the data, to rebuild the trainer with its own code."""

    data: DataRecipe
    tokenizer: TokenizerRecipe = TokenizerRecipe()
    model: ModelRecipe
    optimizer: OptimizerRecipe = OptimizerRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    training: StepsRecipe
    record: RecordRecipe = RecordRecipe()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.data.kind == "digits") != (self.model.architecture == "cnn"):
            raise ValueError("the CNN classifier goes with the digits, and a language model with text")
        if self.tokenizer.kind == ("bpe" if self.data.kind == "corpus" else "huggingface"):
            raise ValueError("a corpus takes a tokenizer of the kind bytes or huggingface, and other text bytes or bpe")
        if self.data.field is not None and self.data.kind != "corpus":
            raise ValueError("data.field belongs to a corpus")
        if self.schedule.warmup_steps > self.training.steps:
            raise ValueError("schedule.warmup_steps exceeds training.steps")
        if self.examples_per_step > EXAMPLES_PER_STEP_MAX:
            raise ValueError(f"training: {self.examples_per_step} examples a step exceed {EXAMPLES_PER_STEP_MAX}")
        if self.training.batch * self.training.sequence > TOKENS_PER_BATCH_MAX:
            raise ValueError(f"training: more than {TOKENS_PER_BATCH_MAX} tokens in a micro-batch")
        return self

    @property
    def examples_per_step(self) -> int:
        """The windows or examples consumed by one step, over all micro-batches."""
        return self.training.batch * self.training.accumulation


# The learning rate of a step, computed in binary64 from the recipe alone: the same on every machine.


def learning_rate(recipe: Recipe, step: int) -> float:
    """The learning rate of step `step` (1-based)."""
    peak, warmup = recipe.optimizer.learning_rate, recipe.schedule.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    return peak * _decay(recipe, (step - warmup) / max(1, recipe.training.steps - warmup))


def _decay(recipe: Recipe, progress: float) -> float:
    final = recipe.schedule.final_share
    if recipe.schedule.kind == "constant":
        return 1.0
    if recipe.schedule.kind == "linear":
        return 1.0 - (1.0 - final) * progress
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
