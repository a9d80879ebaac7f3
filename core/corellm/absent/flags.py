"""Flags of other servers' command lines that `corellm serve` lacks: what they mean here, and the way out.

Data, and how a command line is read that has them. Arguments that the engine lacks are in `engine`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from corellm.absent.engine import ENGINE_ARGUMENTS
from corellm.absent.names import NO_LORA, ONE_DEVICE
from corellm.absent.table import Absent

_NO_TOOLS = "models cannot be given tools yet; describe them in a message and read the text"
_CORS = "use --cors-origins; headers and methods that the server takes are let in with them"
_LOGS = "use --log-level; each request is logged in one line, without its content"
_MODEL = "name the model as the first word: corellm serve MODEL"
_NO_CODE = "no code is loaded by its name; write an extension plugin (corellm.extensions)"
_NO_CLIENT_CERTIFICATES = "clients are known by --api-key; for certificates of clients put a proxy before the server"
_CONTEXT = "use --max-model-len"

SERVER_FLAGS: dict[str, Absent] = {
    "enable_auto_tool_choice": Absent((False,), _NO_TOOLS),
    "tool_call_parser": Absent(("",), _NO_TOOLS),
    "tool_parser_plugin": Absent(("",), _NO_TOOLS),
    "tool_server": Absent(("",), _NO_TOOLS),
    "exclude_tools_when_tool_choice_none": Absent((True, False), _NO_TOOLS),
    "chat_template": Absent(
        (), "put it into the model's directory (chat_template.jinja), or let requests bring theirs "
        "(--allow-request-templates)"
    ),
    "chat_template_content_format": Absent(("auto",), "the format of contents is detected from the template"),
    "trust_request_chat_template": Absent((False,), "use --allow-request-templates"),
    "response_role": Absent(("assistant",), "the role of a completion is assistant"),
    "lora_modules": Absent((), NO_LORA),
    "prompt_adapters": Absent((), NO_LORA),
    "allowed_origins": Absent(([],), _CORS),
    "allowed_methods": Absent((["*"],), _CORS),
    "allowed_headers": Absent((["*"],), _CORS),
    "allow_credentials": Absent((False,), _CORS),
    "ssl_ca_certs": Absent((), _NO_CLIENT_CERTIFICATES),
    "ssl_cert_reqs": Absent((0,), _NO_CLIENT_CERTIFICATES),
    "middleware": Absent(([],), _NO_CODE),
    "uvicorn_log_level": Absent(("info",), _LOGS),
    "disable_uvicorn_access_log": Absent((True,), _LOGS),
    "enable_log_requests": Absent((True, False), _LOGS),
    "disable_log_requests": Absent((True, False), _LOGS),
    "enable_log_outputs": Absent((False,), "prompts and outputs are never logged"),
    "max_log_len": Absent((0,), "prompts and outputs are never logged"),
    "disable_fastapi_docs": Absent((True, False), "there are no pages; /openapi.json describes the server"),
    "enable_request_id_headers": Absent((True,), "every response has an X-Request-Id"),
    "enable_prompt_tokens_details": Absent((True,), "usage always has cached tokens"),
    "enable_server_load_tracking": Absent((False,), "/metrics has the numbers of requests"),
    "enable_force_include_usage": Absent((False,), "clients ask for it: stream_options={'include_usage': true}"),
    "return_tokens_as_token_ids": Absent((False,), "use /tokenize for token ids"),
    "api_server_count": Absent((1,), "one process serves HTTP; start several servers behind a proxy"),
    "headless": Absent((False,), ONE_DEVICE),
    "model": Absent((), _MODEL), "model_path": Absent((), _MODEL), "model_id": Absent((), _MODEL),
    "tp": Absent((1,), ONE_DEVICE), "tp_size": Absent((1,), ONE_DEVICE), "num_shard": Absent((1,), ONE_DEVICE),
    "pp": Absent((1,), ONE_DEVICE), "dp": Absent((1,), ONE_DEVICE), "dp_size": Absent((1,), ONE_DEVICE),
    "context_length": Absent((), _CONTEXT), "ctx_size": Absent((), _CONTEXT),
    "max_total_tokens": Absent((), _CONTEXT),
    "mem_fraction_static": Absent((), "use --gpu-memory-utilization"),
    "max_running_requests": Absent((), "use --max-num-seqs"),
    "max_concurrent_requests": Absent((), "use --max-queue"),
    "hf_token": Absent((), ENGINE_ARGUMENTS["hf_token"].instead),
}  # fmt: skip
"""By the flag's name, with `_` for `-`."""


def absent_flag(name: str) -> Absent | None:
    """What a flag or an option of a file means that the server does not have; None for one that no server has."""
    return SERVER_FLAGS.get(name) or ENGINE_ARGUMENTS.get(name)


def without_absent(argv: Sequence[str], known: Collection[str]) -> tuple[list[str], str]:
    """A command line without flags of other servers that have no effect here.

    Args:
        argv: the words after the command.
        known: flags that the command has.

    Returns:
        The other words; and of the first flag that would have an effect, what to use instead, or "".
    """
    kept: list[str] = []
    left = list(argv)
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        is_off = name.startswith("no_")
        found = absent_flag(name.removeprefix("no_")) if word.startswith("-") and flag not in known else None
        if found is None:
            kept.append(word)
            continue
        is_switch = any(isinstance(neutral, bool) for neutral in found.neutral)
        if not equals and not is_switch and left and not left[0].startswith("-"):
            value = left.pop(0)
        given = _value(value) if value else not is_off
        if not found.accepts(given):
            return kept, f"{flag} is not an option of corellm: {found.instead}"
    return kept, ""


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
