"""Published test vectors of the GRPO family, and the comparison that decides whether a function agrees with them.

The vectors (``vectors.json``, one per line) are plain numbers: id, function, args, options, expected, tolerance, and the
usual wrong values with their cause. They are run against an *adapter*: a mapping, module or object that offers functions
by the names that the vectors use. ``grpo_core.own_adapter`` is the example to copy from. Everything that goes in and
comes out is lists and numbers, so the functions behind may be of any framework.
"""

import importlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any


class AdapterError(ValueError):
    """The name given for an adapter leads nowhere, or to something that offers none of the functions."""


@dataclass(frozen=True)
class Vector:
    """One published case."""

    id: str
    """Unique, e.g. ``V6-gamma09``."""
    function: str
    """Name of the adapter's function."""
    args: Mapping[str, Any]
    """Data arguments: numbers and nested lists, passed by name."""
    options: Mapping[str, Any]
    """Settings, passed by name too."""
    expected: Any
    """Number, nested list, or mapping of such; a mapping may leave out keys that the function returns."""
    wrong: tuple[tuple[Any, str], ...]
    """Usual wrong values, each with its cause."""
    tolerance: float
    """Largest absolute difference that passes; 0 means exactly equal."""
    why: str
    """What the case is about, may be empty."""


def load_vectors() -> tuple[Vector, ...]:
    """All vectors of the package, in their order; the strings nan, inf and -inf become numbers."""
    text = resources.files(__package__).joinpath("vectors.json").read_text(encoding="utf-8")
    return tuple(
        Vector(
            entry["id"],
            entry["function"],
            _numbers(entry["args"]),
            entry["options"],
            _numbers(entry["expected"]),
            tuple((_numbers(wrong["value"]), wrong["why"]) for wrong in entry["wrong"]),
            entry["tolerance"],
            entry["why"],
        )
        for entry in json.loads(text)
    )


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def resolve_adapter(name: str) -> Any:
    """Import the adapter ``module:attribute``; raises AdapterError that says which half is missing."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise AdapterError(f"adapter: expected module:attribute, got {name!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise AdapterError(f"adapter: no module {error.name!r}, wanted for {name!r}") from error
    for part in attribute.split("."):
        if part not in vars(found):
            raise AdapterError(f"adapter: module {module_name!r} has no {attribute!r}")
        found = vars(found)[part]
    if not any(function_of(found, vector.function) for vector in load_vectors()):
        offered = sorted({vector.function for vector in load_vectors()})
        raise AdapterError(f"adapter: {name!r} offers none of the functions {', '.join(offered)}")
    return found


def function_of(adapter: Any, name: str) -> Callable[..., Any] | None:
    """The adapter's function of this name, or None where it offers none."""
    found = adapter.get(name) if isinstance(adapter, Mapping) else getattr(adapter, name, None)
    return found if callable(found) else None


def check_vector(adapter: Any, vector: Vector) -> list[str]:
    """Run one vector; an empty list means that the adapter agrees, otherwise each entry names one difference."""
    function = function_of(adapter, vector.function)
    if function is None:
        raise AdapterError(f"adapter: offers no function {vector.function!r}, wanted by {vector.id}")
    actual = function(**vector.args, **vector.options)
    found = differences(vector.expected, actual, vector.tolerance)
    for value, cause in vector.wrong if found else ():
        if not differences(value, actual, max(vector.tolerance, 1e-3)):
            found.append(f"the usual wrong value: {cause}")
    return found


def differences(expected: Any, actual: Any, tolerance: float, place: str = "result") -> list[str]:
    """Where ``actual`` differs from ``expected`` by more than the tolerance, in structure or in number."""
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping):
            return [f"{place}: expected a mapping, got {actual!r}"]
        missing = [f"{place}.{key}: missing" for key in expected if key not in actual]
        shared = [key for key in expected if key in actual]
        parts = (differences(expected[key], actual[key], tolerance, f"{place}.{key}") for key in shared)
        return missing + [line for part in parts for line in part]
    if isinstance(expected, list):
        if not isinstance(actual, list | tuple) or len(actual) != len(expected):
            return [f"{place}: expected {len(expected)} entries, got {actual!r}"]
        pairs = enumerate(zip(expected, actual, strict=True))
        return [line for i, (e, a) in pairs for line in differences(e, a, tolerance, f"{place}[{i}]")]
    if expected is None or actual is None or isinstance(actual, list | tuple | Mapping):
        return [] if expected is actual else [f"{place}: expected {expected!r}, got {actual!r}"]
    if math.isnan(expected) or math.isnan(actual):
        return [] if math.isnan(expected) and math.isnan(actual) else [f"{place}: expected {expected}, got {actual}"]
    if expected == actual or abs(expected - actual) <= tolerance:
        return []
    return [f"{place}: expected {expected}, got {actual}, differing by {abs(expected - actual):.3g} > {tolerance:g}"]
