"""How lines of the log are written, by the server and by its engine's process: for people, or each a JSON object.

Knows logging; knows no requests.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from typing import Any

_TEXT = "%(asctime)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON; what it has under `fields` takes the place of its message.

    Args:
        engine: the number of the engine that logs, among several; None for one, or none.
    """

    def __init__(self, engine: int | None = None) -> None:
        super().__init__()
        self._engine = {} if engine is None else {"engine": engine}

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._engine,
            **getattr(record, "fields", {"message": record.getMessage()}),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def set_up_log(level: int | str, *, as_json: bool, engine: int | None = None) -> None:
    """Write the log to standard error from now on; as JSON, also warnings and errors that nothing catches.

    Args:
        level: of the least important messages.
        as_json: each line is an object.
        engine: the number of the engine that this process is, among several: every line says it.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = _TEXT if engine is None else _TEXT.replace("%(name)s", f"engine {engine} %(name)s")
    handler.setFormatter(JsonFormatter(engine) if as_json else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler])
    if as_json:
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        sys.unraisablehook = _log_unraisable
        threading.excepthook = _log_thread
        _use_own_handler()


def start_line(text: str, *, as_json: bool) -> str:
    """What a server prints once it listens."""
    if not as_json:
        return text
    return JsonFormatter().format(logging.makeLogRecord({"name": "corellm_server", "levelname": "INFO", "msg": text}))


def is_json() -> bool:
    """Whether the log is written as JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _use_own_handler() -> None:
    """Have transformers pass its messages on, which it writes itself else."""
    from transformers.utils import logging as of_transformers

    of_transformers.disable_default_handler()
    of_transformers.enable_propagation()
    of_transformers.disable_progress_bar()


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    logging.getLogger("corellm").critical("ended by an error", exc_info=(kind, error, traceback))


def _log_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    place = getattr(unraisable.object, "__qualname__", type(unraisable.object).__name__)
    logging.getLogger("corellm").error("%s cannot raise its error", place, exc_info=unraisable.exc_value)


def _log_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread else "that is gone"
        logging.getLogger("corellm").error("the thread %s ended by an error", name, exc_info=ended.exc_value)
