"""The text of audio: whole, or as events."""

from __future__ import annotations

from typing import Any

from corellm.outputs import RequestOutput
from corellm.server.responses.usage import Usage, finish_reason


class TranscriptionResponse:
    """Makes the response to one request.

    Args:
        num_audio_tokens: tokens of the prompt that stand for the audio.
    """

    def __init__(self, num_audio_tokens: int) -> None:
        self._num_audio_tokens = num_audio_tokens
        self._usage = Usage()
        self._text = ""

    def add(self, output: RequestOutput) -> str:
        """The text that an output adds.

        Raises:
            ApiError: the request was aborted.
        """
        (completion,) = output.outputs
        finish_reason(completion)
        self._usage.num_prompt_tokens = len(output.prompt_token_ids)
        self._usage.add_outputs([completion])
        self._text += completion.text
        return completion.text

    def whole(self) -> dict[str, Any]:
        """All of the text, as OpenAI's `Transcription`."""
        prompt, generated = self._usage.num_prompt_tokens, self._usage.num_output_tokens
        return {
            "text": self._text,
            "usage": {
                "type": "tokens",
                "input_tokens": prompt,
                "input_token_details": {
                    "audio_tokens": self._num_audio_tokens,
                    "text_tokens": prompt - self._num_audio_tokens,
                },
                "output_tokens": generated,
                "total_tokens": prompt + generated,
            },
        }
