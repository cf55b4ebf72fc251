"""`tally demo`: train, audit, forge six runs; serve an answer, honestly and not; dispute claims to the end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from tallystick.audits.answers.report import ReceiptReport
    from tallystick.core.canonical_json import Json
    from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
    from tallystick.disputes.game.protocols import Trace
    from tallystick.disputes.game.state import Dispute, Rules, State
    from tallystick.disputes.parties.game_view import BoardCache
    from tallystick.disputes.parties.player import PartyRole, Player, Workspace
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel
    from tallystick.formats.receipt import SignedReceipt
    from tallystick.tally.auditing import AuditResult


# The last part of `tally demo`: provers that cheat are disputed on a local coordinator, and their bonds move.

SWAPPED: Final = "weights.model.layers.1.mlp.down_proj.weight"
WRONG_STEP: Final = 29
PURSE: Final = 10_000_000
PAYING: Final = ("prover", "challenger")

MakeTrace = Callable[[Path], "Trace"]


@dataclass(frozen=True)
class Ended:
    """What became of a claim: who was at fault where, after how many moves, and what each party has gained."""

    state: State
    record: int
    operator: str
    gained: dict[str, int]

    @property
    def dispute(self) -> Dispute | None:
        """The dispute, if there was one."""
        return self.state.disputes[0] if self.state.disputes else None

    @property
    def outcome(self) -> str:
        """`slashed`, or `final`."""
        return self.state.claims[0].status.value

    @property
    def reason(self) -> str:
        """One line for the table."""
        from tallystick.disputes.parties.history import DisputeEnding

        if self.dispute is None:
            return "nobody contests it, and its bond goes back"
        place = DisputeEnding(self.record, (self.dispute.low, self.dispute.size, self.operator)).place
        paid = f"prover {self.gained['prover']:+,}, challenger {self.gained['challenger']:+,}"
        return f"bisected in {self.dispute.turn} moves to {place}; {paid}"


def honest_claim(model: Path, calls: Path) -> Ended:
    """Record answers of the exported model into `calls`, and claim them."""
    from tallystick.disputes.evidence.statement import statement_at

    record_calls(model, calls)
    return play(calls, lambda work: statement_at(calls).trace(work))


def swapped_layer(calls: Path, out: Path) -> Ended:
    """Claim answers of the promised model that another layer's weights gave."""
    from tallystick.tally.attacks.provers import forge_swapped_layer, swapped_layer_trace

    forge_swapped_layer(calls, out, SWAPPED)
    return play(out, lambda work: swapped_layer_trace(out, work, SWAPPED))


def wrong_rate(run: Path, out: Path) -> Ended:
    """Claim a training one step of which was taken at a higher learning rate than was declared."""
    from tallystick.tally.attacks.provers import forge_wrong_rate, wrong_rate_trace

    forge_wrong_rate(run, out, WRONG_STEP)
    return play(out, lambda work: wrong_rate_trace(out, work, WRONG_STEP))


def record_calls(model: Path, out: Path, calls: int = 3) -> None:
    """Answer `calls` prompts with the exported model, and record what went in and what came out."""
    import torch

    from tallystick.engines.torch.generation.language_models import load_language_model
    from tallystick.recording.inference import record_inference

    language_model = load_language_model(model)
    tokens = language_model.encode_text("The with statement is used to wrap the execution of a block.")[:24]
    with torch.no_grad(), record_inference(language_model.model, out):
        for shift in range(calls):
            language_model.model(input_ids=torch.tensor([tokens[shift:] + tokens[:shift]]), use_cache=False)


def play(claimed: Path, make_trace: MakeTrace) -> Ended:
    """Post the claim in `claimed`, let a challenger look at it, and play until all money has been paid out."""
    folder = claimed.with_name(f"{claimed.name}-dispute")
    folder.mkdir()
    with closing(_LocalGame(folder)) as game:
        return game.play(claimed, make_trace)


class _LocalGame:
    """A coordinator in a database of its own, and the programs of three parties, under a clock that waits for them."""

    def __init__(self, folder: Path) -> None:
        from tallystick.disputes.parties.programs import Clock
        from tallystick.formats.signing import SigningKey

        self.folder, self.clock = folder, Clock()
        self.keys = {name: SigningKey.generate() for name in (*PAYING, "referee", "treasury")}
        self.caches: dict[str, BoardCache] = {}

    @cached_property
    def coordinator(self) -> LocalCoordinator:
        from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator

        found = LocalCoordinator.create(self.folder / "coordinator.db", self._rules(), clock=self.clock)
        for name in PAYING:
            found.grant(self.keys[name].public, PURSE)
        return found

    def close(self) -> None:
        self.coordinator.close()

    def play(self, claimed: Path, make_trace: MakeTrace) -> Ended:
        from tallystick.disputes.parties.programs import play_out

        players = list(self._players(claimed, make_trace))
        try:
            play_out(players, self.clock.advance)
            operator = self._operator(players[-1])
        finally:
            for player in players:
                player.workspace.close()
        record = next((each.move.low for each in self.coordinator.entries() if each.move.kind == "contest"), 0)
        return Ended(self.coordinator.state, record, operator, self._gained())

    def _rules(self) -> Rules:
        from tallystick.disputes.game.state import Rules

        return Rules(referee=self.keys["referee"].public, treasury=self.keys["treasury"].public)

    def _players(self, claimed: Path, make_trace: MakeTrace) -> Iterator[Player]:
        from tallystick.disputes.evidence.doubting import doubter_for
        from tallystick.disputes.evidence.judging import DisputeJudge
        from tallystick.disputes.parties.programs import challenger, prover, referee
        from tallystick.disputes.parties.prover import offer_of

        doubter, trace = doubter_for(), make_trace(self.folder / "trace")
        yield self._player("prover", lambda own: prover(*own, lambda _: trace, offer_of(claimed)))
        yield self._player("challenger", lambda own: challenger(*own, lambda _: doubter))
        yield self._player("referee", lambda own: referee(own[0], DisputeJudge()))

    def _player(self, name: str, roles: Callable[[tuple[BoardCache, Workspace]], Sequence[PartyRole]]) -> Player:
        from tallystick.disputes.parties.game_view import BoardCache
        from tallystick.disputes.parties.player import Player, Workspace

        key, workspace = self.keys[name], Workspace(self.folder / name)
        cache = BoardCache(self.coordinator.board(key), workspace.folder / "data")
        self.caches[name] = cache
        return Player(self.coordinator.connect(key), workspace, roles((cache, workspace)))

    def _gained(self) -> dict[str, int]:
        """What each party has more than it began with, the treasury what it is owed."""
        from tallystick.disputes.parties.game_view import accounts

        found = {each.party: each.gained for each in accounts(self._rules(), self.coordinator.entries())}
        return {name: found.get(key.public, 0) for name, key in self.keys.items()}

    def _operator(self, referee: Player) -> str:
        """The operator that the only dispute ended at, as the referee saw it."""
        from tallystick.core.files import read_document
        from tallystick.formats.openings import OpenedOperator
        from tallystick.verdicts.opening.files import OPERATOR

        if not self.coordinator.state.disputes:
            return ""
        revealed = self.caches["referee"].answered(referee.follower.look(), 0).turns[-1]
        record = OpenedOperator.from_bytes(read_document(revealed / OPERATOR), OPERATOR).record
        return record.operator


# The second half of `tally demo`: serve an answer with a receipt, verify it, then serve it from a quantised model.

PROMPT = "The with statement is used "
TOKENS = 48
BITS = 4


def exported_model(run: Path, out: Path) -> TorchLanguageModel:
    """The model that the run trained, in a directory to serve from."""
    from tallystick.engines.torch.generation.language_models import load_language_model
    from tallystick.formats.store.run import RunDirectory
    from tallystick.recording.models import export_model

    export_model(RunDirectory(run), out)
    return load_language_model(out)


def quantised(promised: TorchLanguageModel) -> TorchLanguageModel:
    """What a cheating provider runs: the promised model with weights in few bits, under the promised card."""
    from tallystick.tally.attacks.provers import integer_weights

    return replace(promised, model=integer_weights(promised, BITS))


def served_answer(language_model: TorchLanguageModel, out: Path) -> SignedReceipt:
    """One sampled answer and its receipt, under a key made for it; the receipt is kept in the folder `out`."""
    from tallystick.formats.fingerprints import standard_fingerprints
    from tallystick.formats.receipt import Sampler
    from tallystick.formats.signing import SigningKey
    from tallystick.formats.store.receipts import ReceiptLog
    from tallystick.recording.generation import AnswerRequest, generate_plain
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    card = language_model.card
    settings = RecordSettings(standard_fingerprints(card.layers, card.dtype))
    with ReceiptIssuer(language_model, SigningKey.generate(), settings) as issuer:
        asked = AnswerRequest(sampler=Sampler(temperature=0.8, seed=7))
        answer = generate_plain(language_model, [language_model.encode_text(PROMPT)], TOKENS, [asked], issuer)[0]
    assert answer.issued is not None
    with ReceiptLog(out / "receipts.jsonl") as log:
        log.append(answer.issued.signed)
    return answer.issued.signed


def verified(signed: SignedReceipt, promised: TorchLanguageModel) -> ReceiptReport:
    """What a customer finds who holds the promised model and asked with a seed of its own."""
    from tallystick.audits.answers.policy import ReceiptPolicy
    from tallystick.audits.answers.sampler import SamplerRule
    from tallystick.audits.answers.verify import verify_receipt

    return verify_receipt(signed, promised, ReceiptPolicy(sampler=SamplerRule(seed="customer")))


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
    from tallystick.core.errors import UsageError
    from tallystick.core.lazy import require

    require("torch", "transformers", "tokenizers", "sqlalchemy")
    if out is not None and out.exists() and any(out.iterdir()):
        raise UsageError(f"{out}: not empty; choose another directory")
    with _stage(out) as stage:
        acts = list(_play(stage))
    _print(acts)
    if out is not None:
        _fill(out, acts)
    return 0 if all(act.as_expected for act in acts) else 1


@contextmanager
def _stage(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="tally-demo-") as folder:
        yield Path(folder)


def _play(stage: Path) -> Iterator[DemoRun]:
    from tallystick.tally.attacks.catalogue import find_attack
    from tallystick.tally.cli.output import talk

    honest = stage / "honest"
    talk().print("Training a small Llama-style model on the Python language reference …")
    _train(honest)
    yield _judge("honest run", honest, "accepted")
    for name in FRAUDS:
        attack = find_attack(name)
        talk().print(f"Fraud: {attack.change} …")
        attack.forge(honest, stage / name)
        yield _judge(name, stage / name, "rejected")
    yield from _serve(honest, stage / "model")
    yield from _dispute(stage)


def _serve(run: Path, out: Path) -> Iterator[DemoRun]:
    """Answer a question from the trained model, then from the same model in 4 bits under the same name."""
    from tallystick.tally.cli.output import talk

    talk().print("Serving an answer from the trained model, with a receipt …")
    promised = exported_model(run, out)
    scenes = (("honest answer", promised, "accepted"), ("quantised answer", quantised(promised), "rejected"))
    for title, provider, expected in scenes:
        signed, started = served_answer(provider, out.with_name(title.replace(" ", "-"))), time.perf_counter()
        report = verified(signed, promised)
        took = time.perf_counter() - started
        yield DemoRun(title, expected, report.outcome, _receipt_reason(signed, report), took, report.to_json())


def _dispute(stage: Path) -> Iterator[DemoRun]:
    """Make three claims with a bond: honest answers, answers with one layer swapped, a step at a wrong rate."""
    from tallystick.tally.cli.output import talk

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
    from importlib import resources

    import torch

    from tallystick.recording.training import read_config, train

    torch.set_num_threads(1)
    with resources.as_file(resources.files("tallystick") / "examples") as examples:
        config = read_config(examples / "demo.toml")
        train(config.recipe, config.source, out, capture_with=capture_with)


def _judge(title: str, run: Path, expected: str) -> DemoRun:
    from tallystick.audits.policy import Policy
    from tallystick.tally.auditing import audit

    started = time.perf_counter()
    result = audit(run, Policy(full=True))
    took = time.perf_counter() - started
    return DemoRun(title, expected, result.outcome, _reason(result), took, result.to_json(), run)


def _reason(result: AuditResult) -> str:
    from tallystick.verdicts.words import describe

    if result.objections:
        return describe(result.objections[0])
    return next(iter(result.verdict.unavailable), "all steps replayed bit for bit")


def _receipt_reason(signed: SignedReceipt, report: ReceiptReport) -> str:
    from tallystick.verdicts.words import describe

    if report.verdict.objections:
        return describe(report.verdict.objections[0])
    if report.verdict.unavailable:
        return report.verdict.unavailable[0]
    size = signed.receipt.fingerprint_bytes_per_token
    return f"{report.tokens} tokens explained by model and sampler, fingerprints of {size:.1f} bytes a token agree"


def _fill(out: Path, acts: list[DemoRun]) -> None:
    """Read everything that was kept into a workload database, for whoever wants to look."""
    from shlex import quote

    from tallystick.core.errors import UnavailableError
    from tallystick.core.lazy import require
    from tallystick.tally.cli.output import talk

    try:
        require("alembic", "fastapi", "jinja2")
    except UnavailableError as error:
        talk().print(f"all of it is in {out}; to look at it in a browser, {error}", soft_wrap=True)
        return
    _add_all(out, acts)
    talk().print(f"all of it is in a database: tally ui --db {quote(str(out / 'tally.db'))}", soft_wrap=True)


def _add_all(out: Path, acts: list[DemoRun]) -> None:
    from tallystick.core.canonical_json import encode
    from tallystick.core.files import write_atomically
    from tallystick.database.indexing.add import add_place
    from tallystick.database.indexing.audits import add_audit
    from tallystick.database.workload_database import WorkloadDatabase
    from tallystick.formats.store.run import RunDirectory
    from tallystick.tally.training import profile_step

    for run in out.glob("disputed"):  # the run that has a step graph
        profile_step(RunDirectory(run), PROFILED, run / "traces" / "replay")
    claimed = [each for each in sorted(out.iterdir()) if (each / "claim.json").is_file()]
    with WorkloadDatabase(out / "tally.db", writable=True) as database:
        for place in (*claimed, *sorted(out.glob("*-answer"))):
            add_place(database, place, tensors=place.name not in FRAUDS)  # the bytes of some are not the recorded ones
        for court in sorted(out.glob("*-dispute/coordinator.db")):
            add_place(database, court, court.parent.name)
        for act in acts:
            if act.report is not None:
                file = out / "reports" / f"{act.title.replace(' ', '-')}.json"
                write_atomically(file, encode(act.report))
                add_audit(database, act.report, str(file.absolute()), act.run)


def _print(acts: list[DemoRun]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from tallystick.tally.cli.output import page

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
