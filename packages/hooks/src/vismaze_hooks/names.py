"""Choosing by name, with an error that helps."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

T = TypeVar("T")


class UnknownNameError(ValueError):
    """A name that nothing installed answers to; the message lists what is there and suggests the nearest."""


def nearest(name: str, known: "list[str] | tuple[str, ...]") -> str:
    """Return " Did you mean 'x'?", or the empty string when nothing is near."""
    by_case = {k.lower(): k for k in known}
    close = get_close_matches(str(name).lower(), list(by_case), n=1, cutoff=0.5)
    return f" Did you mean {by_case[close[0]]!r}?" if close else ""


def pick(kind: str, name: str, known: Mapping[str, T], note: str = "") -> T:
    """Return `known[name]`.

    Raises:
        UnknownNameError: lists the known names of this kind and suggests the nearest.
    """
    if name in known:
        return known[name]
    listed = ", ".join(sorted(known)) or "none"
    raise UnknownNameError(f"unknown {kind} {name!r}.{nearest(name, list(known))} Installed: {listed}.{note}")


def record_of(kind: type[T], options: Mapping[str, Any], *, beside: Collection[str] = ()) -> T:
    """Return the dataclass `kind` made of options.

    Args:
        beside: options that may be there too and are somebody else's to read.

    Raises:
        ValueError: an option that neither it has a field for nor is beside it; lists them all and suggests the nearest.
    """
    known = [*(f.name for f in fields(kind)), *beside]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise ValueError(f"unknown option {name!r}.{nearest(name, known)} Options: {', '.join(known)}.")
    return kind(**{name: value for name, value in options.items() if name not in beside})
