"""A run on a Ray cluster: one actor a rank, a supervisor that watches and replaces them. Imported late; needs ray."""

from grpo_runner.cluster.parts import ClusterEngine, ClusterLearner, ClusterRollouts
from grpo_runner.cluster.supervisor import Supervisor
from grpo_runner.interruptions import GaveUpError, Lost, RankLost, Resize, TooFewNodesError

__all__ = (
    "ClusterEngine",
    "ClusterLearner",
    "ClusterRollouts",
    "GaveUpError",
    "Lost",
    "RankLost",
    "Resize",
    "Supervisor",
    "TooFewNodesError",
)
