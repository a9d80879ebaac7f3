"""Voxtral for corellm: `VoxtralForConditionalGeneration`.

Audio of any length is padded to whole chunks, of 30 seconds in the published checkpoints, and becomes a log-mel
spectrogram as a whole. Each of its chunks goes through a Whisper encoder; a projector makes one embedding of every four
of the encoder's positions, 375 for a chunk. In a prompt `[BEGIN_AUDIO][AUDIO]` stands for an item: the second of these
tokens becomes as many as there are embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.errors import ProcessorKwargsError, PromptError
from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal import MultiModalFieldConfig, MultiModalKwargsItem, PromptReplacement, dummy_audios
from corellm_voxtral.chat import PLACEHOLDER, make_context, transcription

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.multimodal import MultiModalItems

__all__ = ["Voxtral"]


class Voxtral:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"audio": None}
    placeholders = {"audio": PLACEHOLDER}
    mm_fields_config = {"input_features": MultiModalFieldConfig.batched("audio")}  # of each item [chunks, mel, frames]

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @staticmethod
    @hookimpl
    def register_tokenizer() -> Callable[..., Any]:
        """Return the tokenizer factory; the checkpoints have Mistral's file, which names no token's use."""
        from corellm_voxtral.files import load_tokenizer

        return load_tokenizer

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return the processor factory, which needs no mistral-common."""
        from corellm_voxtral.files import load_processor

        return lambda path: load_processor(path, self.context.tokenizer)

    @hookimpl
    def get_dummy_mm_data(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
    ) -> Mapping[str, Any]:
        """Audio of as many chunks as fit a prompt."""
        longest = max(1, seq_len // self._tokens_of_chunk) * self._samples_of_chunk
        audios = dummy_audios(mm_counts.get("audio", 0), num_samples=longest, bounds=mm_options.get("audio"))
        return {"audio": audios}

    @property
    def _frames_of_chunk(self) -> int:
        """Frames of a spectrogram that the encoder takes; its second convolution halves them."""
        return 2 * int(self.context.hf_config.audio_config.max_source_positions)

    @property
    def _samples_of_chunk(self) -> int:
        return self._frames_of_chunk * int(self.context.hf_processor.feature_extractor.hop_length)

    @property
    def _tokens_of_chunk(self) -> int:
        """Embeddings of a chunk: the projector takes several of the encoder's states as one."""
        config = self.context.hf_config.audio_config
        return int(config.max_source_positions * config.hidden_size // config.intermediate_size)

    @hookimpl
    def make_context(self, messages: Sequence[Mapping[str, Any]], chat_template: str | None) -> ChatPrompt | None:
        """The family's own form, unless there is a chat template."""
        return None if chat_template else make_context(messages)

    @hookimpl
    def get_transcription_prompt(self, language: str | None, translate: bool, context: str) -> list[int] | None:
        """The form that the family publishes; it has no place for a context, and none for translations.

        Raises:
            PromptError: the language is no code of ISO 639.
        """
        if translate or context:
            return None
        if language is not None and not re.fullmatch("[a-z]{2,3}", language):
            raise PromptError(f"language {language!r:.100} must be a code as in 'en'", param="language")
        told = f"lang:{language}" if language else ""
        return list(self.context.tokenizer.encode(transcription(told), add_special_tokens=False))

    @hookimpl
    def call_hf_processor(self, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spectrogram of the whole item, which is padded to whole chunks, or with `truncation` cut to one.

        Raises:
            ProcessorKwargsError: an argument other than `truncation`: the encoder would not take the spectrogram.
        """
        truncation = mm_kwargs.get("truncation", False)
        if mm_kwargs.keys() - {"truncation"} or not isinstance(truncation, bool):
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: Voxtral takes only 'truncation', True or False, got {dict(mm_kwargs)!r:.99}",
                expected=["truncation"],
                got=sorted(mm_kwargs),
            )
        extractor = self.context.hf_processor.feature_extractor
        features = extractor(
            mm_data["audio"],
            sampling_rate=extractor.sampling_rate,
            padding=True,
            truncation=truncation,
            pad_to_multiple_of=self._samples_of_chunk,
            return_tensors="pt",
        )["input_features"][0]  # [mel, frames]
        chunks = features.unflatten(-1, (-1, self._frames_of_chunk)).transpose(0, 1)
        return {"input_features": [chunks.contiguous()]}

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """The audio token becomes one per embedding."""
        token = self.context.hf_config.audio_token_id

        def replacement(index: int) -> list[int]:
            count = mm_items["audio"].num_embeddings(index)
            if count is None:
                count = self._tokens_of_chunk * len(out_mm_kwargs["audio"][index]["input_features"].data)
            return [token] * count

        return [PromptReplacement("audio", target=[token], replacement=replacement)]

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Encoder and projector, on the chunks of all items; an item's embeddings are those of its chunks in a row."""
        import torch

        items = list(mm_kwargs["input_features"])
        embeddings = model.get_audio_features(torch.cat(items)).pooler_output  # [tokens of all chunks, hidden_size]
        return list(embeddings.split([self._tokens_of_chunk * len(chunks) for chunks in items]))
