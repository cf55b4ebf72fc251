"""Models of images, and of images with text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from research.architectures.example import (
    BATCH,
    CLASSES,
    PIXELS,
    VOCABULARY,
    Batch,
    Example,
    called,
    classes,
    loss_of_classes,
    loss_of_samples,
    normal,
    tokens,
)
from tallystick.core.errors import UnavailableError

if TYPE_CHECKING:
    import torch

PLAIN: Final = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
PICTURES: Final = {"image_size": PIXELS, "patch_size": 4}
LARGE: Final = 32
"""The side of images that a network halves five times."""


def _vit() -> Example:
    import transformers

    config = transformers.ViTConfig(
        **PLAIN, **PICTURES, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = transformers.ViTForImageClassification._from_config(config, attn_implementation="eager")
    return Example(model, loss_of_classes, partial(_labelled, PIXELS))


def _convnext() -> Example:
    """With stochastic depth: a training step leaves out whole branches at random."""
    import transformers

    config = transformers.ConvNextConfig(
        hidden_sizes=[4, 8], depths=[1, 1], num_stages=2, patch_size=2, drop_path_rate=0.3, num_labels=CLASSES
    )
    model = transformers.ConvNextForImageClassification(config)
    return Example(model, loss_of_classes, partial(_labelled, PIXELS), seeded=True)


def _resnet() -> Example:
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 4, 8, 8], depths=[2, 2, 2, 2], layer_type="basic", num_labels=CLASSES
    )
    return Example(transformers.ResNetForImageClassification(config), loss_of_classes, partial(_labelled, LARGE))


def _mobilenet() -> Example:
    import transformers

    sizes = {"depth_multiplier": 0.1, "min_depth": 4, "depth_divisible_by": 4, "image_size": LARGE}
    config = transformers.MobileNetV2Config(**sizes, classifier_dropout_prob=0.0, num_labels=CLASSES)
    return Example(transformers.MobileNetV2ForImageClassification(config), loss_of_classes, partial(_labelled, LARGE))


def _clip() -> Example:
    import transformers

    marks = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.CLIPConfig(
        text_config=PLAIN | marks | {"vocab_size": VOCABULARY, "max_position_embeddings": 16, "projection_dim": 8},
        vision_config=PLAIN | PICTURES | {"projection_dim": 8},
        projection_dim=8,
    )
    model = transformers.CLIPModel._from_config(config, attn_implementation="eager")
    return Example(model, _loss_of_pairs, _pairs)


def _vae() -> Example:
    diffusers = _diffusers()
    model = diffusers.AutoencoderKL(
        in_channels=1,
        out_channels=1,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(4, 8),
        latent_channels=2,
        norm_num_groups=2,
        sample_size=PIXELS,
    )
    return Example(model, loss_of_samples, _restored)


def _conditioned() -> Example:
    diffusers = _diffusers()
    model = diffusers.UNet2DConditionModel(
        sample_size=PIXELS,
        in_channels=2,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(4, 8),
        norm_num_groups=2,
        attention_head_dim=2,
        cross_attention_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    return Example(model, loss_of_samples, _prompted)


def _dit() -> Example:
    """A training step leaves out labels at random."""
    diffusers = _diffusers()
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=2,
        num_layers=1,
        sample_size=PIXELS,
        num_embeds_ada_norm=CLASSES,
        norm_num_groups=2,
    )
    return Example(model, loss_of_samples, _of_classes, seeded=True)


def _diffusers() -> Any:
    if find_spec("diffusers") is None:
        raise UnavailableError("diffusers is not installed: pip install 'tallystick[models]'")
    import diffusers

    return diffusers


def _labelled(side: int, index: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": normal(index, 3, side, side), "target": classes(index)}


def _pairs(index: int) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(index)["input_ids"], "pixel_values": normal(index, 3, PIXELS, PIXELS)}


def _loss_of_pairs(model: Any, batch: Batch) -> torch.Tensor:
    """Each text belongs to the image of its row."""
    import torch
    from torch.nn import functional

    likeness, rows = called(model, batch).logits_per_text, torch.arange(BATCH)
    return (functional.cross_entropy(likeness, rows) + functional.cross_entropy(likeness.T, rows)) / 2


def _restored(index: int) -> dict[str, torch.Tensor]:
    sample = normal(index, 1, PIXELS, PIXELS)
    return {"sample": sample, "target": sample.clone()}


def _prompted(index: int) -> dict[str, torch.Tensor]:
    sample, target = (normal(index + half, 2, PIXELS, PIXELS) for half in (0, 50))
    return {
        "sample": sample,
        "timestep": classes(index),
        "encoder_hidden_states": normal(index, 4, 8),
        "target": target,
    }


def _of_classes(index: int) -> dict[str, torch.Tensor]:
    sample, target = (normal(index + half, 2, PIXELS, PIXELS) for half in (0, 50))
    steps = classes(index)
    return {"hidden_states": sample, "timestep": steps, "class_labels": classes(index + 1), "target": target}


MODELS: Final[Mapping[str, Callable[[], Example]]] = {
    "ViT": _vit,
    "ConvNeXt": _convnext,
    "ResNet-18": _resnet,
    "MobileNetV2": _mobilenet,
    "CLIP": _clip,
    "UNet2DConditionModel": _conditioned,
    "AutoencoderKL": _vae,
    "DiT": _dit,
}
