"""Reads a log against the root that a claim names: whether these are the lines, and whether their form is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tallystick.audits.policy import Policy
from tallystick.commitments.digests import digest_from
from tallystick.commitments.tree import Frontier, leaf_hash
from tallystick.errors import MalformedError, UnavailableError
from tallystick.judging.findings import bound_by_digest, require
from tallystick.store.log import read_lines
from tallystick.transcripts.claim import Log


@dataclass(frozen=True)
class ReadLog:
    """A log that was read to its end: its tree, and what is wrong with the first line whose form is not known here."""

    name: str
    frontier: Frontier
    unread: MalformedError | None

    def check(self, log: Log) -> None:
        """Raise `ProofError` unless these are the lines of `log`, `MalformedError` if they are and one is unread."""
        size, because = self.frontier.size, f"{self.unread}; " if self.unread else ""
        require(size == log.size, f"{because}{self.name} holds {size} records, the claim says {log.size}")
        is_claimed = digest_from(self.frontier.root()) == log.root
        require(is_claimed, f"{because}{self.name} does not have the root that the claim names")
        if self.unread is not None:
            raise self.unread


def follow_lines(path: Path, policy: Policy, follow: Callable[[bytes, str], object]) -> ReadLog:
    """Hand over the lines of a log, up to one without a known form; raises `ProofError` for a torn line."""
    frontier = Frontier.empty()
    unread: MalformedError | None = None
    with bound_by_digest():
        for number, line in enumerate(read_lines(path), 1):
            if number > policy.records_max:
                raise UnavailableError(f"{path.name}: more than the {policy.records_max} records allowed")
            frontier = frontier.append(leaf_hash(line))
            if unread is None:
                try:
                    follow(line, f"{path.name}: line {number}")
                except MalformedError as error:
                    unread = error
    return ReadLog(path.name, frontier, unread)
