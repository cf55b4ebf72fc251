"""The 1,797 handwritten digits of scikit-learn, as arrays for the classifier (Alpaydin & Kaynak 1998)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import UnavailableError

CLASSES = 10
IMAGE_SHAPE = (1, 8, 8)
PIXEL_MAX = 16.0


def load_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images float32[1797, 1, 8, 8] scaled to 0…1, and labels int64[1797].

    Raises:
        UnavailableError: when scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError:
        raise UnavailableError("the digits need scikit-learn: pip install tallystick[digits]") from None
    images, labels = datasets.load_digits(return_X_y=True)
    scaled = (images / PIXEL_MAX).astype(np.float32).reshape(-1, *IMAGE_SHAPE)
    return scaled, labels.astype(np.int64)
