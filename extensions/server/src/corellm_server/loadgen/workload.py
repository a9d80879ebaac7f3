"""The requests of a measurement and the times to send them at; all follow from the settings and their seed."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import random
from typing import Any

from corellm_server.loadgen.settings import LoadSettings

_WORDS = (
    "river", "mountain", "window", "garden", "engine", "letter", "silver", "morning", "market", "bridge", "winter",
    "orange", "village", "candle", "station", "forest", "paper", "island", "corner", "summer", "kitchen", "harbor",
)  # fmt: skip


def arrival_times(settings: LoadSettings) -> list[float]:
    """Seconds after the start at which requests are sent: a Poisson process that begins at 0."""
    if math.isinf(settings.rate):
        return [0.0] * settings.num
    random_gaps = random.Random(f"{settings.seed} arrivals")
    gaps = (random_gaps.expovariate(settings.rate) for _ in range(settings.num - 1))
    return list(itertools.accumulate(gaps, initial=0.0))


def request_body(settings: LoadSettings, model: str, index: int) -> bytes:
    """JSON of one request for a streamed chat completion.

    No two requests begin alike and no two images are equal, so that a server's caches do not flatter it.
    """
    source = random.Random(f"{settings.seed} request {index}")
    words = " ".join(source.choices(_WORDS, k=settings.prompt_words))
    text = {"type": "text", "text": f"{source.getrandbits(32):08x}: go on with this story: {words}"}
    images = [_image_part(source, settings.image_size) for _ in range(settings.images)]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": [*images, text] if images else text["text"]}],
        "max_tokens": settings.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **settings.extra_body,
    }
    return json.dumps(body).encode()


def _image_part(source: random.Random, size: tuple[int, int]) -> dict[str, Any]:
    """Clouds of random colours: they compress about as well as photographs do."""
    from PIL import Image

    clouds = Image.frombytes("RGB", (32, 32), source.randbytes(32 * 32 * 3)).resize(size, Image.Resampling.BICUBIC)
    file = io.BytesIO()
    clouds.save(file, "JPEG", quality=90)
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"},
    }
