"""URLs as messages show them: without the passwords that stand in them."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
_PASSWORD: Final = re.compile(r"(?<![A-Za-z0-9])([A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@:]*):[^\s/?#]*@")
_TOKEN: Final = re.compile(r"(?<![A-Za-z0-9])(https?://)[^\s/?#@:]+@")
"""A name alone before the @ is a token on the web; elsewhere it is the name of a user."""
_PARAMETER: Final = re.compile(
    r"([?&;][^\s=&;?#]*(?:pass|pwd|secret|token|signature|credential)[^\s=&;#]*=)[^\s&;#]+", re.I
)


def without_passwords(text: str) -> str:
    """The text with `***` in place of every password in the URLs that stand in it.

    >>> without_passwords("mysql://ada:secret@host/runs: no path or URL of a database")
    'mysql://ada:***@host/runs: no path or URL of a database'
    """
    if "://" not in text:
        return text
    text = _PASSWORD.sub(rf"\1:{HIDDEN}@", text)
    return _PARAMETER.sub(rf"\1{HIDDEN}", _TOKEN.sub(rf"\1{HIDDEN}@", text))
