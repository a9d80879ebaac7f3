"""What all responses report: numbers of tokens, and why a completion ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from corellm.outputs import CompletionOutput
from corellm.server.errors import ApiError


class Usage:
    """Counts the tokens of a response while it is made."""

    def __init__(self) -> None:
        self.num_prompt_tokens = self.num_cached_tokens = self.num_output_tokens = 0

    def add_prompt(self, num_tokens: int, num_cached: int) -> None:
        """Count a prompt, once however many completions it has."""
        self.num_prompt_tokens += num_tokens
        self.num_cached_tokens += num_cached

    def add_outputs(self, outputs: Iterable[CompletionOutput]) -> None:
        """Count tokens of completions."""
        for output in outputs:
            self.num_output_tokens += len(output.token_ids)

    def reported(self) -> dict[str, Any]:
        """The numbers as OpenAI's `CompletionUsage`."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }

    def reported_as_input(self) -> dict[str, Any]:
        """The numbers as OpenAI's `ResponseUsage`."""
        return {
            "input_tokens": self.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.num_output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
        }

    def reported_with_audio(self, num_audio_tokens: int) -> dict[str, Any]:
        """The numbers as OpenAI's usage of a transcription, of whose prompt some tokens stand for audio."""
        return {
            "type": "tokens",
            "input_tokens": self.num_prompt_tokens,
            "input_token_details": {
                "audio_tokens": num_audio_tokens,
                "text_tokens": self.num_prompt_tokens - num_audio_tokens,
            },
            "output_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
        }


def finish_reason(output: CompletionOutput) -> Literal["stop", "length"] | None:
    """Why a completion ended, in OpenAI's words; None while it grows.

    Raises:
        ApiError: it was aborted.
    """
    if output.finish_reason in ("abort", "error", "ignored"):
        raise ApiError(503, "the request was aborted", code="aborted")
    return "length" if output.finish_reason == "length" else "stop" if output.finish_reason == "stop" else None
