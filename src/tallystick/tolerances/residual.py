"""The update-relative residual: an opened state against its replay, in units of what the segment changed.

u = ‖w' - w‖ / ‖Δ‖, with w' claimed, w replayed and Δ the replayed update. An absolute distance accepts a forger who
moves in infinitesimal steps (Fang et al., EuroS&P 2023). Relative to its own update, such a step is wrong by 100 %.
Limits are calibrated per optimizer, dtype, window and hardware pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from tallystick.tensors.digest import tensor_digest
from tallystick.tensors.tensor import Tensor
from tallystick.tolerances.drift import TensorDrift, measure_drift
from tallystick.tolerances.streams import ratio
from tallystick.tolerances.tolerance import Finding, ReplayedState, States, as_state, is_float


@dataclass(frozen=True)
class ResidualLimits:
    """The largest drift allowed; the first four limits come from a calibration.

    `overall` and `worst_tensor` are in units of the update. `mismatch_share` is the share of weights whose float16
    bucket differs. `element` is the largest single difference in units of the learning rate. `update_floor` is the
    smallest update, as a share of the weights' norm, at which a residual is meaningful. `stretch` bounds how much
    longer or shorter the claimed update is along the replayed one. `bias` is in standard errors and only advises.
    """

    overall: float
    worst_tensor: float
    mismatch_share: float
    element: float
    update_floor: float = 1e-6
    stretch: float = math.inf
    bias: float = 8.0


@dataclass(frozen=True)
class Residual:
    """The comparison of opened weights with replayed ones under `limits`.

    Pass only the weights. The optimizer's moments need limits of their own, in a second comparison. Tensors of one
    element (step counters) are judged per tensor but left out of the overall norm. Integer tensors must be equal.
    """

    limits: ResidualLimits

    def compare(self, claimed: States, replayed: ReplayedState, learning_rate: float) -> tuple[Finding, ...]:
        """The findings; all of them must agree. `learning_rate` is the largest of the segment.

        If names, shapes or dtypes differ, the single finding `tensors` counts these tensors.
        """
        states = tuple(map(as_state, (claimed, replayed.start, replayed.end)))
        unlike = _unlike(*states)
        if unlike:
            return (Finding(float(len(unlike)), 0.0, "tensors", unlike[0]),)
        drifts = _measure(*states)
        return (*self._judge(drifts, learning_rate), self._whole_numbers(states[0], states[2]))

    def advise(self, claimed: States, replayed: ReplayedState) -> Finding:
        """The bias of the residual in its most biased tensor, in standard errors: advice, never a verdict.

        A small edit in one direction over many elements shows here long before it shows in a norm. Correlated honest
        drift shows here too, so a person has to look.
        """
        states = tuple(map(as_state, (claimed, replayed.start, replayed.end)))
        drifts = [] if _unlike(*states) else _measure(*states)
        biases = ((drift.bias, drift.name) for drift in drifts)
        return replace(_worst("bias", biases, self.limits.bias), advisory=True)

    def _judge(self, drifts: list[TensorDrift], learning_rate: float) -> tuple[Finding, ...]:
        limits, total = self.limits, reduce(TensorDrift.plus, drifts, TensorDrift())
        body = reduce(TensorDrift.plus, (drift for drift in drifts if drift.size > 1), TensorDrift())
        elements = ((ratio(drift.element_max, learning_rate), drift.name) for drift in drifts)
        stretch = abs(ratio(body.difference_along_update, body.update_squares))
        counted = max(drifts, key=lambda drift: drift.mismatches, default=TensorDrift())
        return (
            _worst("non-finite", ((float(drift.non_finite), drift.name) for drift in drifts), 0.0),
            self._floor(body),
            Finding(ratio(body.difference, body.update), limits.overall, "residual"),
            _worst("residual-tensor", map(self._per_tensor, drifts), limits.worst_tensor),
            Finding(total.mismatches / max(1, total.size), limits.mismatch_share, "mismatches", counted.name),
            _worst("element", elements, limits.element),
            Finding(stretch, limits.stretch, "stretch"),
        )

    def _floor(self, body: TensorDrift) -> Finding:
        least = min(body.update, body.claimed_update)
        return Finding(ratio(self.limits.update_floor * body.start, least), 1.0, "update-floor")

    def _per_tensor(self, drift: TensorDrift) -> tuple[float, str]:
        scale = max(drift.update, self.limits.update_floor * drift.start)
        return ratio(drift.difference, scale), drift.name

    @staticmethod
    def _whole_numbers(claimed: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> Finding:
        exact = [name for name, tensor in end.items() if not is_float(tensor)]
        differing = [name for name in exact if tensor_digest(claimed[name]) != tensor_digest(end[name])]
        return Finding(float(len(differing)), 0.0, "whole-numbers", differing[0] if differing else "")


def _measure(
    claimed: Mapping[str, Tensor], start: Mapping[str, Tensor], end: Mapping[str, Tensor]
) -> list[TensorDrift]:
    return [measure_drift(name, claimed[name], start[name], tensor) for name, tensor in end.items() if is_float(tensor)]


def _unlike(*states: Mapping[str, Tensor]) -> list[str]:
    """The tensors that some state lacks, or holds with another dtype or shape."""
    names = sorted({name for state in states for name in state})
    kinds = [{name: (tensor.dtype, tensor.shape) for name, tensor in state.items()} for state in states]
    return [name for name in names if len({kind.get(name) for kind in kinds}) > 1]


def _worst(name: str, distances: Iterable[tuple[float, str]], allowed: float) -> Finding:
    ranked = [(math.inf if math.isnan(distance) else distance, where) for distance, where in distances]
    distance, where = max(ranked, key=lambda pair: pair[0], default=(0.0, ""))
    return Finding(distance, allowed, name, where if distance else "")
