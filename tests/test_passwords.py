"""No password of a URL is in a message; all else in the message stays."""

from __future__ import annotations

import pytest

from tallystick.core.errors import without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mysql://ada:secret@host/db: refused", "mysql://ada:***@host/db: refused"),
        ("'postgresql+psycopg://ada:s:e@c@host:5432/db'", "'postgresql+psycopg://ada:***@host:5432/db'"),
        ("s3://KEY:secret@bucket and ftp://a:secret@b", "s3://KEY:***@bucket and ftp://a:***@b"),
        ("https://secret@host/x", "https://***@host/x"),
        ("http://:secret@host/x", "http://:***@host/x"),
        ("postgresql://host/db?user=ada&password=secret&x=1", "postgresql://host/db?user=ada&password=***&x=1"),
        ("https://host/a?X-Amz-Signature=secret#b", "https://host/a?X-Amz-Signature=***#b"),
    ],
)
def test_a_secret_is_hidden(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ada@host/db",
        "http://127.0.0.1:8000/runs/a@b",
        "https://host:443/a?q=x:y@z",
        "runs/a:b@c",
        "sqlite:///tally.db",
        "see https://host/a, or b:c@d",
    ],
)
def test_what_holds_no_secret_stays(text: str) -> None:
    assert without_passwords(text) == text
