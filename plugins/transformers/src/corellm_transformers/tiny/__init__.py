"""Tiny random checkpoints of any multimodal model of transformers: one recipe; in `kinds` what a kind needs more."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError
from corellm.modelling import item_token_ids
from corellm.tiny_checkpoints import randomize_weights, train_tokenizer
from corellm_transformers.configurations import has_forward
from corellm_transformers.encoder_decoders.reading import share_embeddings
from corellm_transformers.processors import Absent, absent_parts, image_processor_class, image_processor_name, without
from corellm_transformers.processors import processor_class as find_processor
from corellm_transformers.tiny.configs import tiny_config
from corellm_transformers.tiny.encoder_decoders import ENCODER_DECODERS, generation_config, vary_outputs
from corellm_transformers.tiny.kinds import KINDS, Kind

_SPECIAL = re.compile(r"[<\[(|].*[>\])|]", re.DOTALL)
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}IMAGE"
    "{% elif part['type'] == 'video' %}VIDEO{% else %}AUDIO{% endif %}"
    "{% endfor %}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
_SIDE = 56
USUAL_TOKENS = (
    *("image_token", "video_token", "audio_token", "boi_token", "eoi_token", "boa_token", "eoa_token"),
    *("start_image_token", "end_image_token", "context_image_token", "start_video_token", "end_video_token"),
    *("image_start_token", "image_end_token", "image_break_token", "image_boundary_token", "image_wrapper_token"),
    *("video_start_token", "video_end_token", "audio_bos_token", "audio_eos_token", "vision_bos_token"),
    *("vision_eos_token", "vision_start_token", "vision_end_token", "fake_image_token", "global_image_token"),
    *("end_of_utterance_token", "img_line_break_token", "tile_token", "tile_global_token", "image_newline_token"),
    *("row_start_token", "row_end_token", "eof_token", "eol_token"),
)
"""Attributes of tokenizers, each for a special token of that name."""


def make_tiny_checkpoint(path: str | Path, seed: int = 0, *, architecture: str) -> Path:
    """Write a checkpoint in the Hugging Face layout: configuration, weights, tokenizer, processor.

    Args:
        path: directory to write to; made if need be.
        seed: of the weights.
        architecture: a class of transformers.

    Returns:
        `path`.

    Raises:
        CheckpointError: transformers has no processor of images or audio for it, or none without torchvision.
        ValueError: it would not be tiny.
    """
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    path = Path(path)
    cls = getattr(transformers, architecture)
    kind = {**KINDS, **ENCODER_DECODERS}.get(architecture, Kind())
    named = kind.processor_class or PROCESSOR_MAPPING_NAMES.get(cls.config_class.model_type)
    if named is None:
        raise CheckpointError(f"transformers has no processor for {architecture}")
    processor_class = find_processor(named)
    if not {"image_processor", "feature_extractor", "audio_processor"} & set(processor_class.get_attributes()):
        raise CheckpointError(f"{named} takes neither images nor audio")
    tokenizer = _tokenizer(processor_class, kind)
    processor = _processor(processor_class, cls.config_class.model_type, tokenizer, kind)
    changes = {**kind.config, **({"vocabulary_map": tokenizer.get_vocab()} if kind.vocabulary_map else {})}
    config = tiny_config(cls.config_class, changes, len(tokenizer))  # the processor may have added tokens
    for part in _parts_with_tokens(config):
        _set_tokens(part, processor, tokenizer)
        for name, token in kind.token_ids.items():
            setattr(part, name, tokenizer.convert_tokens_to_ids(list(token) if isinstance(token, tuple) else token))
    _check_size(cls, config)
    model = cls(config)
    if kind.generation:
        share_embeddings(model, model.get_decoder())
    for part in [model] if has_forward(cls) else model.children():
        randomize_weights(part, kind.seed + seed)
    _spread_experts(model)
    _spread_codes(model, kind.seed + seed)
    if kind.generation:
        vary_outputs(model, kind.spread)
        model.generation_config = generation_config(kind.generation, tokenizer)
    model.save_pretrained(path)
    _save_processor(processor, path)
    return path


def _check_size(cls: Any, config: Any) -> None:
    """Refuse a model that is not tiny: a size that `configs` does not know has stayed as it was.

    Raises:
        ValueError: it has more than 100 million weights; names the largest.
    """
    import torch

    with torch.device("meta"):
        sizes = {name: parameter.numel() for name, parameter in cls(config).named_parameters()}
    if sum(sizes.values()) > 100_000_000:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ValueError(f"{sum(sizes.values())} weights are not tiny; make {largest} smaller, in KINDS")


def _spread_experts(model: Any) -> None:
    """Spread the weights of experts, `[experts, rows, columns]`, as those of other layers."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 3 and "experts" in name:
                parameter.mul_(14 / parameter.shape[-1] ** 0.5)


def _spread_codes(model: Any, seed: int) -> None:
    """Spread codebooks that are no weights, and lengths of rows that are apart: else all items have the same codes."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith(("embed", "embed_sum")) and buffer.dim() == 2:
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
        for name, parameter in model.named_parameters():
            if name.endswith("parametrizations.weight.original0"):
                parameter.fill_(1.2)


def _defaults(processor_class: Any) -> dict[str, Any]:
    parameters = inspect.signature(processor_class.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default not in (inspect.Parameter.empty, None)}


def _tokenizer(processor_class: Any, kind: Kind) -> Any:
    """A tokenizer with the special tokens that the processor's arguments name."""
    named = {n: v for n, v in _defaults(processor_class).items() if isinstance(v, str) and _SPECIAL.fullmatch(v)}
    stated = {n: v for n, v in kind.processor.items() if isinstance(v, str)}
    usual = {name: f"<{name.removesuffix('_token')}>" for name in USUAL_TOKENS}
    tokens = {name: token for name, token in {**usual, **named, **stated, **kind.tokens}.items() if token}
    special = dict.fromkeys([*tokens.values(), *kind.more_tokens])
    tokenizer = train_tokenizer(
        [token for token in special if token not in kind.last_tokens],
        vocab_size=460,
        bos="<s>",
        eos="</s>",
        pad="<pad>",
        unk="<unk>",
        add_bos=kind.add_bos,
    )
    tokenizer.add_tokens(list(kind.last_tokens), special_tokens=True)
    tokenizer._set_model_specific_special_tokens(
        {name: tokens[name] for name in (*usual, *kind.tokens) if name in tokens}
    )
    tokenizer.init_kwargs |= kind.tokenizer
    return tokenizer


def _parts_with_tokens(config: Any) -> list[Any]:
    """Return a configuration, and those of its parts that take text with items, or name an item's token."""
    parts = [part for name in type(config).sub_configs if (part := getattr(config, name, None)) is not None]
    return [config, *(part for part in parts if "text_config" in type(part).sub_configs or [*item_token_ids(part)])]


def _set_tokens(config: Any, processor: Any, tokenizer: Any) -> None:
    """Write the ids of the tokenizer's tokens into a configuration, under the names that the processor has for them."""
    for name in list(vars(config)):
        if not name.endswith(("_token_id", "_token_index")):
            continue
        stem = re.sub(r"_(id|index)$", "", name)
        for owner in (processor, tokenizer):
            token, text = getattr(owner, f"{stem}_id", None), getattr(owner, stem, None)
            several = getattr(owner, f"{stem}_ids", None)
            if isinstance(several, list) and several:
                token = several[0]
            if not isinstance(token, int) and isinstance(text, str):
                token = tokenizer.convert_tokens_to_ids(text)
            if isinstance(token, int):
                setattr(config, name, token)
                break
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(part, name, getattr(tokenizer, name))
        part.tie_word_embeddings = False  # outputs vary more


def _processor(processor_class: Any, model_type: str, tokenizer: Any, kind: Kind) -> Any:
    import transformers

    takes = inspect.signature(processor_class.__init__).parameters
    missing = [] if find_spec("torchvision") else absent_parts(processor_class, model_type, kind.image_processor)
    processor_class = without(processor_class, *missing)
    parts: dict[str, Any] = {"tokenizer": tokenizer, "qformer_tokenizer": tokenizer}
    if "image_processor" in takes and "image_processor" not in missing:
        parts["image_processor"] = _image_processor(model_type, kind)
    if "video_processor" in takes and "video_processor" not in missing:
        parts["video_processor"] = _video_processor(model_type, kind)
    parts |= {name: Absent(parts.get("image_processor")) for name in missing}
    for name in ("feature_extractor", "audio_processor"):
        if name in takes:
            from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES

            extractor = getattr(transformers, kind.feature_extractor or FEATURE_EXTRACTOR_MAPPING_NAMES[model_type])
            parts[name] = extractor(**kind.audio)
    usual = {"patch_size": 14, "num_image_tokens": 16}
    given = {**{n: v for n, v in usual.items() if n in takes}, **kind.processor}
    processor = processor_class(**{n: v for n, v in parts.items() if n in takes}, **given)
    if kind.generation:  # of an encoder-decoder, which knows no turns
        return processor
    processor.chat_template = _TEMPLATE
    for modality in ("image", "video", "audio"):
        owners = (getattr(owner, f"{modality}_token", None) for owner in (processor, tokenizer))
        before, after = kind.marks.get(modality, kind.marks.get("image", ("", "")) if modality == "video" else ("", ""))
        text = f"{before}{next(filter(None, owners), '')}{after}"
        processor.chat_template = processor.chat_template.replace(modality.upper(), text)
    return processor


def _image_processor(model_type: str, kind: Kind) -> Any:
    cls = image_processor_class(kind.image_processor or image_processor_name(model_type))
    small = {name: value for name, value in _small_sizes(cls().to_dict()).items() if name not in kind.parts}
    return cls(**small, **kind.parts)


def _video_processor(model_type: str, kind: Kind) -> Any:
    import transformers
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

    known: Any = kind.video_processor or VIDEO_PROCESSOR_MAPPING_NAMES[model_type]
    cls = getattr(transformers, known if isinstance(known, str) else known["torchvision"])
    small = {name: value for name, value in _small_sizes(cls(**kind.video).to_dict()).items() if name not in kind.video}
    return cls(**small, **kind.video)


def _small_sizes(stated: Mapping[str, Any]) -> dict[str, Any]:
    small: dict[str, Any] = {}
    for name in ("size", "crop_size"):
        value = stated.get(name)
        if not isinstance(value, Mapping):
            continue
        if "longest_edge" in value and max(value.values()) > 10_000:
            small[name] = {"shortest_edge": 4 * 28**2, "longest_edge": 40 * 28**2}
        else:
            small[name] = {edge: _SIDE if edge != "longest_edge" else 2 * _SIDE for edge in value}
    if isinstance(stated.get("patch_size"), int):
        small["patch_size"] = 14
    if "max_patches" in stated:
        small["max_patches"] = 4
    return small


def _save_processor(processor: Any, path: Path) -> None:
    """As `save_pretrained` does, which does not know a processor without a part."""
    stated = processor.to_dict()
    for name in processor.get_attributes():
        if not isinstance(getattr(processor, name), Absent):
            getattr(processor, name).save_pretrained(path / name if name == "qformer_tokenizer" else path)
    (path / "processor_config.json").write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")
    if processor.chat_template is not None:
        (path / "chat_template.jinja").write_text(processor.chat_template, encoding="utf-8")
