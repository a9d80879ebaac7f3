"""What load to make, and which limits an output must meet to count as good."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from corellm.errors import ConfigError


@dataclass(frozen=True)
class LoadSettings:
    """One measurement."""

    url: str
    """The server, e.g. `http://127.0.0.1:8000`; with a path, it is the whole base URL, without one it gets `/v1`."""
    rate: float = 4.0
    """Requests per second, on average; infinity for all at once."""
    num: int = 200
    """Number of requests."""
    model: str | None = None
    """Name of the model; the server's first if None."""
    images: int = 0
    """Images per request."""
    image_size: tuple[int, int] = (512, 512)
    """Width and height of each image."""
    prompt_words: int = 50
    """Length of each prompt, in words."""
    max_tokens: int = 128
    """Most tokens of each output."""
    seed: int = 0
    """Seed of prompts, images and times: equal seeds make equal load."""
    slo_ttft: float | None = None
    """Milliseconds within which the first token of a good output comes; any if None."""
    slo_tpot: float | None = None
    """Milliseconds that each further token of a good output may take, on average; any if None."""
    timeout: float = 600.0
    """Seconds after which a request without an end has failed."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Fields that every request has, too, e.g. `{"ignore_eos": true}`; they replace others."""
    api_key: str | None = field(default=None, repr=False)
    """Key of the server, if it wants one."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--url must begin with http:// or https://, got {self.url!r}")
        for name in ("rate", "num", "max_tokens", "timeout", "prompt_words"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be positive, got {getattr(self, name)!r}")
        for name in ("slo_ttft", "slo_tpot"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"--{name.replace('_', '-')} must be milliseconds above 0, got {value!r}")
        if self.images < 0 or min(self.image_size) < 1:
            raise ConfigError(f"--images must be at least 0, and --image-size at least 1x1, got {self.images} of "
                              f"{self.image_size[0]}x{self.image_size[1]}")  # fmt: skip

    @property
    def base_url(self) -> str:
        """What paths like `/chat/completions` are appended to."""
        url = self.url.rstrip("/")
        return url if "/" in url.partition("://")[2] else f"{url}/v1"
