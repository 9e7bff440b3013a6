"""Hook specifications, shared records and plugin discovery of the vismaze project; needs pluggy only."""

from vismaze_hooks.answers import parse_tagged
from vismaze_hooks.markers import PROJECT, hookimpl, hookspec
from vismaze_hooks.names import UnknownNameError, pick
from vismaze_hooks.plugins import DuplicateNameError, Plugins, PluginWarning, Problem, load_plugins
from vismaze_hooks.records import (
    Baseline,
    CheckpointBackend,
    Completion,
    CountingEngine,
    Ending,
    Engine,
    EnvironmentOffer,
    Follow,
    Image,
    Observation,
    ReleasingEngine,
    Request,
    Reward,
    StreamingEngine,
    Task,
    Tracker,
    Transition,
)
from vismaze_hooks.rewards import RewardChoice, RewardParts, RewardSum, make_reward

__all__ = (
    "PROJECT",
    "Baseline",
    "CheckpointBackend",
    "Completion",
    "CountingEngine",
    "DuplicateNameError",
    "Ending",
    "Engine",
    "EnvironmentOffer",
    "Follow",
    "Image",
    "Observation",
    "PluginWarning",
    "Plugins",
    "Problem",
    "ReleasingEngine",
    "Request",
    "Reward",
    "RewardChoice",
    "RewardParts",
    "RewardSum",
    "StreamingEngine",
    "Task",
    "Tracker",
    "Transition",
    "UnknownNameError",
    "hookimpl",
    "hookspec",
    "load_plugins",
    "make_reward",
    "parse_tagged",
    "pick",
)
