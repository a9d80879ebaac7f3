"""A conversation on the terminal: messages and outputs in turn, until the end of input.

A wrong message or file loses that message, never the conversation. Knows the engine's public calls only.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from corellm.cli.media import SUFFIXES, MediaFile, open_files
from corellm.errors import CorellmError, PromptTooLongError, RequestError
from corellm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine
    from corellm.outputs import CompletionOutput

_HELP = "/image, /video or /audio FILE goes with your next message, /reset starts over, /exit (or Ctrl-D) leaves."


def system_message(text: str | None) -> list[dict[str, Any]]:
    """The system message, if there is one."""
    return [{"role": "system", "content": text}] if text else []


def user_message(text: str, media: Sequence[MediaFile]) -> dict[str, Any]:
    """A message with media before its text."""
    return {"role": "user", "content": [*(file.part for file in media), {"type": "text", "text": text}]}


def stream(engine: LLMEngine, name: str, prompt: Any, params: SamplingParams) -> Iterator[CompletionOutput]:
    """Yield the output as it grows. Closing aborts the request.

    Raises:
        CorellmError: the request failed.
    """
    engine.abort_request(name, silently=True)  # the previous one, if its cleanup was interrupted
    try:
        engine.add_request(name, prompt, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.error is not None:
                    raise output.error
                yield output.outputs[0]
    finally:
        engine.abort_request(name, silently=True)


def print_text(growing: Iterator[CompletionOutput]) -> str:
    """Print an output as it is generated, without the space that most models begin with; tell a terminal if it is cut.

    Returns:
        Its text, up to Ctrl-C if that stopped it.
    """
    text, end = "", None
    try:
        for output in growing:
            shown, text, end = len(text), output.text.lstrip(), output.finish_reason
            print(text[shown:], end="", flush=True)
        print()
        if end == "length" and sys.stderr.isatty():
            print("(cut at its longest length; see --max-tokens)", file=sys.stderr)
    except KeyboardInterrupt:
        growing.close()  # type: ignore[attr-defined]  # a generator: aborts the request
        print("  (stopped)")
    except CorellmError:
        if text:
            print(flush=True)  # the error is a line of its own
        raise
    return text


class Conversation:
    """The messages so far, and the media of the next message.

    Args:
        engine: completes the conversation.
        params: how to sample.
        name: the model's, for the greeting.
        system: the system message, if any.
        media: of the first message.
        keys: of all prompts, which extensions read.
    """

    def __init__(
        self,
        engine: LLMEngine,
        params: SamplingParams,
        name: str,
        system: str | None,
        media: Sequence[MediaFile],
        keys: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._engine, self._params, self._name, self._system, self._keys = engine, params, name, system, keys
        self._history = system_message(system)
        self._next_media = list(media)

    def run(self) -> int:
        """Read and complete messages until the end of input; returns the exit status."""
        with contextlib.suppress(ImportError):  # not every Python has it; from here on `input` edits and recalls lines
            import readline  # noqa: F401
        print(f"{self._name} is listening. {_HELP}")
        while True:
            try:
                line = input("> ").strip()
                if line in ("/exit", "/quit"):
                    return 0
                self._handle(line)
            except EOFError:
                print()
                return 0
            except KeyboardInterrupt:
                print("\n(/exit leaves)")

    def _handle(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        if command == "/reset":
            self._history, self._next_media = system_message(self._system), []
        elif command.startswith("/") and command[1:] in SUFFIXES and argument.strip():
            self._add(command[1:], argument.strip().strip("'\""))
        elif command.startswith("/"):
            known = command == "/help" or command[1:] in SUFFIXES
            print(_HELP if known else f"{command} is no command. {_HELP}")
        elif line:
            self._complete(line)

    def _add(self, modality: str, name: str) -> None:
        try:
            files = open_files(name, modality, self._engine.config.multimodal)
        except RequestError as error:
            print(f"corellm: error: {error}", file=sys.stderr)
            return
        self._next_media += files
        for file in files:
            print(f"({Path(file.path).name}, {file.about}, goes with your next message)")

    def _complete(self, text: str) -> None:
        """Complete one message; if that fails, the message and its media are dropped."""
        media, self._next_media = self._next_media, []
        message = user_message(text, media)
        try:
            processed = self._engine.input_processor.process_chat([*self._history, message], prompt_keys=self._keys)
            output = print_text(stream(self._engine, "run", processed, self._params))
        except KeyboardInterrupt:
            print("  (stopped)")
        except PromptTooLongError as error:
            print(f"corellm: error: the conversation is full: {error}; /reset starts over", file=sys.stderr)
        except CorellmError as error:
            print(f"corellm: error: {error}", file=sys.stderr)
            if len(media) > 1:
                names = ", ".join(Path(file.path).name for file in media)
                print(f"(forgotten with it: {names}; give again what is wanted)", file=sys.stderr)
        else:
            self._history += [message, {"role": "assistant", "content": output}]
