"""`pytest --vismaze-env ID`: every conformance rule as a test of its own, for any environment that a plugin offers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("vismaze").addoption(
        "--vismaze-env",
        action="append",
        default=[],
        metavar="ID",
        help="run the conformance rules of vismaze on this environment (can be repeated)",
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for environment in config.getoption("--vismaze-env"):
        from vismaze_hooks import testing  # only when asked for: it needs gymnasium

        try:
            tried = testing.subject(environment)
        except ValueError as error:
            raise pytest.UsageError(f"--vismaze-env: {error}") from error
        for rule in testing.ALL_RULES:
            items.append(RuleItem.from_parent(session, name=f"{environment}::{rule.__name__}", rule=rule, tried=tried))


class RuleItem(pytest.Item):
    """One rule on one environment."""

    def __init__(self, *, rule: Callable[[Any], None], tried: Any, **more: Any) -> None:
        super().__init__(**more)
        self._rule, self._tried = rule, tried

    def runtest(self) -> None:
        from vismaze_hooks.conformance import Skip

        try:
            self._rule(self._tried)
        except Skip as reason:
            pytest.skip(str(reason))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, AssertionError):
            return f"{(self._rule.__doc__ or '').splitlines()[0]}\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name
