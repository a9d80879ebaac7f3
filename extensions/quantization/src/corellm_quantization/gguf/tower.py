"""The encoder of images in a GGUF file of its own (mmproj): which kinds there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.errors import CheckpointError
from corellm_quantization.gguf import gemma3, idefics3, llava, qwen2_vl
from corellm_quantization.gguf.file import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_KINDS = {
    "mlp": llava.configure, "gemma3": gemma3.configure, "idefics3": idefics3.configure,
    "qwen2vl_merger": qwen2_vl.configure, "qwen2.5vl_merger": qwen2_vl.configure,
}  # fmt: skip
"""Functions that configure a model with its tower, by the type of the projector."""


def add_tower(
    folder: Path, text: PreTrainedConfig, tokenizer: Any, model: GgufFile, file: GgufFile
) -> PreTrainedConfig:
    """Write the processor of a text model with an encoder, and return their configuration.

    Args:
        folder: of the checkpoint, with the tokenizer.
        text: the text model's configuration.
        tokenizer: may get a token for images.
        model: the text model's file.
        file: the encoder's.

    Raises:
        CheckpointError: it is of another kind, or for another text model.
    """
    llavas = "mlp" if file.stated.get("clip.has_llava_projector") else None
    kind = file.stated.get("clip.projector_type", file.stated.get("clip.vision.projector_type", llavas))
    if file.architecture != "clip":
        raise CheckpointError(
            f"{file.path} is no encoder: its architecture is {file.architecture!r:.60}; name the encoder's file with "
            f"mmproj, or mmproj='none' to run the text model alone"
        )
    configure = _KINDS.get(kind) if isinstance(kind, str) else None
    if configure is None:
        raise CheckpointError(
            f"{file.path}: encoders of the kind {kind!r:.60} are not known; known: {', '.join(_KINDS)}; "
            f"mmproj='none' runs the text model alone"
        )
    width = _width(file)
    if width != text.hidden_size:
        raise CheckpointError(
            f"{file.path}: its embeddings have the width {width or 'none'}, the text model's {text.hidden_size}; take "
            f"the file of this model, or mmproj='none'"
        )
    return configure(folder, text, tokenizer, model, file)


def _width(file: GgufFile) -> int | None:
    """Return the width of what a tower gives, by the last of its products."""
    for name, dim in (("mm.2.weight", 0), ("mm.model.fc.weight", 0), ("mm.input_projection.weight", -1)):
        if name in file.tensors:
            return file.tensors[name].shape[dim]
    return None
