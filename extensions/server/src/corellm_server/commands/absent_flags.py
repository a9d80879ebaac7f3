"""Flags of other servers' command lines that `corellm serve` lacks: what they mean here, and the way out.

Data, and how a command line is read that has them. Arguments of another engine are known to corellm-vllm, where it is
installed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.util import find_spec

from corellm.known_fields import Absent

_ONE_DEVICE = "a model runs on one device; for an engine on each of several use --data-parallel-size"
_TOOLS = "tools are taken where the form of calls is known: from the chat template, or by --tool-call-parser"
_CORS = "use --cors-origins; headers and methods that the server takes are let in with them"
_LOGS = "use --log-level; each request is logged in one line, without its content"
_MODEL = "name the model as the first word: corellm serve MODEL"
_NO_CODE = "no code is loaded by its name; write an extension plugin (corellm.extensions)"
_REPLICAS = (
    "corellm serve has replicas on Ray with corellm-ray; from a checkout: pip install ./extensions/ray. "
    "corellm batch has --ray there"
)
_NO_CLIENT_CERTIFICATES = "clients are known by --api-key; for certificates of clients put a proxy before the server"

SERVER_FLAGS: dict[str, Absent] = {
    "enable_auto_tool_choice": Absent((True, False), _TOOLS),
    **dict.fromkeys(("tool_parser_plugin", "reasoning_parser_plugin"), Absent(("",), _NO_CODE)),
    "tool_server": Absent(("",), "the client runs tools"),
    "exclude_tools_when_tool_choice_none": Absent((True,), "they are left out with tool_choice none"),
    "chat_template": Absent(
        (), "put it into the model's directory (chat_template.jinja), or let requests bring theirs "
        "(--allow-request-templates)"
    ),
    "chat_template_content_format": Absent(("auto",), "the format of contents is detected from the template"),
    "trust_request_chat_template": Absent((False,), "use --allow-request-templates"),
    "response_role": Absent(("assistant",), "the role of a completion is assistant"),
    "prompt_adapters": Absent((), "use LoRA adapters: --lora-modules"),
    "allowed_origins": Absent(([],), _CORS),
    **dict.fromkeys(("allowed_methods", "allowed_headers"), Absent((["*"],), _CORS)),
    "allow_credentials": Absent((False,), _CORS),
    "ssl_ca_certs": Absent((), _NO_CLIENT_CERTIFICATES),
    "ssl_cert_reqs": Absent((0,), _NO_CLIENT_CERTIFICATES),
    "middleware": Absent(([],), _NO_CODE),
    "uvicorn_log_level": Absent(("info",), _LOGS),
    "disable_uvicorn_access_log": Absent((True,), _LOGS),
    **dict.fromkeys(("enable_log_requests", "disable_log_requests"), Absent((True, False), _LOGS)),
    "enable_log_outputs": Absent((False,), "prompts and outputs are never logged"),
    "max_log_len": Absent((0,), "prompts and outputs are never logged"),
    "disable_fastapi_docs": Absent((True, False), "/openapi.json describes the server, without pages"),
    "enable_request_id_headers": Absent((True,), "every response has an X-Request-Id"),
    "enable_prompt_tokens_details": Absent((True,), "usage always has cached tokens"),
    "enable_server_load_tracking": Absent((False,), "/metrics has the numbers of requests"),
    "enable_force_include_usage": Absent((False,), "clients ask for it: stream_options={'include_usage': true}"),
    "return_tokens_as_token_ids": Absent((False,), "use /tokenize for token ids"),
    "api_server_count": Absent((1,), "one process serves HTTP; start several servers behind a proxy"),
    "headless": Absent((False,), _ONE_DEVICE),
    **dict.fromkeys(("model", "model_path", "model_id"), Absent((), _MODEL)),
    **dict.fromkeys(("tp", "tp_size", "num_shard", "pp"), Absent((1,), _ONE_DEVICE)),
    **dict.fromkeys(("dp", "dp_size"), Absent((1,), "use --data-parallel-size")),
    **dict.fromkeys(("context_length", "ctx_size", "max_total_tokens"), Absent((), "use --max-model-len")),
    "mem_fraction_static": Absent((), "use --gpu-memory-utilization"),
    "max_running_requests": Absent((), "use --max-num-seqs"),
    "max_concurrent_requests": Absent((), "use --max-queue"),
    "hf_token": Absent((), "log in with `hf auth login`, or set the environment variable HF_TOKEN"),
}  # fmt: skip
"""By the flag's name, with `_` for `-`."""


EXTENSION_FLAGS: dict[str, Absent] = {
    "replicas": Absent((1, "1"), _REPLICAS),
    **dict.fromkeys(("ray_address", "replica_cpus", "replica_gpus", "replica_router"), Absent((), _REPLICAS)),
}
"""Options that extensions bring, where they are not installed."""

_PYTHON = {"": None, "None": None, "True": True, "False": False}
"""Values as other servers read them that JSON does not have."""


@cache
def engine_flags() -> Mapping[str, Absent]:
    """The arguments of another engine, by their names; none without the distribution that knows them."""
    if find_spec("corellm_vllm") is None:
        return {}
    from corellm_vllm.absent.engine import ENGINE_FLAGS

    return ENGINE_FLAGS


def absent_flag(name: str) -> Absent | None:
    """What a flag or an option of a file means that the server does not have; None for one that no server has."""
    return SERVER_FLAGS.get(name) or EXTENSION_FLAGS.get(name) or engine_flags().get(name)


def not_an_option(flag: str, absent: Absent) -> str:
    """The message for a flag, or an option of a file, whose value would have an effect."""
    return f"{flag} is not an option of corellm: {absent.instead}"


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
        name = flag.lstrip("-").replace("-", "_").partition(".")[0]  # --compilation-config.level 0
        is_foreign = word.startswith("-") and flag.replace("_", "-") not in known
        found = absent_flag(name.removeprefix("no_")) if is_foreign else None
        if found is None:
            kept.append(word)
            continue
        given: object = not name.startswith("no_")
        if not equals and left and _is_value(left[0], found):
            equals, value = "=", left.pop(0)
        if equals:
            given = _value(value)
        if not found.accepts(given) and not (equals and found.accepts(value)):
            return kept, not_an_option(flag, found)
    return kept, ""


def _is_value(word: str, flag: Absent) -> bool:
    """Whether the word after a flag is its value; after a switch it may be the model."""
    if any(isinstance(neutral, bool) for neutral in flag.neutral):
        return word.lower() in ("true", "false")
    return not word.startswith("-")


def _value(text: str) -> object:
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
