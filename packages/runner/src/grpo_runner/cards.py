"""The model card of an adapter export: what it is, on what base, and how good it was found to be."""

from __future__ import annotations

from huggingface_hub import EvalResult, ModelCardData

from grpo_runner.evaluate import Outcome


def model_card(
    *,
    name: str,
    base: str,
    base_identity: str,
    weights: str,
    adapter: bool,
    step: int,
    set_name: str,
    history: dict[int, Outcome],
) -> str:
    """Return the text of `README.md`: metadata as the Hugging Face Hub reads it, then every evaluation up to this step.

    Args:
        base: folder or name of the base model; `base_identity` its sha256.
        weights: sha256 of the trained weights.
        adapter: a LoRA adapter; otherwise a whole model.
        history: evaluations on the fixed set `set_name`, by step.
    """
    made = {at: found for at, found in sorted(history.items()) if at <= step}
    data = ModelCardData(
        base_model=base,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="image-text-to-text",
        tags=["grpo", *(["lora"] if adapter else [])],
        model_name=name,
        eval_results=[
            EvalResult(
                task_type="image-text-to-text",
                dataset_type=set_name,
                dataset_name=set_name,
                metric_type="solve_rate",
                metric_value=found.rate,
                metric_name=f"greedy solve rate at step {at}",
            )
            for at, found in made.items()
            if at == step
        ]
        or None,
        ignore_metadata_errors=True,
    )
    what = "LoRA adapter" if adapter else "model"
    load = "`PeftModel.from_pretrained(base, this_folder)`" if adapter else "`AutoModelForImageTextToText.from_pretrained`"
    lines = [
        f"# {name}, step {step}",
        "",
        f"A {what} trained by multi-turn GRPO with `grpo-run` on `{base}` (sha256 `{base_identity}`).",
        f"Weights: sha256 `{weights}`. Load it with {load}.",
        "",
        f"## Evaluation on `{set_name}`",
        "",
        "| step | solved (greedy) | 95 % interval | sampled solve rate | unreadable answers |",
        "|---|---|---|---|---|",
        *(_row(at, found) for at, found in made.items()),
    ]
    if step not in made:
        lines += ["", f"These weights, of step {step}, were not evaluated; the rows are of earlier steps of the run."]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n".join(lines) + "\n"


def _row(step: int, found: Outcome) -> str:
    low, high = found.interval
    sampled = "not measured" if found.sampled_rate is None else f"{found.sampled_rate:.1%}"
    return f"| {step} | {found.solved} of {found.total} | {low:.1%} to {high:.1%} | {sampled} | {found.invalid_share:.1%} |"
