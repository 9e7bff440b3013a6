"""SIGINT and SIGTERM: the first one ends the run at the next clean point, the second one at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """The run was asked to stop and stands at a clean point. Like KeyboardInterrupt, no error that anybody may pass over.

    Attributes:
        number: the signal; the command's exit code is 128 more, as shells count: 130 for SIGINT, 143 for SIGTERM.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class Stop:
    """Keeps that a signal came. In the main thread it takes the signals over for as long as it is entered; elsewhere nothing.

    What may be thrown away (a rollout) runs inside `abandons()` and is left at once, by `Stopped`; what must be finished (an
    update with all that belongs to its step) runs outside, and `check()` comes after it.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._abandons = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._number = number
        if self._abandons:
            raise Stopped(number)
        os.write(2, f"{signal.Signals(number).name}: this step is finished first; once more stops at once\n".encode())

    def check(self) -> None:
        """
        Raises:
            Stopped: a signal has come.
        """
        if self._number is not None:
            raise Stopped(self._number)

    @contextmanager
    def abandons(self) -> Iterator[None]:
        """A block that changes nothing, so that a signal may end it anywhere by raising `Stopped` in it."""
        self._abandons = True
        try:
            self.check()
            yield
        finally:
            self._abandons = False
