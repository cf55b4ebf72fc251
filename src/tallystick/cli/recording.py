"""The options that say what is recorded of answers, shared by the commands that give answers."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.attestation.signing import SigningKey
    from tallystick.commitments.digests import Digest
    from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel
    from tallystick.recorders.receipts import RecordSettings
    from tallystick.tolerances.fingerprints.settings import FingerprintSettings
    from tallystick.transcripts.model_card import ModelCard

STANDARD = "standard"
LAYERS_HELP = (
    "Layers to record: standard (one third of the way, and final), final (final norm and logits), all, or numbers such "
    "as 0,3; the logits are the number behind the final norm."
)
GRAPH_HELP = "Capture the step that decodes one token, keep it as graphs/decode.json, and name its root in receipts."
GRAPH_FILE = Path("graphs", "decode.json")
RECEIPTS = "receipts.jsonl"
COMMIT_HELP = "Commit to the states of all these layers but the logits (of every layer, for standard), for challenges."


def check_choices(**given: tuple[str, tuple[str, ...]]) -> None:
    """Raise `UsageError` for an option whose value is none of those allowed."""
    for name, (value, allowed) in given.items():
        if value not in allowed:
            from tallystick.documents.suggestions import refusal

            raise UsageError(f"--{name}: {refusal(value, allowed)}")


def read_key(path: Path) -> SigningKey:
    """The signing key in a file; raises `UsageError` where there is none."""
    from tallystick.attestation.signing import SigningKey

    if not path.is_file():
        raise UsageError(f"--key {path}: not there; `tally new-key {quote(str(path))}` makes one")
    return SigningKey.read(path)


def record_settings(method: str, layers: str, commit: bool, private: bool, card: ModelCard) -> RecordSettings:
    """What goes into receipts of a model; raises `UsageError` for layers that it does not have."""
    from tallystick.recorders.receipts import RecordSettings

    final = card.layers
    chosen = _layers("all" if layers == STANDARD else layers, final) if commit else ()
    committed = tuple(each for each in chosen if each <= final)
    return RecordSettings(_fingerprints(method, layers, card), committed, prompt=commit, private=private)


def committed_graph(language_model: TorchLanguageModel, folder: Path) -> Digest:
    """Keep the decode graph of a model below `folder`; its root."""
    from tallystick.frameworks.torch.generation.decoding import commit_decoding

    return commit_decoding(language_model.model, folder / GRAPH_FILE)


def _fingerprints(method: str, layers: str, card: ModelCard) -> tuple[FingerprintSettings, ...]:
    from tallystick.tolerances.fingerprints.settings import FingerprintSettings
    from tallystick.tolerances.fingerprints.standard import standard_fingerprints

    final = card.layers
    if method == "projection":
        return standard_fingerprints(final, card.dtype, None if layers == STANDARD else _layers(layers, final))
    chosen = [each for each in _layers("final" if layers == STANDARD else layers, final) if each <= final]
    return tuple(FingerprintSettings.toploc(layer) for layer in chosen) if method == "toploc" else ()


def _layers(text: str, final: int) -> tuple[int, ...]:
    logits = final + 1
    if text in ("final", "all"):
        return tuple(range(logits + 1)) if text == "all" else (final, logits)
    try:
        chosen = sorted({int(each) for each in text.split(",")})
    except ValueError:
        raise UsageError(f"--layers {text}: standard, final, all, or numbers such as 0,3") from None
    if not 0 <= chosen[0] <= chosen[-1] <= logits:
        raise UsageError(f"--layers {text}: layers are from 0 to {logits}")
    return tuple(chosen)
