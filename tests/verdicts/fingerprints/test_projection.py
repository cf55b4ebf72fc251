import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.formats.fingerprints import FingerprintSettings, reach, standard_fingerprints
from tallystick.verdicts.fingerprints import block_norms, encode_rows, measure, residuals, summarise, wire_bytes

BITS = (32, 8, 4, 1)
TOKENS, SIZE = 70, 48


def states(seed=0, layers=(1, 3), tokens=TOKENS):
    rng = np.random.default_rng(seed)
    return {layer: rng.normal(0, 2 + layer, (tokens, SIZE)).astype(np.float32) for layer in layers}


def settings_with(bits=8, **changes):
    return FingerprintSettings(**{"layers": (1, 3), "block": 32, "width": 24, "bits": bits, **changes})


def largest(claimed, own, chosen):
    return max(each.distance for each in measure(encode_rows(claimed, chosen), own, chosen))


def test_numbers_are_signed_sums_over_tokens_and_dimensions():
    rows, chosen = states()[3], settings_with(block=3, width=5)
    from tallystick.verdicts.fingerprints import direction_signs, position_signs

    r = direction_signs(chosen.seed, 3, 5, SIZE)
    sigma = position_signs(chosen.seed, 3, 5, 0, TOKENS)
    by_hand = sum(
        float(sigma[i, 2]) * sum(float(r[j, 2]) * float(rows[i, j]) for j in range(SIZE)) for i in range(33, 36)
    )
    assert summarise(rows, 3, chosen)[11, 2] == pytest.approx(by_hand, rel=1e-12)


def test_numbers_are_on_average_as_large_as_the_block():
    rows = states(tokens=8)[1]
    wide = summarise(rows, 1, settings_with(block=8, width=1024, layers=(1,)))
    assert np.sqrt(np.square(wide).mean()) == pytest.approx(block_norms(rows, 8)[0], rel=0.05)


@pytest.mark.parametrize("bits", BITS)
def test_own_states_are_at_distance_0_in_any_order_of_layers_given(bits):
    rows = states()
    assert largest(dict(reversed(rows.items())), rows, settings_with(bits)) == 0.0


@pytest.mark.parametrize("bits", BITS)
@given(relative=st.floats(1e-7, 1e-3), seed=st.integers(0, 50))
@settings(max_examples=25, deadline=None)
def test_rounding_to_the_wire_form_never_adds_to_a_distance(bits, relative, seed):
    own, rng = states(seed), np.random.default_rng(seed)
    claimed = {k: (v * (1 + relative * rng.normal(size=v.shape))).astype(np.float32) for k, v in own.items()}
    chosen = settings_with(bits)
    for layer in own:
        numbers = summarise(claimed[layer], layer, chosen) - summarise(own[layer], layer, chosen)
        exact = np.sqrt(np.square(numbers).mean(axis=1)) / block_norms(own[layer], 32)
        found = [each for each in measure(encode_rows(claimed, chosen), own, chosen) if each.layer == layer]
        assert all(each.distance <= bound * (1 + 1e-9) + 1e-7 for each, bound in zip(found, exact, strict=True))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "change",
    [
        lambda rows: {layer: -each for layer, each in rows.items()},
        lambda rows: {layer: each * np.where(np.arange(SIZE) < 4, -1, 1) for layer, each in rows.items()},
        lambda rows: {layer: each * 2 for layer, each in rows.items()},
        lambda rows: {layer: each * 0.5 for layer, each in rows.items()},
        lambda rows: {layer: np.roll(each, 1, axis=0) for layer, each in rows.items()},
        lambda rows: {layer: np.roll(each, 1, axis=1) for layer, each in rows.items()},
        lambda rows: {1: rows[3] * 3 / 5, 3: rows[1] * 5 / 3},
        lambda rows: states(7),
    ],
    ids=["negated", "4 of 48 negated", "doubled", "halved", "shifted", "turned", "layers swapped", "foreign"],
)
def test_sign_scale_place_and_layer_count(bits, change):
    own, chosen = states(), settings_with(bits)
    for each in measure(encode_rows(change(own), chosen), own, chosen):
        assert each.distance > min(0.1, reach(bits, chosen.resolution) / 4)


def test_a_foreign_claim_lies_as_far_off_as_the_codes_reach():
    own, foreign = states(), states(1)
    for bits in (8, 4, 1):
        found = [each.distance for each in measure(encode_rows(foreign, settings_with(bits)), own, settings_with(bits))]
        assert np.median(found) == pytest.approx(reach(bits, settings_with(bits).resolution), rel=0.3)


def test_a_norm_that_is_off_is_as_far_off_as_its_exponent_says():
    own, chosen = states(), settings_with(8)
    data = bytearray(encode_rows(own, chosen))
    data[0] = (data[0] + 1) % 256
    assert measure(bytes(data), own, chosen)[0].distance > 0.05
    assert measure(encode_rows(own, chosen), own, chosen)[0].distance == 0.0


@pytest.mark.parametrize("bits", BITS)
def test_zeros_agree_with_zeros_and_with_nothing_else(bits):
    zeros, chosen = {layer: np.zeros_like(each) for layer, each in states().items()}, settings_with(bits)
    assert largest(zeros, zeros, chosen) == 0.0
    assert largest(zeros, states(), chosen) > 0.05
    assert largest(states(), zeros, chosen) == np.inf


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("tokens", [0, 1, 31, 32, 33, 64])
def test_lengths(bits, tokens):
    rows, chosen = states(tokens=tokens), settings_with(bits, width=13)
    data = encode_rows(rows, chosen)
    assert len(data) == wire_bytes(tokens, SIZE, chosen)
    found = measure(data, rows, chosen)
    places = [(0, 1), (0, 3), (32, 1), (32, 3)][: 2 * -(-tokens // 32)]
    assert [(each.first, each.layer) for each in found] == places
    assert sum(each.tokens for each in found if each.layer == 1) == tokens
    for wrong in (data[:-1], data + b"\0", data * 2):
        if wrong != data:
            with pytest.raises(MalformedError, match=r"fingerprint\.data"):
                measure(wrong, rows, chosen)


def test_eight_bits_take_half_a_byte_a_token():
    assert wire_bytes(96, 4096, FingerprintSettings()) / 96 == 0.5


@pytest.mark.parametrize("bits", [4, 1])
def test_bits_beyond_the_last_number_are_refused(bits):
    rows, chosen = states(layers=(1,), tokens=3), settings_with(bits, layers=(1,), width=13)
    data = bytearray(encode_rows(rows, chosen))
    assert measure(bytes(data), rows, chosen)[0].distance == 0.0
    data[-1] |= 0x80
    with pytest.raises(MalformedError, match="beyond the last number"):
        measure(bytes(data), rows, chosen)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, b"\0\0\x81\x7f"])
def test_a_number_that_is_not_finite_is_refused(value):
    rows, chosen = states(), settings_with(32)
    data = bytearray(encode_rows(rows, chosen))
    data[4:8] = value if isinstance(value, bytes) else np.float32(value).tobytes()
    with pytest.raises(MalformedError, match="not finite"):
        measure(bytes(data), rows, chosen)


def test_a_code_in_a_block_of_norm_0_is_refused():
    rows = {1: np.zeros((1, 4), np.float32)}
    chosen = settings_with(8, layers=(1,), width=2)
    assert encode_rows(rows, chosen) == b"\x80\0\0"
    with pytest.raises(MalformedError, match="norm is 0"):
        measure(b"\x80\0\1", rows, chosen)


@pytest.mark.parametrize("bits", BITS)
@given(data=st.binary(min_size=400, max_size=400))
@settings(max_examples=20, deadline=None)
def test_any_bytes_are_a_distance_or_refused(bits, data):
    rows, chosen = states(tokens=33), settings_with(bits, width=13)
    try:
        found = measure(data[: wire_bytes(33, SIZE, chosen)], rows, chosen)
    except MalformedError:
        return
    assert all(each.distance >= 0.0 for each in found)


@pytest.mark.parametrize("bits", BITS)
def test_own_states_that_are_not_finite_say_nothing(bits):
    rows, chosen = states(), settings_with(bits)
    broken = {**rows, 3: rows[3].copy()}
    broken[3][5, 5] = np.nan
    with pytest.raises(UnavailableError, match="layer 3"):
        measure(encode_rows(rows, chosen), broken, chosen)
    with pytest.raises(UnavailableError, match="layer 3"):
        encode_rows(broken, chosen)


def test_rows_have_to_be_there_and_alike():
    rows = states()
    with pytest.raises(MalformedError, match="layer 4"):
        encode_rows(rows, settings_with(layers=(1, 4)))
    with pytest.raises(MalformedError, match="one row a token"):
        encode_rows({**rows, 3: rows[3][:-1]}, settings_with())


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("block", {"block": 0}),
        ("block", {"block": 1025}),
        ("width", {"width": 0}),
        ("width", {"width": 1025}),
        ("layers", {"layers": ()}),
        ("layers", {"layers": (2, 1)}),
        ("layers", {"layers": (1, 1)}),
        ("seed", {"seed": None}),
        ("seed", {"seed": "42"}),
        ("grid", {"grid": -1}),
        ("grid", {"grid": 33}),
        ("grid", {"grid": 10}),
        ("grid", {"grid": 10, "bits": 32}),
        ("grid", {"method": "toploc", "seed": None, "grid": 8}),
        ("bits", {"method": "toploc", "seed": None, "bits": 4}),
    ],
)
def test_settings_that_mean_nothing_are_refused(field, changes):
    assert settings_with().blocks(33) == 2
    with pytest.raises(UsageError, match=field):
        settings_with(**changes)


def test_the_standard_grid_is_that_of_the_precision():
    grids = {dtype: standard_fingerprints(6, dtype)[0].resolution for dtype in ("F32", "BF16", "F16")}
    assert grids == {"F32": 18, "BF16": 8, "F16": 10}


@pytest.mark.parametrize(("bits", "grid"), [(8, 18), (8, 7), (4, 12), (1, 3)])
@given(relative=st.floats(1e-7, 1e-3))
@settings(max_examples=10, deadline=None)
def test_every_grid_measures_within_a_cell_what_its_reach_allows(bits, grid, relative):
    own, rng = states(), np.random.default_rng(0)
    claimed = {k: (v * (1 + relative * rng.normal(size=v.shape))).astype(np.float32) for k, v in own.items()}
    chosen = settings_with(bits, grid=grid)
    for each in measure(encode_rows(claimed, chosen), own, chosen):
        rows = slice(each.first, each.first + each.tokens)
        numbers = [summarise(side[each.layer][rows], each.layer, chosen)[0] for side in (claimed, own)]
        if each.first:
            continue
        exact = np.sqrt(np.square(numbers[0] - numbers[1]).mean()) / block_norms(own[each.layer][rows], 32)[0]
        assert each.distance <= exact * (1 + 1e-9) + 1e-9
        if exact < 2.0**-grid * (2**bits - 1) / 10:
            assert each.distance >= exact - 2.0**-grid * 2**0.5


def test_the_standard_fingerprints_take_as_many_bytes_as_is_said_of_them():
    [chosen] = standard_fingerprints(6, "F32")
    assert {tokens: wire_bytes(tokens, 64, chosen) for tokens in (1, 32, 33, 48, 3200)} == {
        1: 24,
        32: 24,
        33: 48,
        48: 48,
        3200: 2400,
    }


def test_another_precision_has_no_standard_fingerprints() -> None:
    with pytest.raises(UsageError, match="dtype: 'fp32' is none of F32"):
        standard_fingerprints(6, "fp32")


@pytest.mark.parametrize(("bits", "grid"), [(8, 8), (4, 6), (1, None)])
def test_residuals_have_the_sign_and_size_of_what_differs(bits, grid):
    """As long as it is less than half of what the codes reach."""
    chosen, own = settings_with(bits, grid=grid), states()
    step = np.array([2.0 ** (np.rint(np.log2(block_norms(own[3], 32))) - chosen.resolution)]).T
    moved = {layer: rows * (1 + 1e-3 * (bits > 1)) for layer, rows in own.items()}
    found = residuals(encode_rows(moved, chosen), own, chosen)[3]
    true = summarise(moved[3], 3, chosen) - summarise(own[3], 3, chosen)
    assert np.abs(found.gaps - true).max() <= step.max() / 2 * 1.001
    assert found.cells == pytest.approx(step)
    with pytest.raises(MalformedError, match="bytes"):
        residuals(encode_rows(moved, chosen)[:-1], own, chosen)


def test_a_block_without_a_norm_claims_zeros():
    chosen, own = settings_with(8), states()
    found = residuals(encode_rows({layer: 0 * rows for layer, rows in own.items()}, chosen), own, chosen)[3]
    assert found.gaps == pytest.approx(-summarise(own[3], 3, chosen))


def test_more_numbers_in_bf16_alone():
    """Rounding in 16 bits hides small changes in each number, so that there are more of them."""
    assert [len(standard_fingerprints(6, dtype)) for dtype in ("F32", "BF16", "F16")] == [1, 2, 1]
    first, more = standard_fingerprints(6, "BF16")
    assert (first.layers, more.layers) == ((2, 6, 7), (6, 7))
    assert wire_bytes(32, SIZE, first) + wire_bytes(32, SIZE, more) == 58
    assert len(standard_fingerprints(6, "BF16", (6, 7))) == 1
