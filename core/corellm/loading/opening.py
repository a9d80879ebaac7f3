"""Opens a located checkpoint without weights: configuration, tokenizer, the adapter's hooks, processors of prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

from corellm.config import EngineConfig
from corellm.errors import CheckpointError, ConfigError, CorellmError, MissingExtraError, install_hint, raised_at
from corellm.fetch_settings import FetchSettings
from corellm.frontend.input_processor import InputProcessor
from corellm.frontend.prompt_key import NO_KEYS, PromptKey, find_prompt_keys, way_out
from corellm.frontend.text_tokenizer import TextTokenizer
from corellm.hookspecs import ModelContext
from corellm.loading import checkpoint as checkpoints
from corellm.loading.attended_states import AttendedStates, StatesOffer, check_offered, states_offer
from corellm.loading.config_overrides import override_config
from corellm.loading.deferred_imports import import_deferring
from corellm.loading.locating import LocatedModel
from corellm.loading.model_use import ModelUse
from corellm.modelling.defaults import ModelDefaults
from corellm.multimodal.defaults import ProcessingChecks, ProcessingDefaults
from corellm.multimodal.processor import MultiModalProcessor
from corellm.plugin.attributes import WITHOUT_HOOK, attribute
from corellm.plugin.extensions import first_result, load_extensions
from corellm.plugin.hook_callers import HookCallers, hook_callers
from corellm.plugin.manager import build_manager, call_static_hook
from corellm.prompts import LORA_KEY
from corellm.sampling.extensions import NO_EXTENSIONS, SamplingExtensions
from corellm.templates.renderer import TemplateRenderer


@dataclass(frozen=True)
class OpenedModel:
    """A checkpoint with its adapter, before any weight is read."""

    config: EngineConfig
    context: ModelContext
    hooks: HookCallers
    """The hook callers of adapter, defaults and extensions."""
    namespace: tuple[str, ...]
    """What item hashes depend on besides the item."""
    templates: TemplateRenderer
    """Renders chat templates; must be closed."""
    use: ModelUse
    """What the model is run for."""
    parsers: Mapping[str, str]
    """Forms of its outputs that the adapter states: `tool_parser`, `reasoning_parser`."""
    prompt_keys: Mapping[str, PromptKey]
    """Keys of prompts that extensions read."""
    states: StatesOffer | None
    """What knows whether the decoder attends to other states than its own tokens; None for no such model."""

    @cached_property
    def attended(self) -> AttendedStates | None:
        """States that the decoder attends to beside its own tokens; None for none.

        Raises:
            ConfigError, ContractError: as of `StatesOffer.of_model`.
        """
        return None if self.states is None else self.states.of_model(self.config, self.hooks)

    def longest_prompt(self, max_model_len: int) -> int:
        """Return the most tokens that a prompt's items may take: a sequence's, or those that an encoder reads."""
        return max_model_len if self.attended is None else self.attended.prompt_room or max_model_len


@contextmanager
def at_load(model: str) -> Iterator[None]:
    """Turn untyped errors of libraries and adapters into a `CheckpointError` of one line."""
    try:
        yield
    except CorellmError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{model}: loading failed with {type(error).__name__}: {' '.join(str(error).split())} "
            f"({raised_at(error)}); the checkpoint's files do not fit together, or its adapter is at fault"
        ) from error


def open_model(config: EngineConfig, located: LocatedModel) -> OpenedModel:
    """Return a checkpoint's configuration and tokenizer, with adapter, defaults and extensions behind one set of hooks.

    Raises:
        CheckpointError, PluginError, ConfigError: what is wrong, and the way out.
    """
    path, entry = located.path, located.entry
    import_deferring()  # before adapters and automatic classes import all of transformers
    adapter = entry.load()
    trusted = config.model.trust_remote_code
    hf_config = checkpoints.load_hf_config(
        path, call_static_hook(adapter, "register_config", entry.distribution), trust_remote_code=trusted
    )
    if config.model.hf_overrides:
        hf_config = override_config(hf_config, config.model.hf_overrides)
    located.use.settle_config(hf_config, located.architectures)
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
    keys = find_prompt_keys(context) if located.use.takes_prompt_keys else NO_KEYS
    if config.model.enable_lora and LORA_KEY not in keys:
        reason = ": this model has no decoder" if not located.use.takes_prompt_keys else way_out(LORA_KEY, "")
        raise ConfigError(f"enable_lora: adapters cannot be served{reason}")
    states = states_offer(context, located.use)
    templates = TemplateRenderer()
    processing = ProcessingDefaults(context, config.multimodal, templates)
    merge_rows = first_result("register_merging", callable, device=context.device)
    manager = build_manager(
        adapter,
        context,
        distribution=entry.distribution,
        defaults=[
            processing,
            ProcessingChecks(context, config.multimodal),
            ModelDefaults(context, merge_rows),
            *([] if states is None else [states]),
        ],
        extensions=load_extensions(),
    )
    hooks = processing.hooks = hook_callers(manager)
    context.make_processor = lambda: checkpoints.load_processor(
        context,
        hooks.register_processor(),
        own_tokenizer=located.tokenizer_path == path,
    )
    if states is None:
        check_offered(context, hooks, located.use)
    namespace = (str(path), config.model.revision or "", entry.distribution, entry.version)
    instance = manager.get_plugin(entry.distribution)
    stated = {name: value for name in sorted(WITHOUT_HOOK) if (value := attribute(instance, name)) is not None}
    return OpenedModel(config, context, hooks, namespace, templates, located.use, stated, keys, states)


def make_mm_processor(
    config: EngineConfig, opened: OpenedModel, executor: Executor, max_model_len: int
) -> MultiModalProcessor:
    """Return the processor of items, for sequences of up to `max_model_len` tokens."""
    context = opened.context
    longest = context.max_model_len = opened.longest_prompt(max_model_len)
    return MultiModalProcessor(
        opened.hooks,
        config.multimodal,
        # cached because adapters tokenize the same few texts for every prompt
        tokenize=lru_cache(maxsize=256)(partial(TextTokenizer(context.tokenizer), add_special_tokens=False)),
        token_text=context.tokenizer.convert_ids_to_tokens,
        namespace=opened.namespace,
        seq_len=longest,
        executor=executor,
    )


def make_input_processor(
    config: EngineConfig,
    opened: OpenedModel,
    mm_processor: MultiModalProcessor,
    vocab_size: int,
    embedding_size: int,
    max_model_len: int,
    extensions: SamplingExtensions = NO_EXTENSIONS,
) -> InputProcessor:
    """Return the processor of prompts."""
    make = opened.use.input_processor(opened.context, max_model_len)
    return make(
        opened.context.tokenizer,
        opened.hooks,
        mm_processor,
        vocab_size=vocab_size,
        embedding_size=embedding_size,
        max_model_len=max_model_len,
        chat_template=opened.context.chat_template,
        scheduling_policy=config.scheduler.scheduling_policy,
        remote_media=_remote_media(config.fetching) if config.fetching.allowed_media_domains else None,
        extensions=extensions,
        parsers=opened.parsers,
        extensions_keys=opened.prompt_keys,
        attended=opened.attended,
    )


def _remote_media(settings: FetchSettings) -> Any:
    """Return what fetches media by URL.

    Raises:
        MissingExtraError: no installed extension does.
    """
    fetching = first_result("offer_fetching", lambda offered: hasattr(offered, "load"), settings=settings)
    if fetching is None:
        raise MissingExtraError(f"allowed_media_domains needs {install_hint('server')}")
    return fetching
