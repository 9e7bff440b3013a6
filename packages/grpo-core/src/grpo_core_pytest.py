"""pytest plugin: ``pytest --grpo-conformance module:adapter`` runs grpo-core's vectors against functions of your own.

Apart from the package, so that a pytest run that does not ask for it never imports torch. With the option and no file
arguments only the conformance suite runs; files that are named run as well.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--grpo-conformance``."""
    parser.getgroup("grpo-core").addoption(
        "--grpo-conformance",
        metavar="MODULE:ADAPTER",
        default=None,
        help="run grpo-core's conformance vectors and invariances against this adapter",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the project's own tests alone unless they were asked for by name."""
    asked = config.getoption("grpo_conformance") is not None
    return True if asked and config.args_source != pytest.Config.ArgsSource.ARGS else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add one item per vector and per invariance; first in line, so that -k and -m see them."""
    name = config.getoption("grpo_conformance")
    if name is not None:
        suite = _Suite.from_parent(session, name="grpo-conformance", adapter_name=name)
        items[:0] = list(suite.collect())


class ConformanceFailure(Exception):
    """Differences between the adapter and the published numbers."""


class _Suite(pytest.Collector):
    """The vectors and invariances as tests of one adapter."""

    def __init__(self, *, adapter_name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.adapter_name = adapter_name

    def collect(self) -> Iterator[pytest.Item]:
        from grpo_core import conformance, invariances  # imports torch: only when asked

        sys.path.insert(0, str(self.config.invocation_params.dir))
        try:
            adapter = conformance.resolve_adapter(self.adapter_name)
        except conformance.AdapterError as error:
            raise pytest.UsageError(f"--grpo-conformance: {error}") from error
        checks: list[tuple[str, str, Callable[[], list[str]]]] = [
            (vector.id, vector.function, partial(conformance.check_vector, adapter, vector))
            for vector in conformance.load_vectors()
        ]
        checks += [
            (f"invariance-{name}", needs, partial(check, adapter)) for name, (needs, check) in invariances.INVARIANCES.items()
        ]
        checks.append(("invariance-ranks", "step", partial(invariances.ranks, self.adapter_name)))
        for name, needs, check in checks:
            offered = conformance.function_of(adapter, needs) is not None
            yield _Check.from_parent(self, name=name, check=check, missing=None if offered else needs)


class _Check(pytest.Item):
    """One vector or one invariance."""

    def __init__(self, *, check: Callable[[], list[str]], missing: str | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check, self.missing = check, missing

    def runtest(self) -> None:
        if self.missing is not None:
            pytest.skip(f"the adapter offers no function {self.missing!r}")
        found = self.check()
        if found:
            more = f"\n… and {len(found) - 20} more" if len(found) > 20 else ""
            raise ConformanceFailure("\n".join(found[:20]) + more)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ConformanceFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"grpo-conformance: {self.name}"
