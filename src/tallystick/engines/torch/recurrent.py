"""Recurrent layers cell by cell, with the bits of PyTorch's own kernels on CPUs (`aten/src/ATen/native/RNN.cpp`).

The kernels write gates in place, into parts of one wider tensor. Graphs do not write in place, and the last elements of
a row are computed by other code than the first; so here too gates are read out of a wider tensor, by the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import torch
from torch import _VF
from torch.nn.functional import linear

Tensor: TypeAlias = torch.Tensor
Hidden: TypeAlias = tuple[Tensor, ...]
Weights: TypeAlias = Sequence[Tensor | None]
Cell: TypeAlias = Callable[[Tensor, Hidden, Weights], Hidden]
"""From the input's share of the gates, the states before and the weights to the states after."""


@contextmanager
def unrolled() -> Iterator[None]:
    """LSTM and GRU layers and cells run as the functions below."""
    for name, function in FUNCTIONS.items():
        setattr(_VF, name, function)
    try:
        yield
    finally:
        for name in FUNCTIONS:
            delattr(_VF, name)


def _lstm_cell(gates: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    h, c = hidden
    summed = linear(h, weights[1], weights[3]) + gates  # type: ignore[arg-type]
    into, forget, cell, out = summed.chunk(4, 1)
    into, forget, cell, out = into.sigmoid(), forget.sigmoid(), cell.tanh(), out.sigmoid()
    c = forget * c + into * cell
    h = out * c.tanh()
    return (h if weights[4] is None else h.matmul(weights[4].t())), c


def _gru_cell(gates: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    (h,) = hidden
    width = h.shape[1]
    summed = linear(h, weights[1], weights[3])  # type: ignore[arg-type]
    of_input, of_hidden = (each.split_with_sizes([2 * width, width], 1) for each in (gates, summed))
    reset, update = (of_hidden[0] + of_input[0]).chunk(2, 1)
    reset, update = reset.sigmoid(), update.sigmoid()
    new = (of_input[1] + of_hidden[1] * reset).tanh()
    return ((h - new) * update + new,)


def _lstm(x: Tensor, hx: Any, params: Any, *settings: Any) -> tuple[Tensor, ...]:
    if isinstance(hx, Tensor) or _drops(*settings):
        return _KERNELS.lstm(x, hx, params, *settings)
    return _layers(_lstm_cell, x, hx, params, settings, hx[0].shape[2] != hx[1].shape[2])


def _gru(x: Tensor, hx: Tensor, params: Any, *settings: Any) -> tuple[Tensor, ...]:
    if isinstance(params, Tensor) or _drops(*settings):
        return _KERNELS.gru(x, hx, params, *settings)
    return _layers(_gru_cell, x, (hx,), params, settings)


def _drops(has_biases: bool, num_layers: int, dropout: float, train: bool, *_: bool) -> bool:
    """Whether numbers are drawn between the layers."""
    return bool(dropout) and train and num_layers > 1


def _layers(
    cell: Cell,
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    settings: tuple[Any, ...],
    projected: bool = False,
) -> tuple[Tensor, ...]:
    """The outputs of all steps, and each last state; `settings` are those of the kernel, in its order."""
    has_biases, num_layers, _dropout, _train, bidirectional, batch_first = settings
    x = x.transpose(0, 1) if batch_first else x
    size, directions = 2 + 2 * has_biases + projected, 1 + bidirectional
    weights = [_padded(params[i : i + size], has_biases, projected) for i in range(0, len(params), size)]
    states = list(zip(*(each.unbind(0) for each in hx), strict=True))
    last: list[Hidden] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            steps, state = _direction(cell, x, states[index], weights[index], backwards=direction == 1)
            outputs.append(torch.stack(steps, 0))
            last.append(state)
        x = torch.cat(outputs, outputs[0].dim() - 1) if bidirectional else outputs[0]
    x = x.transpose(0, 1) if batch_first else x
    return (x, *(torch.stack(each, 0) for each in zip(*last, strict=True)))


def _direction(cell: Cell, x: Tensor, state: Hidden, weights: Weights, backwards: bool) -> tuple[list[Tensor], Hidden]:
    """The outputs in the order of `x`, and the state after the last step."""
    gates = linear(x, weights[0], weights[2]).unbind(0)  # type: ignore[arg-type]
    outputs = []
    for each in reversed(gates) if backwards else gates:
        state = cell(each, state, weights)
        outputs.append(state[0])
    return (outputs[::-1] if backwards else outputs), state


def _padded(weights: Sequence[Tensor], has_biases: bool, projected: bool) -> Weights:
    """Weights by input and by state, biases of both or none, and the projection of the output or none."""
    biases = weights[2:4] if has_biases else (None, None)
    return (*weights[:2], *biases, weights[-1] if projected else None)


def _one_lstm_cell(
    x: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Hidden:
    return _lstm_cell(linear(x, w_ih, b_ih), tuple(hx), (w_ih, w_hh, b_ih, b_hh, None))


def _one_gru_cell(
    x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    return _gru_cell(linear(x, w_ih, b_ih), (hx,), (w_ih, w_hh, b_ih, b_hh, None))[0]


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "lstm": _lstm,
    "gru": _gru,
    "lstm_cell": _one_lstm_cell,
    "gru_cell": _one_gru_cell,
}
"""What layers call by these names. Packed sequences, and layers with dropout between them, stay with the kernels."""
_KERNELS: Final = torch._C._VariableFunctions
