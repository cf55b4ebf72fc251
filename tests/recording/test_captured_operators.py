"""Loops whose layers and losses are recurrent, bags of rows, weights with lengths of their own, or divergences."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.formats.store.run import RunDirectory

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tallystick.engines.torch.recurrent import unrolled  # noqa: E402
from tallystick.recording.loop.replaced import without_onednn  # noqa: E402

STEPS = 3
Loss = Callable[[Any, Any], Any]


class Recurrent(nn.Module):
    """A recurrent layer under a linear one."""

    def __init__(self, kind: Any, **settings: Any) -> None:
        super().__init__()
        self.layer = kind(4, 6, **settings)

    def forward(self, x: Any) -> Any:
        """The mean square of the last outputs."""
        return self.layer(x.reshape(-1, 2, 4))[0][:, -1].square().mean()


class Cells(nn.Module):
    """Two cells, one step each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(4, 6), nn.GRUCell(6, 6)

    def forward(self, x: Any) -> Any:
        """The mean square of the last state."""
        return self.second(self.first(x[:, :4])[0]).square().mean()


class LossOf(nn.Module):
    """Layers, and a loss of what they give."""

    def __init__(self, loss: Loss, **layers: Any) -> None:
        super().__init__()
        self.layers, self._loss = nn.ModuleDict(layers), loss

    def forward(self, x: Any) -> Any:
        """The loss."""
        return self._loss(self.layers, x)


def divergence(layers: Any, x: Any) -> Any:
    """Of a prediction from a target with zeros."""
    target = functional.softmax(layers["target"](x), -1)
    target = torch.where(target > 0.15, target, torch.zeros(()))
    return functional.kl_div(functional.log_softmax(layers["predicted"](x), -1), target, reduction="batchmean")


def bags(layers: Any, x: Any) -> Any:
    """Rows of a table chosen by the signs and sizes of a batch."""
    return layers["bag"]((x.abs() * 7).long().clamp(0, 19)).square().mean()


def weighed_bags(layers: Any, x: Any) -> Any:
    """The same, each row times a number of the batch."""
    return layers["bag"]((x.abs() * 7).long().clamp(0, 19), per_sample_weights=x).square().mean()


def through(layers: Any, x: Any) -> Any:
    """One layer after the other."""
    for layer in layers.values():
        x = layer(x)
    return x.square().mean()


def unchecked(layers: Any, x: Any) -> Any:
    """Rows by indices that are not checked, beside all of them."""
    rows = torch.ops.aten._unsafe_index(layers["only"](x), [torch.tensor([0, 2, 2, 1])])
    left, right = torch.broadcast_tensors(rows, x[:1])
    return (left * right).mean()


def normed(**settings: Any) -> Any:
    return nn.utils.parametrizations.weight_norm(nn.Linear(8, 5), **settings)


MODELS: dict[str, Callable[[], Any]] = {
    "LSTM": lambda: Recurrent(nn.LSTM, batch_first=True),
    "LSTM of two layers and directions": lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "LSTM with projections": lambda: Recurrent(nn.LSTM, proj_size=3),
    "GRU": lambda: Recurrent(nn.GRU, batch_first=True),
    "GRU without biases": lambda: Recurrent(nn.GRU, num_layers=2, bidirectional=True, bias=False),
    "cells": Cells,
    "divergence": lambda: LossOf(divergence, target=nn.Linear(8, 5), predicted=nn.Linear(8, 5)),
    "mean bags": lambda: LossOf(bags, bag=nn.EmbeddingBag(20, 4)),
    "greatest bags": lambda: LossOf(bags, bag=nn.EmbeddingBag(20, 4, mode="max")),
    "padded bags": lambda: LossOf(bags, bag=nn.EmbeddingBag(20, 4, mode="sum", padding_idx=2)),
    "weighed bags": lambda: LossOf(weighed_bags, bag=nn.EmbeddingBag(20, 4, mode="sum")),
    "weight norms": lambda: LossOf(through, first=normed(), second=nn.Linear(5, 3)),
    "weight norms of columns": lambda: LossOf(through, first=normed(dim=1)),
    "unchecked": lambda: LossOf(unchecked, only=nn.Linear(8, 8)),
}


def trained(out: Path | None, build: Callable[[], Any]) -> tuple[list[float], list[str]]:
    """The losses of a loop, and what its recorder warns of."""
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []

    def loop(recorder: Any) -> None:
        for _ in range(STEPS):
            batch = torch.randn(6, 8)
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
            if recorder is not None:
                recorder.step(loss, batch=batch)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if out is None:
            loop(None)
        else:
            with tallystick.record_training(out, model, optimizer) as recorder:
                loop(recorder)
    return losses, [str(each.message) for each in caught if each.category is RuntimeWarning]


@pytest.mark.parametrize("name", MODELS)
def test_a_loop_is_captured_and_replayed_bit_for_bit(tmp_path: Path, one_thread: None, name: str) -> None:
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import audit_training
    from tests.support.this_machine import verifier_stack

    losses, said = trained(tmp_path / "run", MODELS[name])
    run, policy = RunDirectory(tmp_path / "run"), Policy(full=True)
    verdict = audit_training(run, policy, bytes(32), verifier_stack(run, None, policy)).verdict
    assert verdict.outcome == "accepted"
    uses_onednn = name.startswith("LSTM") and "projections" not in name
    assert [line.split(" while")[0] for line in said] == ["nn.LSTM runs with PyTorch's own kernels"] * uses_onednn
    with without_onednn() if uses_onednn else nullcontext():
        assert trained(None, MODELS[name])[0] == losses
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}], ids=str)
@pytest.mark.parametrize("width", [6, 17, 64])
def test_cell_by_cell_has_the_bits_of_the_kernels(
    one_thread: None, kind: Any, settings: dict[str, Any], width: int
) -> None:
    torch.manual_seed(width)
    layer, x = kind(5, width, **settings), torch.randn(4, 3, 5)

    def gradients() -> list[bytes]:
        layer.zero_grad()
        outputs, _ = layer(x)
        outputs.square().mean().backward()
        return [each.grad.numpy().tobytes() for each in layer.parameters()] + [outputs.detach().numpy().tobytes()]

    with without_onednn():
        expected = gradients()
        with unrolled():
            assert gradients() == expected
        assert gradients() == expected


def test_packed_sequences_and_dropout_between_layers_stay_with_the_kernels() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 3, 5), torch.tensor([4, 2, 1]))
    dropping = nn.GRU(5, 6, num_layers=2, dropout=0.5)
    for layer, x in ((nn.LSTM(5, 6), packed), (nn.GRU(5, 6), packed), (dropping, torch.randn(4, 3, 5))):
        torch.manual_seed(0)
        expected = layer(x)[0]
        torch.manual_seed(0)
        with unrolled():
            found = layer(x)[0]
        left, right = (each if isinstance(each, torch.Tensor) else each.data for each in (expected, found))
        assert torch.equal(left, right)


def test_gradients_by_frequency_are_refused_by_name(tmp_path: Path) -> None:
    build: Callable[[], Any] = lambda: LossOf(bags, bag=nn.EmbeddingBag(20, 4, scale_grad_by_freq=True))  # noqa: E731
    _, said = trained(tmp_path / "run", build)
    assert "frequency" in said[0]
