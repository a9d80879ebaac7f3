"""The adapter under test with its tiny model loaded: makes requests and shows how they were processed.

Knows the engine's internals, so that rules need not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from corellm.config import EngineConfig, MultiModalConfig
from corellm.engine.llm_engine import LLMEngine
from corellm.errors import CorellmError, UnsupportedModalityError
from corellm.frontend.input_processor import InputProcessor, ProcessedPrompt
from corellm.llm import LLM
from corellm.loading.locating import locate
from corellm.modelling.defaults import floating_to
from corellm.multimodal.fields import join_items
from corellm.multimodal.inputs import MultiModalFeature
from corellm.multimodal.nested import same_values, to_tensors
from corellm_testing.items import make_audio, make_image, make_video
from corellm_testing.reference import Reference, masked_token_ids

Part = str | tuple[str, Any]
"""A part of a prompt: text, or `(modality, item)`."""


class Subject:
    """A loaded model.

    Args:
        checkpoint: its directory.
        reference: the oracle of the same checkpoint.
        engine: a loaded one, the caller's to shut down; None to load an `LLM`, which `llm` then is.
    """

    llm: LLM

    def __init__(self, checkpoint: Path, reference: Reference, engine: LLMEngine | None = None) -> None:
        self.checkpoint, self.reference = checkpoint, reference
        if engine is None:
            self.llm = LLM(str(checkpoint), dtype="float32")
            engine = self.llm.engine
        self.context, self.inputs = engine.context, engine.input_processor
        self.hooks, self.processor = self.inputs.mm_processor.hooks, self.inputs.mm_processor
        self.model = engine.runner.model
        self.end_token_ids = reference.end_token_ids = engine.eos_token_ids
        self.encoders = engine.runner.encoders
        self._decoder_config: Any = getattr(engine.runner._language_model, "config", None)

    @cached_property
    def modalities(self) -> list[str]:
        """Modalities that the model takes."""
        return list(self.processor.limits)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads prompts, and a decoder attends to its states."""
        return self.hooks.get_max_encoder_states() is not None

    def several(self, modality: str, wanted: int = 3) -> int:
        """Return `wanted`, or the most items of the modality that a prompt may have."""
        limit = self.processor.limits[modality]
        return wanted if limit is None else min(wanted, limit)

    def takes_together(self, modalities: Sequence[str]) -> bool:
        """Whether a prompt may have an item of each of these modalities: an `UnsupportedModalityError` refuses them."""
        try:
            self.process(*self.prompt([(modality, self.item(modality, 3)) for modality in modalities]))
        except CorellmError as error:  # another one is the request's own
            return not isinstance(error, UnsupportedModalityError)
        return True

    # --- requests ---------------------------------------------------------------------------------------------------

    def item(self, modality: str, seed: int) -> Any:
        """Return a small item, of other content and another size for each seed."""
        if modality == "image":
            return make_image(30 + 17 * seed % 120, 25 + 29 * seed % 90, seed)
        if modality == "video":
            return make_video(2 + 2 * (seed % 7), 40 + 13 * seed % 60, 40 + 7 * seed % 40, seed)
        rate = self.sampling_rate
        return make_audio(rate // 10 + 1501 * seed % rate, rate, seed)

    def alike(self, modality: str, seed: int) -> Any:
        """Return an item whose tokens are those of any seed, and whose content is not."""
        if modality == "image":
            return make_image(60, 50, seed)
        if modality == "video":
            return make_video(4, 60, 50, seed)
        return make_audio(self.sampling_rate // 2, self.sampling_rate, seed)

    @property
    def sampling_rate(self) -> int:
        """Samples per second of the model's audio."""
        return int(self.context.hf_processor.feature_extractor.sampling_rate)

    def placeholder(self, modality: str) -> str:
        """Return the prompt text that stands for one item; empty where the family inserts items by position."""
        return self.hooks.get_dummy_text(mm_counts={modality: 1})

    def prompt(self, parts: Sequence[Part]) -> tuple[str, dict[str, list[Any]]]:
        """Return prompt text and media of parts."""
        text, media = "", dict[str, list[Any]]()
        for part in parts:
            if isinstance(part, str):
                text += part
            else:
                text += self.placeholder(part[0])
                media.setdefault(part[0], []).append(part[1])
        return text, media

    def requests(self, seed: int) -> list[dict[str, Any]]:
        """Return a request with one item of each modality; of text alone where the model takes no items."""
        parts: list[list[Part]] = [[(modality, self.item(modality, seed)), "What?"] for modality in self.modalities]
        prompts = [self.prompt(one) for one in parts or [["What?"]]]
        return [{"prompt": text, "multi_modal_data": media} for text, media in prompts]

    def process(
        self,
        prompt: str | Sequence[int],
        media: Mapping[str, Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        inputs: InputProcessor | None = None,
        uuids: Mapping[str, Sequence[str]] | None = None,
    ) -> ProcessedPrompt:
        """Return one request processed, by text or token ids, by `inputs` of `fresh` or by the engine's own."""
        key = "prompt" if isinstance(prompt, str) else "prompt_token_ids"
        given = {"multi_modal_data": media or {}, "mm_processor_kwargs": kwargs or {}, "multi_modal_uuids": uuids or {}}
        request = {key: prompt, **given}
        return (inputs or self.inputs).process(request)

    def embedding_token(self, modality: str) -> str:
        """Return a token that takes embeddings, as text."""
        (feature,) = self.features(modality, self.item(modality, 0))
        tokens = self.process(*self.prompt([(modality, self.item(modality, 0)), "What?"])).token_ids
        place = feature.placeholder
        mask = place.is_embed or (True,) * place.length
        first = tokens[place.offset : place.end][mask.index(True)]
        text: str = self.context.tokenizer.convert_ids_to_tokens(first)
        return text

    def features(self, modality: str, *items: Any, **kwargs: Any) -> list[MultiModalFeature]:
        """Return the items of one request, processed."""
        text, media = self.prompt(["What?", *((modality, item) for item in items)])
        return self.process(text, media, kwargs).features

    def fresh(self, **changes: Any) -> InputProcessor:
        """Return the engine's input processor with an empty cache of its own and changed `MultiModalConfig` fields."""
        config: MultiModalConfig = replace(self.processor.config, **changes)
        inputs = copy.copy(self.inputs)
        inputs.mm_processor = self.processor.with_config(config)
        return inputs

    @contextmanager
    def opened(
        self, mm_processor_kwargs: Mapping[str, Any], checkpoint: Path | None = None
    ) -> Iterator[InputProcessor]:
        """Give the input processor of an engine that is started with the operator's `mm_processor_kwargs`.

        On another `checkpoint` of the family, if one is given.

        The adapter is made anew; no weights are loaded, and no item is cached.

        Raises:
            CorellmError: the model cannot be started with them.
        """
        from corellm.loading.opening import at_load, make_input_processor, make_mm_processor, open_model

        given = {"mm_processor_kwargs": copy.deepcopy(dict(mm_processor_kwargs)), "mm_processor_cache_gb": 0}
        config = EngineConfig.from_kwargs(model=str(checkpoint or self.checkpoint), dtype="float32", **given)
        engine = self.llm.engine
        with at_load(config.model.model):
            opened = open_model(config, locate(config.model))
            processor = make_mm_processor(config, opened, engine.executor, engine.max_model_len)
            tokens = len(opened.context.tokenizer) if checkpoint is not None else 0
            vocabulary = max(self.inputs.vocab_size, tokens), max(self.inputs.embedding_size, tokens)
            inputs = make_input_processor(config, opened, processor, *vocabulary, engine.max_model_len)
        try:
            yield inputs
        finally:
            processor.close()
            opened.templates.close()

    @property
    def chat_template(self) -> str | None:
        """The checkpoint's chat template, as the adapter's processor or tokenizer gives it."""
        return self.inputs.chat_template

    def chatting(self, *, template: bool) -> InputProcessor:
        """Return `fresh`, with the checkpoint's chat template or without any."""
        inputs = self.fresh()
        if not template:
            inputs.chat_template = None
        return inputs

    def text_of(self, chat: ProcessedPrompt) -> str:
        """Return the prompt of a processed conversation; decoded where the adapter makes token ids."""
        return self.decoded(chat.token_ids) if chat.text is None else chat.text

    def decoded(self, token_ids: Sequence[int]) -> str:
        """Return tokens as text."""
        text: str = self.context.tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        return text

    def is_prompt(self, chat: ProcessedPrompt, text: str, media: Mapping[str, Any]) -> bool:
        """Whether a processed conversation has this prompt; where the adapter makes token ids, the tokens of it."""
        if chat.text is not None:
            return chat.text == text
        tokens = self.process(text, media).token_ids
        return chat.token_ids in (tokens, tokens[1:])  # the text may begin with the token that the tokenizer adds

    @property
    def columns(self) -> int:
        """Width of the rows that the decoder is given."""
        return int(self.hooks.get_input_embeddings(model=self.model, input_ids=self.ids([0])).shape[-1])

    def ids(self, tokens: Sequence[int]) -> Any:
        """Return token ids as hooks of the model are given them: `[tokens]` int64, on its device."""
        import torch

        return torch.tensor(tokens, dtype=torch.long, device=self.context.device)

    @property
    def hidden_size(self) -> int:
        """Width of embeddings and hidden states. The decoder's rows may be wider, its configuration's number larger."""
        return min(self.columns, getattr(self._decoder_config, "hidden_size", self.columns))

    @property
    def masked_token_ids(self) -> frozenset[int]:
        """Tokens that `compute_logits` gives no chance."""
        import torch

        hidden = torch.zeros(1, self.hidden_size, device=self.context.device)
        with torch.inference_mode():
            return masked_token_ids(self.hooks.compute_logits(model=self.model, hidden_states=hidden))

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Special tokens of the tokenizer."""
        added = self.context.tokenizer.added_tokens_decoder.items()
        return frozenset(self.context.tokenizer.all_special_ids).union(i for i, token in added if token.special)

    @cached_property
    def embedding_width(self) -> int:
        """Width of the encoder's embeddings: as stated, else, where the adapter merges them itself, the dummy's."""
        return self.encoders.width or int(self.embed(self.processor.profile.features[:1])[0].shape[-1])

    # --- the encoder ------------------------------------------------------------------------------------------------

    def embed_mask(self, processed: ProcessedPrompt) -> Any:
        """Return which tokens of a processed prompt take embeddings, `[tokens]` bool, on the model's device."""
        import torch

        mask = torch.zeros(len(processed.token_ids), dtype=torch.bool, device=self.context.device)
        for feature in processed.features:
            place = feature.placeholder
            mask[place.offset : place.end] = torch.tensor(place.is_embed or (True,) * place.length)
        return mask

    def embed(self, features: Sequence[MultiModalFeature]) -> list[Any]:
        """Return the encoder's embeddings of items that can be joined, unchecked: one entry per item."""
        import torch

        joined = join_items([feature.data for feature in features])
        with torch.inference_mode():
            embeddings = self.hooks.get_multimodal_embeddings(
                model=self.model,
                modality=features[0].modality,
                mm_kwargs={
                    name: floating_to(data, self.context.dtype, self.context.device) for name, data in joined.items()
                },
            )
        return list(embeddings)

    def encode(self, features: Sequence[MultiModalFeature]) -> list[Any]:
        """Return the embeddings of items that came together, one entry per item, made and checked by the engine."""
        self.encoders.run(features)
        outputs = [self.encoders.output(feature) for feature in features]
        self.encoders.drop(feature.identifier for feature in features)
        return outputs

    def close(self) -> None:
        """Free the model and the reference."""
        self.llm.close()
        self.reference.close()


def describe(item: Any) -> str:
    """Return a description of an item for a message."""
    if hasattr(item, "mode"):
        return f"an image of {item.width} x {item.height}"
    if isinstance(item, tuple):
        frames = item[0].shape
        return f"a video of {frames[0]} frames of {frames[2]} x {frames[1]}"
    if isinstance(item, bytes):
        return f"a file of {len(item)} bytes"
    return f"audio of {len(item)} samples"


def same_data(ours: Any, theirs: Any) -> bool:
    """Whether two items have the same tensors."""
    return dict(ours) == dict(theirs)


def same_output(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two outputs of a Hugging Face processor are the same."""
    return one.keys() == other.keys() and all(
        same_values(to_tensors(value), to_tensors(other[name])) for name, value in one.items()
    )


EXTREMES = (
    *((1, 1), (1, 200), (200, 1), (3, 500), (777, 333), (97, 98), (640, 480), (31, 900), (64, 64)),
    *((5000, 40), (40, 5000)),
)
"""Widths and heights."""
_LARGE = ((640, 480), (5000, 40))
"""Sizes that come twice."""


def extreme_items(subject: Subject, modality: str) -> list[Any]:
    """Return items of all sizes that users might give, large ones twice: of the same size and other content."""
    if modality == "image":
        return [make_image(*size, seed) for seed, size in enumerate((*EXTREMES, *_LARGE))]
    if modality == "video":
        videos = [make_video(3, *size, seed) for seed, size in enumerate((*EXTREMES, *_LARGE))]
        return [*videos, *(make_video(count, 60, 50, count, fps) for count in (1, 5, 40) for fps in (0.5, 30.0))]
    rate = subject.sampling_rate
    lengths = (1, 400, rate // 3, rate, 2 * rate + 1, 30 * rate, 31 * rate, 31 * rate)
    return [make_audio(count, rate, seed) for seed, count in enumerate(lengths)]


def large_item(subject: Subject, modality: str) -> Any:
    """Return an item that is larger than tiny models take."""
    if modality == "image":
        return make_image(640, 480, 0)
    if modality == "video":
        return make_video(40, 160, 120, 0)
    return make_audio(31 * subject.sampling_rate, subject.sampling_rate, 0)


def describe_prompt(parts: Sequence[Part]) -> str:
    """Return a description of a prompt for a message."""
    return " ".join(repr(part) if isinstance(part, str) else f"[{describe(part[1])}]" for part in parts)
