import numpy as np
import pytest

from tallystick.audits.answers.fingerprints import judge_fingerprints, unjudged_fingerprints, unseen_changes
from tallystick.audits.answers.limits import FingerprintRule, RowLimits, shipped_calibration
from tallystick.audits.answers.states import judge_states
from tallystick.audits.answers.subject import StatesChallenge
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.formats.hidden_states import commit_states
from tallystick.formats.receipt import Answer, EngineStatement, Receipt, Request, Sampler, Tokens
from tallystick.verdicts.fingerprints import make_fingerprint
from tests.support.limits import card_of

LAYERS, TOKENS, SIZE = (0, 1, 2), 130, 48
NONCE = bytes(32)
MODEL = {"dtype": "F32", "layers": 6, "width": 128}
RULE = FingerprintRule(
    rows=(
        RowLimits(**MODEL, place="block", tokens=1, largest=4e-3),
        RowLimits(**MODEL, place="block", tokens=32, largest=2e-3),
        RowLimits(**MODEL, place="block", tokens=1, layer_max=0, largest=1e-3),
        RowLimits(**MODEL, place="final", tokens=1, largest=4e-3),
        RowLimits(**MODEL, place="final", tokens=32, largest=2e-3),
        RowLimits(**MODEL, place="final", tokens=128, largest=1e-3),
    ),
)
CARD = card_of()


def states(seed=0, tokens=TOKENS):
    rng = np.random.default_rng(seed)
    return {layer: rng.normal(0, 1 + layer, (tokens, SIZE)).astype(np.float32) for layer in LAYERS}


def noisy(rows, share, seed=9):
    rng = np.random.default_rng(seed)
    return {k: v * (1 + share * rng.normal(size=v.shape)).astype(np.float32) for k, v in rows.items()}


def receipt_of(rows, *settings, tokens=None):
    none = digest("blob", b"")
    count = len(next(iter(rows.values()))) if tokens is None else tokens
    return Receipt(
        model=none,
        request=Request(id="r", prompt=Tokens.of([1]), max_tokens=count),
        answer=Answer(tokens=Tokens.of([1] * count), finish="length"),
        sampler=Sampler(),
        engine=EngineStatement(name="e", version="1", device="cpu", attention="eager", environment=none),
        fingerprints=tuple(make_fingerprint(rows, each) for each in settings),
        sequence=1,
    )


def chosen(layers=(2,), width=15, **changes):
    return FingerprintSettings(layers=layers, width=width, **changes)


def outcome(claimed, own, *settings, rule=RULE):
    findings = judge_fingerprints(receipt_of(claimed, *settings), lambda _: own, rule, CARD)
    assert findings
    return all(each.agrees for each in findings)


@pytest.mark.parametrize("share", [0.0, 1e-4, 5e-4])
def test_noise_within_the_limits_is_accepted(share):
    assert outcome(noisy(states(), share), states(), chosen(), chosen(LAYERS))


@pytest.mark.parametrize("share", [4e-3, 0.02, 0.5])
def test_noise_beyond_them_is_rejected(share):
    assert not outcome(noisy(states(), share), states(), chosen())


def test_one_outlier_block_is_forgiven_and_a_gross_one_is_not():
    for share, is_accepted in ((1.2e-3, True), (0.02, False)):
        claimed = noisy(states(), 1e-4)
        claimed[2][32:64] = noisy(states(), share)[2][32:64]
        findings = judge_fingerprints(receipt_of(claimed, chosen()), lambda _: states(), RULE, CARD)
        assert all(each.agrees for each in findings) == is_accepted
        assert findings[-1].where == "layer 2, answer tokens 32 to 63"


def test_many_blocks_that_are_each_within_the_limit_are_rejected_together():
    findings = judge_fingerprints(receipt_of(noisy(states(), 1.4e-3), chosen()), lambda _: states(), RULE, CARD)
    assert [(each.agrees, each.where[:15]) for each in findings] == [
        (False, "layer 2, all 13"),
        (True, "layer 2, answer"),
    ]
    assert outcome(noisy(states(), 5e-4), states(), chosen())


def test_right_layers_do_not_cover_for_one_that_is_not():
    """Which layers there are, the receipt says: every layer has a finding of its own."""
    for share, is_accepted in ((1.4e-3, False), (5e-4, True)):
        claimed = states()
        claimed[2] = noisy(states(), share)[2]
        findings = judge_fingerprints(receipt_of(claimed, chosen((1, 2))), lambda _: states(), RULE, CARD)
        assert {each.where: each.agrees for each in findings[:-1]} == {
            "layer 1, all 130 answer tokens": True,
            "layer 2, all 130 answer tokens": is_accepted,
        }


def test_few_numbers_are_given_the_chance_of_their_directions():
    """Of honest rows at the largest distance, one projection in a million is beyond the limit: here none of 2,000."""
    seen = RULE.rows[0].model_copy(update={"largest": 1e-3, "honest_largest": 1e-3})
    assert seen.allowed(7) == pytest.approx(2.4e-3, rel=0.03)  # √(40.5 / 7)
    assert seen.allowed(1000) == pytest.approx(1.11e-3, rel=0.01)
    assert seen.allowed(7, margin=2.0) == 2 * seen.allowed(7)
    sums = np.random.default_rng(0).normal(0, 1e-3, (2000, 7))
    assert np.sqrt(np.square(sums).mean(axis=1)).max() < seen.allowed(7)


def test_tokens_that_are_too_few_are_named_with_how_many_would_do():
    wide = RULE.model_copy(
        update={"rows": (RULE.rows[3].model_copy(update={"largest": 0.025, "honest_largest": 0.025}),)}
    )
    few, many = (receipt_of({2: states(tokens=count)[2]}, chosen(width=7)) for count in (32, 130))
    assert unjudged_fingerprints(few, wide, CARD) == (
        "fingerprint 0: layer 2: 32 tokens are too few to tell honest 7 numbers of 8 bits in F32 from others: 96 do",
    )
    assert unjudged_fingerprints(many, wide, CARD) == ()
    foreign = receipt_of({2: states(1)[2]}, chosen(width=7))
    assert not all(each.agrees for each in judge_fingerprints(foreign, lambda _: states(), wide, CARD))


def test_the_report_says_which_changes_nothing_here_shows():
    line = unseen_changes(receipt_of(states(), chosen((0, 2))), RULE, CARD)
    assert line.startswith(
        "fingerprint: changes of less than 0.0022 of the norm of layer 0, 0.0022 of the norm of layer 2"
    )
    fine = unseen_changes(receipt_of(states(), chosen((0, 2), grid=14)), RULE, CARD)
    assert fine.startswith("fingerprint: changes of less than 0.0012 of the norm of layer 0")
    assert unseen_changes(receipt_of(states(), chosen()), RULE, card_of("BF16")) == ""


def test_the_report_says_whether_a_coarse_output_matrix_would_be_seen():
    logits = CARD.layers + 1
    for largest, is_seen in ((5e-3, True), (0.03, False)):
        limits = RULE.rows[3].model_copy(update={"place": "logits", "largest": largest, "honest_largest": largest / 2})
        rule = RULE.model_copy(update={"rows": (limits,)})
        line = unseen_changes(receipt_of({logits: states()[2]}, chosen((logits,), grid=8)), rule, CARD)
        assert line.startswith("fingerprint: changes of less than")
        assert ("output matrix in 8 bits by row" in line) != is_seen


def test_a_short_last_block_has_its_own_limit():
    claimed = states(tokens=33)
    claimed[2][32] *= 1 + 0.003 * np.random.default_rng(1).normal(size=SIZE).astype(np.float32)
    assert outcome(claimed, states(tokens=33), chosen())
    claimed[2][:32] = claimed[2][:32] * (1 + 0.003 * np.random.default_rng(2).normal(size=(32, SIZE)))
    assert not outcome(claimed, states(tokens=33), chosen())


def test_the_first_layers_have_their_own_limits():
    for layer, is_accepted in ((0, False), (2, True)):
        claimed = states(tokens=32)
        claimed[layer] = noisy({layer: claimed[layer]}, 2e-3)[layer]
        assert outcome(claimed, states(tokens=32), chosen((layer,))) == is_accepted


def test_a_margin_widens_all_limits():
    claimed = noisy(states(), 4e-3)
    assert not outcome(claimed, states(), chosen())
    assert outcome(claimed, states(), chosen(), rule=RULE.model_copy(update={"margin": 5.0}))


@pytest.mark.parametrize("tokens", [TOKENS - 1, TOKENS + 1, 0])
def test_a_fingerprint_of_another_number_of_tokens_is_malformed(tokens):
    assert outcome(states(), states(), chosen())
    with pytest.raises(MalformedError, match=r"fingerprints\.0\.tokens"):
        judge_fingerprints(receipt_of(states(), chosen(), tokens=tokens), lambda _: states(), RULE, CARD)
    with pytest.raises(MalformedError, match=r"fingerprint\.tokens"):
        judge_fingerprints(receipt_of(states(), chosen()), lambda _: states(tokens=tokens), RULE, CARD)


def test_a_malformed_fingerprint_names_its_field():
    receipt = receipt_of(states(), chosen())
    for change, message in (
        ({"data": receipt.fingerprints[0].data[:-4]}, r"fingerprint\.data"),
        ({"data": "?"}, r"fingerprint\.data"),
        ({"layers": (2, 1)}, "layers"),
        ({"layers": (9,)}, "layer 9|fingerprint.tokens"),
        ({"seed": None}, "seed"),
        ({"grid": 10}, "grid"),
        ({"block": 2000}, "block"),
        ({"method": "toploc"}, "TOPLOC"),
    ):
        broken = receipt.fingerprints[0].model_copy(update=change)
        with pytest.raises(MalformedError, match=message):
            judge_fingerprints(receipt.model_copy(update={"fingerprints": (broken,)}), lambda _: states(), RULE, CARD)


def test_what_has_no_limits_is_named_and_gives_no_finding():
    receipt = receipt_of({**states(), 3: states()[2]}, chosen((2, 3)), chosen(bits=1), chosen())
    assert len(judge_fingerprints(receipt, lambda _: {**states(), 3: states()[2]}, RULE, CARD)) == 5
    assert [line[:44] for line in unjudged_fingerprints(receipt, RULE, CARD)] == [
        "fingerprint 0: no limits were measured for l"
    ]
    assert unjudged_fingerprints(receipt_of(states(), chosen()), RULE, CARD) == ()
    assert len(unjudged_fingerprints(receipt, RULE, card_of("BF16"))) == 3
    assert "calibrat" in unjudged_fingerprints(receipt, RULE, card_of("BF16"))[0]


def test_limits_that_chance_codes_meet_too_count_as_none():
    wide = RULE.model_copy(update={"margin": 70.0})
    receipt = receipt_of(states(1), chosen())
    assert judge_fingerprints(receipt, lambda _: states(), wide, CARD) == ()
    assert unjudged_fingerprints(receipt, wide, CARD)
    assert not unjudged_fingerprints(receipt, RULE.model_copy(update={"margin": 3.0}), CARD)


@pytest.mark.parametrize(
    ("largest", "grid", "is_judged"),
    [(2e-3, 9, True), (1e-3, 9, False), (1e-3, None, True), (1e-5, None, True), (1e-5, 16, True), (1e-2, 16, False)],
    ids=["coarse", "too coarse", "usual", "usual, small limits", "fine", "fine, beyond its reach"],
)
def test_a_grid_that_hides_what_the_limit_is_to_show_gives_no_verdict(largest, grid, is_judged):
    rows = tuple(each.model_copy(update={"largest": largest, "honest_largest": largest / 10}) for each in RULE.rows)
    rule = RULE.model_copy(update={"rows": rows})
    receipt = receipt_of(states(1), chosen(grid=grid))
    findings = judge_fingerprints(receipt, lambda _: states(), rule, CARD)
    lines = unjudged_fingerprints(receipt, rule, CARD)
    assert (bool(findings), not lines) == (is_judged, is_judged)
    assert not any(each.agrees for each in findings)
    if grid == 9 and not is_judged:
        assert lines == ("fingerprint 0: layer 2: a grid of 0.002 of the norm is too coarse for a limit of 0.001",)


def test_a_coarser_grid_judges_fewer_tokens():
    """Honest distances near the reach of the usual grid, as those of a deep model in bfloat16."""
    wide = RULE.model_copy(
        update={"rows": (RULE.rows[3].model_copy(update={"largest": 0.025, "honest_largest": 0.025}),)}
    )
    for grid, is_judged in ((None, False), (8, True)):
        few = receipt_of({2: states(1, tokens=8)[2]}, chosen(width=7, grid=grid))
        findings = judge_fingerprints(few, lambda _: states(tokens=8), wide, CARD)
        assert (bool(findings), not unjudged_fingerprints(few, wide, CARD)) == (is_judged, is_judged)
        assert not any(each.agrees for each in findings)
    honest = receipt_of(noisy(states(tokens=8), 0.02), chosen(width=7, grid=8))
    assert all(each.agrees for each in judge_fingerprints(honest, lambda _: states(tokens=8), wide, CARD))


def test_own_states_that_are_not_finite_judge_nobody():
    own = states()
    own[2][7, 7] = np.inf
    with pytest.raises(UnavailableError, match="layer 2"):
        judge_fingerprints(receipt_of(states(), chosen()), lambda _: own, RULE, CARD)


def test_toploc_is_judged_by_the_published_thresholds():
    settings = FingerprintSettings.toploc(2)
    for claimed, is_accepted in ((noisy(states(), 1e-3), True), (noisy(states(), 0.2), False), (states(1), False)):
        findings = judge_fingerprints(receipt_of(claimed, settings), lambda _: states(), RULE, card_of("BF16"))
        assert [each.agrees for each in findings] == [is_accepted]
    assert outcome({2: -states()[2]}, states(), settings)  # blind to signs, which the finding says
    assert "blind to signs" in findings[0].detail
    assert unjudged_fingerprints(receipt_of(states(), settings), RULE, card_of("F16"))


def challenged(committed, count):
    return StatesChallenge(NONCE, count, committed.open(NONCE, count))


def test_states_opened_for_a_nonce_are_judged_by_rows_layers_and_fresh_directions():
    committed = commit_states(noisy(states(), 5e-4), LAYERS, 32)
    findings = judge_states(challenged(committed, 6), committed.statement, states(), RULE, CARD)
    assert [each.agrees for each in findings] == [True] * 6
    assert all(each.where.endswith("opened rows") for each in findings[2:5])
    assert {each.name for each in findings} == {"states"}


def test_one_foreign_row_is_seen_among_many():
    """Another word of a prompt: one row is foreign, which the distance of its block hides."""
    rows = {layer: each.copy() for layer, each in states().items()}
    allowed = RULE.limits_for(CARD, LAYERS[0], 1).largest
    for each in rows.values():
        each[5] *= 1.0 + 2.0 * RULE.margin * allowed
    for claimed, is_seen in ((rows, True), (states(), False)):
        committed = commit_states(claimed, LAYERS, 32)
        findings = judge_states(challenged(committed, 6), committed.statement, states(), RULE, CARD)
        assert any(each.detail == "one row" and not each.agrees for each in findings) == is_seen


@pytest.mark.parametrize(
    "claimed",
    [
        noisy(states(), 0.01),
        {layer: -each for layer, each in states().items()},
        {layer: np.roll(each, 1, 0) for layer, each in states().items()},
        states(1),
        {**states(), **{layer: np.full((TOKENS, SIZE), np.nan, np.float32) for layer in LAYERS}},
        {**states(), **{layer: np.full((TOKENS, SIZE), np.inf, np.float32) for layer in LAYERS}},
    ],
    ids=["noisy", "negated", "shifted", "foreign", "nan", "inf"],
)
def test_states_that_are_others_are_rejected(claimed):
    committed = commit_states(claimed, LAYERS, 32)
    findings = judge_states(challenged(committed, 4), committed.statement, states(), RULE, CARD)
    assert not all(each.agrees for each in findings)


@pytest.mark.parametrize(("dtype", "bits"), [("F32", 0x7F810000), ("F16", 0x7D00), ("BF16", 0x7F81)])
def test_signalling_nans_are_rejected_quietly(dtype, bits):
    form = np.uint32 if dtype == "F32" else np.uint16
    bad = Tensor(dtype, (TOKENS, SIZE), np.full((TOKENS, SIZE), bits, form).tobytes())
    committed = commit_states(dict.fromkeys(LAYERS, bad), LAYERS, 32)
    findings = judge_states(challenged(committed, 4), committed.statement, states(), RULE, CARD)
    assert not any(each.agrees for each in findings)


def test_an_opening_that_shows_nothing_is_rejected_with_the_reason():
    committed = commit_states(states(), LAYERS, 32)
    for opening, nonce in ((committed.open(NONCE, 3), NONCE), (committed.open(NONCE, 4), b"another")):
        findings = judge_states(StatesChallenge(nonce, 4, opening), committed.statement, states(), RULE, CARD)
        assert [each.agrees for each in findings] == [False]
        assert "states opening" in findings[0].detail


def test_states_of_other_rows_or_another_width_are_malformed():
    committed = commit_states(states(), LAYERS, 32)
    challenge = challenged(committed, 4)
    with pytest.raises(MalformedError, match=r"states\.rows"):
        judge_states(challenge, committed.statement, states(tokens=TOKENS - 1), RULE, CARD)
    narrow = {layer: each[:, :24] for layer, each in states().items()}
    with pytest.raises(MalformedError, match="48 wide; the model is 24"):
        judge_states(challenge, committed.statement, narrow, RULE, CARD)
    with pytest.raises(UnavailableError, match="no limits were measured for 2 layers of width 48 in BF16"):
        judge_states(challenge, committed.statement, states(), RULE, card_of("BF16"))


def test_the_shipped_limits_lie_above_what_was_honest_and_below_what_others_show():
    table = shipped_calibration()
    assert {(each.dtype, each.place) for each in table.rows} == {
        (dtype, place) for dtype in ("F32", "BF16", "F16") for place in ("block", "final", "logits")
    }
    assert all(each.honest_largest < each.largest for each in table.rows)
    rule = FingerprintRule()
    assert outcome(noisy(states(), 1e-6), states(), chosen(), rule=rule)
    assert not outcome(noisy(states(), 1e-3), states(), chosen(), rule=rule)
