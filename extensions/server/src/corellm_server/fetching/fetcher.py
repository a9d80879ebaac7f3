"""Downloads one file: checks every hop, connects to the address that was checked, stops at the first limit.

Knows HTTP. What the bytes are is the decoders' business. Messages have no URL, host or address: a redirect may lead to
names that a client must not learn. The log has the hosts that were refused.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

import httpx

from corellm import __version__
from corellm.errors import MediaError, MediaTooLargeError
from corellm.fetch_settings import FetchSettings
from corellm_server.fetching.addresses import SystemResolver, is_public
from corellm_server.fetching.url import MediaUrl, parse_url

MAX_REDIRECTS = 3
_MAX_ADDRESSES = 4
"""Addresses of one host that are tried."""
_REDIRECTS = (301, 302, 303, 307, 308)

logger = logging.getLogger(__name__)


class Fetcher:
    """Fetches media for any number of requests at once; use it in one event loop, and close it.

    Args:
        settings: what is allowed.
        resolve: all addresses of a host name. For tests, like all that follow.
        is_allowed: whether an address may be connected to.
        verify: how certificates are verified.
    """

    def __init__(
        self,
        settings: FetchSettings,
        *,
        resolve: Callable[[str], Awaitable[Sequence[str]]] | None = None,
        is_allowed: Callable[[str], bool] = is_public,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self._settings = settings
        self._patterns = settings.patterns()
        self._resolve = resolve or SystemResolver(settings.max_concurrent_fetches)
        self._is_allowed = is_allowed
        self._slots = asyncio.Semaphore(settings.max_concurrent_fetches)
        # The transport alone: a client would add cookies, proxies and redirects of its own. Connections are not kept,
        # as one that was verified for a host must not serve another host at the same address.
        self._transport = httpx.AsyncHTTPTransport(
            verify=verify, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0), retries=1
        )

    async def close(self) -> None:
        """Close what is open; downloads under way fail."""
        await self._transport.aclose()

    async def fetch(self, url: str, *, kind: str) -> bytes:
        """The file at an `http:` or `https:` URL.

        Args:
            url: as the request has it.
            kind: the modality, for messages.

        Raises:
            MediaError: the URL, its host or an address of the host is not allowed, the download failed, or it took
                longer than `fetch_timeout`.
            MediaTooLargeError: the file has more than `max_fetch_bytes`.
        """
        try:
            return await self._download(parse_url(url))
        except MediaError as error:
            raise type(error)(
                f"could not fetch the {kind}: {error}", modality=kind, expected=error.expected, got=error.got
            ) from error

    async def _download(self, url: MediaUrl) -> bytes:
        """The file, within the deadline; what a library raises is turned into words of ours."""
        try:
            async with asyncio.timeout(self._settings.fetch_timeout), self._slots:
                return await self._follow(url)
        except TimeoutError as error:
            raise MediaError(f"it took longer than {self._settings.fetch_timeout:g} s") from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            of_tls = any(isinstance(cause, ssl.SSLError) for cause in _causes(error))
            raise MediaError(
                "its host has no valid certificate, or no TLS" if of_tls else "its host takes no connection"
            ) from error
        except httpx.TransportError as error:
            raise MediaError("its host broke off, or does not speak HTTP correctly") from error

    async def _follow(self, url: MediaUrl) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._get(url, await self._addresses(url))
            try:
                if response.status_code == 200:
                    return await self._read(response)
                location = response.headers.get("location")
                if response.status_code not in _REDIRECTS or location is None:
                    raise MediaError(f"its host returned status {response.status_code}", expected=200)
                url = url.redirected(location)
            finally:
                await response.aclose()
        raise MediaError(f"more than {MAX_REDIRECTS} redirects")

    async def _addresses(self, url: MediaUrl) -> Sequence[str]:
        """The addresses of an allowed host, resolved once; all are allowed."""
        if not any(pattern.allows(url.host, url.port) for pattern in self._patterns):
            logger.info("refused to fetch from %s: not in allowed_media_domains", url.authority)
            raise MediaError("its host, or its port, is not among those that are allowed (allowed_media_domains)")
        addresses = [url.host] if url.is_address else await self._resolve(url.host)
        if not addresses or not all(map(self._is_allowed, addresses)):
            logger.info("refused to fetch from %s: of its addresses %s not all are public", url.authority, addresses)
            # the same words for both: whether an internal name exists is not for clients to know
            raise MediaError("its host was not found, or has an address that is not public")
        return addresses[:_MAX_ADDRESSES]

    async def _get(self, url: MediaUrl, addresses: Sequence[str]) -> httpx.Response:
        """The response's head, from the first address that takes a connection."""
        for address in addresses[:-1]:
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await self._get_at(url, address)
        return await self._get_at(url, addresses[-1])

    async def _get_at(self, url: MediaUrl, address: str) -> httpx.Response:
        timeout = httpx.Timeout(None, connect=self._settings.fetch_connect_timeout)
        request = httpx.Request(
            "GET",
            f"{url.scheme}://{url.at(address)}{url.target}",
            headers={
                "Host": url.authority, "User-Agent": f"corellm/{__version__}", "Accept": "*/*",
                "Accept-Encoding": "identity", "Connection": "close",
            },
            extensions={"sni_hostname": url.host, "timeout": timeout.as_dict()},
        )  # fmt: skip
        return await self._transport.handle_async_request(request)

    async def _read(self, response: httpx.Response) -> bytes:
        """The body as it comes. One that is compressed although this was not asked for could unpack to any size."""
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise MediaError("its host sends it compressed, although it was asked not to")
        limit = self._settings.max_fetch_bytes
        announced = response.headers.get("content-length", "0")
        if len(announced) > 18 or int(announced) > limit:
            raise MediaTooLargeError(f"it has more than the {limit} bytes allowed", expected=limit)
        content = bytearray()
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > limit:
                raise MediaTooLargeError(f"it has more than the {limit} bytes allowed", expected=limit)
        return bytes(content)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
