"""For the processes that the tests start; acts only when certain modules are imported, so that others start as fast as ever.

A torchvision built with CUDA beside a torch built without cannot register its compiled operators, and then fails on import
because their schemas are missing. The schemas alone are enough: nothing here calls the operators.
"""

import importlib.abc
import os
import sys


class _Before(importlib.abc.MetaPathFinder):
    """Does something right before a module is looked for, and leaves the finding to others."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            _define_schemas()
        if (
            name == "grpo_runner.vllm_messages"
            and "vllm.v1.engine.llm_engine" in sys.modules
            and "GRPO_TEST_FAULT" in os.environ
        ):
            import vllm_faults

            vllm_faults.install(os.environ["GRPO_TEST_FAULT"])
        return None


def _define_schemas():
    import torch

    global _library  # the schemas live as long as this object
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in (
        ("nms", "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
        ("qnms", "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"),
    ):
        if not hasattr(torch.ops.torchvision, name):
            _library.define(schema)


sys.meta_path.insert(0, _Before())
