"""Calls processing hooks; names the one that raised, or that returned a wrong type, as a forgotten `return` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

import pluggy

from corellm.errors import ContractError, CorellmError, ProcessingError, raised_at
from corellm.hookspecs import SpeechForm

_P = ParamSpec("_P")
_R = TypeVar("_R")

_EXPECTED: dict[str, tuple[type | tuple[type, ...], str]] = {
    "get_supported_mm_limits": (Mapping, "{modality: most items per prompt or None}"),
    "get_dummy_text": (str, "prompt text"),
    "get_dummy_mm_data": (Mapping, "{modality: media}"),
    "get_item_kwargs": ((Mapping, type(None)), "{argument: value}, or None"),
    "call_hf_processor": (Mapping, "the processor's BatchFeature"),
    "get_mm_fields_config": (Mapping, "{tensor name: MultiModalFieldConfig}"),
    "get_prompt_updates": (Sequence, "a list of PromptReplacement / PromptInsertion"),
    "apply_hf_processor_tokens_only": (Sequence, "a list of token ids"),
    "get_speech_form": ((SpeechForm, type(None)), "a SpeechForm, or None"),
    "get_transcription_prompt": ((Sequence, type(None)), "a list of token ids, or None"),
}


def call_hook(hook: Callable[_P, _R], *_: _P.args, **arguments: _P.kwargs) -> _R:
    """Return what a hook returns, once its type is checked.

    Args:
        hook: one of a model's hook callers, which take keywords only.
        arguments: all arguments of the hook.

    Raises:
        ContractError: the hook returned another type.
    """
    name = cast(pluggy.HookCaller, hook).name
    result: Any = hook(**arguments)  # type: ignore[call-arg]
    kind, meaning = _EXPECTED[name]
    if not isinstance(result, kind):
        forgotten = " (a forgotten return?)" if result is None else ""
        raise ContractError(f"{name} returned {result!r:.80}{forgotten}; it must return {meaning}")
    return cast(_R, result)


@contextmanager
def adapter_errors(what: str) -> Iterator[None]:
    """Raise `ProcessingError` for any untyped error of an adapter, its processor, a template or a tokenizer.

    Args:
        what: the hook, or what is done, for the message.
    """
    try:
        yield
    except CorellmError:
        raise
    except Exception as error:
        raise ProcessingError(f"{what} failed with {type(error).__name__}: {error} ({raised_at(error)})") from error
