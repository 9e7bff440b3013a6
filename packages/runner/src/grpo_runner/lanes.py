"""Working on several micro-batches at a time: on CPU cores small models gain far more from that than from threads inside
each operation.

What is computed is split the same way on any number of threads wherever it is summed, so gradients do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

_pool: ThreadPoolExecutor | None = None


def open_lanes() -> int:
    """Turn this process's threads inside operations (`OMP_NUM_THREADS`) into threads over micro-batches; return their number.

    For processes that compute on the CPU and own it; call it once, before the first computation.
    """
    global _pool
    count = torch.get_num_threads()
    if count > 1:
        torch.set_num_threads(1)
        _pool = ThreadPoolExecutor(count, thread_name_prefix="lane")
    return count


def pool() -> Executor | None:
    """Return the threads, or None where everything happens in one."""
    return _pool


def side_by_side(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return `[function(item) for item in items]`, worked on side by side, under the caller's grad mode."""
    if _pool is None:
        return [function(item) for item in items]
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def one(item: Item) -> Result:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):  # modes are each thread's own
            return function(item)

    return list(_pool.map(one, items))
