"""Language models: import, export, roots and decode graphs; answers with receipts, made locally."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import typer

from tallystick.audits.answers import reading
from tallystick.core.canonical_json import parse
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError, refusal
from tallystick.core.files import read_document, require_empty_folder, require_writable_folder, write_atomically
from tallystick.core.lazy import require
from tallystick.engines import model_cards
from tallystick.engines.torch import environment as torch_environment
from tallystick.engines.torch.generation import language_models, verification_graph
from tallystick.formats import receipt as receipt_form, signing
from tallystick.formats.store import receipts as receipt_files, run as runs
from tallystick.formats.store.folders import MODEL, RUN, is_kind, require_folder
from tallystick.programs import encoding, files as program_files, graph as graphs
from tallystick.recording import generation, models as model_files, receipts as receipt_issuing
from tallystick.tally.cli.options import (
    DTYPES,
    GRAPH_HELP,
    RECEIPTS,
    STANDARD,
    AlwaysJson,
    AsJson,
    Attention,
    Commit,
    ComputedDtype,
    Fingerprint,
    Layers,
    PromisedDtype,
    RunDevice,
    Verbose,
    VerdictAsJson,
    check_choices,
    committed_graph,
    dtype_of,
    from_options,
    read_key,
    record_settings,
    show_verdict,
)
from tallystick.tally.cli.output import existing, print_json, show, talk
from tallystick.verdicts import tolerance, verdict as verdicts, words

# `tally import-model`, `tally export-model`, `tally model-root`: model directories and their roots.


def import_model(
    source: str = typer.Argument(help="A GGUF file, an installed package that holds one, a model directory, or a run."),
    out: Path = typer.Argument(help="The directory to write."),
    dtype: str | None = typer.Option(
        None, help="Store the weights in F32, BF16 or F16; by default as they are, and F32 if they were quantised."
    ),
    json: AsJson = False,
) -> None:
    """Write a model as a directory to serve.

    Quantised weights are turned into numbers. No code of the source is run; a package is not imported.
    """
    if dtype is not None:
        check_choices(dtype=(dtype, ("F32", "BF16", "F16")))
    origin = model_files.find_source(source)
    require_empty_folder(out)
    if origin.kind == "gguf":
        require("gguf", "transformers")
    done = model_files.import_model(origin, out, dtype)  # type: ignore[arg-type]
    if json:
        print_json({**done.to_json(), "model": str(out), "source": origin.named})
    else:
        print("\n".join(model_files.import_lines(origin, done, out)))


def export_model(
    run: Path = typer.Argument(help="A finished run that trained a language model."),
    out: Path = typer.Argument(help="The directory to write."),
    json: AsJson = False,
) -> None:
    """Write the model that a run trained.

    The directory can be served, and transformers loads it.
    """
    require_folder(run, RUN)
    require_empty_folder(out)
    model_files.export_model(runs.RunDirectory(run), out)
    talk().print(f"{out}: the model of {run}", soft_wrap=True)
    if json:
        print_json({"model": str(out), "run": str(run)})


def model_root(
    model: Path = typer.Argument(help="A model directory, or a run that trained a language model."),
    dtype: str | None = typer.Option(None, help=f"The precision in which it is served: {DTYPES}"),
    recheck: bool = typer.Option(False, "--recheck", help="Read all files, also those that did not change."),
    json: bool = typer.Option(False, "--json", help="Print the root and the whole model card as one JSON object."),
) -> None:
    """Print the root by which receipts name a model.

    No weights of a directory are loaded, and its root is kept in a cache while none of its files changes. The root of
    a run is that of the model which it trained, and its claim names the same weights.
    """
    require_folder(model, MODEL, RUN)
    is_run = is_kind(model, RUN)
    served = dtype_of(None if is_run else model, dtype)
    claim = None
    if is_run:
        card, claim = model_files.model_of_run(runs.RunDirectory(model), served)
    else:
        card = model_cards.card_of(model, served, recheck=recheck)
    named = {} if claim is None else {"claim": str(claim.identity)}
    if json:
        print_json({"card": card.to_json(), "root": str(card.identity), **named})
    else:
        talk().print(
            "\n".join(f"{name} {value}" for name, value in {**named, "weights": card.weights}.items()), soft_wrap=True
        )
        print(card.identity)


# `tally verify-graph`: is a committed decode graph the promised model's, and by which route is it verified?

ROUTES: Final = ("own capture", "symbolic length", "teacher forcing")
RANDOM_INPUTS: Final = "what a graph does for rare inputs alone would show in random ones"


def verify_graph(
    graph: Path = typer.Argument(help="The decode graph, as `tally generate --graph` wrote it."),
    model: Path = typer.Option(..., "--model", help="The directory of the promised model."),
    receipt: Path | None = typer.Option(None, "--receipt", help="A receipt that has to name this graph."),
    length: int = typer.Option(8, min=1, max=4096, help="The tokens that the verification graph reads at once."),
    route: list[str] = typer.Option([], "--route", help=f"Routes that the verifier accepts: {', '.join(ROUTES)}."),
    dtype: PromisedDtype = None,
    json: VerdictAsJson = False,
    verbose: Verbose = False,
) -> int:
    """Check that a decode graph is the promised model's.

    The verdict also names the route by which a whole answer can be verified.

    Three routes are tried: a capture by the verifier, a committed symbolic length, and a transformation of the
    graph.
    """
    if unknown := [each for each in route if each not in ROUTES]:
        raise UsageError(f"--route: {refusal(unknown[0], [*ROUTES])}")
    require_folder(model, MODEL)
    promised = dtype_of(model, dtype)
    committed, constants = program_files.load_program(existing(graph, "graph"))
    findings = [] if receipt is None else [_named(receipt, committed)]
    program = verification_graph.DecodeProgram(committed, constants)
    loaded = language_models.load_language_model(model, promised)
    try:
        rebuilt = verification_graph.verification_graph(program, length, loaded.model, tuple(route or ROUTES))  # type: ignore[arg-type]
        passed = tuple(f"route passed over: {name}: {reason}" for name, reason in rebuilt.passed_over.items())
        notes = (f"route taken: {rebuilt.route}", RANDOM_INPUTS)
        verdict = verdicts.Verdict((*findings, *rebuilt.findings), (), passed, notes)
    except ProofError as error:
        refused = tolerance.Finding(1.0, 0.0, "decode graph", detail=str(error))
        verdict = verdicts.Verdict((*findings, refused))
    except UnavailableError as error:
        verdict = verdicts.Verdict(tuple(findings), (str(error),))
    return show_verdict(verdict, str(graph), json, verbose)


def _named(receipt: Path, graph: graphs.Graph) -> tolerance.Finding:
    """Whether the receipt in a file names this decode graph; raises `UnavailableError` where it names none."""
    read = reading.read_responses(parse(read_document(receipt), receipt.name), receipt.name)
    named = read[0].receipt.receipt.engine.graph
    if named is None:
        raise UnavailableError(f"{receipt.name}: the receipt names no decode graph")
    differs = encoding.graph_root(graph) != named
    detail = "the receipt names another graph" if differs else ""
    return tolerance.Finding(float(differs), 0.0, "graph root", detail=detail)


# `tally generate`, `tally open-states`, `tally new-key`: answers with receipts, made locally.

MESSAGES_MAX: Final = 1024


def new_key(file: Path = typer.Argument(help="The file to write; it must not exist."), json: AsJson = False) -> None:
    """Make a signing key and print its public half.

    Only the owner of the file can read it.
    """
    key = signing.SigningKey.generate()
    key.write(file)
    show({"file": str(file), "public": key.public}, key.public, json)


def generate(
    model: Path = typer.Argument(help="A model directory: configuration, safetensors, tokenizer."),
    key: Path = typer.Option(..., "--key", help="The signing key; `tally new-key FILE` makes one."),
    out: Path = typer.Option(..., "--out", help="Receipts are appended here, and states kept."),
    prompt: list[str] = typer.Option([], "--prompt", help="A prompt; several are answered as one batch."),
    chat: list[Path] = typer.Option([], "--chat", help="A JSON file of messages, [{role, content}, …]."),
    max_tokens: int = typer.Option(64, "--max-tokens", help="The most tokens of an answer."),
    temperature: float = typer.Option(1.0, help="0 takes the largest logit."),
    top_k: int = typer.Option(0, "--top-k", help="Tokens to choose among; 0 keeps all."),
    top_p: float = typer.Option(1.0, "--top-p", help="Probability to choose within."),
    min_p: float = typer.Option(0.0, "--min-p", help="Least share of the largest probability."),
    repetition_penalty: float = typer.Option(
        1.0, "--repetition-penalty", help="Above 1 makes tokens that occurred less likely."
    ),
    seed: int | None = typer.Option(None, help="The sampler's seed; drawn if none is given."),
    nonce: str | None = typer.Option(None, help="The customer's nonce, in hexadecimal."),
    request_id: str | None = typer.Option(None, "--request-id", help="The id of the request; drawn by default."),
    dtype: ComputedDtype = None,
    attention: Attention = "sdpa",
    device: RunDevice = "cpu",
    fingerprint: Fingerprint = "projection",
    layers: Layers = STANDARD,
    commit: Commit = False,
    graph: bool = typer.Option(False, "--graph", help=GRAPH_HELP),
    private: bool = typer.Option(False, "--private", help="Leave token ids out of the receipt."),
    json: bool = typer.Option(False, "--json", help="Print the signed receipts as JSON lines."),
) -> None:
    """Answer prompts on this machine, with receipts.

    Every answer gets a signed receipt.
    """
    require_folder(model, MODEL)
    require_writable_folder(out)
    check_choices(attention=(attention, ("sdpa", "eager")))
    check_choices(fingerprint=(fingerprint, ("projection", "toploc", "none")))
    if max_tokens < 1:
        raise UsageError(f"--max-tokens {max_tokens}: at least 1")
    if request_id and len(prompt) + len(chat) > 1:
        raise UsageError("--request-id: one id for several prompts")
    chosen = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    chosen["repetition_penalty"] = repetition_penalty
    requests = []
    for _ in (*prompt, *chat):
        fields = {
            **chosen,
            "repetition_penalty": repetition_penalty,
            "seed": secrets.randbelow(1 << 53) if seed is None else seed,
        }
        sampler = from_options(receipt_form.Sampler, fields)
        requests.append(generation.AnswerRequest(request_id or generation.new_request_id(), nonce, sampler))
    secret = read_key(key)
    language_model = language_models.load_language_model(model, dtype_of(model, dtype), attention, device)  # type: ignore[arg-type]
    prompts = _prompts(language_model, prompt, chat)
    settings = record_settings(fingerprint, layers, commit, private, language_model.card)
    root = committed_graph(language_model, out) if graph else None
    with receipt_issuing.ReceiptIssuer(language_model, secret, settings, out / RECEIPTS, graph=root) as issuer:
        answers = generation.generate_plain(language_model, prompts, max_tokens, requests, issuer)
    issued = [each.issued for each in answers if each.issued is not None]
    for each in issued:
        if each.states is not None:
            receipt_files.write_states(out / "states", each.signed.receipt, each.states)
    device_kind: Literal["cpu", "cuda"] = "cuda" if device == "cuda" else "cpu"
    write_atomically(out / "environment.json", torch_environment.describe_environment(device_kind).to_bytes())
    for answer, receipt in zip(answers, issued, strict=True):
        show(receipt.signed.to_json(), language_model.decode(answer.tokens), json)
    talk().print(f"{out / RECEIPTS}: {words.counted(len(answers), 'receipt')} by {secret.public}", soft_wrap=True)


def open_states(
    out: Path = typer.Argument(help="What `tally generate --commit` wrote."),
    request: str = typer.Argument(help="The id of the request."),
    nonce: str = typer.Option(..., "--nonce", help="The verifier's nonce, in hexadecimal."),
    count: int = typer.Option(4, min=1, max=1024, help="How many blocks of states to open."),
    json: AlwaysJson = True,
) -> None:
    """Open the hidden states that a nonce selects.

    Prints the committed states with their proofs, as JSON.
    """
    signed = receipt_files.find_receipt(out / RECEIPTS, request)
    states = receipt_files.read_states(out / "states", signed.receipt)
    try:
        drawn = bytes.fromhex(nonce)
    except ValueError:
        raise UsageError("--nonce: not hexadecimal") from None
    print_json(states.open(drawn, count).to_json())


def _prompts(
    language_model: language_models.TorchLanguageModel, texts: list[str], chats: list[Path]
) -> list[list[int]]:
    prompts = [language_model.encode_text(text) for text in texts]
    prompts += [language_model.encode_chat(_messages(path)) for path in chats]
    if not prompts:
        raise UsageError("nothing to answer: give --prompt TEXT or --chat FILE")
    if not all(prompts):
        raise UsageError("--prompt: no tokens in it")
    return prompts


def _messages(path: Path) -> list[Mapping[str, str]]:
    messages = parse(read_document(path), path.name)
    if not isinstance(messages, list) or not 1 <= len(messages) <= MESSAGES_MAX:
        raise MalformedError(f"{path.name}: not a list of 1 to {MESSAGES_MAX} messages")
    for place, message in enumerate(messages):
        fields = message if isinstance(message, dict) else {}
        if fields.keys() != {"role", "content"} or not all(isinstance(value, str) for value in fields.values()):
            raise MalformedError(f"{path.name}: {place}: not a message of role and content")
    return messages  # type: ignore[return-value]
