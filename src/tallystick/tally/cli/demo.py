"""`tally demo`: train, audit, forge six runs; serve an answer, honestly and not; dispute claims to the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Final

import typer

from tallystick.audits import policy as audit_policy
from tallystick.audits.answers import (
    limits as answer_limits,
    policy as receipt_policy,
    report as answer_report,
    verify as answer_check,
)
from tallystick.core.canonical_json import Json, encode
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.files import read_document, write_atomically
from tallystick.core.lazy import require
from tallystick.database import workload_database
from tallystick.database.indexing import add as indexing, audits
from tallystick.disputes.coordinators.local import coordinator as local
from tallystick.disputes.evidence import doubting, judging, statement, traces
from tallystick.disputes.game import protocols, state as game
from tallystick.disputes.parties import game_view, player, programs, progress, prover as posting
from tallystick.engines.torch.generation import language_models
from tallystick.formats import fingerprints, openings as opening_forms, receipt as receipt_form, signing
from tallystick.formats.store import receipts as receipt_files, run as runs
from tallystick.recording import (
    generation,
    inference,
    models as model_files,
    receipts as receipt_issuing,
    training as recording_training,
)
from tallystick.tally import auditing, training
from tallystick.tally.attacks import catalogue, provers
from tallystick.tally.cli.options import kept_folder
from tallystick.tally.cli.output import page, talk
from tallystick.verdicts import words
from tallystick.verdicts.opening import files as opening_files

# The last part of `tally demo`: provers that cheat are disputed on a local coordinator, and their bonds move.

SWAPPED: Final = "weights.model.layers.1.mlp.down_proj.weight"
WRONG_STEP: Final = 29
PURSE: Final = 10_000_000
PAYING: Final = ("prover", "challenger")

MakeTrace = Callable[[Path], "protocols.Trace"]
MakeRoles = Callable[["game_view.BoardCache", "player.Workspace"], "Sequence[player.PartyRole]"]


@dataclass(frozen=True)
class Ended:
    """What became of a claim: who was at fault where, after how many moves, and what each party has gained."""

    state: game.State
    record: int
    operator: str
    gained: dict[str, int]

    @property
    def dispute(self) -> game.Dispute | None:
        """The dispute, if there was one."""
        return self.state.disputes[0] if self.state.disputes else None

    @property
    def outcome(self) -> str:
        """`slashed`, or `final`."""
        return self.state.claims[0].status.value

    @property
    def reason(self) -> str:
        """One line for the table."""
        if self.dispute is None:
            return "nobody contests it, and its bond goes back"
        place = progress.DisputeEnding(self.record, (self.dispute.low, self.dispute.size, self.operator)).place
        paid = f"prover {self.gained['prover']:+,}, challenger {self.gained['challenger']:+,}"
        return f"bisected in {self.dispute.turn} moves to {place}; {paid}"


def honest_claim(model: Path, calls: Path) -> Ended:
    """Record answers of the exported model into `calls`, and claim them."""
    record_calls(model, calls)
    return play(calls, lambda work: traces.trace_of(statement.statement_at(calls), work))


def swapped_layer(calls: Path, out: Path) -> Ended:
    """Claim answers of the promised model that another layer's weights gave."""
    provers.forge_swapped_layer(calls, out, SWAPPED)
    return play(out, lambda work: provers.swapped_layer_trace(out, work, SWAPPED))


def wrong_rate(run: Path, out: Path) -> Ended:
    """Claim a training one step of which was taken at a higher learning rate than was declared."""
    provers.forge_wrong_rate(run, out, WRONG_STEP)
    return play(out, lambda work: provers.wrong_rate_trace(out, work, WRONG_STEP))


def record_calls(model: Path, out: Path, calls: int = 3) -> None:
    """Answer `calls` prompts with the exported model, and record what went in and what came out."""
    import torch

    language_model = language_models.load_language_model(model)
    tokens = language_model.encode_text("The with statement is used to wrap the execution of a block.")[:24]
    with torch.no_grad(), inference.record_inference(language_model.model, out):
        for shift in range(calls):
            language_model.model(input_ids=torch.tensor([tokens[shift:] + tokens[:shift]]), use_cache=False)


def play(claimed: Path, make_trace: MakeTrace) -> Ended:
    """Post the claim in `claimed`, let a challenger look at it, and play until all money has been paid out.

    The coordinator has a database of its own, and its clock waits for the programs of the three parties.
    """
    folder, clock = claimed.with_name(f"{claimed.name}-dispute"), programs.Clock()
    folder.mkdir()
    keys = {name: signing.SigningKey.generate() for name in (*PAYING, "referee", "treasury")}
    rules = game.Rules(referee=keys["referee"].public, treasury=keys["treasury"].public)
    created = local.LocalCoordinator.create(folder / "coordinator.db", rules, clock=clock)
    with closing(created) as coordinator, ExitStack() as workspaces:
        for name in PAYING:
            coordinator.grant(keys[name].public, PURSE)
        doubter, trace = doubting.doubter_for(), make_trace(folder / "trace")
        roles: dict[str, MakeRoles] = {
            "prover": lambda cache, own: programs.prover(cache, own, lambda _: trace, posting.offer_of(claimed)),
            "challenger": lambda cache, own: programs.challenger(cache, own, lambda _: doubter),
            "referee": lambda cache, _: programs.referee(cache, judging.DisputeJudge()),
        }
        players, caches = dict[str, player.Player](), dict[str, game_view.BoardCache]()
        for name, make_roles in roles.items():
            workspace = workspaces.enter_context(player.Workspace(folder / name))
            caches[name] = game_view.BoardCache(coordinator.board(keys[name]), workspace.folder / "data")
            own = make_roles(caches[name], workspace)
            players[name] = player.Player(coordinator.connect(keys[name]), workspace, own)
        programs.play_out([*players.values()], clock.advance)
        operator = ""
        if coordinator.state.disputes:  # the operator that the only one ended at, as the referee saw it
            revealed = caches["referee"].answered(players["referee"].follower.look(), 0).turns[-1]
            data = read_document(revealed / opening_files.OPERATOR)
            operator = opening_forms.OpenedOperator.from_bytes(data, opening_files.OPERATOR).record.operator
        entries = coordinator.entries()
        record = next((each.move.low for each in entries if each.move.kind == "contest"), 0)
        gains = {each.party: each.gained for each in game_view.accounts(rules, entries)}
        gained = {name: gains.get(key.public, 0) for name, key in keys.items()}
        return Ended(coordinator.state, record, operator, gained)


# The second half of `tally demo`: serve an answer with a receipt, verify it, then serve it from a quantised model.

PROMPT = "The with statement is used "
TOKENS = 48
BITS = 4


def served_answer(language_model: language_models.TorchLanguageModel, out: Path) -> receipt_form.SignedReceipt:
    """One sampled answer and its receipt, under a key made for it; the receipt is kept in the folder `out`."""
    card = language_model.card
    settings = receipt_issuing.RecordSettings(fingerprints.standard_fingerprints(card.layers, card.dtype))
    with receipt_issuing.ReceiptIssuer(language_model, signing.SigningKey.generate(), settings) as issuer:
        request = generation.AnswerRequest(sampler=receipt_form.Sampler(temperature=0.8, seed=7))
        answer = generation.generate_plain(
            language_model, [language_model.encode_text(PROMPT)], TOKENS, [request], issuer
        )[0]
    assert answer.issued is not None
    with receipt_files.ReceiptLog(out / "receipts.jsonl") as log:
        log.append(answer.issued.signed)
    return answer.issued.signed


COLOURS = {"accepted": "green", "rejected": "red", "inconclusive": "yellow"}
PROFILED = 8
"""The step whose timeline a kept demo shows."""
FRAUDS = (
    "bad-seed",
    "gradient-noise",
    "weights-edited",
    "broken-seal",
    "record-removed-resealed",
    "data-substituted",
)


@dataclass(frozen=True)
class DemoRun:
    """One run of the demo: what was done to it, what should come out, and what came out."""

    title: str
    expected: str
    found: str
    reason: str
    seconds: float
    report: dict[str, Json] | None = None
    """The report of the audit, or of the check of a receipt; a dispute has none."""
    run: Path | None = None

    @property
    def as_expected(self) -> bool:
        """Whether the audit said what it should have said."""
        return self.expected == self.found


def demo(
    out: Path | None = typer.Option(None, help="Keep all runs in this directory; by default they are deleted."),
) -> int:
    """Show honest runs accepted and nine frauds caught.

    Trains a small model and audits it, serves an answer and verifies it, and disputes three claims. Needs
    `pip install 'tallystick[disputes]'`.
    """
    require("torch", "transformers", "tokenizers", "sqlalchemy")
    if out is not None and out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: not empty; choose another directory")
    with kept_folder(out, "tally-demo-") as stage:
        acts = list(_play(stage))
    _print(acts)
    if out is not None:
        _fill(out, acts)
    return 0 if all(act.as_expected for act in acts) else 1


def _play(stage: Path) -> Iterator[DemoRun]:
    honest = stage / "honest"
    talk().print("Training a small Llama-style model on the Python language reference …")
    _train(honest)
    yield _judge("honest run", honest, "accepted")
    for name in FRAUDS:
        attack = catalogue.find_attack(name)
        talk().print(f"Fraud: {attack.change} …")
        attack.forge(honest, stage / name)
        yield _judge(name, stage / name, "rejected")
    yield from _serve(honest, stage / "model")
    yield from _dispute(stage)


def _serve(run: Path, out: Path) -> Iterator[DemoRun]:
    """Answer a question from the trained model, then from the same model in 4 bits under the same name."""
    talk().print("Serving an answer from the trained model, with a receipt …")
    model_files.export_model(runs.RunDirectory(run), out)
    promised = language_models.load_language_model(out)
    # A cheating provider runs the promised model with weights in few bits, under the promised card.
    cheap = replace(promised, model=provers.integer_weights(promised, BITS))
    # The customer holds the promised model, and asked with a seed of its own.
    policy = receipt_policy.ReceiptPolicy(sampler=answer_limits.SamplerRule(seed="customer"))
    scenes = (("honest answer", promised, "accepted"), ("quantised answer", cheap, "rejected"))
    for title, provider, expected in scenes:
        signed, started = served_answer(provider, out.with_name(title.replace(" ", "-"))), time.perf_counter()
        report = answer_check.verify_receipt(signed, promised, policy)
        took = time.perf_counter() - started
        yield DemoRun(title, expected, report.outcome, _receipt_reason(signed, report), took, report.to_json())


def _dispute(stage: Path) -> Iterator[DemoRun]:
    """Make three claims with a bond: honest answers, answers with one layer swapped, a step at a wrong rate."""
    talk().print("Claims with a bond, before a coordinator; a challenger recomputes them …")
    calls, run = stage / "calls", stage / "disputed"
    scenes: tuple[tuple[str, Callable[[], Ended], str], ...] = (
        ("honest claim", lambda: honest_claim(stage / "model", calls), "final"),
        ("swapped layer", lambda: swapped_layer(calls, stage / "swapped-layer"), "slashed"),
        ("wrong learning rate", lambda: wrong_rate(run, stage / "wrong-rate"), "slashed"),
    )
    _train(run, talk().print)
    for title, play, expected in scenes:
        started = time.perf_counter()
        ended = play()
        yield DemoRun(title, expected, ended.outcome, ended.reason, time.perf_counter() - started)


def _train(out: Path, capture_with: Callable[[str], None] | None = None) -> None:
    """On one thread: so small a model gains nothing from a second one."""
    import torch

    torch.set_num_threads(1)
    with resources.as_file(resources.files("tallystick") / "examples") as examples:
        config = recording_training.read_config(examples / "demo.toml")
        recording_training.train(config, out, capture_with=capture_with)


def _judge(title: str, run: Path, expected: str) -> DemoRun:
    started = time.perf_counter()
    result = auditing.audit(run, audit_policy.Policy(full=True))
    took = time.perf_counter() - started
    return DemoRun(title, expected, result.outcome, _reason(result), took, result.to_json(), run)


def _reason(result: auditing.AuditResult) -> str:
    if result.objections:
        return words.describe(result.objections[0])
    return next(iter(result.verdict.unavailable), "all steps replayed bit for bit")


def _receipt_reason(signed: receipt_form.SignedReceipt, report: answer_report.ReceiptReport) -> str:
    if report.verdict.objections:
        return words.describe(report.verdict.objections[0])
    if report.verdict.unavailable:
        return report.verdict.unavailable[0]
    size = signed.receipt.fingerprint_bytes_per_token
    return f"{report.tokens} tokens explained by model and sampler, fingerprints of {size:.1f} bytes a token agree"


def _fill(out: Path, acts: list[DemoRun]) -> None:
    """Read everything that was kept into a workload database, for whoever wants to look."""
    try:
        require("alembic", "fastapi", "jinja2")
    except UnavailableError as error:
        talk().print(f"all of it is in {out}; to look at it in a browser, {error}", soft_wrap=True)
        return
    for run in out.glob("disputed"):  # the run that has a step graph
        training.profile_step(runs.RunDirectory(run), PROFILED, run / "traces" / "replay")
    claimed = [each for each in sorted(out.iterdir()) if (each / "claim.json").is_file()]
    with workload_database.WorkloadDatabase(out / "tally.db", writable=True) as database:
        for place in (*claimed, *sorted(out.glob("*-answer"))):
            # The bytes of some frauds are not the recorded ones.
            indexing.add_place(database, place, tensors=place.name not in FRAUDS)
        for court in sorted(out.glob("*-dispute/coordinator.db")):
            indexing.add_place(database, court, court.parent.name)
        for act in acts:
            if act.report is not None:
                file = out / "reports" / f"{act.title.replace(' ', '-')}.json"
                write_atomically(file, encode(act.report))
                audits.add_audit(database, act.report, str(file.absolute()), act.run)
    talk().print(f"all of it is in a database: tally ui --db {quote(str(out / 'tally.db'))}", soft_wrap=True)


def _print(acts: list[DemoRun]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("run", "verdict", "reason", "audit"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "audit" else "left")
    for act in acts:
        mark = "" if act.as_expected else f" [bold red]expected {act.expected}[/]"
        verdict = f"[{COLOURS[act.found]}]{act.found}[/]{mark}" if act.found in COLOURS else act.found
        table.add_row(act.title, verdict, escape(act.reason), f"{act.seconds:.1f} s")
    page().print(table)
    good = sum(act.as_expected for act in acts)
    page().print(f"{good} of {len(acts)} verdicts as expected.")
