"""Receives the body of a request, JSON or a form, and stops as soon as it is too large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Receive

from corellm.server.errors import ApiError
from corellm.server.exchange import Exchange
from corellm.server.form import read_form
from corellm.server.json_text import VALUE_BYTES, count_values, read_object
from corellm.server.limits import RequestLimits


async def receive_body(
    exchange: Exchange, receive: Receive, limits: RequestLimits, hold: Callable[[int], None], *, is_form: bool
) -> dict[str, Any]:
    """The fields of a body.

    Args:
        exchange: the request; gets the number of bytes while they come, and whether all did.
        receive: of ASGI.
        limits: of bytes, time and depth.
        hold: counts bytes, may refuse them.
        is_form: whether it must be a form, else JSON.

    Raises:
        ApiError: 413, 415, 408 or 400.
        ConnectionError: the client left.
    """
    content_type = exchange.headers.get(b"content-type", b"")
    wanted, name = (b"multipart/form-data", "a form") if is_form else (b"application/json", "JSON")
    kind = content_type.split(b";")[0].strip().lower()
    if kind != wanted or exchange.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ApiError(415, f"the body must be {name}: Content-Type: {wanted.decode()}, without a Content-Encoding")
    announced = exchange.headers.get(b"content-length", b"")
    if announced.isdigit() and (len(announced) > 18 or int(announced) > limits.max_body_bytes):
        raise _too_large(limits)
    chunks: list[bytes] = []
    num_bytes, values_left = 0, limits.max_json_values
    try:
        async with asyncio.timeout(limits.body_timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError("the client left")
                chunk = message.get("body", b"")
                num_values = 0 if is_form else count_values(chunk)
                num_bytes, values_left = num_bytes + len(chunk), values_left - num_values
                if num_bytes > limits.max_body_bytes:
                    raise _too_large(limits)
                if values_left < 0:  # a few million would keep the event loop busy for seconds
                    raise _too_many_values(limits)
                held = len(chunk) + VALUE_BYTES * num_values
                hold(held)
                exchange.num_bytes += held
                chunks.append(chunk)
                exchange.is_read = not message.get("more_body")
                if exchange.is_read:
                    break
    except TimeoutError:
        raise ApiError(408, "the request did not arrive in time", headers={"Connection": "close"}) from None
    whole = b"".join(chunks)
    return read_form(whole, content_type) if is_form else read_object(whole, max_depth=limits.max_json_depth)


def _too_large(limits: RequestLimits) -> ApiError:
    return ApiError(
        413,
        f"the request is larger than the {limits.max_body_bytes} bytes allowed; send fewer or smaller items",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def _too_many_values(limits: RequestLimits) -> ApiError:
    return ApiError(
        400,
        f"invalid JSON: it has more than the {limits.max_json_values} values allowed",
        code="invalid_json",
        headers={"Connection": "close"},
    )
