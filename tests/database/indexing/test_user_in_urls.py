"""Passwords in URLs stay out of the database."""

from __future__ import annotations

from tallystick.database.indexing.add import without_user


def test_user_and_password_are_left_out() -> None:
    assert without_user("postgresql://user:secret@host:5432/court") == "postgresql://host:5432/court"
    for place in ("https://host/court", "ethereum:http://host:8545:0xab", "/files/court.db"):
        assert without_user(place) == place
