"""Finished answers wait for their receipts in a bounded number."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tallystick.formats.signing import SigningKey
from tallystick.recording.receipts import ReceiptIssuer
from tallystick.recording.serving.exchanges import ReceiptBook
from tallystick.recording.serving.service import UNISSUED_MAX, ModelService


@pytest.fixture
def service(language_model: Any) -> Iterator[Any]:
    service = ModelService(language_model, ReceiptIssuer(language_model, SigningKey(bytes(32))), ReceiptBook())
    service.start()
    yield service
    service.stop()


def test_whoever_finishes_answers_faster_than_receipts_are_made_waits(service: Any) -> None:
    gate, written = threading.Event(), []

    def write(number: int) -> None:
        gate.wait(120)
        written.append(number)

    sent: list[int] = []

    def send() -> None:
        for number in range(UNISSUED_MAX + 8):
            service.write_receipt(partial(write, number))
            sent.append(number)

    sender = threading.Thread(target=send)
    sender.start()
    while len(sent) < UNISSUED_MAX:
        sender.join(0.01)
    sender.join(0.2)
    assert len(sent) == UNISSUED_MAX
    gate.set()
    sender.join(120)
    service.write_receipt(partial(write, -1))
    while len(written) < UNISSUED_MAX + 9:
        assert gate.wait(120)
    assert written == [*range(UNISSUED_MAX + 8), -1]
