"""A PatchTalker checkpoint's `config.json`. Knows no tensor and no other file."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import LlamaConfig, PreTrainedConfig


class PatchTalkerConfig(PreTrainedConfig):  # type: ignore[misc]  # transformers is not typed
    """A Llama's configuration, and how images are cut.

    corellm calls its `get_text_config()`, which finds `text_config` by name.
    """

    model_type = "patchtalker"
    sub_configs: ClassVar[dict[str, Any]] = {"text_config": LlamaConfig}

    text_config: Any = None
    """The Llama's; a dictionary becomes a `LlamaConfig`."""
    patch_size: int = 14
    """Side of a patch in pixels."""
    max_patches: int = 1024
    """Most patches of one image; a larger one is shrunk."""

    def __post_init__(self, **kwargs: Any) -> None:
        if not isinstance(self.text_config, LlamaConfig):
            self.text_config = LlamaConfig(**(self.text_config or {}))
        super().__post_init__(**kwargs)

    @property
    def patch_values(self) -> int:
        """Numbers in a patch: three colours of each pixel."""
        return 3 * self.patch_size**2
