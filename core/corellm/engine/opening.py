"""Opens a located checkpoint: its configuration, tokenizer and the hooks of its adapter, without weights."""

from __future__ import annotations

from dataclasses import dataclass

from corellm.config import EngineConfig
from corellm.engine.locating import LocatedModel
from corellm.hookspecs import ModelContext
from corellm.multimodal.defaults import ProcessingDefaults
from corellm.plugin.extensions import first_result, load_extensions
from corellm.plugin.hook_callers import HookCallers, hook_callers
from corellm.plugin.manager import build_manager, call_static_hook
from corellm.templates.renderer import TemplateRenderer
from corellm.worker import checkpoint as checkpoints
from corellm.worker.config_overrides import override_config
from corellm.worker.defaults import ModelDefaults


@dataclass(frozen=True)
class OpenedModel:
    """A checkpoint with its adapter, before any weight is read."""

    context: ModelContext
    hooks: HookCallers
    """The hook callers of adapter, defaults and extensions."""
    namespace: tuple[str, ...]
    """What item hashes depend on besides the item."""
    templates: TemplateRenderer
    """Renders chat templates; must be closed."""


def open_model(config: EngineConfig, located: LocatedModel) -> OpenedModel:
    """Return a checkpoint's configuration and tokenizer, with adapter, defaults and extensions behind one set of hooks.

    Raises:
        CheckpointError, PluginError, ConfigError: what is wrong, and the way out.
    """
    path, entry = located.path, located.entry
    adapter = entry.load()
    trusted = config.model.trust_remote_code
    hf_config = checkpoints.load_hf_config(
        path, call_static_hook(adapter, "register_config", entry.distribution), trust_remote_code=trusted
    )
    if config.model.hf_overrides:
        hf_config = override_config(hf_config, config.model.hf_overrides)
    tokenizer = checkpoints.load_tokenizer(
        located.tokenizer_path,
        call_static_hook(adapter, "register_tokenizer", entry.distribution),
        trust_remote_code=trusted,
    )
    device = checkpoints.resolve_device(config.model.device)
    context = ModelContext(
        model_path=path,
        hf_config=hf_config,
        tokenizer=tokenizer,
        dtype=checkpoints.resolve_dtype(config.model.dtype, hf_config, device),
        device=device,
        mm_processor_kwargs=config.multimodal.mm_processor_kwargs,
        trust_remote_code=trusted,
    )
    templates = TemplateRenderer()
    processing = ProcessingDefaults(context, config.multimodal, templates)
    merge_rows = first_result("register_merging", callable, device=context.device)
    manager = build_manager(
        adapter,
        context,
        distribution=entry.distribution,
        defaults=[processing, ModelDefaults(context, merge_rows)],
        extensions=load_extensions(),
    )
    hooks = processing.hooks = hook_callers(manager)
    context.make_processor = lambda: checkpoints.load_processor(
        context,
        hooks.register_processor(),
        own_tokenizer=located.tokenizer_path == path,
    )
    namespace = (str(path), config.model.revision or "", entry.distribution, entry.version)
    return OpenedModel(context, hooks, namespace, templates)
