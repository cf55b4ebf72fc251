"""Reads documents that a claim names by their digests, and compares the bytes of a graph with its root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tallystick.commitments.digests import Digest, digest
from tallystick.documents.document import Document
from tallystick.documents.files import read_document
from tallystick.errors import MalformedError
from tallystick.graphs.document import file_root
from tallystick.judging.findings import Findings, bound_by_digest, require

D = TypeVar("D", bound=Document)


def read_named(
    findings: Findings,
    source: Path | Callable[[], bytes],
    kind: type[D],
    noun: str,
    name: Digest | None,
    expected: str = "",
) -> D | None:
    """Read a document that has the digest `name`, if one is given; `None` where it cannot be read.

    The digest is compared before the form is judged: what is not `expected` is an objection. What is, and has no form
    that is known here, was written by another version, and nothing can be said about it.
    """
    found: D | None = None
    expected = expected or f"the {noun} that the claim names"
    with findings.check(noun):
        data = read_document(source) if isinstance(source, Path) else source()
        is_named = name in (None, digest(noun, data))
        try:
            found = kind.from_bytes(data, f"{noun}.json")
        except MalformedError as error:
            require(is_named, f"{error}; it is not {expected}")
            raise
        require(is_named, f"{noun}.json is not {expected}")
    return found


def check_graph_file(path: Path, root: Digest | None, named_by: str) -> None:
    """Compare the bytes of a graph with its root, without running it; raises `ProofError`."""
    with bound_by_digest():
        require(file_root(path) == root, other_graph(path, named_by))


def other_graph(path: Path, named_by: str) -> str:
    """The objection to a graph that has another root."""
    return f"{path.parent.name}/{path.name} is not the graph that {named_by} names"
