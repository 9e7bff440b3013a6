"""Errors that a user can mend. Their messages say what was wrong, where, what was expected, and what to do."""

from __future__ import annotations

from grpo_runner.attempts import Superseded
from grpo_runner.config import ConfigError
from grpo_runner.folders import UnknownSchemaError
from grpo_runner.job_server import JobError
from grpo_runner.recovery import ConfigMismatchError, ForeignRunError, NothingWholeError
from vismaze_hooks import DuplicateNameError, UnknownNameError

USER_ERRORS = (
    ConfigError,
    ConfigMismatchError,
    DuplicateNameError,
    ForeignRunError,
    JobError,
    NothingWholeError,
    OSError,
    Superseded,
    UnknownNameError,
    UnknownSchemaError,
)
