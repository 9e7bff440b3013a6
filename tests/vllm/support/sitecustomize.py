"""For the processes that the tests start: torch built without CUDA beside a torchvision built with it.

Such a torchvision cannot register its compiled operators, and then fails on import because their schemas are missing. The
schemas alone are enough: nothing here calls the operators.
"""

import importlib.util
import os

if importlib.util.find_spec("torchvision") is not None:
    import torch

    try:
        _library = torch.library.Library("torchvision", "DEF")
        _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError:  # torchvision registered them itself
        pass

if "GRPO_TEST_FAULT" in os.environ:
    import vllm_faults

    vllm_faults.install(os.environ["GRPO_TEST_FAULT"])
