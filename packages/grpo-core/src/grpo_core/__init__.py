"""The mathematics of the GRPO family for PyTorch: advantages, losses, log-probs, batches and denominators."""

from .advantages import group_advantages, kept_mask
from .aggregation import aggregate, aggregation_weights, gradient_scale, step_denominator
from .kl import kl_estimate, kl_loss
from .learner import StepOutcome, accumulate_gradients, guarded_step
from .logprobs import ImpossibleTokenError, logits_logprobs, token_logprobs
from .losses import policy_loss
from .metrics import all_reduce_metrics, merge_metrics, metric_means
from .microbatches import balance_over_ranks, token_budget_batches
from .schedule import LRSchedule, set_lr

__all__ = (
    "ImpossibleTokenError",
    "LRSchedule",
    "StepOutcome",
    "accumulate_gradients",
    "aggregate",
    "aggregation_weights",
    "all_reduce_metrics",
    "balance_over_ranks",
    "gradient_scale",
    "group_advantages",
    "guarded_step",
    "kept_mask",
    "kl_estimate",
    "kl_loss",
    "logits_logprobs",
    "merge_metrics",
    "metric_means",
    "policy_loss",
    "set_lr",
    "step_denominator",
    "token_budget_batches",
    "token_logprobs",
)
