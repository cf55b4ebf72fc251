"""What the upper rungs of an answer's verification need: a challenge, and layers and generation on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.answers.ladder import Tools
    from tallystick.answers.layer import LayerProgram
    from tallystick.answers.verify import ReceiptContext
    from tallystick.commitments.encoding import Json
    from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel
    from tallystick.transcripts.environment import Environment
    from tallystick.transcripts.states_opening import StatesOpening
    from tallystick.workloads.language_model import LanguageModel

OPENING_BYTES_MAX: Final = 1 << 30
REFUSAL_MAX: Final = 300


def read_nonce(nonce: bytes | str | None) -> bytes | None:
    """The nonce of a challenge or of a sample, 1 to 64 bytes; raises `UsageError`."""
    if nonce is None:
        return None
    try:
        found = nonce if isinstance(nonce, bytes) else bytes.fromhex(nonce)
    except ValueError:
        raise UsageError("--nonce: not hexadecimal") from None
    if not 1 <= len(found) <= 64:
        raise UsageError(f"--nonce: {len(found)} bytes are not from 1 to 64")
    return found


def challenged(
    context: ReceiptContext,
    opening: StatesOpening | Mapping[str, Any] | Path | str,
    nonce: bytes | str | None,
    count: int,
) -> ReceiptContext:
    """The receipt with what the provider opened, or with the words in which it refused; raises `UsageError`."""
    from tallystick.answers.states import StatesChallenge
    from tallystick.transcripts.states_opening import StatesOpening

    drawn = read_nonce(nonce)
    if drawn is None:
        raise UsageError("--opening: give the nonce that you challenged with as --nonce, and the --count of parts")
    if isinstance(opening, StatesOpening):
        return replace(context, challenge=StatesChallenge(drawn, count, opening))
    told, name = _document(opening)
    if (refusal := _refusal(told)) is not None:
        return replace(context, refusal=refusal)
    return replace(context, challenge=StatesChallenge(drawn, count, StatesOpening.from_json(told, name)))


def tools_for(model: LanguageModel, environment: Environment | Path | str | None, layer: int | None) -> Tools:
    """What the upper rungs need on this machine, for a model of PyTorch; other models are judged on the first two."""
    from tallystick.answers.ladder import Tools

    stated = _environment(environment) if isinstance(environment, str | Path) else environment
    if not _is_torch(model):
        return Tools(environment=stated, layer=layer)
    from tallystick.api.exact_replay import PlainReplayer

    def captured(tokens: tuple[int, ...], number: int) -> LayerProgram:
        from tallystick.frameworks.torch.generation.block_replay import capture_layer

        return capture_layer(model, tokens, number)

    return Tools(layers=captured, replayer=PlainReplayer(model), environment=stated, layer=layer)


def _is_torch(model: LanguageModel) -> TypeGuard[TorchLanguageModel]:
    """Whether this is a model of PyTorch, which is then loaded already."""
    home = sys.modules.get("tallystick.frameworks.torch.generation.language_models")
    return home is not None and isinstance(model, home.TorchLanguageModel)


def _document(opening: Mapping[str, Any] | Path | str) -> tuple[Json, str]:
    from tallystick.commitments.encoding import parse
    from tallystick.documents.files import read_document

    if isinstance(opening, Mapping):
        return dict(opening), "opening"
    path = Path(opening)
    return parse(read_document(path, OPENING_BYTES_MAX), path.name, bytes_max=OPENING_BYTES_MAX), path.name


def _environment(path: Path | str) -> Environment:
    from tallystick.documents.files import read_document
    from tallystick.transcripts.environment import Environment

    return Environment.from_bytes(read_document(Path(path)).removesuffix(b"\n"), Path(path).name)


def _refusal(told: Json) -> str | None:
    """The message of an error of the API: what a server answers that holds the states no longer."""
    error = told.get("error") if isinstance(told, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message[:REFUSAL_MAX] if isinstance(message, str) else None
