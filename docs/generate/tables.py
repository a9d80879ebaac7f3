"""Parts of pages made from the code: help texts, engine arguments, the tree of errors, the contract's rules."""

from __future__ import annotations

import argparse
import inspect
import os
import re
from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from corellm.cli.fields import class_docs
from corellm.known_fields import FieldTable

ROOT = Path(__file__).resolve().parents[2]
_WIDTH = "100"


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return `{command: its parser}`, for the core's own commands."""
    from corellm.cli import build_parser

    (subparsers,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(subparsers.choices)


def command_help(command: str | None = None) -> str:
    """Return what `corellm --help`, or that of a command, prints.

    Raises:
        KeyError: there is no such command.
    """
    from corellm.cli import build_parser

    os.environ["COLUMNS"] = _WIDTH
    parser = build_parser() if command is None else commands()[command]
    return f"```text\n{parser.format_help().rstrip()}\n```"


def arguments(config: str) -> str:
    """Return a table of the fields of a class of `corellm.config` or `corellm_server`.

    Raises:
        KeyError: there is no such class.
    """
    import corellm.config
    import corellm_server.options  # with the limits of requests

    config_class = (vars(corellm.config) | vars(corellm_server.options))[config]
    configured, documented = fields(config_class), class_docs(config_class)
    rows = ["| argument | default | meaning |", "|---|---|---|"]
    for field in configured:
        annotation, words = documented[field.name]
        kind = annotation.replace("|", "&#124;")
        name = f'<span id="{field.name}"></span>`{field.name}`<br><small><code>{kind}</code></small>'
        rows.append(f"| {name} | {_default(field)} | {' '.join(words.split())} |")
    return "\n".join(rows)


def metrics() -> str:
    """Return a table of the metrics of a server, its engine's first, under the names that Prometheus has."""
    from corellm.engine.metrics import DESCRIPTIONS
    from corellm_server.metrics import ServerMetrics

    own = {family.name: family.documentation for family in ServerMetrics().registry.collect()}
    rows = [f"| `{name}` | {words} |" for name, words in (DESCRIPTIONS | own).items()]
    return "\n".join(["| metric | what it counts |", "|---|---|", *rows])


def request_fields(name: str) -> str:
    """Return a table of the fields of a request, or of its `messages` or `parts`: taken, ignored, refused.

    Raises:
        KeyError: there is no such request.
    """
    if name in ("messages", "parts"):
        return _of_conversations(name)
    from corellm_server.requests.audio import TranscriptionRequest
    from corellm_server.requests.chat import ChatRequest
    from corellm_server.requests.completions import CompletionRequest
    from corellm_server.requests.messages import MessagesRequest
    from corellm_server.requests.pooling import (
        ClassifyRequest,
        EmbeddingRequest,
        PoolingRequest,
        RerankRequest,
        ScoreRequest,
    )
    from corellm_server.requests.responses import ResponsesRequest

    bodies = (
        ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest, TranscriptionRequest,
        EmbeddingRequest, ClassifyRequest, PoolingRequest, ScoreRequest, RerankRequest,
    )  # fmt: skip
    return _fields({body.__name__: body for body in bodies}[name].table())


def _of_conversations(name: str) -> str:
    """A table of the fields of all roles' messages, or of all types of parts."""
    from corellm.multimodal.chat.fields import MESSAGES, PARTS, TOOL_PARTS

    if name == "messages":
        tables = MESSAGES.values()
        taken = {
            field: meaning if field in MESSAGES["user"].taken else f"{meaning} (`{role}`)"
            for role, table in MESSAGES.items()
            for field, meaning in table.taken.items()
        }
        return _fields(_joined(taken, tables))
    rows = ["| `type` | fields | |", "|---|---|---|"]
    rows += [
        f"| `{kind}` | {' or '.join(f'`{key}`' for key in part.keys)} | {part.about} |" for kind, part in PARTS.items()
    ]
    for kind, table in TOOL_PARTS.items():
        own = {field: meaning for field, meaning in table.taken.items() if field != "type"}
        rows.append(f"| `{kind}` | {', '.join(f'`{field}`' for field in own)} | {'; '.join(own.values())} |")
    joined = _joined({}, [*(part.table for part in PARTS.values()), *TOOL_PARTS.values()])
    return "\n".join([*rows, "", *_lacking(joined)])


def _joined(taken: dict[str, str], tables: Iterable[FieldTable]) -> FieldTable:
    ignored, refused = {}, {}
    for table in tables:
        ignored |= table.ignored
        refused |= table.refused
    return FieldTable(taken, dict(sorted(ignored.items())), dict(sorted(refused.items())))


def _fields(table: FieldTable) -> str:
    rows = ["| field | |", "|---|---|"]
    rows += [f"| `{field}` | {meaning} |" for field, meaning in sorted(table.taken.items())]
    return "\n".join([*rows, "", *_lacking(table)])


def _lacking(table: FieldTable) -> list[str]:
    """What has no effect, and what is refused."""
    ignored = ", ".join(f"`{field}` ({meaning})" for field, meaning in table.ignored.items())
    refused = [f"| `{field}` | {absent.instead} |" for field, absent in table.refused.items()]
    return [
        *([f"Accepted without an effect: {ignored}.", ""] if ignored else []),
        *(["Refused, unless the value asks for nothing:", "", "| field | instead |", "|---|---|"] if refused else []),
        *refused,
    ]


def _default(field: Any) -> str:
    if field.default is not MISSING:
        shown = f"{field.default:_}" if type(field.default) is int and field.default >= 10_000 else repr(field.default)
        return f"`{shown}`"
    return "required" if field.default_factory is MISSING else f"`{field.default_factory()!r}`"


def error_tree() -> str:
    """Return the tree in the docstring of `corellm.errors`."""
    import corellm.errors

    drawn = re.findall(r"^    (.*[A-Za-z].*)$", inspect.getdoc(corellm.errors) or "", re.MULTILINE)
    return "```text\n" + "\n".join(drawn) + "\n```"


def moved() -> str:
    """Return a table of the packages that left the core."""
    from corellm.moved import MOVED

    rows = ["| old name | new name | distribution |", "|---|---|---|"]
    for old, new in MOVED.items():
        package = new.partition(".")[0]
        rows.append(f"| `{old}` | `{new}` | `{package.replace('_', '-')}` |")
    return "\n".join(rows)


def rules() -> str:
    """Return the contract's rules by part, as the docstrings of their tests state them."""
    from corellm_testing import AdapterContract
    from corellm_testing.quick import is_slow
    from corellm_testing.rules import Rules, rules_of

    known = rules_of(AdapterContract)
    shown: list[str] = []
    for base in reversed(AdapterContract.__mro__):
        own = [name for name in vars(base) if name in known and vars(base)[name] is known[name]]
        if issubclass(base, Rules) and own:
            shown += [f"## {_title(base)}", ""]
            for name in own:
                statement, _, more = (inspect.getdoc(known[name]) or "").partition("\n\n")
                slow = " *(slow)*" if is_slow(known[name]) else ""
                shown += [f"`{name}`", f":   {' '.join(statement.split())}{slow}", ""]
                shown += [f"    {line}" for line in more.splitlines()] + [""] if more else []
    return "\n".join(shown)


def _title(part: type) -> str:
    """Return a part's heading: the first sentence of its docstring."""
    return re.split(r"\.(?:\s|$)", inspect.getdoc(part) or part.__name__)[0]
