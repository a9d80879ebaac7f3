"""What corellm calls of this distribution. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from corellm.config import EngineConfig, ModelConfig
    from corellm.worker.parts.step_part import StepPart


class Speculative:
    """Drafts, where `speculative_config` asks for them."""

    @hookimpl
    def offer_use(self, config: ModelConfig) -> None:
        """Refuse wrong settings before weights are read; offers no other use."""
        if config.speculative_config is not None:
            from corellm_speculative.settings import DraftSettings

            DraftSettings.of(config.speculative_config)

    @hookimpl
    def offer_step_part(self, config: EngineConfig) -> StepPart | None:
        """Return what drafts."""
        if config.model.speculative_config is None:
            return None
        from corellm_speculative.drafting import Drafting
        from corellm_speculative.settings import DraftSettings

        return Drafting(DraftSettings.of(config.model.speculative_config))
