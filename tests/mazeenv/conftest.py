"""No test here depends on the time it takes: Hypothesis's deadline is off."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
