"""Qwen3-VL: a time stamp before each pair of frames, and features of the tower's layers added in the decoder.

An encoder embedding is the token's embedding followed by its deepstack features, one for each of the decoder's first
layers (DeepStack, https://arxiv.org/abs/2406.04334).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import hookimpl
from corellm.multimodal import MultiModalKwargsItem, PromptUpdateDetails, write_rows
from corellm_qwen_vl.qwen2 import Qwen2VL

if TYPE_CHECKING:
    from torch import Tensor

    from corellm_qwen_vl.settings import VideoSettings


class Qwen3VL(Qwen2VL):
    """The adapter."""

    text_per_step = 20

    def _video_defaults(self) -> VideoSettings:
        from corellm_qwen_vl.settings import QWEN3

        return QWEN3

    def _expanded(self, modality: str, item: MultiModalKwargsItem) -> PromptUpdateDetails:
        """A video becomes `<0.3 seconds>`, vision start, its tokens, vision end for each pair of frames."""
        if modality == "image":
            return super()._expanded(modality, item)
        config, encode = self.context.hf_config, self.context.tokenizer.encode
        token_ids: list[int] = []
        stamps = item["video_timestamps"].data.tolist()
        for seconds, count in zip(stamps, self._tokens_per_step(modality, item), strict=True):
            token_ids += encode(f"<{seconds:.1f} seconds>", add_special_tokens=False)
            token_ids += [config.vision_start_token_id, *[config.video_token_id] * count, config.vision_end_token_id]
        return PromptUpdateDetails.select_token_id(token_ids, config.video_token_id)

    @hookimpl
    def get_multimodal_embedding_width(self, model: Any) -> int:
        """An embedding and its deepstack features."""
        config = self.context.hf_config
        return int(config.text_config.hidden_size * (1 + len(config.vision_config.deepstack_visual_indexes)))

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, modality: str, mm_kwargs: Mapping[str, Any]) -> Sequence[Tensor]:
        """Tower and mergers: `[tokens, (1 + levels) * hidden_size]` per item."""
        import torch

        encoded = self._encode(model, modality, mm_kwargs)
        # split by items, as embeddings are, from transformers 5.18 on
        levels = [torch.cat(x) if isinstance(x, tuple) else x for x in encoded.deepstack_features]
        embeddings = torch.cat([torch.cat(encoded.pooler_output), *levels], dim=-1)
        return torch.split(embeddings, [len(item) for item in encoded.pooler_output])

    @hookimpl
    def merge_multimodal_embeddings(
        self, inputs_embeds: Tensor, multimodal_embeddings: Tensor, is_multimodal: Tensor
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Write the embeddings; the decoder gets the deepstack features of this step's tokens."""
        import torch

        embeds, *deepstack = torch.split(multimodal_embeddings, inputs_embeds.shape[-1], dim=-1)
        merged = write_rows(inputs_embeds, embeds, is_multimodal)
        return merged, {"visual_pos_masks": is_multimodal[None], "deepstack_visual_embeds": deepstack}
