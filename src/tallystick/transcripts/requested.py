"""Settings of a request in the form in which a sampler states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def listed(tokens: Any) -> Any:
    """A request's list of tokens as a sampler states it: ascending, each once; anything else unchanged."""
    is_list = isinstance(tokens, list | tuple) and all(type(each) is int for each in tokens)
    return tuple(sorted(set(tokens))) if is_list else tokens


def biases(by_token: Any) -> Any:
    """A request's map from token to bias as a sampler states it; anything else unchanged.

    Tokens are numbers or, as in JSON, decimal strings. A bias of 0 is left out.
    """
    if not isinstance(by_token, Mapping):
        return by_token
    pairs = [(_number(token), bias) for token, bias in by_token.items()]
    return tuple(sorted((pair for pair in pairs if pair[1] != 0), key=lambda pair: str(pair[0]).zfill(8)))


def _number(token: Any) -> Any:
    is_number = isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 8
    return int(token) if is_number else token
