"""Hypothesis without a clock: a busy machine must not fail a test, and every run draws the same examples."""

from hypothesis import HealthCheck, settings

settings.register_profile("grpo-core", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("grpo-core")
