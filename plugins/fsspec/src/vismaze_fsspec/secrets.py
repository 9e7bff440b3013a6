"""Keeping credentials out of configurations, messages and logs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

_CREDENTIAL = re.compile(r"(^|_)(key|secret|token|password|passwd|credentials?|connection_string)(_id)?$", re.IGNORECASE)
_VARIABLE = re.compile(r"SECRET|TOKEN|PASSWORD|ACCESS_KEY|CREDENTIAL|ACCOUNT_KEY|CONNECTION_STRING")
_SIGNED = re.compile(r"(X-Amz-(?:Signature|Credential|Security-Token)=)[^&\s'\"]+", re.IGNORECASE)
_SHORTEST = 6  # characters; what is shorter would hide ordinary words


def refuse_credentials(url: str, options: Mapping[str, Any]) -> None:
    """Raise where a configuration holds credentials: it is copied into every checkpoint and every report.

    Raises:
        ValueError: names the option, never its value.
    """
    if "@" in urlsplit(url).netloc:
        raise ValueError("the URL holds credentials; put them into the environment, not into the configuration")
    for key, value in options.items():
        if isinstance(value, Mapping):
            refuse_credentials("", value)
        elif _CREDENTIAL.search(key) and value is not None:
            raise ValueError(f"option {key!r} is a credential; put it into the environment, not into the configuration")


def redact(text: str) -> str:
    """Return a message without the values of credentials in the environment and without signatures."""
    for name, value in os.environ.items():
        if _VARIABLE.search(name) and len(value) >= _SHORTEST:
            text = text.replace(value, "…")
    return _SIGNED.sub(r"\1…", text)
