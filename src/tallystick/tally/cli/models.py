"""Language models: import, export, roots and decode graphs; answers with receipts, made locally."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import typer

from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.tally.cli.options import (
    ALWAYS_JSON,
    COMMIT_HELP,
    GRAPH_HELP,
    JSON,
    LAYERS_HELP,
    RECEIPTS,
    STANDARD,
    VERBOSE,
    check_choices,
    committed_graph,
    device_option,
    dtype_of,
    dtype_option,
    from_options,
    read_key,
    record_settings,
    show_verdict,
)

if TYPE_CHECKING:
    from tallystick.core.digests import Digest
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel
    from tallystick.formats.claims import Dtype
    from tallystick.programs.graph import Graph
    from tallystick.recording.generation import Generated
    from tallystick.verdicts.tolerance import Finding
    from tallystick.verdicts.verdict import Verdict


# `tally import-model`, `tally export-model`, `tally model-root`: model directories and their roots.


def import_model(
    source: str = typer.Argument(help="A GGUF file, an installed package that holds one, a model directory, or a run."),
    out: Path = typer.Argument(help="The directory to write."),
    dtype: str | None = typer.Option(
        None, help="Store the weights in F32, BF16 or F16; by default as they are, and F32 if they were quantised."
    ),
    json: bool = JSON,
) -> None:
    """Write a model as a directory to serve.

    Quantised weights are turned into numbers. No code of the source is run; a package is not imported.
    """
    from tallystick.core.files import require_empty_folder
    from tallystick.recording.models import find_source

    if dtype is not None:
        check_choices(dtype=(dtype, ("F32", "BF16", "F16")))
    found = find_source(source)
    require_empty_folder(out)
    if found.kind == "gguf":
        from tallystick.core.lazy import require

        require("gguf", "transformers")
    from tallystick.recording.models import import_model as write_imported
    from tallystick.tally.cli.output import print_json

    done = write_imported(found, out, dtype)  # type: ignore[arg-type]
    if json:
        print_json({**done.to_json(), "model": str(out), "source": found.named})
    else:
        from tallystick.recording.models import import_lines

        print("\n".join(import_lines(found, done, out)))


def export_model(
    run: Path = typer.Argument(help="A finished run that trained a language model."),
    out: Path = typer.Argument(help="The directory to write."),
    json: bool = JSON,
) -> None:
    """Write the model that a run trained.

    The directory can be served, and transformers loads it.
    """
    from tallystick.core.files import require_empty_folder
    from tallystick.formats.store.folders import RUN, require_folder

    require_folder(run, RUN)
    require_empty_folder(out)
    from tallystick.formats.store.run import RunDirectory
    from tallystick.recording.models import export_model as write_model
    from tallystick.tally.cli.output import print_json, talk

    write_model(RunDirectory(run), out)
    talk().print(f"{out}: the model of {run}", soft_wrap=True)
    if json:
        print_json({"model": str(out), "run": str(run)})


def model_root(
    model: Path = typer.Argument(help="A model directory, or a run that trained a language model."),
    dtype: str | None = dtype_option("The precision in which it is served"),
    recheck: bool = typer.Option(False, "--recheck", help="Read all files, also those that did not change."),
    json: bool = typer.Option(False, "--json", help="Print the root and the whole model card as one JSON object."),
) -> None:
    """Print the root by which receipts name a model.

    No weights of a directory are loaded, and its root is kept in a cache while none of its files changes. The root of
    a run is that of the model which it trained, and its claim names the same weights.
    """
    from tallystick.formats.store.folders import MODEL, RUN, is_kind, require_folder
    from tallystick.tally.cli.output import print_json, talk

    require_folder(model, MODEL, RUN)
    is_run = is_kind(model, RUN)
    served = dtype_of(None if is_run else model, dtype)
    claim = None
    if is_run:
        from tallystick.formats.store.run import RunDirectory
        from tallystick.recording.models import model_of_run

        card, claim = model_of_run(RunDirectory(model), served)
    else:
        from tallystick.engines.model_cards import card_of

        card = card_of(model, served, recheck=recheck)
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
    dtype: str | None = dtype_option("The promised precision"),
    json: bool = typer.Option(False, "--json", help="Print the verdict as JSON."),
    verbose: bool = VERBOSE,
) -> int:
    """Check that a decode graph is the promised model's.

    The verdict also names the route by which a whole answer can be verified.

    Three routes are tried: a capture by the verifier, a committed symbolic length, and a transformation of the
    graph.
    """
    from tallystick.formats.store.folders import MODEL, require_folder
    from tallystick.programs.files import load_program
    from tallystick.tally.cli.output import existing

    if unknown := [each for each in route if each not in ROUTES]:
        from tallystick.core.errors import refusal

        raise UsageError(f"--route: {refusal(unknown[0], [*ROUTES])}")
    require_folder(model, MODEL)
    promised = dtype_of(model, dtype)
    committed, constants = load_program(existing(graph, "graph"))
    named = None if receipt is None else _named_root(receipt)
    verdict = _verdict(committed, constants, model, length, tuple(route or ROUTES), promised, named)
    return show_verdict(verdict, str(graph), json, verbose)


def _named_root(path: Path) -> Digest:
    from tallystick.audits.answers.reading import read_responses
    from tallystick.core.canonical_json import parse
    from tallystick.core.files import read_document

    found = next(iter(read_responses(parse(read_document(path), path.name), path.name))).receipt.receipt.engine.graph
    if found is None:
        raise UnavailableError(f"{path.name}: the receipt names no decode graph")
    return found


def _verdict(
    graph: Graph,
    constants: object,
    model: Path,
    length: int,
    routes: tuple[str, ...],
    dtype: Dtype,
    named: Digest | None,
) -> Verdict:
    from tallystick.engines.torch.generation.language_models import load_language_model
    from tallystick.engines.torch.generation.verification_graph import DecodeProgram, verification_graph
    from tallystick.verdicts.verdict import Verdict

    findings = [] if named is None else [_root(graph, named)]
    promised = load_language_model(model, dtype)
    program = DecodeProgram(graph, constants)  # type: ignore[arg-type]
    try:
        found = verification_graph(program, length, promised.model, routes)  # type: ignore[arg-type]
    except ProofError as error:
        return Verdict((*findings, _refused(str(error))))
    except UnavailableError as error:
        return Verdict(tuple(findings), (str(error),))
    passed = tuple(f"route passed over: {name}: {reason}" for name, reason in found.passed_over.items())
    return Verdict((*findings, *found.findings), (), passed, (f"route taken: {found.route}", RANDOM_INPUTS))


def _root(graph: Graph, named: Digest) -> Finding:
    from tallystick.programs.encoding import graph_root
    from tallystick.verdicts.tolerance import Finding

    differs = float(graph_root(graph) != named)
    return Finding(differs, 0.0, "graph root", detail="the receipt names another graph" if differs else "")


def _refused(reason: str) -> Finding:
    from tallystick.verdicts.tolerance import Finding

    return Finding(1.0, 0.0, "decode graph", detail=reason)


# `tally generate`, `tally open-states`, `tally new-key`: answers with receipts, made locally.

MESSAGES_MAX: Final = 1024


def new_key(file: Path = typer.Argument(help="The file to write; it must not exist."), json: bool = JSON) -> None:
    """Make a signing key and print its public half.

    Only the owner of the file can read it.
    """
    from tallystick.formats.signing import SigningKey
    from tallystick.tally.cli.output import show

    key = SigningKey.generate()
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
    dtype: str | None = dtype_option("The precision to compute in"),
    attention: str = typer.Option("sdpa", help="sdpa or eager."),
    device: str = device_option("Run on cpu or cuda."),
    fingerprint: str = typer.Option("projection", help="projection, toploc or none."),
    layers: str = typer.Option(STANDARD, help=LAYERS_HELP),
    commit: bool = typer.Option(False, "--commit", help=COMMIT_HELP),
    graph: bool = typer.Option(False, "--graph", help=GRAPH_HELP),
    private: bool = typer.Option(False, "--private", help="Leave token ids out of the receipt."),
    json: bool = typer.Option(False, "--json", help="Print the signed receipts as JSON lines."),
) -> None:
    """Answer prompts on this machine, with receipts.

    Every answer gets a signed receipt.
    """
    from tallystick.core.files import require_writable_folder
    from tallystick.formats.store.folders import MODEL, require_folder

    require_folder(model, MODEL)
    require_writable_folder(out)
    from tallystick.core.files import write_atomically
    from tallystick.engines.torch.environment import describe_environment
    from tallystick.engines.torch.generation.language_models import load_language_model
    from tallystick.recording.generation import AnswerRequest, generate_plain, new_request_id
    from tallystick.recording.receipts import ReceiptIssuer
    from tallystick.tally.cli.output import talk
    from tallystick.verdicts.words import counted

    check_choices(attention=(attention, ("sdpa", "eager")))
    check_choices(fingerprint=(fingerprint, ("projection", "toploc", "none")))
    if max_tokens < 1:
        raise UsageError(f"--max-tokens {max_tokens}: at least 1")
    if request_id and len(prompt) + len(chat) > 1:
        raise UsageError("--request-id: one id for several prompts")
    sampler = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    fields = {**sampler, "repetition_penalty": repetition_penalty, "seed": seed}
    asked = [AnswerRequest(request_id or new_request_id(), nonce, _sampler(fields)) for _ in (*prompt, *chat)]
    secret = read_key(key)
    language_model = load_language_model(model, dtype_of(model, dtype), attention, device)  # type: ignore[arg-type]
    prompts = _prompts(language_model, prompt, chat)
    settings = record_settings(fingerprint, layers, commit, private, language_model.card)
    root = committed_graph(language_model, out) if graph else None
    with ReceiptIssuer(language_model, secret, settings, out / RECEIPTS, graph=root) as issuer:
        answers = generate_plain(language_model, prompts, max_tokens, asked, issuer)
    _keep_states(out, answers)
    device_kind: Literal["cpu", "cuda"] = "cuda" if device == "cuda" else "cpu"
    write_atomically(out / "environment.json", describe_environment(device_kind).to_bytes())
    for each in answers:
        _print_answer(language_model, each, json)
    talk().print(f"{out / RECEIPTS}: {counted(len(answers), 'receipt')} by {secret.public}", soft_wrap=True)


def open_states(
    out: Path = typer.Argument(help="What `tally generate --commit` wrote."),
    request: str = typer.Argument(help="The id of the request."),
    nonce: str = typer.Option(..., "--nonce", help="The verifier's nonce, in hexadecimal."),
    count: int = typer.Option(4, min=1, max=1024, help="How many blocks of states to open."),
    json: bool = ALWAYS_JSON,
) -> None:
    """Open the hidden states that a nonce selects.

    Prints the committed states with their proofs, as JSON.
    """
    from tallystick.formats.store.receipts import find_receipt, read_states
    from tallystick.tally.cli.output import print_json

    signed = find_receipt(out / RECEIPTS, request)
    states = read_states(out / "states", signed.receipt)
    print_json(states.open(_nonce(nonce), count).to_json())


def _prompts(language_model: TorchLanguageModel, texts: list[str], chats: list[Path]) -> list[list[int]]:
    prompts = [language_model.encode_text(text) for text in texts]
    prompts += [language_model.encode_chat(_messages(path)) for path in chats]
    if not prompts:
        raise UsageError("nothing to answer: give --prompt TEXT or --chat FILE")
    if not all(prompts):
        raise UsageError("--prompt: no tokens in it")
    return prompts


def _messages(path: Path) -> list[Mapping[str, str]]:
    from tallystick.core.canonical_json import parse
    from tallystick.core.files import read_document

    found = parse(read_document(path), path.name)
    if not isinstance(found, list) or not 1 <= len(found) <= MESSAGES_MAX:
        raise MalformedError(f"{path.name}: not a list of 1 to {MESSAGES_MAX} messages")
    for place, each in enumerate(found):
        if not _is_message(each):
            raise MalformedError(f"{path.name}: {place}: not a message of role and content")
    return found  # type: ignore[return-value]


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {"role", "content"}:
        return False
    return all(isinstance(each, str) for each in value.values())


def _sampler(fields: Mapping[str, Any]) -> Any:
    import secrets

    from tallystick.formats.receipt import Sampler

    drawn = secrets.randbelow(1 << 53) if fields["seed"] is None else fields["seed"]
    return from_options(Sampler, {**fields, "seed": drawn})


def _nonce(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError("--nonce: not hexadecimal") from None


def _keep_states(out: Path, answers: list[Generated]) -> None:
    from tallystick.formats.store.receipts import write_states

    for each in answers:
        if each.issued is not None and each.issued.states is not None:
            write_states(out / "states", each.issued.signed.receipt, each.issued.states)


def _print_answer(language_model: TorchLanguageModel, answer: Generated, as_json: bool) -> None:
    from tallystick.tally.cli.output import print_json

    assert answer.issued is not None
    if as_json:
        print_json(answer.issued.signed.to_json())
    else:
        print(language_model.decode(answer.tokens))
