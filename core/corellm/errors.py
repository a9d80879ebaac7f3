"""Every error a user can meet, in one tree.

    CorellmError                        status
    ├── ConfigError                     400    an engine argument is wrong
    ├── MissingExtraError               501    an optional dependency is not installed
    ├── AbsentNameError                 501    a name other engines export and corellm does not
    ├── AbsentMethodError               501    a method of other engines, or of an extension that is absent
    ├── CheckpointError                 500    the checkpoint is absent, incomplete or broken
    ├── PluginError                     500    something is wrong with an installed plugin
    │   ├── PluginNotFoundError                no installed plugin serves this architecture
    │   ├── PluginConflictError                two distributions claim the same architecture
    │   ├── BrokenPluginError                  the plugin cannot be imported or built
    │   └── ContractError                      the adapter breaks the contract (version, hook names, types)
    ├── RequestError                    400    this request is wrong; others are not affected; may have `param`
    │   ├── InvalidParameterError              a sampling parameter or argument (`param` names it)
    │   ├── PromptError                        empty, unknown token ids, malformed
    │   │   └── PromptTooLongError             can never fit
    │   └── MultiModalError                    has `request_id`, `modality`, `item`, `expected`, `got`
    │       ├── UnsupportedModalityError       the model does not take this modality
    │       ├── ItemLimitError                 more items than allowed
    │       ├── MediaError                     broken, empty or of an unknown format
    │       │   ├── MediaTooLargeError         larger than allowed, or takes too much memory
    │       │   └── MediaTimeoutError          takes longer to decode than allowed
    │       │       └── MediaBusyError      503    was not decoded: all decoders were busy for too long
    │       ├── ItemNotCachedError             a uuid came without its media, and is not in the cache
    │       ├── EmbeddingInputError            precomputed embeddings of a wrong rank, size or dtype
    │       ├── ProcessorKwargsError           `mm_processor_kwargs` the processor does not know
    │       └── PlaceholderError               the prompt and the items do not match
    │           ├── MissingPlaceholderError    more items than placeholders
    │           ├── SurplusPlaceholderError    more placeholders than items
    │           └── AlreadyExpandedError       the prompt holds expanded placeholders already
    ├── RequestFailedError              500    this request failed while it ran; others went on
    │   ├── ProcessingError                    the adapter or its processor raised
    │   ├── EncoderError                       the encoder raised
    │   ├── EmbeddingCountError                embeddings returned differ from the placeholder's mask
    │   └── EngineLostError             503    its engine ended, of several; the others go on
    └── EngineDeadError                 503    the engine itself stopped; every waiting client gets this
        └── OtherProcessError                  it is in another process: used after a fork, or pickled

One warning, `UntestedTransformersWarning`: the installed transformers is none that was tested.
`status` is the HTTP status of a server's response. Messages name the thing, the value and the way out.
This file imports nothing, so any room may use it.
"""

from __future__ import annotations

from typing import Any


def install_hint(folder: str) -> str:
    """Return the end of a message: the distribution in a folder of `extensions/`, and what installs it."""
    return f"corellm-{folder.replace('_', '-')}; from a checkout: pip install ./extensions/{folder}"


class CorellmError(Exception):
    """Base of every error corellm raises on purpose."""

    status = 500


class ConfigError(CorellmError, ValueError):
    """An engine argument is wrong."""

    status = 400


class MissingExtraError(CorellmError, ImportError):
    """An optional dependency is needed; the message has the command that installs it."""

    status = 501


class AbsentNameError(CorellmError, ImportError):
    """A name that scripts import from other engines and corellm does not have; the message has what to use instead."""

    status = 501


class AbsentMethodError(CorellmError, AttributeError):
    """A method of other engines, or of an extension that is not installed; the message has the way out."""

    status = 501


class CheckpointError(CorellmError):
    """The checkpoint is absent, incomplete or broken."""


class PluginError(CorellmError):
    """Something is wrong with an installed plugin."""


class PluginNotFoundError(PluginError):
    """No installed plugin serves this architecture."""


class PluginConflictError(PluginError):
    """Two installed distributions claim the same architecture."""


class BrokenPluginError(PluginError):
    """The plugin's adapter cannot be imported or built."""


class ContractError(PluginError):
    """The adapter breaks the contract: version, a hook's name or arguments, or what a hook returned."""


class RequestError(CorellmError, ValueError):
    """The request is wrong: it was not queued, and other requests are not affected.

    Attributes:
        param: the argument or field at fault (`temperature`, `messages[0].content[1]`), or None.
    """

    status = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidParameterError(RequestError):
    """A sampling parameter or argument is out of range or of the wrong type."""


class PromptError(RequestError):
    """The prompt is empty, malformed, or has token ids the model does not know."""


class PromptTooLongError(PromptError):
    """The prompt can never fit the model's context or the KV cache."""


class MultiModalError(RequestError):
    """A multimodal item is wrong.

    Attributes:
        request_id: the request, once it has an id.
        modality: `"image"`, `"video"` or `"audio"`.
        item: index of the item within its modality.
        expected, got: what was wanted and what was given, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        request_id: str | None = None,
        modality: str | None = None,
        item: int | None = None,
        expected: Any = None,
        got: Any = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.request_id = request_id
        self.modality = modality
        self.item = item
        self.expected = expected
        self.got = got


class UnsupportedModalityError(MultiModalError):
    """The model does not take this modality."""


class ItemLimitError(MultiModalError):
    """More items than the model or the operator allows."""


class MediaError(MultiModalError):
    """Media that is broken, truncated, empty, or of a format that is not accepted."""


class MediaTooLargeError(MediaError):
    """Media with more pixels, frames, seconds or bytes than allowed, or that take too much memory to decode."""


class MediaTimeoutError(MediaError):
    """Media that take longer to decode than allowed; the process that decoded them was ended."""


class MediaBusyError(MediaTimeoutError):
    """Media that were not decoded, because all processes that decode were busy for too long: they may be good."""

    status = 503


class ItemNotCachedError(MultiModalError):
    """An item came as its uuid alone, and the processor cache does not have its tensors: send its data."""


class EmbeddingInputError(MultiModalError):
    """Precomputed embeddings of a wrong rank, hidden size or dtype, or with values that are not finite."""


class ProcessorKwargsError(MultiModalError):
    """`mm_processor_kwargs` that the model's processor does not know or cannot take."""


class PlaceholderError(MultiModalError):
    """The prompt's placeholders and the request's items do not match."""


class MissingPlaceholderError(PlaceholderError):
    """An item has no placeholder in the prompt."""


class SurplusPlaceholderError(PlaceholderError):
    """A placeholder in the prompt has no item."""


class AlreadyExpandedError(PlaceholderError):
    """The prompt holds placeholders that were expanded already, e.g. by a Hugging Face processor."""


class RequestFailedError(CorellmError):
    """The request failed while it ran. Other requests are not affected."""


class ProcessingError(RequestFailedError):
    """The adapter, or the Hugging Face processor behind it, raised while an item was processed."""


class EncoderError(RequestFailedError):
    """The encoder raised while it embedded this request's items."""


class EmbeddingCountError(RequestFailedError):
    """The embeddings an adapter returned differ in number from the placeholder's mask."""


class EngineLostError(RequestFailedError):
    """The engine that computed the request ended, of several, and no other one could go on: send it again."""

    status = 503


def raised_at(error: BaseException) -> str:
    """Return where an error was raised, `package/file.py:line`: the innermost frame of a plugin, else the innermost."""
    places: list[tuple[str, int]] = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    if not places:
        return "?"
    plugins = [
        place for place in places if _OF_LIBRARIES.isdisjoint(place[0].split("/")[:-1]) or "/corellm_" in place[0]
    ]
    path, line = (plugins or places)[-1]
    return f"{'/'.join(path.split('/')[-2:])}:{line}"


_OF_LIBRARIES = frozenset({"corellm", "lib", "lib64", "site-packages"})
"""Folders that hold the code of corellm and of libraries."""


class EngineDeadError(CorellmError):
    """The engine stopped; no request can be served until it is started again."""

    status = 503


class OtherProcessError(EngineDeadError):
    """The engine is in another process: it was used after a fork, or pickled."""


class UntestedTransformersWarning(UserWarning):
    """The installed release of transformers is newer, or older, than all that corellm was tested with."""
