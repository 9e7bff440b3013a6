"""What the runner itself offers, through the same hooks as everybody. Imports nothing heavy."""

from __future__ import annotations

from typing import Any

from vismaze_hooks import hookimpl


def _local_engine(**options: Any) -> Any:
    from grpo_runner.engine_local import LocalEngine  # torch is imported when an engine is made, not when plugins are listed

    return LocalEngine(**options)


def _vllm_engine(**options: Any) -> Any:
    from grpo_runner.engine_vllm import VllmEngine

    return VllmEngine(**options)


def _openai_engine(**options: Any) -> Any:
    try:
        from grpo_runner.engine_openai import OpenAIEngine
    except ModuleNotFoundError as error:
        raise ValueError(f"the engine openai needs the openai client: pip install 'grpo-runner[openai]' ({error})") from error
    return OpenAIEngine(**options)


def _local_backend(**options: Any) -> Any:
    from grpo_runner.backends import LocalBackend

    return LocalBackend(**options)


@hookimpl
def vismaze_engines() -> dict[str, Any]:
    return {"local": _local_engine, "vllm": _vllm_engine, "openai": _openai_engine}


@hookimpl
def vismaze_checkpoint_backends() -> dict[str, Any]:
    return {"local": _local_backend}
