"""Faults inside a real vLLM, switched by the content of a file: each is a bug that an engine or its driver has had."""

from pathlib import Path

from vllm.lora.lora_weights import PackedLoRALayerWeights
from vllm.lora.request import LoRARequest
from vllm.v1.engine.llm_engine import LLMEngine


def install(switch: str) -> None:
    """Wrap the places where the faults happen; with an empty file everything is as vLLM made it."""

    def fault() -> str:
        return Path(switch).read_text().strip()

    add_lora, add_request, reset, pack = (
        LLMEngine.add_lora,
        LLMEngine.add_request,
        LLMEngine.reset_prefix_cache,
        PackedLoRALayerWeights.pack,
    )

    def faulty_add_lora(self, request):
        if fault() == "no reload flag":
            request = LoRARequest(request.lora_name, request.lora_int_id, request.lora_path)
        return add_lora(self, request)

    def faulty_add_request(self, *arguments, lora_request=None, **more):
        if fault() == "sticky reload flag" and lora_request is not None:
            lora_request = LoRARequest(
                lora_request.lora_name, lora_request.lora_int_id, lora_request.lora_path, load_inplace=True
            )
        if fault() == "stale prefix cache" and lora_request is not None:
            lora_request = LoRARequest(lora_request.lora_name, lora_request.lora_int_id, "/the/same/path/every/time")
        if fault() == "adapter never passed":
            lora_request = None
        return add_request(self, *arguments, lora_request=lora_request, **more)

    def faulty_reset(self, *arguments, **more):
        if fault() == "cache not reset":
            return False
        return True if fault() == "stale prefix cache" else reset(self, *arguments, **more)

    def faulty_pack(cls, loras):
        return pack(list(reversed(loras)) if fault() == "gate and up swapped" and len(loras) == 2 else loras)

    LLMEngine.add_lora = faulty_add_lora
    LLMEngine.add_request = faulty_add_request
    LLMEngine.reset_prefix_cache = faulty_reset
    PackedLoRALayerWeights.pack = classmethod(faulty_pack)
