"""Receives the body of a request, JSON or a form, and stops as soon as it is too large, or stalls."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive

from corellm_server.errors import ApiError
from corellm_server.exchange import Exchange
from corellm_server.form import read_form
from corellm_server.intake import Intake
from corellm_server.json_text import VALUE_BYTES, JsonCounter, invalid_json, read_object
from corellm_server.limits import RequestLimits
from corellm_server.uploads import Upload

QUICK_BYTES, _QUICK_VALUES = 1 << 18, 1 << 12
"""A body of so many is parsed and checked in a few milliseconds."""
_CLOSE = {"Connection": "close"}


async def receive_body(
    exchange: Exchange, receive: Receive, limits: RequestLimits, intake: Intake, *, is_form: bool
) -> list[bytes]:
    """A whole body, within the limits, in the pieces that came: to join many would hold up the event loop.

    Args:
        exchange: the request; gets the number of bytes while they come, whether all did, and whether they are many.
        receive: of ASGI.
        limits: of bytes, counts and time.
        intake: counts bytes, and the body until it has come.
        is_form: whether it must be a form, else JSON.

    Raises:
        ApiError: 413, 415, 408, 503 or 400.
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
    end = asyncio.get_running_loop().time() + limits.body_timeout
    upload = Upload(exchange, limits.body_stall_timeout, end)
    try:
        with intake.uploads.entered(upload):
            async with upload.time_limit:
                return await _receive_all(upload, receive, limits, intake, is_form=is_form)
    except TimeoutError:
        if upload.refusal is not None:
            exchange.is_read = True  # what still comes is not waited for
            raise upload.refusal from None
        raise ApiError(408, "the request did not arrive in time", headers=_CLOSE) from None


async def _receive_all(
    upload: Upload, receive: Receive, limits: RequestLimits, intake: Intake, *, is_form: bool
) -> list[bytes]:
    exchange, counter = upload.exchange, JsonCounter()
    chunks: list[bytes] = []
    num_bytes = held = 0
    while not exchange.is_read:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client left")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        num_bytes += len(chunk)
        if num_bytes > limits.max_body_bytes:
            raise _too_large(limits)
        if not is_form:
            counter.add(chunk)
            _check_counts(counter, limits)
        new = num_bytes + VALUE_BYTES * counter.num_values - held
        intake.uploads.came(upload, len(chunk), more=more)
        intake.hold(new, is_arriving=more)  # which this body itself may have to give way for
        exchange.num_bytes += new
        held += new
        if upload.refusal is not None:
            exchange.is_read = True  # what still comes is not waited for
            raise upload.refusal
        chunks.append(chunk)
        exchange.is_read = not more
    exchange.is_large = num_bytes > QUICK_BYTES or counter.num_values > _QUICK_VALUES
    return chunks


def read_body(exchange: Exchange, chunks: list[bytes], limits: RequestLimits, *, is_form: bool) -> dict[str, Any]:
    """The fields of a body that has come; its pieces are taken out of their list, and so freed in this thread.

    Raises:
        ApiError: 400, it is no such JSON or form.
    """
    body = b"".join(chunks)
    chunks.clear()
    if is_form:
        return read_form(body, exchange.headers.get(b"content-type", b""))
    return read_object(body, max_depth=limits.max_json_depth)


def _check_counts(counter: JsonCounter, limits: RequestLimits) -> None:
    """Refuse what would keep the interpreter busy for seconds, before any of it is parsed."""
    if counter.num_values > limits.max_json_values:
        raise invalid_json(f"it has more than the {limits.max_json_values} values allowed", headers=_CLOSE)
    if counter.num_keys > limits.max_json_keys:
        told = f"it has more than the {limits.max_json_keys} keys, lists and objects allowed"
        raise invalid_json(told, headers=_CLOSE)


def _too_large(limits: RequestLimits) -> ApiError:
    return ApiError(
        413,
        f"the request is larger than the {limits.max_body_bytes} bytes allowed; send fewer or smaller items",
        code="request_too_large",
        headers=_CLOSE,
    )
