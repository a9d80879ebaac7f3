"""The core's answers to the processing hooks: what an adapter gets without saying anything.

Registered last in every model's plugin manager, so an adapter's own answer goes first. Knows Hugging Face processors
from the outside only: how they are made, called, and which arguments they accept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corellm.errors import ProcessorKwargsError
from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl
from corellm.multimodal.chat import render_chat
from corellm.multimodal.parsing import DataParser

HF_ARGUMENT = {"image": "images", "video": "videos", "audio": "audio"}
"""Under which name a Hugging Face processor takes the media of a modality."""

_SUBPROCESSORS = {
    "image_processor": "images_kwargs",
    "video_processor": "videos_kwargs",
    "feature_extractor": "audio_kwargs",
}
_NOT_FOR_USERS = frozenset({"return_tensors", "device", "disable_grouping", "data_format", "input_data_format"})


class ProcessingDefaults:
    """Defaults of the hooks that run in the front end."""

    def __init__(self, context: ModelContext, max_image_pixels: int) -> None:
        self.context = context
        self.max_image_pixels = max_image_pixels
        self.hooks: Any = None
        """The model's hook callers, this object's among them: set once they are known."""

    @hookimpl(trylast=True)
    def get_data_parser(self) -> DataParser:
        """Pictures in any common form; embeddings of the text model's width."""
        text_config = self.context.hf_config.get_text_config()
        return DataParser(max_image_pixels=self.max_image_pixels, hidden_size=getattr(text_config, "hidden_size", None))

    @hookimpl(trylast=True)
    def call_hf_processor(
        self, prompt: str, mm_data: Mapping[str, Any], mm_kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Call the Hugging Face processor with dummy text and the one item."""
        processor = self.context.hf_processor
        check_processor_kwargs(processor, mm_kwargs)
        media = {HF_ARGUMENT[modality]: list(items) for modality, items in mm_data.items()}
        outputs: Mapping[str, Any] = processor(text=prompt, **media, return_tensors="pt", **mm_kwargs)
        return outputs

    @hookimpl(trylast=True)
    def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
        """Unchanged."""
        return token_ids

    @hookimpl(trylast=True)
    def make_context(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, chat_template: str | None
    ) -> ChatPrompt | None:
        """Render the chat template, where there is one."""
        template = chat_template or self._chat_template()
        if template is None:
            return None
        return render_chat(
            messages,
            template,
            self.context.tokenizer,
            lambda modality, index: self.hooks.get_placeholder_str(modality=modality, index=index),
            add_generation_prompt=add_generation_prompt,
        )

    def _chat_template(self) -> str | None:
        """The processor's template if it has one (that is where multimodal checkpoints keep it), or the tokenizer's."""
        for owner in (self.context.hf_processor, self.context.tokenizer):
            template = getattr(owner, "chat_template", None)
            if isinstance(template, Mapping):
                template = template.get("default")
            if isinstance(template, str) and template:
                return template
        return None


def accepted_processor_kwargs(processor: Any) -> frozenset[str] | None:
    """The argument names a Hugging Face processor takes for media, or None where it does not say."""
    declared = getattr(getattr(processor, "valid_processor_kwargs", None), "__annotations__", None)
    if declared is None:
        return None
    names: set[str] = set()
    for attribute, group in _SUBPROCESSORS.items():
        subprocessor = getattr(processor, attribute, None)
        if subprocessor is None:
            continue
        names.update(getattr(declared.get(group), "__annotations__", ()))
        names.update(getattr(getattr(subprocessor, "valid_kwargs", None), "__annotations__", ()))
    return frozenset(names - _NOT_FOR_USERS)


def check_processor_kwargs(processor: Any, mm_kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments the processor does not know; Hugging Face only logs, and ignores them.

    Raises:
        ProcessorKwargsError: names the unknown argument and those accepted.
    """
    accepted = accepted_processor_kwargs(processor)
    unknown = sorted(set(mm_kwargs) - accepted) if accepted is not None else []
    if unknown:
        raise ProcessorKwargsError(
            f"mm_processor_kwargs: {type(processor).__name__} does not take {', '.join(map(repr, unknown))}; "
            f"accepted: {', '.join(sorted(accepted or ()))}",
            expected=sorted(accepted or ()),
            got=unknown,
        )
