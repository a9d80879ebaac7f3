"""A request's way through a model's hooks, one call after another, so that a fault can be told of one hook.

Knows what each hook is given; knows no rule.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from corellm.errors import RequestError
from corellm.frontend.input_processor import InputProcessor, ProcessedPrompt
from corellm_testing.subject import Part, Subject

HookCall = tuple[str, Callable[[], Any]]
"""A hook's name, and a function that calls it and returns its result."""


@dataclass(frozen=True)
class Request:
    """What a caller gives: one item or none, in a prompt and in a conversation."""

    modality: str | None
    tokens: list[int]
    """The prompt."""
    media: dict[str, list[Any]]
    messages: list[dict[str, Any]]
    """The conversation."""
    kwargs: dict[str, Any]
    """`mm_processor_kwargs` of both."""

    @classmethod
    def of(
        cls, subject: Subject, modality: str | None, item: Any = None, kwargs: Mapping[str, Any] | None = None
    ) -> Request:
        """Return a request with one item, or of text alone where `modality` is None."""
        parts: list[Part] = [(modality, item), "What?"] if modality is not None else ["What?"]
        text, media = subject.prompt(parts)
        shown = [{"type": modality, modality: item}] if modality is not None else []
        messages = [{"role": "user", "content": [*shown, {"type": "text", "text": "What?"}]}]
        tokens = list(subject.context.tokenizer(text)["input_ids"])
        return cls(modality, tokens, media, messages, copy.deepcopy(dict(kwargs or {})))


def hook_calls(subject: Subject, request: Request) -> Iterator[HookCall]:
    """Yield the calls for a request, in their order; each gets what the ones before it returned."""
    hooks, inputs = subject.hooks, subject.fresh()  # with a cache: its item is processed once
    if request.modality is not None:
        yield from _item_calls(subject, request.modality, request)
    counts = {name: len(items) for name, items in request.media.items()}
    yield (
        "apply_hf_processor_tokens_only",
        lambda: hooks.apply_hf_processor_tokens_only(
            token_ids=list(request.tokens), mm_counts=counts, out_mm_kwargs={}
        ),
    )

    def process() -> ProcessedPrompt:
        return subject.process(request.tokens, request.media, request.kwargs, inputs=inputs)

    yield "get_prompt_updates", process
    yield "make_context", lambda: _chat(inputs, request)
    yield from _model_calls(subject, process())


def _item_calls(subject: Subject, modality: str, request: Request) -> Iterator[HookCall]:
    """Yield the calls that make tensors of an item."""
    hooks, processor = subject.hooks, subject.processor
    yield "get_placeholder_str", lambda: hooks.get_placeholder_str(modality=modality, index=0)
    yield "get_dummy_text", lambda: hooks.get_dummy_text(mm_counts={modality: 1})
    yield "get_data_parser", lambda: processor.parse(request.media)
    items, given = processor.parse(request.media)[modality], processor.kwargs.resolve(request.kwargs)[modality]

    def get_item_kwargs() -> Mapping[str, Any] | None:
        return hooks.get_item_kwargs(modality=modality, token_ids=list(request.tokens))

    yield "get_item_kwargs", get_item_kwargs
    own = {**(get_item_kwargs() or {}), **given}
    prompt = hooks.get_dummy_text(mm_counts={modality: 1})

    def call_hf_processor() -> Mapping[str, Any]:
        return hooks.call_hf_processor(prompt=prompt, mm_data={modality: [items.get(0)]}, mm_kwargs=own)

    yield "call_hf_processor", call_hf_processor
    outputs = call_hf_processor()
    yield "get_mm_fields_config", lambda: hooks.get_mm_fields_config(hf_inputs=outputs, mm_kwargs=own)


def _chat(inputs: InputProcessor, request: Request) -> ProcessedPrompt | str:
    """Return the conversation processed; the reason, where the family refuses it."""
    try:
        return inputs.process_chat(request.messages, mm_processor_kwargs=request.kwargs)
    except RequestError as error:
        return str(error)


def _model_calls(subject: Subject, processed: ProcessedPrompt) -> Iterator[HookCall]:
    """Yield the calls that need the model, for a processed prompt."""
    import torch

    hooks, model, tokens, features = subject.hooks, subject.model, processed.token_ids, processed.features
    yield (
        "get_bidirectional_spans",
        lambda: hooks.get_bidirectional_spans(token_ids=list(tokens), mm_features=features),
    )
    yield (
        "get_rope_positions",
        lambda: hooks.get_rope_positions(model=model, token_ids=list(tokens), mm_features=features),
    )
    mask = subject.embed_mask(processed)
    ids = subject.ids(tokens).masked_fill(mask, 0)

    @torch.inference_mode()
    def get_input_embeddings() -> Any:
        return hooks.get_input_embeddings(model=model, input_ids=ids)

    yield "get_input_embeddings", get_input_embeddings
    text = get_input_embeddings().clone()

    @torch.inference_mode()
    def compute_logits() -> Any:
        return hooks.compute_logits(model=model, hidden_states=text)

    if features:
        yield "get_multimodal_embeddings", lambda: subject.embed(features)
        embeddings = torch.cat(subject.embed(features))
    if features and features[0].placeholder.num_states is not None:

        @torch.inference_mode()
        def get_encoder_states() -> Any:
            every = torch.ones(len(embeddings), dtype=torch.bool, device=embeddings.device)
            return hooks.get_encoder_states(
                model=model, inputs_embeds=embeddings.clone(), is_multimodal=every, mm_features=features
            )

        visible = partial(hooks.get_visible_states, token_ids=list(tokens), mm_features=features)
        yield "get_visible_states", visible
        yield "get_encoder_states", get_encoder_states
    elif features:

        @torch.inference_mode()
        def merge_multimodal_embeddings() -> Any:
            return hooks.merge_multimodal_embeddings(
                inputs_embeds=text.clone(), multimodal_embeddings=embeddings, is_multimodal=mask
            )

        yield "merge_multimodal_embeddings", merge_multimodal_embeddings
    yield "compute_logits", compute_logits
