from __future__ import annotations

import sys

import numpy as np
import pytest

from tallystick.core.errors import UnavailableError
from tallystick.formats.data.samples import load_digits


def test_the_digits_are_scaled_images_with_labels() -> None:
    images, labels = load_digits()
    assert (images.dtype, images.shape, labels.dtype, labels.shape) == (
        "float32",
        (1797, 1, 8, 8),
        "int64",
        (1797,),
    )
    assert (images.min(), images.max()) == (0, 1)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UnavailableError, match=r"sklearn is not installed: pip install 'tallystick\[digits\]'"):
        load_digits()
