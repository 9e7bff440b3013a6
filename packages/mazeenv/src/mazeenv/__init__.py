"""Visual maze environments for Gymnasium. Importing this package registers every environment that a plugin offers."""

from mazeenv.config import MazeConfig
from mazeenv.env import VisMazeEnv
from mazeenv.fixed import SETS, read_file
from mazeenv.levels import Level, draw_level
from mazeenv.maze import Maze
from mazeenv.registry import register_environments
from mazeenv.state import MazeState
from mazeenv.symmetry import canonical_hash, walls_hash
from mazeenv.tasks import eval_set, training_stream
from vismaze_hooks.plugins import when_loaded

__all__ = (
    "SETS",
    "Level",
    "Maze",
    "MazeConfig",
    "MazeState",
    "VisMazeEnv",
    "canonical_hash",
    "draw_level",
    "eval_set",
    "read_file",
    "register_environments",
    "training_stream",
    "walls_hash",
)

when_loaded(register_environments)
