"""Audio that a processor cuts: from which length on.

Knows processors by what they make of audio; knows no model.
"""

from __future__ import annotations

from corellm.hookspecs import SpeechForm
from corellm.multimodal import dummy_audios
from corellm_transformers.family import Family


def speech_form(family: Family) -> SpeechForm | None:
    """Return how long audio may be of which a processor leaves nothing out; None where it takes any.

    A feature extractor that pads audio may also cut what is longer: then twice as much becomes no more tokens.
    """
    extractor = getattr(family.processor, "feature_extractor", None)
    padded = getattr(extractor, "n_samples", None)
    if "audio" not in family.modalities or not padded:
        return None
    kwargs = family.context.kwargs_for("audio")
    counts = [
        len(family.process("audio", dummy_audios(1, num_samples=length)[0], kwargs)[1])
        for length in (padded, 2 * padded)
    ]
    rate = int(family.processor.feature_extractor.sampling_rate)
    return SpeechForm(padded / rate, rate) if counts[0] == counts[1] else None
