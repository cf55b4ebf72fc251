"""How far an optimizer can move weights, and screens of neighbouring anchors by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import UsageError
from tallystick.core.tensors import ROUNDOFF
from tallystick.verdicts.exact import difference_norm, element_count, norm, side_by_side
from tallystick.verdicts.tolerance import (
    Finding,
    States,
    Values,
    as_state,
    as_tensor,
    inner,
    is_float,
    ratio,
    roundoff,
    square_sum,
)

# Reach: how far an optimizer can move the weights at given learning rates, whatever the gradients are.
#
# A segment that moved further was not produced by the declared recipe. Both bounds are theorems about exact arithmetic,
# widened by the rounding of the weights' own dtype.

WEIGHT_ROUNDINGS = 4
"""Roundings in one step, relative to the weight: the decay, its product and the sum, with a margin."""
MOVE_ROUNDINGS = 16
"""Roundings in the move of one step, without those of its moments: gradient, roots, corrections, quotient, rate."""


def reach_adamw(
    before: Values,
    after: Values,
    learning_rates: Sequence[float],
    betas: tuple[float, float],
    weight_decay: float,
    *,
    first_step: int | None = None,
    memory: tuple[float, int] = (0.0, 0),
    where: str = "",
) -> Finding:
    """The largest move of one weight, in units of how far AdamW can carry it; at most 1 is allowed.

    With decoupled decay λ (Loshchilov & Hutter 2019), |w_S - Π(1 - ηλ)·w_0| ≤ Σ η_i · B_i · Π_{j>i}(1 - η_j
    λ), where B is the largest possible |m̂| / (√v̂ + ε). `first_step` is the 1-based number of the segment's
    first step; without it the bound holds for any segment. A weight that is not finite never agrees.

    An optimizer may begin with moments from elsewhere, kept under other settings: `memory` is the largest |m| / (√v +
    ε) that it began with, and how many steps before the segment that was. What is left of it is added to B.
    """
    bounds = _direction_bounds(betas, len(learning_rates), first_step)
    bounds = bounds + _remembered(betas, memory[0], memory[1] + 1 + np.arange(len(learning_rates)))
    decay, move = 1.0, 0.0
    for rate, bound in zip(learning_rates, bounds, strict=True):
        kept = abs(1.0 - rate * weight_decay)
        decay, move = decay * (1.0 - rate * weight_decay), move * kept + rate * bound
    pair, steps = (as_tensor(before), as_tensor(after)), len(learning_rates)
    unit, last_step = roundoff(*pair), math.inf if first_step is None else first_step + steps - 1
    kept_first, kept_second = (min(last_step, 1 / (1 - beta)) for beta in betas)
    # Behind one step's direction stand three roundings for each step that m still remembers, and two for √v.
    move *= 1 + unit * (MOVE_ROUNDINGS + 3 * kept_first + 2 * kept_second)
    distance, slack = 0.0, WEIGHT_ROUNDINGS * unit * steps
    for start, end in side_by_side(*pair):
        with np.errstate(all="ignore"):
            distance = max(
                distance, _largest(np.abs(end - decay * start), np.abs(start) * slack + (move + slack * move))
            )
    return Finding(distance, 1.0, "reach", where)


def reach_sgd(
    before: Values | States,
    after: Values | States,
    learning_rates: Sequence[float],
    gradient_norms: Sequence[float],
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    *,
    momentum_norm: float = 0.0,
) -> Finding:
    """The move of all weights together, in units of how far SGD can carry them; at most 1 is allowed.

    With b_i = μ·b_{i-1} + g_i + λ·w_{i-1} and w_i = w_{i-1} - η_i·b_i, the triangle inequality bounds ‖w_S -
    w_0‖ by the recorded norms of the gradients as they were applied (after clipping). `momentum_norm` is
    ‖b_0‖. A recorded norm may be a binary32 sum that is too small; `norm_shortfall` bounds by how much. It is the norm
    of the norms of single tensors (`torch.nn.utils.get_total_norm`), so a square passes through the sums of two chains.
    """
    if len(gradient_norms) != len(learning_rates):
        raise UsageError(f"{len(gradient_norms)} gradient norms for {len(learning_rates)} learning rates")
    first, second = ([t for t in as_state(state).values() if is_float(t)] for state in (before, after))
    steps, unit = len(learning_rates), roundoff(*first, *second)
    room = norm_shortfall(max((element_count([tensor]) for tensor in first), default=0) + len(first))
    weights, buffer, reach = norm(first), momentum_norm, 0.0
    for rate, gradient in zip(learning_rates, gradient_norms, strict=True):
        buffer = momentum * buffer + room * gradient + weight_decay * weights
        reach, weights = reach + rate * buffer, weights + rate * buffer
    remembered = min(steps, 1 / (1 - momentum)) if momentum < 1 else steps
    slack = unit * (WEIGHT_ROUNDINGS * steps * weights + (MOVE_ROUNDINGS + 3 * remembered) * reach)
    return Finding(ratio(difference_norm(first, second), reach + slack), 1.0, "reach")


def norm_shortfall(elements: int) -> float:
    """An upper bound on norm ÷ norm computed by a binary32 sum of `elements` squares, in any order.

    A square passes through n roundings on its way into the sum. Each keeps at least 1 - u of it, and the root halves
    the exponent: (1 - u)^(-n / 2). This loss is real: one running sum over 10⁸ equal squares loses a percent of the
    norm, because after 2²⁴ of them the next square is less than half a unit in the sum's last place.
    """
    return math.exp(min(-0.5 * (elements + 4) * math.log1p(-ROUNDOFF["F32"]), 700.0))


def direction_bound(betas: tuple[float, float], steps: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The largest possible |m̂| / √v̂ of Adam at 1-based `steps`, over all gradients (Cauchy-Schwarz).

    m = (1 - β₁)·Σ β₁^i·g and v = (1 - β₂)·Σ β₂^i·g², so |m| / √v ≤ (1 - β₁) / √(1 - β₂) · √(Σ (β₁² / β₂)^i).
    The two bias corrections multiply this by √(1 - β₂^t) / (1 - β₁^t). At step 1 the bound is 1.
    """
    step, (beta1, beta2) = np.asarray(steps, np.float64), betas
    if beta2 == 0.0:
        return np.full(step.shape, 1.0 if beta1 == 0.0 else math.inf)
    shrink = beta1 * beta1 / beta2
    with np.errstate(over="ignore", under="ignore"):
        total = step if shrink == 1.0 else (1 - shrink**step) / (1 - shrink)
        corrections = np.sqrt(1 - beta2**step) / (1 - beta1**step)
    return np.asarray((1 - beta1) / math.sqrt(1 - beta2) * np.sqrt(total) * corrections)


def _remembered(betas: tuple[float, float], memory: float, ages: npt.NDArray[np.int_]) -> npt.NDArray[np.float64]:
    """What moments from elsewhere add to |m̂| / √v̂ after `ages` steps: (β₁ / √β₂)^age of it, over 1 - β₁^age.

    Nothing where these betas could have led to such moments; then `_direction_bounds` counts them already.
    """
    shrink = betas[0] / math.sqrt(betas[1]) if betas[1] else math.inf
    if shrink >= 1 or memory <= (1 - betas[0]) / math.sqrt((1 - betas[1]) * (1 - shrink**2)):
        return np.zeros(len(ages))
    return np.asarray(memory * shrink**ages / (1 - betas[0] ** ages))


@lru_cache(maxsize=64)
def _direction_bounds(betas: tuple[float, float], count: int, first_step: int | None) -> npt.NDArray[np.float64]:
    """The bound of each step; cached, because every tensor of a state asks for the same ones."""
    if first_step is not None:
        return direction_bound(betas, np.arange(first_step, first_step + count))
    if betas[0] ** 2 >= betas[1] and betas[0] > 0.0:
        return np.full(count, math.inf)  # the momentum decays more slowly than √v: no bound holds for every step
    settled = 40.0 / min(1 - betas[0], 1 - betas[1])  # by then every power is below e⁻⁴⁰
    steps = np.unique(np.rint(np.geomspace(1.0, settled, 4096)))
    return np.full(count, float(direction_bound(betas, steps).max()) * (1 + 1e-3))


def _largest(moves: npt.NDArray[np.float64], reach: npt.NDArray[np.float64]) -> float:
    shares = np.divide(moves, reach, out=np.where(moves > 0, np.inf, 0.0), where=reach > 0)
    shares[~np.isfinite(moves)] = np.inf
    return float(np.max(shares, initial=0.0))


# Screens: checks of neighbouring anchors that need no replay.
#
# A screen that disagrees names an anchor to examine; one that agrees proves nothing. `second_moment_floor` is a
# property of the optimizer itself. The limits of the profile and the cosine are calibrated on honest runs.

ROUNDINGS_PER_STEP = 4  # of β₂, of β₂·v, of (1 - β₂)·g², of their sum
LEAST_MOMENT = 2.0**-120  # below it, rounding of subnormal numbers is no longer relative
MAD_TO_SIGMA = 1.4826  # of a normal distribution


def second_moment_floor(before: Values, after: Values, beta2: float, steps: int, *, where: str = "") -> Finding:
    """How far Adam's second moment v' after S steps falls below β₂^S · v.

    It cannot fall below, since v' = β₂·v + (1 - β₂)·g² in every step. The distance is the largest relative shortfall.
    The rounding of S steps in the moments' own dtype is allowed. A moment that is negative or not finite never agrees.
    An optimizer reset between two anchors falls short by up to 1.
    """
    shortfall, pair = 0.0, (as_tensor(before), as_tensor(after))
    for old, new in side_by_side(*pair):
        if not all(values.min() >= 0 and values.max() < math.inf for values in (old, new)):  # nor with a NaN
            return Finding(math.nan, 0.0, "second-moment", where)
        floor = old * beta2**steps
        with np.errstate(over="ignore"):
            left = np.divide(new, floor, out=np.ones_like(floor), where=floor > LEAST_MOMENT)
        shortfall = max(shortfall, 1 - float(left.min()))
    return Finding(shortfall, ROUNDINGS_PER_STEP * steps * roundoff(*pair), "second-moment", where)


def update_profile(norms: Sequence[float], allowed: float = 8.0) -> Finding:
    """The segment whose update per unit of learning rate stands out most, in robust standard deviations.

    The distance is |log norm - median| / (1.4826 · MAD) over the logarithms of `norms`. It is infinite for a norm that
    is zero, negative or not finite. `where` is the index into `norms`.
    """
    values = np.asarray(norms, np.float64)
    usable = np.isfinite(values) & (values > 0)
    if not usable.all():
        return Finding(math.inf, allowed, "update-profile", str(int(np.argmin(usable))))
    if values.size < 3:
        return Finding(0.0, allowed, "update-profile")
    logarithms = np.log(values)
    gaps = np.abs(logarithms - np.median(logarithms))
    spread = MAD_TO_SIGMA * float(np.median(gaps))
    gaps = gaps / spread if spread else np.where(gaps > 1e-12, np.inf, 0.0)
    return Finding(float(gaps.max()), allowed, "update-profile", str(int(gaps.argmax())))


def moment_cosine(before: Values, after: Values, moment: Values, *, allowed: float = 1.0, where: str = "") -> Finding:
    """How far the update points away from the descent direction of the first moment: 1 + cos(Δw, m).

    0 is straight down the moment, 1 at a right angle to it, 2 straight up. It suits segments much shorter than
    1 / (1 - β₁) steps. If the update or the moment is zero, the distance is NaN and never agrees.
    """
    along = update = size = 0.0
    for start, end, direction in side_by_side(*map(as_tensor, (before, after, moment))):
        with np.errstate(all="ignore"):
            along += inner(end - start, direction)
            update += square_sum(end - start)
            size += square_sum(direction)
    scale = math.sqrt(update) * math.sqrt(size)
    return Finding(1 + along / scale if scale else math.nan, allowed, "moment-cosine", where)
