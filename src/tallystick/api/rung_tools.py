"""What the upper rungs of the ladder need on this machine: layers as graphs, and exact replay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.answers.ladder import Tools
from tallystick.documents.files import read_document

if TYPE_CHECKING:
    from tallystick.answers.layer import LayerProgram
    from tallystick.transcripts.environment import Environment
    from tallystick.workloads.language_model import LanguageModel


def tools_for(model: LanguageModel, environment: Environment | Path | str | None, layer: int | None) -> Tools:
    """What the upper rungs need on this machine, for a model of PyTorch; other models are judged on the first two."""
    stated = _environment(environment) if isinstance(environment, Path | str) else environment
    from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel

    if not isinstance(model, TorchLanguageModel):
        return Tools(environment=stated, layer=layer)
    from tallystick.api.exact_replay import PlainReplayer

    def captured(tokens: tuple[int, ...], number: int) -> LayerProgram:
        from tallystick.frameworks.torch.generation.block_replay import capture_layer

        return capture_layer(model, tokens, number)

    return Tools(layers=captured, replayer=PlainReplayer(model), environment=stated, layer=layer)


def _environment(path: Path | str) -> Environment:
    from tallystick.transcripts.environment import Environment

    return Environment.from_bytes(read_document(Path(path)).removesuffix(b"\n"), Path(path).name)
