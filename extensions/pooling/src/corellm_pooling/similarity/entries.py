"""What is embedded, texts and media files, and what became of each: a vector, or an error.

Knows neither the command line nor what vectors are compared with.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from corellm.errors import CorellmError, EngineDeadError
from corellm.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from corellm.frontend.input_processor import InputProcessor, ProcessedPrompt
    from corellm.llm import LLM

_AT_ONCE = 32
"""Entries whose tensors are in memory at the same time."""
_UNPRINTABLE = ("Cc", "Cs", "Zl", "Zp")
"""Categories of control characters, bytes of a path that are not UTF-8, ends of lines and paragraphs."""


@dataclass(frozen=True)
class Entry:
    """A text or a media file."""

    modality: str
    """`text`, `image`, `video` or `audio`."""
    content: str
    """The text, or the file's path; `-` for standard input."""
    name: str
    """As reports show it; see `printable`."""
    data: bytes | None = field(default=None, repr=False)
    """The bytes of a file that has no path."""

    @property
    def medium(self) -> str | bytes:
        """The file, as prompts take it."""
        return self.content if self.data is None else self.data


def printable(name: str) -> str:
    """Return a text or path on one line, without what a terminal obeys or cannot encode: that is escaped."""
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _UNPRINTABLE else char for char in name
    )


@dataclass(frozen=True)
class Embedded:
    """An entry with its embedding, or with why it has none."""

    entry: Entry
    vector: NDArray[np.float32] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Wording:
    """How an entry becomes a prompt."""

    instruction: str = ""
    """On a line of its own after each entry."""
    system: str = ""
    is_raw: bool = False
    """The text as it is, without a chat template."""

    def prompt(self, entry: Entry, inputs: InputProcessor) -> ProcessedPrompt:
        """Return the entry's prompt.

        Raises:
            CorellmError: the entry is wrong, or the model does not take it.
        """
        is_text = entry.modality == "text"
        text = "\n".join(filter(None, (entry.content if is_text else "", self.instruction)))
        if self.is_raw:
            return inputs.process(
                {"prompt": text, "multi_modal_data": {} if is_text else {entry.modality: [entry.medium]}}
            )
        media = [] if is_text else [{"type": entry.modality, entry.modality: entry.medium}]
        content: list[dict[str, Any]] = [*media, {"type": "text", "text": text}]
        system = [{"role": "system", "content": self.system}] if self.system else []
        return inputs.process_chat([*system, {"role": "user", "content": content}])


def embed_entries(
    llm: LLM, entries: Sequence[Entry], wording: Wording, *, dimensions: int | None = None
) -> Iterator[Embedded]:
    """Yield each entry with its embedding, or with its error, in their order; a terminal shows a progress bar.

    Raises:
        InvalidParameterError: the model gives no embeddings, or not of that length.
        EngineDeadError: the engine ended.
    """
    embed = partial(llm.embed, dimensions=dimensions, use_tqdm=False, on_error="return")
    embed([])  # refuses the parameters before anything is read
    with Progress(llm.engine, len(entries), wanted=sys.stderr.isatty()) as progress:
        for start in range(0, len(entries), _AT_ONCE):
            prepared = [_prepared(entry, wording, llm.engine.input_processor) for entry in entries[start:][:_AT_ONCE]]
            outputs = iter(embed([prompt for prompt in prepared if not isinstance(prompt, Embedded)]))
            for entry, prompt in zip(entries[start:], prepared, strict=False):
                yield prompt if isinstance(prompt, Embedded) else _embedded(entry, next(outputs))
                progress.update()


def _prepared(entry: Entry, wording: Wording, inputs: InputProcessor) -> ProcessedPrompt | Embedded:
    try:
        return wording.prompt(entry, inputs)
    except EngineDeadError:
        raise
    except CorellmError as error:
        return Embedded(entry, error=str(error))


def _embedded(entry: Entry, output: Any) -> Embedded:
    import numpy as np

    if output.outputs is None:
        return Embedded(entry, error=str(output.error))
    return Embedded(entry, np.asarray(output.outputs.embedding, np.float32))
