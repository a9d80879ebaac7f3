"""What corellm calls of this distribution. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from pathlib import Path

    from corellm.config import EngineConfig, ModelConfig
    from corellm.hookspecs import ModelContext
    from corellm.modelling.linear_additions import LinearAdditions
    from corellm.worker.parts.step_part import StepPart


class Speculative:
    """Drafts, where `speculative_config` asks for them."""

    @hookimpl
    def offer_use(self, config: ModelConfig, path: Path) -> None:
        """Refuse wrong settings before weights are read; offers no other use."""
        if config.speculative_config is not None:
            from corellm_speculative.settings import HEADS, DraftSettings

            settings = DraftSettings.of(config.speculative_config)
            if settings.method in HEADS:
                from corellm_speculative.head_checkpoint import locate_head

                locate_head(config, settings, path)
            elif settings.model is not None:
                from corellm_speculative.draft_checkpoint import locate_draft

                locate_draft(config, settings)

    @hookimpl
    def offer_step_part(
        self, linears: LinearAdditions, config: EngineConfig, context: ModelContext, most_rows: int
    ) -> StepPart | None:
        """Return what drafts."""
        if config.model.speculative_config is None:
            return None
        from corellm_speculative.forms import FormDrafting
        from corellm_speculative.lookup import LookupDrafting
        from corellm_speculative.settings import HEADS, DraftSettings

        settings = DraftSettings.of(config.model.speculative_config)
        if settings.method in HEADS:
            from corellm_speculative.head_checkpoint import locate_head
            from corellm_speculative.head_loading import load_head

            checkpoint = locate_head(config.model, settings, context.model_path)
            return load_head(config, context, settings, checkpoint, linears, most_rows)
        if settings.method == "forms":
            return FormDrafting(settings)
        if settings.model is None:
            return LookupDrafting(settings)
        from corellm_speculative.draft_loading import load_draft
        from corellm_speculative.model_drafting import ModelDrafting

        return ModelDrafting(settings, load_draft(config, context, settings))
