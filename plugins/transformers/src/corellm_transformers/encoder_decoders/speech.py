"""How `generate` writes down audio that is longer than the model reads at once, if it does: what it says of times.

Knows generation configurations and what `generate` can be told; knows no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from corellm.hookspecs import SpeechForm, SpokenTimes
from corellm_transformers.encoder_decoders.items import Items
from corellm_transformers.encoder_decoders.outline import Outline
from corellm_transformers.encoder_decoders.prompts import Prompts
from corellm_transformers.encoder_decoders.windows import Spectrograms, Windows

_SETTINGS = (
    "compression_ratio_threshold",
    "condition_on_prev_tokens",
    "logprob_threshold",
    "no_speech_threshold",
)
"""What a generation configuration may set of how windows are read."""


def spectrograms_of(items: Items) -> Spectrograms | None:
    """Return what a checkpoint's feature extractor makes of windows; None if windows do not have the whole's frames."""
    if items.modality != "audio" or items.longest is None or items.context.kwargs_for("audio"):
        return None  # the operator's arguments may change how audio is read
    extractor = items.processor.feature_extractor
    if not all(isinstance(getattr(extractor, name, None), int) for name in ("hop_length", "n_fft")):
        return None
    found = Spectrograms(extractor)
    return found if found.are_cut else None


def form_of(items: Items, spectrograms: Spectrograms | None, outline: Outline, prompts: Prompts) -> SpeechForm | None:
    """Return how a checkpoint writes down long audio; None if it reads audio of any length, or none."""
    if items.modality != "audio" or items.longest is None:
        return None
    times = None if spectrograms is None else _times(spectrograms, outline, prompts)
    return SpeechForm(items.longest / items.sampling_rate, items.sampling_rate, times)


def _times(spectrograms: Spectrograms, outline: Outline, prompts: Prompts) -> SpokenTimes | None:
    """Return the tokens of times; None if `generate` knows none."""
    stated: Any = outline.generation
    without = getattr(stated, "no_timestamps_token_id", None)
    end = stated.eos_token_id or stated.bos_token_id
    frames = outline.frames
    if "return_timestamps" not in outline.arguments or frames is None or frames[0] != spectrograms.window_frames:
        return None
    if not isinstance(without, int) or not isinstance(end, int):
        return None
    earlier = outline.start_of_earlier
    return SpokenTimes(
        zero=without + 1,
        without=without,
        end=end,
        most_first=getattr(stated, "max_initial_timestamp_index", None),
        window_frames=frames[0],
        frames_per_step=frames[1],
        seconds_per_frame=spectrograms.hop / spectrograms.rate,
        windows=partial(Windows, spectrograms),
        prompt=partial(prompts.timed, without),
        languages=_languages(stated),
        heads=_heads(getattr(stated, "alignment_heads", None), outline.decoder_shape),
        smoothing=getattr(outline.config, "median_filter_width", 7),
        no_speech=without - 1,
        earlier=None if earlier is None else (earlier, outline.config.max_target_positions // 2 - 1),
        stated={name: getattr(stated, name, None) for name in _SETTINGS},
    )


def _heads(stated: Any, shape: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Return the layers and heads that a checkpoint names; none where it names some that its decoder has not."""
    try:
        pairs = tuple((int(layer), int(head)) for layer, head in stated or ())
    except (TypeError, ValueError):
        return ()
    return pairs if all(0 <= at < size for pair in pairs for at, size in zip(pair, shape, strict=True)) else ()


def _languages(stated: Any) -> Mapping[int, str]:
    """Return the names of languages by their tokens; of a model of one language, by the token that it begins with."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    known = getattr(stated, "lang_to_id", None)
    if not known:
        return {stated.decoder_start_token_id: "english"}
    return {token: LANGUAGES.get(name.strip("<|>"), name.strip("<|>")) for name, token in known.items()}
