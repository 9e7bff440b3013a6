"""The mathematics of the GRPO family for PyTorch: advantages, losses, log-probs, batches and denominators."""

from .advantages import group_advantages, kept_mask
from .aggregation import aggregate, aggregation_weights, gradient_scale, step_denominator
from .correction import rollout_correction
from .gigpo import StepAdvantages, gigpo_advantages
from .images import ImageTable, build_image_table, gather_images, mrope_positions
from .kl import kl_estimate, kl_loss
from .learner import StepOutcome, accumulate_gradients, guarded_step
from .logprobs import ImpossibleTokenError, logits_logprobs, token_logprobs
from .losses import policy_loss
from .metrics import all_reduce_metrics, merge_metrics, metric_means
from .microbatches import balance_over_ranks, token_budget_batches
from .returns import discounted_returns, reinforce_pp_advantages, whiten
from .samples import MicroBatch, Sample, Trajectory, Turn, pack_batch, pad_batch, trajectory_samples
from .schedule import LRSchedule, set_lr
from .statistics import pass_at_k, rate_standard_error, soft_overlong_penalty

__all__ = (
    "ImageTable",
    "ImpossibleTokenError",
    "LRSchedule",
    "MicroBatch",
    "Sample",
    "StepAdvantages",
    "StepOutcome",
    "Trajectory",
    "Turn",
    "accumulate_gradients",
    "aggregate",
    "aggregation_weights",
    "all_reduce_metrics",
    "balance_over_ranks",
    "build_image_table",
    "discounted_returns",
    "gather_images",
    "gigpo_advantages",
    "gradient_scale",
    "group_advantages",
    "guarded_step",
    "kept_mask",
    "kl_estimate",
    "kl_loss",
    "logits_logprobs",
    "merge_metrics",
    "metric_means",
    "mrope_positions",
    "pack_batch",
    "pad_batch",
    "pass_at_k",
    "policy_loss",
    "rate_standard_error",
    "reinforce_pp_advantages",
    "rollout_correction",
    "set_lr",
    "soft_overlong_penalty",
    "step_denominator",
    "token_budget_batches",
    "token_logprobs",
    "trajectory_samples",
    "whiten",
)
