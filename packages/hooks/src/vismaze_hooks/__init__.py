"""Hook specifications, shared records and plugin discovery of the vismaze project; needs pluggy only."""

from vismaze_hooks.answers import parse_tagged
from vismaze_hooks.markers import PROJECT, hookimpl, hookspec
from vismaze_hooks.names import UnknownNameError, pick
from vismaze_hooks.plugins import DuplicateNameError, Plugins, PluginWarning, Problem, load_plugins
from vismaze_hooks.records import (
    CheckpointBackend,
    Completion,
    Ending,
    Engine,
    EnvironmentOffer,
    Image,
    Observation,
    Request,
    Reward,
    Task,
    Tracker,
    Transition,
)
from vismaze_hooks.rewards import RewardChoice, RewardParts, RewardSum, make_reward

__all__ = (
    "PROJECT",
    "CheckpointBackend",
    "Completion",
    "DuplicateNameError",
    "Ending",
    "Engine",
    "EnvironmentOffer",
    "Image",
    "Observation",
    "PluginWarning",
    "Plugins",
    "Problem",
    "Request",
    "Reward",
    "RewardChoice",
    "RewardParts",
    "RewardSum",
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
