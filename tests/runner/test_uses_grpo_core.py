"""The runner has no mathematics of its own: advantages, losses, log-probs, batches and denominators come from grpo-core."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "packages" / "runner" / "src" / "grpo_runner"
NEEDED = {
    "train.py": {"group_advantages"},
    "learner.py": {
        "policy_loss",
        "kl_loss",
        "step_denominator",
        "balance_over_ranks",
        "guarded_step",
        "set_lr",
        "merge_metrics",
        "all_reduce_metrics",
        "metric_means",
    },
    "scoring.py": {"token_logprobs", "token_budget_batches", "accumulate_gradients"},
    "session.py": {"LRSchedule"},
}
OWN = {"clip_grad_norm_", "std", "logsumexp", "kl_div", "cross_entropy", "nll_loss"}


def test_the_mathematics_is_imported_from_grpo_core() -> None:
    for file, names in NEEDED.items():
        tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
        imported = {
            a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "grpo_core" for a in n.names
        }
        assert names <= imported, f"{file} lacks {names - imported}"
        called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert names <= called, f"{file} imports but does not call {names - called}"


def test_no_module_of_the_runner_computes_a_loss_or_an_advantage_itself() -> None:
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in OWN:
                raise AssertionError(f"{file.name}:{node.lineno} uses {node.attr}; it belongs into grpo_core")
