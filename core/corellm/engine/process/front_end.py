"""What prepares prompts in the API process: everything of a model but its weights.

Knows how a model is opened; knows no process and no requests.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from corellm.config import EngineConfig
from corellm.engine.process.messages import Ready
from corellm.frontend.input_processor import InputProcessor
from corellm.hookspecs import ModelContext
from corellm.loading.checkpoint import load_hf_config
from corellm.loading.locating import LocatedModel
from corellm.modelling.checkpoint_files import require_weights
from corellm.plugin.manager import call_static_hook
from corellm.sampling.extensions import find_extensions
from corellm.system.process import usable_cpus

_TEXTS = frozenset({".json", ".jinja", ".md", ".py", ".txt", ""})
"""Endings of files of a checkpoint that have no weights."""


@dataclass(frozen=True)
class FrontEnd:
    """The parts that prepare prompts."""

    context: ModelContext
    input_processor: InputProcessor
    closing: ExitStack
    """Ends its threads and processes."""


def refuse_early(config: EngineConfig, located: LocatedModel) -> None:
    """Refuse what a plugin claims by the end of its name alone, and is no model, before a process is started for it.

    Raises:
        CheckpointError, PluginError: its type is unknown, or it has no file but texts.
    """
    if not located.entry.is_fallback:
        return
    import transformers  # without torch, which takes longer

    if not any(name in transformers.__all__ for name in located.architectures):
        factory = call_static_hook(located.entry.load(), "register_config", located.entry.distribution)
        load_hf_config(located.path, factory, trust_remote_code=config.model.trust_remote_code)
    has_only_texts = all(path.suffix in _TEXTS or path.is_dir() for path in located.path.iterdir())
    if config.model.load_format != "dummy" and has_only_texts:  # how weights are kept is the adapter's to know
        require_weights(located.path)


def open_front_end(
    config: EngineConfig, located: LocatedModel, wait_until_ready: Callable[[], Ready]
) -> tuple[FrontEnd, Ready]:
    """Return the front end of a model that another process loads, and the sizes of that process.

    Args:
        config, located: the model.
        wait_until_ready: waits for the other process; called when nothing else can be done without its sizes.

    Raises:
        CheckpointError, PluginError, ConfigError: the model cannot be served.
    """
    from corellm.loading import opening  # torch comes in here, while the other process loads the model

    with opening.at_load(config.model.model), ExitStack() as on_failure:
        opened = opening.open_model(config, located)
        on_failure.callback(opened.templates.close)
        ready = wait_until_ready()
        opened.context.findings.update(ready.findings)
        executor = ThreadPoolExecutor(usable_cpus(), thread_name_prefix="corellm-processor")
        on_failure.callback(executor.shutdown, wait=False, cancel_futures=True)
        mm_processor = opening.make_mm_processor(config, opened, executor, ready.max_model_len)
        on_failure.callback(mm_processor.close)
        mm_processor.start()
        processor = opening.make_input_processor(
            config, opened, mm_processor, ready.vocab_size, ready.embedding_size, ready.max_model_len,
            find_extensions(opened.context.tokenizer, ready.vocab_size),
        )  # fmt: skip
        _ = mm_processor.profile  # measured now, not in the first request
        on_failure.callback(processor.close)
        return FrontEnd(opened.context, processor, on_failure.pop_all()), ready
