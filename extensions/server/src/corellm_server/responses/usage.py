"""What all responses report: numbers of tokens, and why a completion ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from corellm.outputs import CompletionOutput, RequestOutput
from corellm_server.errors import ApiError


class Usage:
    """Counts the tokens of a response while it is made.

    Args:
        at_end: whether a stream ends with an event of the numbers.
        in_each: whether each event of a stream has the numbers so far.
    """

    def __init__(self, *, at_end: bool = False, in_each: bool = False) -> None:
        self.num_prompt_tokens = self.num_cached_tokens = self.num_output_tokens = 0
        self.at_end, self._in_each = at_end, in_each
        self.num_reasoning_tokens: int | None = None
        """Of the output; None for a model that does not reason."""
        self._of_items: Counter[str] = Counter()
        """Tokens of prompts that stand for items, by modality."""

    def add_prompt(self, output: RequestOutput) -> None:
        """Count a prompt, once however many completions it has."""
        self.num_prompt_tokens += len(output.prompt_token_ids)
        self.num_cached_tokens += output.num_cached_tokens
        for modality, places in output.multi_modal_placeholders.items():
            self._of_items[modality] += sum(place.length for place in places)

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
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens, **self._reported_items()},
            **(
                {}
                if self.num_reasoning_tokens is None
                else {"completion_tokens_details": {"reasoning_tokens": self.num_reasoning_tokens}}
            ),
        }

    def in_event(self) -> dict[str, Any]:
        """The field of an event of a stream that is not its last one."""
        if self._in_each:
            return {"usage": self.reported()}
        return {"usage": None} if self.at_end else {}

    def reported_as_input(self) -> dict[str, Any]:
        """The numbers as OpenAI's `ResponseUsage`."""
        return {
            "input_tokens": self.num_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": self.num_cached_tokens,
                "cache_write_tokens": 0,
                **self._reported_items(),
            },
            "output_tokens": self.num_output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.num_reasoning_tokens or 0},
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
        }

    def reported_with_cache(self, *, tells_cached: bool) -> dict[str, int]:
        """The numbers as Anthropic's `Usage`, where tokens that were read from the cache are no input tokens."""
        num_read = self.num_cached_tokens if tells_cached else 0
        return {
            "input_tokens": self.num_prompt_tokens - num_read,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_read,
            "output_tokens": self.num_output_tokens,
        }

    def reported_with_audio(self) -> dict[str, Any]:
        """The numbers as OpenAI's usage of a transcription."""
        num_audio = self._of_items["audio"]
        return {
            "type": "tokens",
            "input_tokens": self.num_prompt_tokens,
            "input_token_details": {"audio_tokens": num_audio, "text_tokens": self.num_prompt_tokens - num_audio},
            "output_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
        }

    def _reported_items(self) -> dict[str, int]:
        return {f"{modality}_tokens": number for modality, number in self._of_items.items()}


def finish_reason(output: CompletionOutput) -> Literal["stop", "length"] | None:
    """Why a completion ended, in OpenAI's words; None while it grows.

    Raises:
        ApiError: it was aborted.
    """
    if output.finish_reason in ("abort", "error", "ignored"):
        raise ApiError(503, "the request was aborted", code="aborted")
    return "length" if output.finish_reason == "length" else "stop" if output.finish_reason == "stop" else None
