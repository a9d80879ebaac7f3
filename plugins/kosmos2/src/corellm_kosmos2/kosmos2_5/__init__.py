"""Kosmos-2.5 for corellm: `Kosmos2_5ForConditionalGeneration`, which reads pages: text with boxes, or Markdown.

A page becomes patches of its own grid, as many rows and columns as `max_patches` allows and padding up to that number,
and these the outputs of latent queries, always the same number. Knows patches and segments; what Kosmos-2 does
alike, as the place of the image behind BOS, is in `family`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError, MediaError, ProcessorKwargsError
from corellm.hookspecs import hookimpl
from corellm.multimodal import MultiModalFieldConfig, check_processor_kwargs, dummy_images
from corellm_kosmos2.family import Kosmos

if TYPE_CHECKING:
    from torch import Tensor, nn

    from corellm.multimodal import MultiModalFeature

__all__ = ["Kosmos2_5"]

_MARKS = ("boi_token", "eoi_token")
"""Attributes of the tokenizer: the tokens before and behind an image's embeddings."""


class Kosmos2_5(Kosmos):
    """The adapter."""

    mm_fields_config = {
        # [images, max_patches, 2 + values of a patch]: row and column from 1, the patch; nothing but zeros in padding
        "flattened_patches": MultiModalFieldConfig.batched("image"),
        **dict.fromkeys(("width", "height", "rows", "cols")),  # the patches say it
    }
    processor = "Kosmos2_5Processor"
    refused = {
        "patch_size": "the model has weights for patches of one size; leave it out",
        "do_normalize": "transformers makes no patches of pixels that are not normalized; leave it out",
    }

    # --- an image ---------------------------------------------------------------------------------------------------

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:
        """Every image is scaled to as many patches, and padded to the same number, so all are equally large."""
        return {"image": dummy_images(mm_counts.get("image", 0), width=512, height=512)}

    @hookimpl
    def call_hf_processor(
        self, mm_data: Mapping[str, Sequence[Any]], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """The image's patches: `max_patches` of them, by default the checkpoint's number.

        Transformers' processor of image and text together makes 4096 by default, whatever the checkpoint says.

        Raises:
            ProcessorKwargsError: an argument is unknown, changes nothing, or gives more patches than planned for.
            MediaError: the image has more rows or columns of patches than the model knows.
        """
        processor, (image,) = self.context.hf_processor, mm_data["image"]
        check_processor_kwargs(processor, mm_kwargs)
        self._refuse(mm_kwargs)
        for name in sorted(mm_kwargs.keys() - {"max_patches"}):
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {name} changes nothing: a page is always scaled, to as many patches as "
                "max_patches says; give that alone",
                expected=["max_patches"],
                got=name,
            )
        self._check_planned(mm_kwargs)
        outputs: Mapping[str, Any] = processor.image_processor([image], return_tensors="pt", **mm_kwargs)
        self._check_grid(image, outputs)
        return outputs

    def _check_planned(self, mm_kwargs: Mapping[str, Any]) -> None:
        """Refuse what is no number of patches, and more than memory was planned for."""
        images = self.context.hf_processor.image_processor
        planned = self.context.kwargs_for("image").get("max_patches", images.max_patches)
        asked = mm_kwargs.get("max_patches", planned)
        if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: max_patches must be an integer of at least 1, got {asked!r:.80}", got=asked
            )
        if asked > planned:
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: max_patches {asked} is more than {planned}, for which memory was planned at "
                "start; start with LLM(..., mm_processor_kwargs={'max_patches': ...}) for more",
                expected=planned,
                got=asked,
            )

    def _check_grid(self, image: Any, outputs: Mapping[str, Any]) -> None:
        """Refuse rows and columns that the model has no weights for."""
        import torch

        most = self.context.hf_config.vision_config.max_num_patches
        rows, columns = int(outputs["rows"][0]), int(outputs["cols"][0])
        # the model gets them in its own type, in which large numbers are rounded
        last = torch.tensor(float(max(rows, columns))).to(self.context.dtype)
        if last >= most:
            raise MediaError(
                f"{image.width} x {image.height} pixels become {rows} rows and {columns} columns of patches, and the "
                f"model knows fewer than {most} of each; crop the image",
                expected=most,
                got=max(rows, columns),
            )

    # --- the prompt -------------------------------------------------------------------------------------------------

    @hookimpl
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        """Begin with BOS, which the tokenizer does not write, unless the prompt does already.

        Raises:
            AlreadyExpandedError: the prompt has the tokens that transformers' processor puts in an image's place.
        """
        return [self.context.tokenizer.bos_token_id, *self._behind_bos(token_ids)]

    def _written_places(self) -> Sequence[int]:
        """The tokenizer's `image_token`: BOS, in published checkpoints."""
        place: int = self.context.tokenizer.convert_tokens_to_ids(self.context.tokenizer.image_token)
        return [place] * self.context.hf_config.latent_query_num

    def _marks(self) -> list[str]:
        """The tokens before and behind an image's embeddings.

        Raises:
            CheckpointError: the tokenizer does not name them.
        """
        tokenizer = self.context.tokenizer
        if lacking := [name for name in (*_MARKS, "image_token") if getattr(tokenizer, name, None) is None]:
            raise CheckpointError(
                f"{self.context.model_path}: the tokenizer has no {' and no '.join(lacking)}, as that of "
                "microsoft/kosmos-2.5 has: state them in tokenizer_config.json, as extra_special_tokens"
            )
        return [getattr(tokenizer, name) for name in _MARKS]

    # --- the model --------------------------------------------------------------------------------------------------

    @hookimpl
    def get_language_model(self, model: Any) -> nn.Module:
        """The text model, as the engine calls decoders."""
        from corellm_kosmos2.decoder import SegmentDecoder

        return SegmentDecoder(model.text_model.model)

    @hookimpl
    def get_rope_positions(
        self, token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]
    ) -> tuple[Tensor, int]:
        """Each token's position, and the same less its segment: 1 for the image's block, 0 for text.

        The tokens around the embeddings belong to the block, but not where they are part of a text.
        """
        import torch

        positions = torch.arange(len(token_ids)).repeat(2, 1)
        for feature in mm_features:
            positions[1, feature.placeholder.offset : feature.placeholder.end] -= 1
        return positions, 0

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Tower and latent queries, `[queries, hidden_size]` of each image.

        One image at a time: a request may ask for fewer patches, and attention of all patches to all takes memory.
        """
        return [self._embed(model, patches[None]) for patches in mm_kwargs["flattened_patches"]]

    def _embed(self, model: Any, patches: Tensor) -> Tensor:
        """`[queries, hidden_size]` of one image's patches `[1, max_patches, ...]`.

        Patches do not see padding, but queries do: the padding's own outputs are among those that they read.
        """
        from torch.nn.functional import normalize

        seen = model.vision_model(flattened_patches=patches).last_hidden_state
        embeddings: Tensor
        ((embeddings,), _) = model.image_to_text_projection(normalize(seen, dim=-1))
        return embeddings
