"""`tally generate`, `tally open-states`, `tally new-key`: answers with receipts, made locally."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import typer

from tallystick.cli.options import ALWAYS_JSON, JSON, device_option, dtype_of, dtype_option, from_options
from tallystick.cli.recording import (
    COMMIT_HELP,
    GRAPH_HELP,
    LAYERS_HELP,
    RECEIPTS,
    STANDARD,
    check_choices,
    committed_graph,
    read_key,
    record_settings,
)
from tallystick.errors import MalformedError, UsageError

if TYPE_CHECKING:
    from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel
    from tallystick.recorders.generation import Generated

MESSAGES_MAX: Final = 1024


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(generate)
    app.command(name="open-states")(open_states)
    app.command(name="new-key")(new_key)


def new_key(file: Path = typer.Argument(help="The file to write; it must not exist."), json: bool = JSON) -> None:
    """Make a signing key and print its public half.

    Only the owner of the file can read it.
    """
    from tallystick.attestation.signing import SigningKey
    from tallystick.cli.output import show

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
    from tallystick.documents.targets import require_writable_folder
    from tallystick.store.folders import MODEL, require_folder

    require_folder(model, MODEL)
    require_writable_folder(out)
    from tallystick.cli.output import talk
    from tallystick.documents.files import write_atomically
    from tallystick.frameworks.torch.environment import describe_environment
    from tallystick.frameworks.torch.generation.language_models import load_language_model
    from tallystick.presentation.sentence import counted
    from tallystick.recorders.generation import AnswerRequest, generate_plain, new_request_id
    from tallystick.recorders.receipts import ReceiptIssuer

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
    from tallystick.cli.output import print_json
    from tallystick.store.receipts import find_receipt, read_states

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
    from tallystick.commitments.encoding import parse
    from tallystick.documents.files import read_document

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

    from tallystick.transcripts.sampler import Sampler

    drawn = secrets.randbelow(1 << 53) if fields["seed"] is None else fields["seed"]
    return from_options(Sampler, {**fields, "seed": drawn})


def _nonce(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError("--nonce: not hexadecimal") from None


def _keep_states(out: Path, answers: list[Generated]) -> None:
    from tallystick.store.receipts import write_states

    for each in answers:
        if each.issued is not None and each.issued.states is not None:
            write_states(out / "states", each.issued.signed.receipt, each.issued.states)


def _print_answer(language_model: TorchLanguageModel, answer: Generated, as_json: bool) -> None:
    from tallystick.cli.output import print_json

    assert answer.issued is not None
    if as_json:
        print_json(answer.issued.signed.to_json())
    else:
        print(language_model.decode(answer.tokens))
