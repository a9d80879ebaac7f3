"""What an adapter must be like: the one page that an author of a model family's plugin reads.

An *adapter* is a class with the attributes of `AdapterAttributes` and with methods that implement the hooks below. It
ships in a distribution of its own and is found by an entry point in the group `corellm.models`, whose name is the
architecture in the checkpoint's `config.json`, or the `model_type` of checkpoints that name none:

    [project.entry-points."corellm.models"]
    LlavaForConditionalGeneration = "corellm_llava:Llava"

    class Llava:
        contract = 1                                    # the contract version it was written for, or range(1, 3)
        supported_mm_limits = {"image": None}           # what is the same for all checkpoints is an attribute
        placeholders = {"image": "<image>"}
        mm_fields_config = {"pixel_values": MultiModalFieldConfig.batched("image")}

        def __init__(self, context: ModelContext) -> None:
            self.context = context                      # made once per loaded model

        @hookimpl                                       # what depends on the checkpoint or the request is a hook
        def get_dummy_mm_data(self, mm_counts): ...

        @hookimpl
        def get_prompt_updates(self, out_mm_kwargs): ...

        @hookimpl
        def get_multimodal_embeddings(self, model, mm_kwargs): ...

These three attributes and three hooks are required. Each of the attributes has a hook of its own, `get_...`, for a
family whose checkpoints differ; it is then implemented instead.

Importing the adapter's module must import neither torch nor transformers: keep those imports inside the hooks.

A hook may take any subset of its arguments, by name; `model` is always the result of `load_model`. The results stated
below are what the core gets: an implementation may also return None, and then the core's default is called. Hooks
marked *required* have no default. Hooks run per item, per encoder batch or per load, never per decoded token. What a
hook raises fails the one request it was called for, or, at load, the load. The same arguments give the same result each
time; a hook writes into none of them but `inputs_embeds`.

Lifecycle: before there is a model `register_config`, `register_tokenizer`; at load `load_model`, `get_language_model`,
`get_max_encoder_states`, `get_supported_mm_limits`, `get_data_parser`, `get_dummy_*`, `register_processor` (at the
first use of `context.hf_processor`), `get_mm_kwargs_names`, `get_mm_max_tokens_per_item`,
`get_multimodal_embedding_width`; per request, in the front end, `make_context` or `get_transcription_prompt`
(`get_speech_form` for the first one), `get_placeholder_str`, `refuse_embeddings`, `get_item_kwargs`,
`call_hf_processor`, `get_mm_fields_config`, `apply_hf_processor_tokens_only`, `get_prompt_updates`,
`get_bidirectional_spans`, `get_visible_states`, `get_decoder_prompt`; in the worker, once per request
`get_rope_positions` and `get_encoder_states`, and per step `get_multimodal_embeddings`, `get_input_embeddings`,
`merge_multimodal_embeddings`, `compute_logits`.

An encoder-decoder is a model for which `get_max_encoder_states` gives a number. Its prompt, items included, is what the
encoder reads; `get_decoder_prompt` gives the tokens that its output begins behind.

A decoder that attends to items across, beside its own tokens, is one whose adapter implements `get_visible_states`: the
embeddings of its items are states (`PromptUpdateDetails.num_states`), and no token takes them.

This file knows signatures only. At run time it imports pluggy and the standard library.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from corellm.multimodal.fields import MultiModalFieldConfig, MultiModalKwargsItem
    from corellm.multimodal.inputs import MultiModalFeature
    from corellm.multimodal.items import MultiModalItems
    from corellm.multimodal.parsing import DataParser
    from corellm.multimodal.prompt_updates import PromptUpdate

PROJECT_NAME = "corellm"

hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a method as the implementation of the hook of that name; `hookimpl(wrapper=True)` for extensions' wrappers."""

_first_result = pluggy.HookspecMarker(PROJECT_NAME)(firstresult=True)


class AdapterAttributes:
    """The constants of an adapter: what is the same for all checkpoints of the family.

    An adapter need not inherit from this class. Its attributes are checked at load: types, names that are nearly these,
    and missing ones.
    """

    contract: int | range
    """The contract version that the adapter was written for, `CONTRACT_VERSION` then; or several, `range(1, 3)`."""
    supported_mm_limits: Mapping[str, int | None]
    """`{modality: most items per prompt, or None for any number}`. Other modalities are refused. Required, unless
    `get_supported_mm_limits` is implemented. Empty for a model that takes text alone: nothing else is required then."""
    placeholders: Mapping[str, str]
    """`{modality: the prompt text that stands for one item}`: what a media part becomes in a conversation without a
    chat template, and what the Hugging Face processor gets as text with an item. Empty if items have no placeholder.
    Required, unless `get_placeholder_str` or `get_dummy_text` is implemented."""
    mm_fields_config: Mapping[str, MultiModalFieldConfig | None]
    """`{tensor name: how it divides into items, or None if the model does not need it}`. Required, unless
    `get_mm_fields_config` is implemented."""
    refuse_embeddings: str
    """Why precomputed embeddings cannot stand in for items, for the error message. Without it they can."""
    tool_parser: str
    """The form in which the family writes tool calls, by the name of a parser of `corellm serve`. Without it the form
    is known by the chat template; `none` for a family that calls no tools."""
    reasoning_parser: str
    """The same for what the family thinks before it answers."""


@dataclass
class ModelContext:
    """The model that an adapter is made for."""

    model_path: Path
    """Local directory of the checkpoint."""
    hf_config: Any
    """The checkpoint's transformers configuration."""
    tokenizer: Any
    """The checkpoint's tokenizer."""
    dtype: torch.dtype
    """Type of the weights and activations."""
    device: torch.device
    """Where the model runs."""
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Processor arguments given at start, valid for every request; `kwargs_for` has those of one modality."""
    trust_remote_code: bool = False
    """Whether Python code from the checkpoint may run."""
    max_model_len: int | None = None
    """Longest sequence the engine serves; set by the core before the first item is processed. An item that becomes more
    tokens need not be decoded."""
    findings: dict[str, Any] = field(default_factory=dict)
    """What the adapter found of the loaded model that preparing prompts depends on, as values of JSON; the adapter
    writes it in `get_language_model`. A server prepares prompts in a process without the model, by another adapter of
    the same checkpoint: the core puts the findings there before that adapter is asked for its limits."""
    make_processor: Callable[[], Any] | None = None
    """Makes `hf_processor`; set by the core from `register_processor`."""

    @cached_property
    def hf_processor(self) -> Any:
        """The Hugging Face processor, made on first use."""
        if self.make_processor is None:
            from corellm.errors import ContractError

            raise ContractError("context.hf_processor is made after the adapter; use it in a hook, not in __init__")
        return self.make_processor()

    def kwargs_for(self, modality: str) -> dict[str, Any]:
        """The processor arguments given at start for items of one modality: those for all, and its own group."""
        from corellm.config import kwargs_for

        return kwargs_for(modality, self.mm_processor_kwargs)

    @cached_property
    def chat_template(self) -> str | None:
        """The checkpoint's chat template: its processor's, else its tokenizer's, else None."""
        for owner in (self.hf_processor, self.tokenizer):
            template = getattr(owner, "chat_template", None)
            if isinstance(template, Mapping):
                template = template.get("default")
            if isinstance(template, str) and template:
                return template
        return None


@dataclass(frozen=True)
class LoadConfig:
    """The argument of `load_model`."""

    model_path: Path
    dtype: torch.dtype
    device: torch.device
    attn_implementation: str
    """Attention of the text decoder: the name under which the core registered its paged attention."""
    trust_remote_code: bool = False
    load_format: str = "auto"
    """`auto` for the checkpoint's weights, `dummy` for random ones."""
    adapt_class: Callable[[Any], Any] | None = None
    """Returns, for models that pool, the class to load in place of a transformers class, without its output layer. The
    core applies it; an adapter that loads its model itself may, too."""


@dataclass(frozen=True)
class ChatPrompt:
    """The prompt made of a conversation: text or token ids, and the media of its placeholders.

    Text is tokenized as a whole, but for `corellm.multimodal.TEXT_BOUNDARY`: what is before and behind it, apart.
    """

    prompt: str | list[int]
    mm_data: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """`{modality: media in the order of their placeholders}`."""


@dataclass(frozen=True)
class DecoderPrompt:
    """What the decoder of an encoder-decoder starts from."""

    token_ids: Sequence[int]
    """The tokens before the first one that is generated; at least one."""
    num_states: int | None = None
    """States that `get_encoder_states` will give for the prompt; None for one for each of its tokens."""
    choices: Sequence[Sequence[int]] = ()
    """Tokens that the output's first ones may be, place by place; behind them come any."""
    not_first: Sequence[int] = ()
    """Tokens that do not come right behind these."""


class AudioWindows(Protocol):
    """A long audio item, as a model reads it window by window."""

    num_frames: int
    """Frames of the whole; `SpokenTimes` says how many a window has."""

    def at(self, frame: int) -> tuple[Any, Mapping[str, Any]]:
        """Return the item of the window from a frame on, and the `mm_processor_kwargs` to process it with."""
        ...


@dataclass(frozen=True)
class SpokenTimes:
    """How a model tells when what it writes down is said: tokens of times, counted from the beginning of a window."""

    zero: int
    """The token of time 0; each token after it, up to the last one, is a step later."""
    without: int
    """The token by which a prompt says that no times come; it does not come beside times."""
    end: int
    """The token that ends a text; those below it are text."""
    most_first: int | None
    """Most steps before the first segment of a window; None for any number."""
    window_frames: int
    """Frames of audio that the model reads at once."""
    frames_per_step: int
    seconds_per_frame: float
    windows: Callable[[Any], AudioWindows]
    """An audio item, `[num_samples]` float32 at the model's rate, as windows."""
    prompt: Callable[[str | None, bool, str, int | None], Sequence[int] | None]
    """Tokens that ask for text with times: of language, whether to translate, and context, as
    `get_transcription_prompt` has them, and of the token of the language that was heard. None where it must be heard
    first: then the first output token for the audio alone is that token."""
    languages: Mapping[int, str]
    """Names of languages by the tokens of a prompt that say them: `{50261: "german"}`."""
    heads: Sequence[tuple[int, int]] = ()
    """Alignment heads, as (layer, head) of the decoder: their cross-attention says when a token is heard. Empty where
    they are not known."""
    smoothing: int = 7
    """Width of the median filter over the frames of that attention, an odd number."""
    no_speech: int | None = None
    """Token for silence (Whisper's `<|nospeech|>`). Its probability right after the token that
    begins a transcript (`<|startoftranscript|>`) is that of no speech. None for a model without such a token."""
    earlier: tuple[int, int] | None = None
    """Token that comes before the text of earlier windows, and the most tokens of that text in a prompt."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """Values of `LLM.transcribe`'s thresholds and of `condition_on_prev_tokens` that the checkpoint sets."""


@dataclass(frozen=True)
class SpeechForm:
    """How a model writes down audio that is longer than it reads at once."""

    seconds: float
    """The longest audio that it reads at once."""
    sampling_rate: int
    """Samples per second of audio."""
    times: SpokenTimes | None = None
    """None for a model that tells no times: longer audio is cut where it is silent."""


# --- before there is a model ---------------------------------------------------------------------------------------


@_first_result
def register_config() -> Callable[..., PreTrainedConfig] | None:
    """Give the configuration class or factory, for a checkpoint that transformers reads only by running its code.

    A static method: it is called before there is a context.

    Returns:
        A class with `from_pretrained`, or a function of the checkpoint's directory, which is given `trust_remote_code=`
        if it takes it. What it makes is a `transformers.PretrainedConfig`, with `get_text_config()`.
        Default: `transformers.AutoConfig`.

    Example, in full, as static hooks need a second decorator:

        @staticmethod
        @hookimpl
        def register_config():
            return MyConfig
    """


@_first_result
def register_tokenizer() -> Callable[..., PreTrainedTokenizerBase] | None:
    """Give the tokenizer class or factory, where transformers has none: as `register_config`, static, too.

    What it makes is a `transformers.PreTrainedTokenizerFast` or works like one. Default: `transformers.AutoTokenizer`.
    """


# --- what the model takes -------------------------------------------------------------------------------------------


@_first_result
def get_supported_mm_limits() -> Mapping[str, int | None]:
    """Give `AdapterAttributes.supported_mm_limits`, where it depends on the checkpoint. Default: the attribute."""


@_first_result
def refuse_embeddings(modality: str) -> str | None:
    """Say why precomputed embeddings cannot stand in for items of a modality; None where they can.

    Default: the attribute of the same name.
    """


@_first_result
def get_mm_max_tokens_per_item(seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int] | None:
    """State the most placeholder tokens that one item can become.

    Args:
        seq_len: the longest sequence the engine serves.
        mm_counts: `{modality: items per prompt}` the operator allows.

    Returns:
        `{modality: tokens}`: an upper bound over all items, which the dummy item reaches.
        Default: the tokens of the processed dummy items.
    """


@_first_result
def get_dummy_text(mm_counts: Mapping[str, int]) -> str:
    """Give the prompt text that the Hugging Face processor gets beside `mm_counts` items, one placeholder for each.

    Default: `get_placeholder_str` of a first item, repeated.
    """


@_first_result
def get_dummy_mm_data(
    seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
) -> Mapping[str, Any]:
    """Give media that become the most placeholder tokens possible. Required.

    The profile run at load encodes them, and memory is planned by it.

    Args:
        seq_len: the longest sequence the engine serves.
        mm_counts: how many items of each modality to give.
        mm_options: the sizes that the operator plans for, which dummies must not exceed. For example
            `{"image": {"width": 1024, "height": 1024}, "video": {"num_frames": 8}, "audio": {"length": 16000}}`, the
            length in samples; modalities and keys may be missing. A family that resizes all items need not take it.

    Returns:
        What a user would pass as `multi_modal_data`. See `dummy_images`, `dummy_videos` and `dummy_audios` of
        `corellm.multimodal`, which take an entry of `mm_options` as `bounds`.
    """


# --- raw media and text to tensors and token ids -------------------------------------------------------------------


@_first_result
def register_processor() -> Callable[..., Any] | None:
    """Give the processor class or factory, as of `register_config`, where the hub has none or it does not work.

    What it makes is called like a Hugging Face processor: `processor(text=..., images=..., return_tensors="pt",
    **mm_kwargs)`. Default: `transformers.AutoProcessor`.
    """


@_first_result
def get_data_parser() -> DataParser:
    """Give the parser that turns raw media into items: which forms they may have, and the sampling rate of audio.

    What it returns for an item identifies the item: equal items are processed and embedded once, for all requests. An
    image's mode, size, pixels, all of its `info` and attributes set on it count; a `Video`'s frames and metadata; an
    array's or tensor's dtype, shape and values; text, numbers, and tuples, lists and dicts of all these. An item with
    a part of another kind is refused with a `MediaError`. What a parser keeps elsewhere identifies nothing.

    The core gives it the operator's limits. Default: a `corellm.multimodal.DataParser`.
    """


@_first_result
def get_mm_kwargs_names(modality: str) -> Collection[str] | None:
    """Name the processor arguments that items of one modality depend on.

    An argument that is named for other modalities only is not given to this one, whose items are not processed again
    when it changes. If the names are not known, every item gets all arguments and depends on all of them.

    Returns:
        The names, as users write them in `mm_processor_kwargs`; None where they are not known.
        Default: those that the Hugging Face processor declares, unless the adapter implements `call_hf_processor`.

    Example:
        `return {"image": ["size"], "video": ["size", "fps"]}[modality]`
    """


@_first_result
def get_item_kwargs(modality: str, token_ids: Sequence[int]) -> Mapping[str, Any] | None:
    """Give processor arguments that follow from the prompt, for items whose encoder reads it.

    Called for each request, once for each modality that it has items of, and for the dummy items. Without the hook,
    an item is the same in every prompt.

    Args:
        modality: of the items.
        token_ids: the prompt with unexpanded placeholders, the tokenizer's own special tokens included. They are all
            that is seen of it, so a text, its token ids and a conversation that becomes them have the same items.

    Returns:
        `{argument: value}`, text, numbers, and lists of these, laid under the arguments of request and operator in
        `mm_kwargs`. They identify the items, also those given as embeddings or as a uuid: where they differ, an image
        is processed and embedded anew. So give no more of a prompt than its items depend on. Default: none.

    Example, for an encoder that reads the question beside an image:
        `return {"question": self.context.tokenizer.decode(token_ids, skip_special_tokens=True)}`
    """


@_first_result
def call_hf_processor(
    prompt: str, mm_data: Mapping[str, Sequence[Any]], mm_kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Turn ONE item into tensors; they must not depend on the other items of the request.

    Args:
        prompt: `get_dummy_text` for this one item.
        mm_data: `{modality: [item]}` with a single parsed item: a `PIL.Image` in RGB, a `corellm.multimodal.Video`, or
            samples `[num_samples]` float32 at the model's rate.
        mm_kwargs: processor arguments of this item's modality (see `get_mm_kwargs_names`); the request's override the
            operator's, and those override what `get_item_kwargs` gives.

    Returns:
        The processor's `BatchFeature` with torch tensors. Text keys such as `input_ids` are ignored.
        Default: calls `context.hf_processor`, after refusing arguments that it does not know, and sizes above those for
        which memory was planned. An adapter that makes the call itself may do both with `check_processor_kwargs` and
        `check_sizes` of `corellm.multimodal`. The text is left out if the processor's class does not override
        `ProcessorMixin.__call__`: then text changes no tensor.
    """


@_first_result
def get_mm_fields_config(
    hf_inputs: Mapping[str, Any], mm_kwargs: Mapping[str, Any]
) -> Mapping[str, MultiModalFieldConfig | None]:
    """State how each tensor of `call_hf_processor` divides into items, where that depends on the tensors.

    Args:
        hf_inputs: the result of `call_hf_processor`.
        mm_kwargs: the processor arguments it was called with.

    Returns:
        `{tensor name: MultiModalFieldConfig.batched(modality) / flat / flat_from_sizes / shared}`, None for a tensor
        that the model does not need. A tensor that is not named is an error. Default: the attribute `mm_fields_config`.

    Example, for patches of all items one after another:
        `return {"patches": MultiModalFieldConfig.flat_from_sizes("image", hf_inputs["grids"].prod(-1))}`
    """


@_first_result
def get_prompt_updates(
    mm_items: MultiModalItems,
    mm_kwargs: Mapping[str, Any],
    out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]],
) -> Sequence[PromptUpdate]:
    """State how each item's placeholder gets into the prompt. Required.

    Called for each request with items, and once at load without any, `mm_items` and `out_mm_kwargs` being empty: the
    targets returned then are refused in a prompt of text alone.

    Args:
        mm_items: the parsed items; `mm_items["image"].num_embeddings(i)` is the number of precomputed embeddings, None
            for an image. An item that came as its uuid alone has no media (`is_uuid_only`): use its tensors.
        mm_kwargs: processor arguments. If modalities have different ones, the hook is called once for each modality,
            and the updates for other modalities are dropped.
        out_mm_kwargs: `{modality: [the item's tensors]}`, e.g. `out_mm_kwargs["image"][i]["pixel_values"].data`.

    Returns:
        `PromptReplacement` / `PromptInsertion`, whose replacement may be a function of the item index.
    """


@_first_result
def apply_hf_processor_tokens_only(
    token_ids: list[int],
    mm_counts: Mapping[str, int],
    out_mm_kwargs: Mapping[str, Sequence[MultiModalKwargsItem]],
) -> list[int]:
    """Change a prompt's tokens as the Hugging Face processor does, apart from expanding placeholders.

    A prompt that has the processor's tokens already, as a conversation's or token ids may, stays as it is.

    Args:
        token_ids: the prompt with unexpanded placeholders, the tokenizer's own special tokens included.
        mm_counts: `{modality: items}` of this prompt; empty for text alone.
        out_mm_kwargs: the processed items, as `get_prompt_updates` takes them, for tokens that depend on them (Gemma
            3's text about the crops of an image). Empty where a prompt is looked at before its items are.

    Default: unchanged.

    Example: Chameleon appends a token to every prompt, Fuyu only to one with an image.
    """


@_first_result
def get_bidirectional_spans(
    token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]
) -> Sequence[tuple[int, int]] | None:
    """Name the spans of a prompt whose tokens see each other; all other tokens see those up to themselves.

    The engine computes a span in one step, whatever the chunks. At load, a model that states such masks needs this
    hook. Of mixed layers, those whose mask the model states as causal stay causal; whether a window also cuts spans is
    found in the model's masks.

    Args:
        token_ids: the prompt, placeholders expanded.
        mm_features: its items, by placeholder offset; empty for text alone.

    Returns:
        `[start, end)` of each span, none overlapping another. Default: none, attention is causal.

    Example, for a model whose image tokens see each other (`embedded_spans` of `corellm.multimodal`):
        `return embedded_spans(mm_features)`
    """


@_first_result
def get_visible_states(
    token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]
) -> Sequence[tuple[int, int, int]]:
    """State which states of its items each token of a prompt sees, for a decoder that attends to items across.

    Called for prompts with items only. An item's embeddings are states then, as many as the `num_states` of its
    `PromptUpdateDetails`; `get_encoder_states` may put those of all items into another order. Their keys and values are
    written once, in the step of the request's first chunk, whichever tokens see them, and stay in the KV cache until
    the request ends. Prompts with equal items share them: what a token sees must follow from the items and from the
    tokens up to it.

    In steps with such states the decoder (`get_language_model`) gets, as that of an encoder-decoder, a transformers
    `EncoderDecoderCache` by the name by which its class takes a cache, and `encoder_hidden_states` `[1, num_new_states,
    hidden_size]`, often without any. A layer that attends to states gives new ones' keys and values to
    `cross_attention_cache.update`, and attention whatever that returns, else `cross_attention_cache.layers[i]`.
    `sees_states`, `[num_tokens]` bool, says which tokens see any. One that sees none attends to all states of its
    request, as where a model masks out all of them, and to nothing (zeros) if it has none: what a layer adds to it then
    is the decoder's matter. In steps without states the decoder gets none of these, and attends to none.

    Args:
        token_ids: the prompt, placeholders expanded.
        mm_features: its items, by placeholder offset.

    Returns:
        `(token, start, end)`, by token: from that token on, tokens see the states `start` up to `end`, until the next
        one's; generated tokens see what the last one sees. Tokens before the first see none.
        Default: none; tokens take items' embeddings.

    Example, for tokens that see the last image before them:

        ends = accumulate(feature.placeholder.num_embeds for feature in mm_features)
        return [(f.placeholder.offset, end - f.placeholder.num_embeds, end) for f, end in zip(mm_features, ends)]
    """


@_first_result
def get_max_encoder_states() -> int | None:
    """State the most states that the encoder of an encoder-decoder gives; None for a model that is only a decoder.

    A longer prompt is refused before it reaches the engine; `max_model_len` limits the decoder's tokens.
    Called at load.

    Default: where the configuration says `is_encoder_decoder`, the encoder's positions; else None.
    """


@_first_result
def get_decoder_prompt(token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]) -> DecoderPrompt | None:
    """Give the decoder's first tokens for a prompt. Called for encoder-decoders only.

    Args:
        token_ids: the prompt, which the encoder reads, placeholders expanded.
        mm_features: its items, by placeholder offset.

    Default: what transformers' `generate` starts from, by the generation configuration: `decoder_start_token_id`, then
        `forced_bos_token_id` if there is one.

    Example, for a model whose encoder reads audio alone and whose decoder continues the prompt's text:

        (audio,) = mm_features
        text = token_ids[audio.placeholder.end :]
        return DecoderPrompt(text, num_states=audio.placeholder.num_embeds)
    """


@_first_result
def get_placeholder_str(modality: str, index: int) -> str | None:
    r"""Give the prompt text that stands for one item, where it depends on the checkpoint or on `index`.

    Args:
        modality: of the item.
        index: of the item within its modality, from 0.

    Returns:
        The text; None for a modality that the model does not take. Default: the attribute `placeholders`.

    Example:
        `return f"Audio {index + 1}: <|AUDIO|>\n" if modality == "audio" else None`
    """


@_first_result
def make_context(
    messages: Sequence[Mapping[str, Any]],
    max_window_size: int,
    add_generation_prompt: bool,
    chat_template: str | None,
    tools: Sequence[Mapping[str, Any]] | None,
    chat_template_kwargs: Mapping[str, Any],
) -> ChatPrompt | None:
    """Turn an OpenAI-style conversation into a prompt and its media: the family's own input builder.

    Args:
        messages: `{"role": ..., "content": text or parts}`; media parts are `{"type": modality, modality: media}`.
        max_window_size: most tokens of the prompt; older turns may be left out to keep to it. For families that do
            not, the core does, if the request asks for it.
        add_generation_prompt: whether to end with the start of the assistant's turn.
        chat_template: the operator's, else the checkpoint's, or None. A family whose own form is only a fallback
            returns None if there is one.
        tools, chat_template_kwargs: for the template; None and empty where there is no template.

    Default: the chat template, if there is one; else `get_placeholder_str`.
    """


@_first_result
def get_transcription_prompt(language: str | None, translate: bool, context: str) -> Sequence[int] | None:
    """Give the prompt that asks for what is said in one audio item, if the family has a form for that alone.

    Args:
        language: that is spoken, as the request names it: `"de"`; None if it does not say.
        translate: whether the answer is to be in English, else in the language that is spoken.
        context: what was said before, or names that may come; may be empty. What it says is text: special tokens in it
            are refused, or written as text.

    Returns:
        Token ids, with the audio's placeholder where there is one; None to be asked in a conversation, as by default.

    Raises:
        RequestError: the model cannot be told one of them.

    Example:
        return self.context.tokenizer.encode(f"[BEGIN_AUDIO][AUDIO]lang:{_checked(language)}[TRANSCRIBE]")
    """


@_first_result
def get_speech_form() -> SpeechForm | None:
    """Say how audio is written down that is longer than the model reads at once, and with which tokens of times.

    Called once, for the first transcription.

    Returns:
        None, the default, for a model that reads audio of any length at once: then it is not cut.

    Example:
        return SpeechForm(seconds=30.0, sampling_rate=16_000)
    """


# --- the model ------------------------------------------------------------------------------------------------------


@_first_result
def load_model(load_config: LoadConfig) -> nn.Module:
    """Give the model, with its weights, in evaluation mode.

    Default: the transformers class that the checkpoint's `architectures` names, else the one transformers has for its
    class of configuration, with the text decoder on `load_config.attn_implementation`; every weight of the checkpoint
    that is of one of the model's modules must have its place. With `load_config.load_format="dummy"` weights are random
    and no file of weights is read. The configuration is the context's, which the operator may have changed
    (`hf_overrides`).

    Example, for an architecture that transformers knows by another name:

        model = transformers.LlavaForConditionalGeneration.from_pretrained(
            load_config.model_path,
            config=self.context.hf_config,
            dtype=load_config.dtype,
            attn_implementation={"text_config": load_config.attn_implementation},
        )
        return model.to(load_config.device).eval()
    """


@_first_result
def get_language_model(model: nn.Module) -> nn.Module:
    """Give the text decoder inside the model, which turns `inputs_embeds` and `position_ids` into hidden states.

    A model on the device `meta` has no values and is not run: its decoder is looked at alone. Default:
    `model.get_decoder()`.
    """


@_first_result
def get_multimodal_embeddings(
    model: nn.Module, modality: str, mm_kwargs: Mapping[str, Any]
) -> Tensor | Sequence[Tensor]:
    """Embed items: run the vision tower and projector, the audio encoder, ... Required.

    Args:
        modality: of all these items.
        mm_kwargs: the items' tensors, joined as `get_mm_fields_config` states, on the model's device and (floating
            point ones) in its dtype.

    Returns:
        A tensor `[items, tokens, hidden_size]`, or one `[tokens, hidden_size]` per item. An item has as many embeddings
        as its placeholder's `num_embeds`. If the adapter merges them itself, they may be wider than `hidden_size`.
    """


@_first_result
def get_multimodal_embedding_width(model: nn.Module) -> int | None:
    """State the width of `get_multimodal_embeddings`, so that another one is an error at load.

    Default: the decoder's `hidden_size`, or, if the adapter implements `merge_multimodal_embeddings`, that of the first
    dummy item.
    """


@_first_result
def get_input_embeddings(model: nn.Module, input_ids: Tensor) -> Tensor:
    """Embed text tokens.

    Args:
        input_ids: `[num_tokens]`.

    Returns:
        `[num_tokens, hidden_size]`, or wider rows, where the decoder takes more of a token than its embedding (Gemma 4:
        `corellm.modelling.LayerInputs`). Default: `model.get_input_embeddings()(input_ids)`.
    """


@_first_result
def merge_multimodal_embeddings(
    inputs_embeds: Tensor, multimodal_embeddings: Tensor, is_multimodal: Tensor
) -> Tensor | tuple[Tensor, Mapping[str, Any]]:
    """Put item embeddings into the text embeddings of one step's flat batch.

    Args:
        inputs_embeds: `[num_tokens, hidden_size]`; may be written to.
        multimodal_embeddings: `[num_multimodal, width]`, in the order of their positions; as wide as those of
            `get_multimodal_embeddings`. Qwen3-VL's also have what its decoder adds to the hidden states of its first
            layers: the engine stores, chunks and passes on whole embeddings, and this hook splits them.
        is_multimodal: `[num_tokens]`, bool, with exactly `num_multimodal` ones.

    Returns:
        The merged embeddings, or `(merged, keyword arguments for this step's forward pass)`.
        Default: `corellm.multimodal.write_rows`, a masked write that refuses any other number of embeddings.
    """


@_first_result
def get_encoder_states(
    model: nn.Module, inputs_embeds: Tensor, is_multimodal: Tensor, mm_features: Sequence[MultiModalFeature]
) -> Tensor:
    """Give the states that the decoder attends to, of one prompt. Called once per request, for encoder-decoders and,
    where the adapter implements `get_visible_states`, for prompts with items.

    Their keys and values stay in the KV cache until the request ends.

    Args:
        inputs_embeds: `[num_tokens, hidden_size]`, the prompt's embeddings, item embeddings merged in; where no token
            takes an item's, those of the items alone, one item after another.
        is_multimodal: `[num_tokens]`, bool, the tokens that took an item's embedding, or all of these.
        mm_features: the prompt's items, by placeholder offset; empty in the profile run.

    Returns:
        `[num_states, hidden_size]`; as many as `DecoderPrompt.num_states`, or as the items have.
        Default: the output of `model.get_encoder()`; the items' embeddings, of a model that is only a decoder.

    Example, for a model whose items' encoder is its only one:
        `return inputs_embeds[is_multimodal]`
    """


@_first_result
def compute_logits(model: nn.Module, hidden_states: Tensor) -> Tensor:
    """Give the logits of the sampled positions.

    Args:
        hidden_states: `[num_sampled, hidden_size]`.

    Returns:
        `[num_sampled, vocab_size]`. Default: `model.get_output_embeddings()(hidden_states)`.
    """


@_first_result
def get_rope_positions(
    model: nn.Module, token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]
) -> tuple[Tensor, int] | None:
    """Give the position of every prompt token, and the offset of generated ones. Called for prompts with items only.

    Args:
        token_ids: the prompt, placeholders expanded.
        mm_features: its items, by placeholder offset.

    Returns:
        `(positions, offset)`: positions `[num_tokens]`, or `[axes, num_tokens]` for M-RoPE, mostly of three axes; the
        token generated at index `i` of the sequence has position `i + offset`. Default: `arange`, 0.
    """


REQUIRED_HOOKS = ("get_dummy_mm_data", "get_prompt_updates", "get_multimodal_embeddings")
"""Hooks without a default: an adapter that lacks one is refused at load."""

REQUIRED_ATTRIBUTES: Mapping[str, Sequence[str]] = {
    "supported_mm_limits": ("get_supported_mm_limits",),
    "placeholders": ("get_placeholder_str", "get_dummy_text"),
    "mm_fields_config": ("get_mm_fields_config",),
}
"""`{attribute: hooks}`: an adapter with neither the attribute nor one of the hooks is refused at load."""

STATIC_HOOKS = ("register_config", "register_tokenizer")
"""Hooks that are called on the adapter's class, before it is made."""

# --- versions --------------------------------------------------------------------------------------------------------

CONTRACT_VERSION = 1
"""Raised when a hook or an argument is renamed or removed. New optional hooks and arguments do not raise it."""

OLDEST_CONTRACT_VERSION = 1
"""Adapters written for this version or a later one still load: the version before this one at most."""

RENAMED_HOOKS: Mapping[str, str] = {}
"""`{old name: new name}` of hooks that this version renames. Those of adapters of the version before are called
under the old name, with a warning, until the next version.

A hook or an argument that the next version removes stays for this one, with `warn_on_impl` or `warn_on_impl_args` and a
`FutureWarning` that says what to do instead. An argument is renamed by adding the new one beside it.
"""
