"""Example calls of bags of rows, weights with a length of their own, and of other names for moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tests.programs.operators.examples import Call, call
from tests.programs.operators.examples_layers import by_operator, floats, integers, narrow

INDICES: Final = np.array([3, 3, 1, 0, 3, 5, 1, 1, 6], np.int64)
OFFSETS: Final = np.array([0, 2, 2, 6], np.int64)
PLACES: Final = np.array([0, 0, 2, 2, 2, 2, 3, 3, 3], np.int64)
SIZES: Final = np.array([2, 0, 4, 3], np.int64)
BAG: Final = "aten._embedding_bag"


def bags() -> Iterator[Call]:
    for mode, padding in ((0, -1), (0, 3), (1, -1), (1, 1), (2, -1), (2, 3)):
        for factors in (None, *((floats(9),) if mode == 0 else ())):
            yield from bags_of(mode, padding, factors)
    fewer = {"weight": floats(7, 4), "offsets": np.array([0, 2, 2, 6, 9], np.int32), "include_last_offset": True}
    yield call(f"{BAG}.default", **fewer, indices=INDICES.astype(np.int32), mode=1)
    yield call(f"{BAG}.default", weight=narrow(7, 4), indices=INDICES, offsets=OFFSETS)
    rest = {"weight": floats(7, 4), "indices": INDICES, "offsets": OFFSETS, "mode": 0}
    for place in (PLACES, PLACES[:0]):
        yield call(f"{BAG}_per_sample_weights_backward.default", grad=floats(4, 4), offset2bag=place, **rest)


def bags_of(mode: int, padding: int, factors: Any) -> Iterator[Call]:
    given = {"indices": INDICES, "mode": mode, "per_sample_weights": factors, "padding_idx": padding}
    for name in (f"{BAG}.default", f"{BAG}_forward_only.default"):
        yield call(name, weight=floats(7, 4), offsets=OFFSETS, **given)
    chosen = integers(4, 4, below=7) if mode == 2 else SIZES
    rest = {"bag_size": SIZES, "maximum_indices": chosen, "num_weights": 7, "grad": floats(4, 4), **given}
    rest |= {"scale_grad_by_freq": False}
    yield call(f"{BAG}_dense_backward.default", offset2bag=PLACES, **rest)
    yield call(f"{BAG}_backward.default", offsets=OFFSETS, offset2bag=PLACES[:0], sparse=False, **rest)


def lengths() -> Iterator[Call]:
    for v, g, dim in ((floats(4, 5), floats(4, 1), 0), (floats(4, 5), floats(1, 5), 1),
                      (floats(4, 3, 2), floats(4, 1, 1), 0)):  # fmt: skip
        yield call("aten._weight_norm_interface.default", v=v, g=g, dim=dim)
        norms = np.sqrt(np.square(v).sum(tuple(i for i in range(v.ndim) if i != dim), keepdims=True))
        given = {"grad_w": floats(*v.shape, seed=1), "saved_v": v, "saved_g": g, "saved_norms": norms, "dim": dim}
        yield call("aten._weight_norm_interface_backward.default", **given)
    yield call("aten._weight_norm_interface.default", v=narrow(4, 5), g=narrow(4, 1), dim=0)


def moves() -> Iterator[Call]:
    x = floats(3, 4, 5)
    yield call("aten._unsafe_index.Tensor", self=x, indices=(None, integers(2, below=4), integers(2, below=5)))
    given = {"self": x, "indices": (integers(6, below=3),), "values": floats(4, 5)}
    yield call("aten._unsafe_index_put.default", **given, accumulate=True)
    yield call("aten.broadcast_tensors.default", tensors=(floats(3, 1), floats(4), narrow(1, 4)))


def malformed() -> Iterator[Call]:
    table, given = floats(7, 4), {"indices": INDICES, "offsets": OFFSETS}
    wrong: tuple[dict[str, Any], ...] = (
        {"mode": 3}, {"indices": floats(9)}, {"indices": INDICES.reshape(3, 3)}, {"offsets": OFFSETS.astype(np.int32)},
        {"mode": 1, "per_sample_weights": floats(9)}, {"per_sample_weights": floats(8)},
    )  # fmt: skip
    for each in wrong:
        for name in (f"{BAG}.default", f"{BAG}_forward_only.default"):
            yield call(name, weight=table, **{**given, **each})
    rest: dict[str, Any] = {"grad": floats(4, 4), "indices": INDICES, "bag_size": SIZES, "maximum_indices": SIZES,
                            "num_weights": 7, "scale_grad_by_freq": False}  # fmt: skip
    yield call(f"{BAG}_dense_backward.default", **rest, offset2bag=PLACES[:5], mode=0, per_sample_weights=None)
    yield call(f"{BAG}_dense_backward.default", **rest, offset2bag=PLACES, mode=2, per_sample_weights=None)
    often = rest | {"scale_grad_by_freq": True, "offset2bag": PLACES, "mode": 0, "per_sample_weights": None}
    yield call(f"{BAG}_dense_backward.default", **often)
    whole = {"offsets": OFFSETS, "offset2bag": PLACES, "mode": 0, "per_sample_weights": None, "sparse": True}
    yield call(f"{BAG}_backward.default", **rest, **whole)
    factored = {"grad": floats(4, 4), "weight": table, **given, "offset2bag": PLACES}
    yield call(f"{BAG}_per_sample_weights_backward.default", **factored, mode=1)
    yield call("aten._weight_norm_interface.default", v=floats(2, 3, 4), g=floats(1, 3, 1), dim=1)
    yield call("aten._weight_norm_interface.default", v=floats(2, 3), g=floats(2), dim=0)
    saved = {"saved_v": floats(2, 3), "saved_g": floats(2, 1), "saved_norms": floats(2, 1), "dim": 0}
    yield call("aten._weight_norm_interface_backward.default", grad_w=floats(3, 2), **saved)
    yield call("aten._unsafe_index.Tensor", self=table, indices=(None, None))
    yield call("aten._unsafe_index_put.default", self=table, indices=(INDICES,), values=floats(3, 4))
    yield call("aten.broadcast_tensors.default", tensors=(floats(3), floats(4)))


def every_call() -> Iterator[Call]:
    for part in (bags, lengths, moves):
        yield from part()


EXAMPLES = by_operator(every_call())
MALFORMED = by_operator(malformed())
