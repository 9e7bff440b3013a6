"""The engine `openai`: any OpenAI-compatible server with vision, for evaluation. Nothing it says is trained on."""

from __future__ import annotations

import base64
import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import openai
from PIL import Image as Pillow

from grpo_runner.chat import IM_END, IM_START, IMAGE
from grpo_runner.policy import Processors, load_processors
from vismaze_hooks import Completion, Follow, Image, Request

_TURN = re.compile(rf"{re.escape(IM_START)}(user|assistant)\n(.*?)(?:{re.escape(IM_END)}|\Z)", re.DOTALL)
KEY = "OPENAI_API_KEY"


class OpenAIEngine:
    """Asks a server, some turns at once, and counts the tokens that it charges."""

    def __init__(
        self,
        *,
        model: str,
        base_url: str,
        served_model: str,
        concurrency: int = 8,
        retries: int = 4,
        timeout: float = 120.0,
        lora: Mapping[str, Any] | None = None,
        keep_history: bool = False,
    ) -> None:
        """
        Args:
            model: folder with the tokenizer that the run's conversations are built with; the server may have another.
            base_url: such as http://127.0.0.1:8000/v1.
            served_model: what the server calls the model.
            concurrency: turns that are asked at once.
            retries: of one turn, after a time-out, a refused connection, 408, 409, 429 or a 5xx; with growing pauses.
            timeout: seconds of one try.
            lora, keep_history: of no meaning here.

        Raises:
            ValueError: a number that is not positive.
        """
        if concurrency < 1 or timeout <= 0 or retries < 0:
            raise ValueError(f"concurrency {concurrency}, timeout {timeout} and retries {retries} must be positive")
        self._processors = load_processors(Path(model))
        self._model, self._concurrency = served_model, concurrency
        # The key comes from the environment only, so that it is in no configuration, run folder or list of processes.
        key = os.environ.get(KEY, "none")
        self._client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=retries, timeout=timeout)
        self._urls: dict[str, str] = {}
        self._counts = {"prompt tokens": 0, "sampled tokens": 0}

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample one turn for each request."""
        found: dict[int, Completion] = {}
        self.stream(requests, lambda number, completion: found.update({number: completion}))
        return [found[n] for n in range(len(requests))]

    def stream(self, requests: Sequence[Request], follow: Follow) -> None:
        """Sample all requests and what follows from them; each trajectory goes on as soon as its own turn is done.

        Raises:
            ConnectionError: the server could not be reached, or refused, after all retries.
        """
        pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="openai")
        try:
            waiting: dict[Future[Any], int] = {pool.submit(self._ask, r): n for n, r in enumerate(requests)}
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    number = waiting.pop(future)
                    completion, usage = future.result()
                    self._counts["prompt tokens"] += usage.prompt_tokens
                    self._counts["sampled tokens"] += usage.completion_tokens
                    following = follow(number, completion)
                    if following is not None:
                        waiting[pool.submit(self._ask, following)] = number
        finally:
            pool.shutdown(cancel_futures=True)

    def publish(self, adapter_folder: Path, version: int) -> None:
        """
        Raises:
            ValueError: always: the server has the weights that it was started with.
        """
        raise ValueError(
            "the engine openai is for evaluation only: it cannot be given weights. Use rollout.engine = local or vllm"
        )

    def counts(self) -> dict[str, int]:
        """Return the tokens charged so far."""
        return dict(self._counts)

    def close(self) -> None:
        self._client.close()

    def _ask(self, request: Request) -> tuple[Completion, Any]:
        try:
            reply = self._client.chat.completions.create(
                model=self._model,
                messages=messages_of(self._processors, request, self._url),
                max_tokens=request.max_new_tokens,
                temperature=request.temperature,
                seed=request.seed >> 1,
            )
        except openai.OpenAIError as error:
            raise ConnectionError(
                f"{self._client.base_url} does not answer for model {self._model!r}: {error}. Check --base-url, --model and "
                f"(where a key is wanted) the environment variable {KEY}; with --out, the same command goes on from here"
            ) from error
        (choice,) = reply.choices
        stopped = choice.finish_reason == "stop"
        ids = self._processors.chat.encode(choice.message.content or "")
        ids = (*ids, self._processors.vocabulary.end_of_turn) if stopped else ids
        return Completion(ids, (math.nan,) * len(ids), stopped, 0), reply.usage

    def _url(self, image: Image) -> str:
        """Return a picture as a PNG data URL."""
        url = self._urls.get(image.sha256)
        if url is None:
            out = io.BytesIO()
            Pillow.fromarray(image.pixels).save(out, format="PNG")
            url = self._urls[image.sha256] = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
        return url


def messages_of(processors: Processors, request: Request, url_of: Any) -> list[Any]:
    """Return a request's ids as chat messages, pictures at their places.

    Args:
        url_of: picture -> URL.

    Raises:
        ValueError: placeholders and pictures do not match in number.
    """
    text = processors.tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)  # type: ignore[attr-defined]
    pictures = iter(request.images)
    messages: list[Any] = []
    for role, content in _TURN.findall(text):
        if role == "assistant":
            messages.append({"role": role, "content": content})
            continue
        parts: list[Any] = []
        for number, piece in enumerate(content.split(IMAGE)):
            if number:
                picture = next(pictures, None)
                if picture is None:
                    raise ValueError(f"more image placeholders than the {len(request.images)} pictures")
                parts.append({"type": "image_url", "image_url": {"url": url_of(picture)}})
            if piece:
                parts.append({"type": "text", "text": piece})
        messages.append({"role": role, "content": parts})
    if next(pictures, None) is not None:
        raise ValueError(f"fewer image placeholders than the {len(request.images)} pictures")
    return messages[:-1] if messages[-1] == {"role": "assistant", "content": ""} else messages
