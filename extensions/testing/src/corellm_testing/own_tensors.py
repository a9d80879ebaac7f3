"""What an item's tensors say of it, whatever the prompt that it is in."""

from __future__ import annotations

from typing import Any

from corellm.multimodal.inputs import MultiModalFeature
from corellm_testing.subject import Subject


def own_tensors(subject: Subject, feature: MultiModalFeature) -> dict[str, Any]:
    """Return a processed item's tensors, but those that depend on the prompt."""
    of_prompts = _of_prompts(subject, feature.modality) if subject.processor.reads_prompts else frozenset()
    return {name: elem for name, elem in feature.data.items() if name not in of_prompts}


def _of_prompts(subject: Subject, modality: str) -> frozenset[str]:
    """Return the names of tensors that differ between two prompts with one item."""
    prompts = [subject.prompt([(modality, subject.item(modality, 0)), text]) for text in ("What?", "Is it red?")]
    one, other = (subject.process(*prompt).features[0].data for prompt in prompts)
    return frozenset(name for name in one if one[name] != other[name])
