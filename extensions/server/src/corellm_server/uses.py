"""Whether the served model does what an endpoint needs, and what to start instead. Knows names of tasks only."""

from __future__ import annotations

from collections.abc import Sequence

from corellm_server.errors import ApiError

_STARTS = {
    "generate": "with --runner generate --convert none",
    "embed": "with --convert embed",
    "token_embed": "with --convert embed",
    "classify": "with --convert classify",
    "token_classify": "with --convert classify",
    "score": "with --convert classify and a head of one label, or with --convert embed",
    "reward": "of a reward model",
}


def check_tasks(has: Sequence[str], wanted: Sequence[str], *, param: str = "model") -> None:
    """Return if a model has one of the wanted tasks.

    Args:
        has: the model's.
        wanted: the first is the one that errors name.
        param: the field that asks for it.

    Raises:
        ApiError: says which server to start.
    """
    if not set(has) & set(wanted):
        raise ApiError(
            400,
            f"this server's model has no task {wanted[0]!r}: it has {', '.join(has)}; start a server "
            f"{_STARTS[wanted[0]]}",
            param=param,
            code="task_not_supported",
        )
