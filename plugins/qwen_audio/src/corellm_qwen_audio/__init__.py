"""Qwen2-Audio for corellm: `Qwen2AudioForConditionalGeneration`.

Audio becomes a log-mel spectrogram, padded to the 30 seconds the encoder was trained on; a convolution and a pooling
give one embedding for every four frames, 25 per second. The padding is masked in the encoder, and its embeddings are
dropped. The prompt's `<|AUDIO|>` becomes as many tokens as embeddings are left; the `<|audio_bos|>` and `<|audio_eos|>`
around it are the prompt's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from corellm.errors import MediaError, MediaTooLargeError, ProcessorKwargsError
from corellm.hookspecs import ModelContext, SpeechForm, hookimpl
from corellm.multimodal import MultiModalFieldConfig, MultiModalKwargsItem, PromptReplacement, dummy_audios

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.multimodal import MultiModalItems

__all__ = ["Qwen2Audio"]

_Count = TypeVar("_Count", int, "Tensor")


class Qwen2Audio:
    """The adapter."""

    contract = 1
    supported_mm_limits = {"audio": None}
    mm_fields_config = {
        "input_features": MultiModalFieldConfig.batched("audio"),  # [items, mel, frames]
        "feature_attention_mask": MultiModalFieldConfig.batched("audio"),  # [items, frames]
    }

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @hookimpl
    def get_dummy_mm_data(
        self, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
    ) -> Mapping[str, Any]:
        """The longest audio that the encoder takes."""
        bounds = mm_options.get("audio")
        return {"audio": dummy_audios(mm_counts.get("audio", 0), num_samples=self._most_samples, bounds=bounds)}

    @property
    def _most_samples(self) -> int:
        """Samples of the longest audio that the encoder takes."""
        samples: int = self.context.hf_processor.feature_extractor.n_samples
        return samples

    @hookimpl
    def get_speech_form(self) -> SpeechForm:
        """The longest audio that the encoder takes; it tells no times."""
        rate = int(self.context.hf_processor.feature_extractor.sampling_rate)
        return SpeechForm(self._most_samples / rate, rate)

    @hookimpl
    def get_placeholder_str(self, modality: str, index: int) -> str | None:
        """Numbered, on a line of its own, as in training."""
        processor = self.context.hf_processor
        audio = f"{processor.audio_bos_token}{processor.audio_token}{processor.audio_eos_token}"
        return f"Audio {index + 1}: {audio}\n" if modality == "audio" else None

    @hookimpl
    def call_hf_processor(self, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Process the audio without the text, which does not change it; refuse what is too long or too short.

        Raises:
            ProcessorKwargsError: an argument other than `truncation`: the encoder would not take the spectrogram.
            MediaTooLargeError: longer than the encoder takes, without `truncation`.
            MediaError: too short for a single embedding.
        """
        truncation = mm_kwargs.get("truncation", False)
        if mm_kwargs.keys() - {"truncation"} or not isinstance(truncation, bool):
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: Qwen2-Audio takes only 'truncation', True or False, got {dict(mm_kwargs)!r:.99}",
                expected=["truncation"], got=sorted(mm_kwargs),
            )  # fmt: skip
        extractor = self.context.hf_processor.feature_extractor
        num_samples, most, rate = len(mm_data["audio"][0]), self._most_samples, extractor.sampling_rate
        if num_samples > most and not truncation:
            raise MediaTooLargeError(
                f"{num_samples} samples ({num_samples / rate:.2f} seconds), but the model takes {most} "
                f"({most / rate:g}); give it in parts, or mm_processor_kwargs={{'truncation': True}} to drop the rest",
                modality="audio", expected=most, got=num_samples,
            )  # fmt: skip
        if not _lengths(-(-num_samples // extractor.hop_length))[1]:
            raise MediaError(
                f"{num_samples} samples ({1000 * num_samples / rate:.1f} ms) are too few for the model; it needs more "
                f"than {2 * extractor.hop_length}",
                modality="audio", expected=2 * extractor.hop_length + 1, got=num_samples,
            )  # fmt: skip
        outputs = extractor(
            mm_data["audio"], sampling_rate=rate, padding="max_length", return_attention_mask=True, return_tensors="pt"
        )
        return {"input_features": outputs["input_features"], "feature_attention_mask": outputs["attention_mask"]}

    @hookimpl
    def get_prompt_updates(
        self, mm_items: MultiModalItems, out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]]
    ) -> list[PromptReplacement]:
        """An audio token becomes one per embedding."""
        token = self.context.hf_config.audio_token_id

        def replacement(index: int) -> list[int]:
            count = mm_items["audio"].num_embeddings(index)
            if count is None:
                mask = out_mm_kwargs["audio"][index]["feature_attention_mask"].data
                count = _lengths(int(mask.sum()))[1]
            return [token] * count

        return [PromptReplacement("audio", target=[token], replacement=replacement)]

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Sequence[Tensor]:
        """Encoder and projector, without the embeddings of padding: `[tokens, hidden_size]` per item."""
        import torch
        from transformers.masking_utils import create_bidirectional_mask

        features = mm_kwargs["input_features"]  # [items, mel, frames]
        after_convolution, after_pooling = _lengths(mm_kwargs["feature_attention_mask"].sum(-1))
        tower = model.model.audio_tower
        positions = torch.arange(tower.config.max_source_positions, device=features.device)
        mask = create_bidirectional_mask(
            config=tower.config,
            inputs_embeds=features.new_empty(len(features), len(positions), 1),
            attention_mask=(positions < after_convolution[:, None]).long(),
        )
        hidden = tower(features, attention_mask=mask).last_hidden_state  # [items, positions / 2, width]
        embeddings = model.model.multi_modal_projector(hidden)
        return [item[:count] for item, count in zip(embeddings, after_pooling.tolist(), strict=True)]


def _lengths(frames: _Count) -> tuple[_Count, _Count]:
    """Number of positions of `frames` frames after the strided convolution, and after the pooling."""
    positions = (frames - 1) // 2 + 1
    return positions, (positions - 2) // 2 + 1
