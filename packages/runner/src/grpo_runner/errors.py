"""Errors that a user can mend. Their messages say what was wrong, where, what was expected, and what to do."""

from __future__ import annotations

from grpo_runner.config import ConfigError
from vismaze_hooks import DuplicateNameError, UnknownNameError

USER_ERRORS = (ConfigError, DuplicateNameError, UnknownNameError, OSError)
