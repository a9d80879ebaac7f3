"""Changes of an adapter's source that change nothing a user could see, and why."""

from __future__ import annotations

Key = tuple[str, str, str, str]
"""Package, function, old and new code, as `systematic.Change` has them."""

_Changes = dict[tuple[str, str, str], str]
"""Function, old and new code."""

_WORDS = "it is for the words of an error"
_REFUSED_SIZE = "a size without width or height is refused, with the dummy of any size"
_CPU = "on a CPU, where memory is not measured by the dummies, they may be of any size"
_ROOM = "a few tokens more or less are no other grid of patches"
_NONE_ADDED = "the family's tokenizers add no special tokens"
_AS_MANY = "there is a time for each pair of frames"
_EMPTY = "a list of -1 images is empty, too"
_ONE = "it is a batch of one"
_AGAIN = "images are not found in the cache under another sampling of videos, and made again"
_FIRST_WIDTH = "the first dummy's width is the right one; a stated one makes another an error at load"


def _beside(function: str, number: int, reason: str) -> _Changes:
    """A number that may as well be one larger or smaller."""
    return {(function, str(number), str(other)): reason for other in (number + 1, number - 1)}


def _of_an_error(function: str, words: str) -> _Changes:
    """A text that only an error says."""
    return {(function, repr(words), repr(f"{words}X")): _WORDS}


_LLAVA: _Changes = {("get_dummy_mm_data", "0", "-1"): _EMPTY}
_FUYU: _Changes = {
    ("get_dummy_mm_data", "0", "-1"): _EMPTY,
    **_of_an_error("Fuyu", "they do not say how long the image's rows are"),
    ("get_dummy_mm_data", "size.get(side, 1)", "size.get(side)"): _REFUSED_SIZE,
    **_beside("get_dummy_mm_data", 1, _REFUSED_SIZE),
    ("apply_hf_processor_tokens_only", "return token_ids", "return"): "None leaves the tokens as they are",
}
_BLIP2: _Changes = {
    ("get_dummy_mm_data", "0", "-1"): _EMPTY,
    ("load_model", "token = tokenizer.get_vocab().get(f'<{modality}>', len(tokenizer))", "left out"): _WORDS,
}
_QWEN: _Changes = {
    **_of_an_error("Qwen2VL", "they do not have the grid of patches from which their tokens' positions are computed"),
    **_beside("", 1024, _CPU),
    (
        "get_dummy_mm_data",
        "if self.context.device.type == 'cpu': tokens = min(tokens, _CPU_DUMMY_TOKENS)",
        "left out",
    ): _CPU,
    ("get_dummy_mm_data", "tokens = min(tokens, _CPU_DUMMY_TOKENS)", "left out"): _CPU,
    ("get_dummy_mm_data", "self.context.device.type == 'cpu'", "self.context.device.type != 'cpu'"): _CPU,
    ("get_dummy_mm_data", "0", "-1"): _EMPTY,
    **_beside("get_dummy_mm_data", 1, _ROOM),
    **_beside("get_dummy_mm_data", 32, _ROOM),
    ("get_dummy_mm_data", "'cpu'", "'cpuX'"): _CPU,
    ("get_dummy_mm_data", "'image'", "'imageX'"): _CPU,
    **_beside("Qwen2VL", 0, "the bound on a video's tokens has room for videos 200 times as long as wide"),
    (
        "call_hf_processor",
        "self.context.hf_processor(images=images, videos=videos, max_tokens=self.context.max_model…",
        "self.context.hf_processor(images=images, videos=videos, **check_arguments(mm_kwargs))",
    ): "it spares the memory of tensors that the core would refuse",
    ("get_prompt_updates", "out_mm_kwargs.get(modality, ())", "out_mm_kwargs.get(modality)"): (
        "of a modality without items nothing is asked"
    ),
    ("get_rope_positions", "0", "-1"): _ONE,
    ("get_rope_positions", "1", "2"): "with the checkpoint's sizes no item has a single token",
    ("get_rope_positions", "(..., -1)", "(-1,)"): (
        "at the end of a text the last token's position is the largest, in each of the three"
    ),
    ("get_mm_kwargs_names", "def get_mm_kwargs_names", "left out"): _AGAIN,
    ("get_mm_kwargs_names", "return FOR_IMAGES if modality == 'image' else ACCEPTED", "return"): _AGAIN,
    ("get_mm_kwargs_names", "'image'", "'imageX'"): _AGAIN,
    ("get_multimodal_embedding_width", "def get_multimodal_embedding_width", "left out"): _FIRST_WIDTH,
    (
        "get_multimodal_embedding_width",
        "return int(config.text_config.hidden_size * (1 + len(config.vision_config.deepstack_visua…",
        "return",
    ): _FIRST_WIDTH,
    **_beside("Qwen3VL", 20, "it only bounds the tokens of a time from above"),
    (
        "_expanded",
        "zip(stamps, self._tokens_per_step(modality, item), strict=True)",
        "zip(stamps, self._tokens_per_step(modality, item))",
    ): _AS_MANY,
    ("_expanded", "True", "False"): _AS_MANY,
    (
        "_expanded",
        "encode(f'<{seconds:.1f} seconds>', add_special_tokens=False)",
        "encode(f'<{seconds:.1f} seconds>')",
    ): _NONE_ADDED,
    ("_expanded", "False", "True"): _NONE_ADDED,
    (
        "make_context",
        "self.context.tokenizer(text, add_special_tokens=False, verbose=False)",
        "self.context.tokenizer(text, verbose=False)",
    ): _NONE_ADDED,
    (
        "make_context",
        "self.context.tokenizer(text, add_special_tokens=False, verbose=False)",
        "self.context.tokenizer(text, add_special_tokens=False)",
    ): "it only warns of long texts",
    ("make_context", "False", "True"): f"{_NONE_ADDED}, and verbose ones only warn",
}

_EXTRACT = "extractor(mm_data['audio'], sampling_rate=rate, padding='max_length', return_attention_ma…"
_EMPTY_LIKE = "features.new_empty(len(features), len(positions), 1)"
_MASK = "of this tensor only type, device and batch are looked at: the mask beside it is given"
_AS_LONG = "one count belongs to each item"
_AUDIO: _Changes = {
    ("get_dummy_mm_data", "0", "-1"): _EMPTY,
    ("call_hf_processor", "0", "-1"): "it is called with one item",
    (
        "call_hf_processor",
        _EXTRACT,
        "extractor(mm_data['audio'], padding='max_length', return_attention_mask=True, return_tens…",
    ): "without a rate transformers warns, and takes the checkpoint's",
    (
        "call_hf_processor",
        _EXTRACT,
        "extractor(mm_data['audio'], sampling_rate=rate, return_attention_mask=True, return_tensor…",
    ): "transformers' default is the same",
    ("call_hf_processor", _EXTRACT, _EXTRACT): "the core makes tensors of arrays, too",
    (
        "call_hf_processor",
        "return {'input_features': outputs['input_features'], 'feature_attention_mask': outputs['a…",
        "return",
    ): "None leaves it to the core, whose call makes the same",
    (
        "get_multimodal_embeddings",
        "torch.arange(tower.config.max_source_positions, device=features.device)",
        "torch.arange(tower.config.max_source_positions)",
    ): "it is the CPU, where there is no other device",
    ("get_multimodal_embeddings", _EMPTY_LIKE, "features.new_empty(len(features), 1)"): _MASK,
    ("get_multimodal_embeddings", _EMPTY_LIKE, "features.new_empty(len(features), len(positions))"): _MASK,
    **_beside("get_multimodal_embeddings", 1, _MASK),
    (
        "get_multimodal_embeddings",
        "zip(embeddings, after_pooling.tolist(), strict=True)",
        "zip(embeddings, after_pooling.tolist())",
    ): _AS_LONG,
    ("get_multimodal_embeddings", "True", "False"): _AS_LONG,
}

EQUIVALENT: dict[Key, str] = {
    (package, *key): reason
    for package, changes in {
        "corellm_llava": _LLAVA,
        "corellm_fuyu": _FUYU,
        "corellm_blip2": _BLIP2,
        "corellm_qwen_vl": _QWEN,
        "corellm_qwen_audio": _AUDIO,
    }.items()
    for key, reason in changes.items()
}
"""Each with its reason."""
