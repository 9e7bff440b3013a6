"""The vLLM process as seen from the trainer: started, spoken to over one pipe, found dead, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from grpo_runner.vllm_messages import Failed, Ready, Start

T = TypeVar("T")
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # it is the engine's process already
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # a CPU has the first runner only: what runs on a GPU shall be what is tested
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer computes on the same cores
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",  # a path that is missing shall be an error, not the name of a download
}
"""Of the vLLM process, unless they are set already."""
EAGER = {"TORCHDYNAMO_DISABLE": "1"}
"""Beside those where nothing shall be compiled: vLLM's sampler would still wait for a C++ compiler."""


class EngineDiedError(RuntimeError):
    """The vLLM process ended or went silent; the message holds the end of its log."""


class RefusedError(RuntimeError):
    """The vLLM process could not do what it was asked; the message is vLLM's."""


class VllmLink:
    """One process. It ends with this object's `close`, and by itself when the trainer is gone: then its pipe ends."""

    def __init__(self, start: Start, timeout: float) -> None:
        """
        Raises:
            RefusedError: vLLM does not start with these arguments.
            EngineDiedError: the process ended, or did not come up within `timeout` seconds.
        """
        ours, theirs = socket.socketpair()
        self._log = tempfile.NamedTemporaryFile("w+b", prefix="grpo-vllm-", suffix=".log")  # noqa: SIM115 — closed in `close`
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "grpo_runner.vllm_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={**ENVIRONMENT, **(EAGER if start.arguments["enforce_eager"] else {}), **os.environ},
                start_new_session=True,  # Ctrl-C is the trainer's; the process ends when the trainer lets go of it
            )
        self._pipe = Connection(ours.detach())
        try:
            self.send(start)
            self.ready = self.expect(Ready, timeout)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """
        Raises:
            EngineDiedError: nobody listens any more.
        """
        try:
            self._pipe.send(message)
        except OSError as error:
            raise self._died("it closed its pipe") from error

    def expect(self, kind: type[T], timeout: float) -> T:
        """Return the next message, which must be of a kind.

        Raises:
            RefusedError: it could not do what was asked.
            EngineDiedError: it ended, or was silent for `timeout` seconds; then it is ended.
        """
        try:
            if not self._pipe.poll(timeout):
                self._process.kill()
                raise self._died(f"it was silent for {timeout:g} s")
            message: Any = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._died("it ended") from error
        if isinstance(message, Failed):
            raise RefusedError(message.error)
        assert isinstance(message, kind), f"expected {kind.__name__}, got {type(message).__name__}"
        return message

    def close(self) -> None:
        """End the process; more than once does no harm."""
        self._pipe.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _died(self, how: str) -> EngineDiedError:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return EngineDiedError(f"the vLLM process died: {how} ({ending}). The end of its log:\n{self._tail()}")

    def _tail(self, lines: int = 20) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-lines:])
