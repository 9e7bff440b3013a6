"""What runs in a process of the cluster: one rank of the learner, its engine and its environments."""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist
import transformers
from torch.distributed.checkpoint.api import CheckpointException

from grpo_runner.cluster.pictures import put_away
from grpo_runner.config import Config
from grpo_runner.faults import Fault, struck
from grpo_runner.launch import join
from grpo_runner.learner import Learner
from grpo_runner.ledger import Trajectory
from grpo_runner.policy import load_processors
from grpo_runner.ranks import make_learner
from grpo_runner.rollout import Rollouts, RolloutSettings
from grpo_runner.session import find_environment, make_engine
from vismaze_hooks import Completion, CountingEngine, Engine, ReleasingEngine, Request, Task, load_plugins

LEASE = 6  # times the silence: a process that nobody has asked for so long ends itself, as its supervisor has given it up


class Abandoned(RuntimeError):
    """A rollout was left because the supervisor takes the group apart."""


class Rank:
    """One rank. Calls of the default concurrency group come one after the other; "saving" and "health" run beside them.

    Public methods are called by the supervisor only.
    """

    def __init__(self, config: Config, plugins_folder: Path, logs: Path) -> None:
        """
        Args:
            plugins_folder: where the configuration's local plugins are, on every machine.
            logs: folder for what the process writes to stderr; its supervisor reads it when the process is dead.
        """
        self._config, self._plugins_folder = config, plugins_folder
        self._redirect(logs)
        self._learner: Learner | None = None
        self._engine: Engine | None = None
        self._rollouts: Rollouts | None = None
        self._write: Callable[[Path], None] | None = None
        self._abandon = threading.Event()
        self._working: int | None = None  # thread that works on a call of the default group
        self._asked = time.monotonic()
        threading.Thread(target=self._leash, name="leash", daemon=True).start()

    # The default group: one call at a time.

    def open(self) -> None:
        """Make the engine and what episodes need.

        Raises:
            ConfigError: an option that does not fit.
        """
        transformers.utils.logging.disable_progress_bar()
        plugins = load_plugins(self._config.plugins, folder=self._plugins_folder)
        offer = find_environment(self._config, plugins)
        processors = load_processors(Path(self._config.model.path))
        self._rollouts = Rollouts(offer, processors.chat, processors.vocabulary, prompt=self._config.environment.prompt)
        self._engine = make_engine(self._config, plugins)

    def join(self, rank: int, size: int, local_size: int, generation: int, host: str, port: int) -> None:
        """Leave the group that was, meet the other ranks at a store, load this rank's part of the policy.

        Raises:
            ConfigError: as `make_learner`.
        """
        self.leave()
        world = None
        if size > 1:
            store = dist.TCPStore(host, port, size, is_master=False)
            world = join(rank, size, local_size, store, generation=generation)
        self._abandon.clear()
        self._learner = make_learner(self._config, world)

    def leave(self) -> None:
        """Give the learner up and leave the group; whoever still waits for this rank gets an error."""
        self._learner = self._write = None
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()  # gloo's connections close with the last reference, and the error that a call ended with may be in a cycle

    def learn(self, fault: Fault | None, speak: bool, name: str, arguments: tuple, options: dict[str, Any]) -> Any:
        """Call a method of the learner, as every rank does.

        Args:
            speak: return the result; the other ranks return None.
        """
        assert self._learner is not None, "join first"
        self._working = threading.get_ident()
        with struck(fault), _raised_as_errors():
            result = getattr(self._learner, name)(*arguments, **options)
        return result if speak else None

    def copy(self) -> None:
        """Copy weights and optimizer state; `write` writes the copy."""
        assert self._learner is not None, "join first"
        self._write = self._learner.snapshot()

    def play(
        self,
        fault: Fault | None,
        tasks: Sequence[tuple[Task, int]],
        settings: RolloutSettings,
        seed_of: Callable[[Task, int, int], int],
    ) -> list[Trajectory]:
        """Play episodes to their end; their pictures stay in the object store.

        Raises:
            Abandoned: `abandon` was called.
        """
        assert self._rollouts is not None and self._engine is not None, "open first"
        self._working = threading.get_ident()

        def seed(task: Task, sample: int, turn: int) -> int:
            if self._abandon.is_set():
                raise Abandoned("the rollout was abandoned")
            return seed_of(task, sample, turn)

        with struck(fault):
            return put_away(self._rollouts.run(self._engine, tasks, settings, seed))

    def questions(self, tasks: Sequence[Task], settings: RolloutSettings, seeds: Sequence[int], turns: int) -> list[Request]:
        """As `Rollouts.questions`."""
        assert self._rollouts is not None, "open first"
        return self._rollouts.questions(tasks, settings, seeds, turns=turns)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """As the engine's."""
        assert self._engine is not None, "open first"
        return self._engine.generate(requests)

    def publish(self, fault: Fault | None, folder: Path, version: int) -> None:
        """As the engine's."""
        assert self._engine is not None, "open first"
        self._working = threading.get_ident()
        with struck(fault):
            self._engine.publish(folder, version)

    def lend(self, wake: bool) -> None:
        """Let the engine release its memory, or take it again; nothing where it cannot."""
        if isinstance(self._engine, ReleasingEngine):
            (self._engine.wake if wake else self._engine.release)()

    def counts(self) -> dict[str, int]:
        """What the engine counted."""
        return dict(self._engine.counts()) if isinstance(self._engine, CountingEngine) else {}

    def close(self) -> None:
        """End the engine and leave the group."""
        if self._engine is not None:
            self._engine.close()
        self.leave()

    # The group "saving".

    def write(self, fault: Fault | None, folder: Path) -> None:
        """Write what `copy` copied, together with the other ranks.

        Raises:
            OSError: some rank could not.
        """
        assert self._write is not None, "copy first"
        with struck(fault), _raised_as_errors():
            self._write(folder)

    # The group "health".

    def ping(self) -> None:
        """Show that the process lives."""
        self._asked = time.monotonic()

    def abandon(self) -> None:
        """Make a rollout that is being played end at its next turn."""
        self._abandon.set()

    def place(self) -> tuple[str, int, str]:
        """Return host, process and Ray's node."""
        return socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id()

    def waits(self) -> bool:
        """Return whether the call in progress waits for other ranks rather than works (or hangs) itself."""
        frame = sys._current_frames().get(self._working or -1)
        while frame is not None:
            if Path(frame.f_code.co_filename).parts[-2:-1] == ("distributed",):
                return True
            frame = frame.f_back
        return False

    def stacks(self, path: Path) -> None:
        """Write the stack of every thread to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as out:
            faulthandler.dump_traceback(out)

    def _leash(self) -> None:
        lease = LEASE * self._config.cluster.silence
        while time.monotonic() - self._asked < lease:
            time.sleep(lease / 10)
        print(f"nobody has asked for this process for {lease:.0f} s: it ends", file=sys.stderr, flush=True)
        os._exit(1)

    @staticmethod
    def _redirect(logs: Path) -> None:
        """Send what the process and its children write to stderr to a file of the run."""
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / log_name(socket.gethostname(), os.getpid())).open("ab", buffering=0) as out:
            os.dup2(out.fileno(), 2)
        faulthandler.enable()


class _raised_as_errors:
    """DCP's exception is none that a process pool or an actor passes on: it is raised anew as an OSError."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, CheckpointException):
            raise OSError(str(error)) from None


def log_name(host: str, pid: int) -> str:
    """Return the name of the file with what a process wrote to stderr."""
    return f"{host}-{pid}.log"
