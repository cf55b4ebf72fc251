"""The rungs above the token test and the fingerprints: one layer by its operators, and the exact replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tallystick.audits.answers import ladder
from tallystick.audits.answers.ladder import Replay, Tools, climb
from tallystick.audits.answers.layer import bounded_outputs
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.response import Response
from tallystick.audits.answers.subject import ReceiptContext, StatesChallenge
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.engines.torch.generation.language_models import capture_layer
from tallystick.formats.hidden_states import commit_states

NONCE = bytes(range(16))
EVERYTHING = 1024


@dataclass(frozen=True)
class Stub:
    """A replayer that gives what it is told to give."""

    environment: Any
    found: Any
    engine: Any

    def replay(self, receipt: Any, prompt: tuple[int, ...]) -> Replay:
        if isinstance(self.found, Exception):
            raise self.found
        assert prompt
        return self.found


@pytest.fixture(scope="module")
def environment(one_thread: None) -> Any:
    from tallystick.engines.torch.environment import describe_environment

    return describe_environment("cpu")


@pytest.fixture(scope="module")
def replayer(language_model: Any) -> Any:
    from tallystick.tally.answers import PlainReplayer

    return PlainReplayer(language_model)


@pytest.fixture(scope="module")
def layers(language_model: Any) -> Callable[..., Any]:
    held: dict[Any, Any] = {}

    def source(tokens: tuple[int, ...], layer: int) -> Any:
        if (tokens, layer) not in held:
            held[tokens, layer] = capture_layer(language_model, tokens, layer)
        return held[tokens, layer]

    return source


@pytest.fixture(scope="module")
def opened(honest_answer: Any) -> ReceiptContext:
    """The honest receipt with every committed state opened."""
    states = honest_answer.issued.states
    challenge = StatesChallenge(NONCE, EVERYTHING, states.open(NONCE, EVERYTHING))
    return ReceiptContext(Response(receipt=honest_answer.issued.signed), challenge=challenge)


def layer_findings(report: Any) -> list[Any]:
    return [finding for finding in report.findings if finding.name == "layer"]


@pytest.fixture(scope="module")
def strict(short_policy: Any) -> ReceiptPolicy:
    """A policy for which sixteen tokens are too few."""
    return short_policy.model_copy(update={"sampler": ReceiptPolicy().sampler})


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_every_layer_of_an_honest_answer_lies_within_its_bounds(
    opened: ReceiptContext, language_model: Any, short_policy: Any, layers: Any, layer: int
) -> None:
    report = climb(opened, language_model, short_policy, 3, Tools(layers=layers, layer=layer))
    bound, share, *towards = layer_findings(report)
    assert report.outcome == "accepted", report.verdict
    assert report.rung == 3
    assert 0 < bound.distance <= 1
    assert 0 < share.distance < share.allowed / 10
    assert len(towards) == (3 if layer < 2 else 0)  # a final norm multiplies by no matrix
    assert all(each.distance < 0.01 for each in towards)
    assert report.rung_costs[3].seconds > 0
    assert report.rung_costs[3].bytes > 0


def test_without_a_wish_the_nonce_chooses_the_layer(
    opened: ReceiptContext, language_model: Any, short_policy: Any, layers: Any
) -> None:
    first, again = (climb(opened, language_model, short_policy, 3, Tools(layers=layers)) for _ in range(2))
    assert [finding.where for finding in layer_findings(first)] == [finding.where for finding in layer_findings(again)]


def with_states(
    answer: Any, resigned: Callable[..., Any], change: Callable[[dict[int, np.ndarray]], None], **settings: Any
) -> ReceiptContext:
    """The receipt committed to other states than those computed, and its opening."""
    committed = answer.issued.states
    rows = {layer: np.array(tensor.values(), np.float32) for layer, tensor in committed.states.items()}
    change(rows)
    forged = commit_states(rows, tuple(rows), 8, prompt=settings.get("prompt", True))
    signed = resigned(answer.issued.signed, {"states": forged.statement.to_json()})
    challenge = StatesChallenge(NONCE, EVERYTHING, forged.open(NONCE, EVERYTHING))
    return ReceiptContext(Response(receipt=signed), challenge=challenge)


def skip(rows: dict[int, np.ndarray]) -> None:
    rows[1] = rows[0].copy()


def nudge(rows: dict[int, np.ndarray]) -> None:
    rows[1][5] *= np.float32(1.001)


def turn_a_sign(rows: dict[int, np.ndarray]) -> None:
    rows[1][3, 7] *= -1


def round_coarsely(rows: dict[int, np.ndarray]) -> None:
    rows[1] = (rows[1].view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize("change", [skip, nudge, turn_a_sign, round_coarsely])
def test_a_layer_that_was_not_computed_is_rejected(
    honest_answer: Any,
    resigned: Callable[..., Any],
    language_model: Any,
    short_policy: Any,
    layers: Any,
    change: Callable[..., None],
) -> None:
    forged = with_states(honest_answer, resigned, change)
    report = climb(forged, language_model, short_policy, 3, Tools(layers=layers, layer=1))
    assert any(not finding.agrees for finding in layer_findings(report))
    assert report.outcome == "rejected"
    untouched = with_states(honest_answer, resigned, lambda rows: None)
    assert climb(untouched, language_model, short_policy, 3, Tools(layers=layers, layer=1)).outcome == "accepted"


def test_a_quantised_layer_is_rejected_by_the_theorem_and_by_the_calibration(
    opened: ReceiptContext, language_model: Any, short_policy: Any, layers: Any
) -> None:
    """As if the provider's weights were the promised ones, and the verifier's the quantised ones: it is symmetric."""
    from tallystick.core.tensors import Tensor

    def quantised(tokens: tuple[int, ...], layer: int) -> Any:
        honest = layers(tokens, layer)
        bindings = {
            name: Tensor.of(int8(tensor.array())) if name.endswith("proj.weight") else tensor
            for name, tensor in honest.bindings.items()
        }
        return replace(honest, bindings=bindings)

    report = climb(opened, language_model, short_policy, 3, Tools(layers=quantised, layer=1))
    assert [finding.agrees for finding in layer_findings(report)][:2] == [False, False]


def int8(weights: np.ndarray) -> np.ndarray:
    scale = np.abs(weights).max(axis=1, keepdims=True) / 127
    return (np.rint(weights / scale) * scale).astype(np.float32)


def test_what_is_not_opened_cannot_be_judged(
    honest_answer: Any,
    answered: Callable[..., Any],
    opened: ReceiptContext,
    resigned: Callable[..., Any],
    language_model: Any,
    short_policy: Any,
    layers: Any,
) -> None:
    def reason(subject: ReceiptContext, **tools: Any) -> str:
        report = climb(subject, language_model, short_policy, 3, Tools(**{"layers": layers, **tools}))
        assert report.outcome == "inconclusive"
        return str(report.missing[-1])

    assert "not opened" in reason(replace(opened, challenge=None))
    assert "layer 7 is not opened" in reason(opened, layer=7)
    assert "captures a layer" in reason(opened, layers=None)
    few = StatesChallenge(NONCE, 2, honest_answer.issued.states.open(NONCE, 2))
    assert "no layer is opened in full" in reason(replace(opened, challenge=few))

    def refuse(tokens: tuple[int, ...], layer: int) -> Any:
        raise UnavailableError("no such operator")

    assert "no such operator" in reason(opened, layers=refuse)


def test_states_of_the_answer_alone_do_not_open_a_layer(
    answered: Callable[..., Any], language_model: Any, short_policy: Any, layers: Any
) -> None:
    from tallystick.recording.receipts import RecordSettings

    answer = answered(settings=RecordSettings(committed=(0, 1), block=8))
    challenge = StatesChallenge(NONCE, 8, answer.issued.states.open(NONCE, 8))
    subject = ReceiptContext(Response(receipt=answer.issued.signed), challenge=challenge)
    report = climb(subject, language_model, short_policy, 3, Tools(layers=layers))
    assert any("the prompt's too" in str(each) for each in report.missing)


def test_an_opening_for_another_nonce_is_rejected(
    opened: ReceiptContext, language_model: Any, short_policy: Any, layers: Any
) -> None:
    assert opened.challenge is not None
    wrong = replace(opened, challenge=replace(opened.challenge, nonce=bytes(16)))
    report = climb(wrong, language_model, short_policy, 3, Tools(layers=layers))
    assert {"states", "layer"} == {finding.name for finding in report.verdict.objections}


def test_bounds_hold_for_a_whole_layer(language_model: Any, layers: Any) -> None:
    """The enclosed result of the first layer holds what this machine computes, and no radius is infinite."""
    tokens = tuple(language_model.encode_text("halves"))
    program = layers(tokens, 0)
    [found] = bounded_outputs(program.graph, program.bindings).values()
    computed = language_model.prefill(tokens, 0, [0]).hidden[0]
    assert (np.abs(computed - found.centre[0]) <= found.radius[0]).all()
    assert np.isfinite(found.radius).all()


def test_states_kept_in_fewer_bits_convict_nobody_and_clear_nobody(
    honest_answer: Any, language_model: Any, short_policy: Any, resigned: Callable[..., Any], layers: Any
) -> None:
    from tallystick.core.tensors import Tensor, round_to_bfloat16

    committed = honest_answer.issued.states
    rows = {
        layer: Tensor("BF16", each.shape, round_to_bfloat16(np.array(each.values(), np.float32)).tobytes())
        for layer, each in committed.states.items()
    }
    kept = commit_states(rows, tuple(rows), 8, prompt=True)
    signed = resigned(honest_answer.issued.signed, {"states": kept.statement.to_json()})
    subject = ReceiptContext(
        Response(receipt=signed), challenge=StatesChallenge(NONCE, EVERYTHING, kept.open(NONCE, EVERYTHING))
    )
    for layer in range(3):
        report = climb(subject, language_model, short_policy, 3, Tools(layers=layers, layer=layer))
        assert report.outcome == "inconclusive", report.verdict
        assert {each.check for each in report.missing} == {"states", "layer"}
    other = StatesChallenge(NONCE, EVERYTHING, committed.open(NONCE, EVERYTHING))
    false = climb(replace(subject, challenge=other), language_model, short_policy, 2)
    assert {each.name for each in false.verdict.objections} == {"states"}


def test_the_exact_replay_settles_what_too_few_tokens_left_open(
    honest_answer: Any, language_model: Any, strict: ReceiptPolicy, replayer: Any
) -> None:
    subject = ReceiptContext(Response(receipt=honest_answer.issued.signed))
    assert climb(subject, language_model, strict, 2).outcome == "inconclusive"
    for rung in (4, None):
        report = climb(subject, language_model, strict, rung, Tools(replayer=replayer))
        assert report.outcome == "accepted", report.verdict
        assert report.rung == 4
        assert [finding.where for finding in report.findings if "replay" in finding.name] == ["tokens", "hidden states"]
        assert report.answers["same precision"] == "yes"
        assert any("settled by exact replay" in line for line in report.not_checked)


@pytest.mark.parametrize(
    "left_out", [{"fingerprints": None, "states": None}, {"fingerprints": "early", "states": None}]
)
def test_replayed_tokens_are_no_fingerprints(
    honest_answer: Any,
    language_model: Any,
    short_policy: Any,
    resigned: Callable[..., Any],
    replayer: Any,
    left_out: dict[str, Any],
) -> None:
    """Fewer bits choose the same tokens: a receipt that leaves out what shows them is not accepted for that."""
    from tallystick.formats.fingerprints import FingerprintSettings
    from tallystick.verdicts.fingerprints import make_fingerprint

    rows = honest_answer.issued.states.states[0].values()[-16:]
    early = make_fingerprint({0: np.array(rows, np.float32)}, FingerprintSettings(layers=(0,), block=8)).to_json()
    changes = {path: [early] if value == "early" else value for path, value in left_out.items()}
    subject = ReceiptContext(Response(receipt=resigned(honest_answer.issued.signed, changes)))
    for rung in (4, None):
        report = climb(subject, language_model, short_policy, rung, Tools(replayer=replayer))
        assert report.outcome == "inconclusive"
        assert "carries no projection of the final norm" in str(report.missing[0])
    waived = short_policy.model_copy(update={"demands": ()})
    report = climb(subject, language_model, waived, 4, Tools(replayer=replayer))
    assert report.outcome == "accepted"
    if changes["fingerprints"] is None:
        assert report.answers["same precision"] == "unknown"


def test_the_ladder_is_not_climbed_without_need(
    opened: ReceiptContext, language_model: Any, short_policy: Any, layers: Any, replayer: Any
) -> None:
    tools = Tools(layers=layers, replayer=replayer)
    assert climb(opened, language_model, short_policy, None, tools).rung == 2
    assert climb(opened, language_model, short_policy, 1, tools).rung == 1
    assert climb(opened, language_model, short_policy, 4, tools).rung == 4


def test_in_doubt_the_ladder_is_climbed_as_far_as_the_material_goes(
    opened: ReceiptContext, language_model: Any, strict: ReceiptPolicy, layers: Any, replayer: Any, environment: Any
) -> None:
    assert climb(opened, language_model, strict, None, Tools(layers=layers)).rung == 3
    assert climb(opened, language_model, strict, None, Tools(layers=layers, replayer=replayer)).rung == 4
    elsewhere = Stub(environment.model_copy(update={"cpu": "another"}), None, replayer.engine)
    assert climb(opened, language_model, strict, None, Tools(replayer=elsewhere)).rung == 2


def test_a_rejected_receipt_goes_no_higher_by_itself(
    honest_answer: Any, language_model: Any, strict: ReceiptPolicy, resigned: Callable[..., Any], replayer: Any
) -> None:
    forged = ReceiptContext(Response(receipt=resigned(honest_answer.issued.signed, {"sampler.seed": 4})))
    report = climb(forged, language_model, strict, None, Tools(replayer=replayer))
    assert (report.outcome, report.rung) == ("rejected", 2)
    other_model = resigned(honest_answer.issued.signed, {"model": "sha256:" + "0" * 64})
    assert (
        climb(ReceiptContext(Response(receipt=other_model)), language_model, strict, 4, Tools(replayer=replayer)).rung
        == 2
    )


def test_another_stack_or_a_batch_cannot_be_replayed(
    honest_answer: Any,
    language_model: Any,
    short_policy: Any,
    environment: Any,
    replayer: Any,
    resigned: Callable[..., Any],
) -> None:
    def reasons(signed: Any, tools: Tools) -> str:
        report = climb(ReceiptContext(Response(receipt=signed)), language_model, short_policy, 4, tools)
        assert report.outcome == "inconclusive"
        return "; ".join(map(str, report.missing))

    elsewhere = environment.model_copy(update={"torch": "9.9", "threads": 64})
    signed = honest_answer.issued.signed
    foreign = resigned(signed, {"engine.environment": str(elsewhere.digest_as("environment"))})
    assert "give the provider's environment" in reasons(foreign, Tools(replayer=replayer))
    named = reasons(foreign, Tools(replayer=replayer, environment=elsewhere))
    assert "torch" in named
    assert "threads" in named
    for change in ({"engine.attention": "eager"}, {"engine.name": "vllm"}):
        assert "another engine" in reasons(resigned(signed, change), Tools(replayer=replayer))
    batched = resigned(signed, {"batch.largest": 3})
    assert "batch of up to 3" in reasons(batched, Tools(replayer=replayer))
    assert "nothing here generates" in reasons(signed, Tools())
    assert "no room" in reasons(signed, Tools(replayer=Stub(environment, UnavailableError("no room"), replayer.engine)))


def test_an_environment_that_is_not_the_receipts_is_rejected(
    honest_answer: Any, language_model: Any, short_policy: Any, environment: Any, replayer: Any
) -> None:
    subject = ReceiptContext(Response(receipt=honest_answer.issued.signed))
    other = environment.model_copy(update={"torch": "9.9"})
    report = climb(subject, language_model, short_policy, 4, Tools(replayer=replayer, environment=other))
    assert [finding.name for finding in report.verdict.objections] == ["replay"]
    fine = climb(subject, language_model, short_policy, 4, Tools(replayer=replayer, environment=environment))
    assert fine.outcome == "accepted"


def test_other_tokens_after_the_same_bits_convict_and_other_bits_do_not(
    honest_answer: Any, language_model: Any, short_policy: Any, environment: Any
) -> None:
    receipt = honest_answer.issued.signed.receipt
    subject = ReceiptContext(Response(receipt=honest_answer.issued.signed))
    other = (*honest_answer.tokens[:12], 5, 5, 5, 5)

    def judged(tokens: tuple[int, ...], fingerprints: Any, policy: ReceiptPolicy = short_policy) -> Any:
        stub = Stub(environment, Replay(tokens, fingerprints, receipt.states), receipt.engine)
        return climb(subject, language_model, policy, 4, Tools(replayer=stub))

    convicted = judged(other, receipt.fingerprints)
    assert [finding.where for finding in convicted.verdict.objections] == ["token 12"]
    assert judged(other, ()).outcome == "inconclusive"
    assert judged(honest_answer.tokens, ()).outcome == "inconclusive"
    assert judged(honest_answer.tokens, receipt.fingerprints).outcome == "accepted"
    strict = short_policy.model_copy(update={"replay": "bits"})
    for tokens in (other, honest_answer.tokens):
        assert [each.where for each in judged(tokens, (), strict).verdict.objections] == ["hidden states"]
    assert judged(honest_answer.tokens, receipt.fingerprints, strict).outcome == "accepted"


@pytest.mark.parametrize("is_old", [False, True])
def test_packages_that_compute_nothing_do_not_keep_from_a_replay(
    honest_answer: Any,
    language_model: Any,
    strict: ReceiptPolicy,
    environment: Any,
    replayer: Any,
    resigned: Callable[..., Any],
    is_old: bool,
) -> None:
    """An older receipt names the whole environment, packages and all: then the provider's has to be given."""
    other = environment.model_copy(update={"python": "3.12.1", "packages": {**environment.packages, "rich": "99"}})
    named = other.digest_as("environment") if is_old else other.stack_digest
    subject = ReceiptContext(Response(receipt=resigned(honest_answer.issued.signed, {"engine.environment": named})))
    for given in (other, *([] if is_old else [None])):
        report = climb(subject, language_model, strict, 4, Tools(replayer=replayer, environment=given))
        assert report.outcome == "accepted", report.verdict
    if is_old:
        assert climb(subject, language_model, strict, 4, Tools(replayer=replayer)).outcome == "inconclusive"


def test_an_output_matrix_that_was_replaced_is_convicted_by_its_tokens(
    honest_answer: Any, language_model: Any, short_policy: Any, environment: Any
) -> None:
    """The hidden states have the same bits, the logits others, and so the tokens."""
    from tallystick.formats.fingerprints import standard_fingerprints
    from tallystick.verdicts.fingerprints import make_fingerprint

    receipt, final = honest_answer.issued.signed.receipt, language_model.card.layers
    [settings] = standard_fingerprints(final, "F32", (0, final, final + 1))
    rng = np.random.default_rng(0)
    rows = {layer: rng.normal(size=(48, 64)).astype(np.float32) for layer in (0, final, final + 1)}
    own = make_fingerprint(rows, settings)
    held = {"fingerprints": (make_fingerprint(rows | {final + 1: rows[0] + rows[final]}, settings),)}
    blocks = ladder._same_prefix(receipt.model_copy(update=held), Replay((), (own,)), 40, final)
    assert blocks == 32
    held = {"fingerprints": (make_fingerprint(rows | {final: rows[0]}, settings),)}
    assert ladder._same_prefix(receipt.model_copy(update=held), Replay((), (own,)), 40, final) == 0


def test_a_rung_that_is_not_there_is_refused(opened: ReceiptContext, language_model: Any) -> None:
    with pytest.raises(UsageError, match="rung 5"):
        climb(opened, language_model, None, 5)
