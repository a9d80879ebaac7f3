"""Downloads from hosts that are slow, huge, short, wrong or hostile: the file, or an error without addresses."""

from __future__ import annotations

import asyncio
import gzip
import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corellm.errors import MediaError, MediaTooLargeError
from corellm_server.fetching.addresses import is_public
from corellm_server.fetching.fetcher import Fetcher
from corellm_server.fetching.url import parse_url
from extensions.server.tests.fetching.hosts import (
    CERTIFICATE,
    HOME,
    Names,
    Respond,
    fetching,
    listening,
    ok,
    redirect,
    responding,
    silent,
)


async def refusal(fetcher: Fetcher, url: str, expected: type[MediaError] = MediaError) -> str:
    """The message of the error; it names no address, host or port."""
    with pytest.raises(expected) as caught:
        await fetcher.fetch(url, kind="image")
    message = str(caught.value)
    assert (caught.value.status, caught.value.modality) == (400, "image")
    assert "the image: " in message
    assert not any(secret in message for secret in ("127.0.0.1", "media.test", "localhost"))
    return message


def test_fetches_by_name() -> None:
    """The checked address is connected to; the host is told its own name and port, and nothing of the environment."""

    async def main() -> None:
        async with (
            listening(responding(ok(b"bytes"))) as host,
            fetching(f"media.test:{host.port}") as fetcher,
        ):
            assert await fetcher.fetch(f"http://MEDIA.test.:{host.port}/a%20b/ü?x=[1]#part", kind="image") == b"bytes"
            head = host.heads[0].decode().lower()
            assert head.startswith("get /a%20b/%c3%bc?x=[1] http/1.1\r\n")
            assert f"host: media.test:{host.port}\r\n" in head
            assert "accept-encoding: identity\r\n" in head
            assert "cookie" not in head
            assert "authorization" not in head

    asyncio.run(main())


def test_ignores_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would resolve the name again, and connect to what it finds."""

    async def main() -> None:
        async with (
            listening(responding(ok(b"proxy"))) as proxy,
            listening(responding(ok(b"host"))) as host,
            fetching(f"media.test:{host.port}") as fetcher,
        ):
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            assert await fetcher.fetch(f"http://media.test:{host.port}/", kind="image") == b"host"
            assert proxy.num_connections == 0

    asyncio.run(main())


def test_sends_no_cookies_back() -> None:
    """Not even to the host that set them."""

    async def main() -> None:
        async with (
            listening(responding(ok(b"x", Set_Cookie="a=b"))) as host,
            fetching(f"media.test:{host.port}") as fetcher,
        ):
            for _ in range(2):
                await fetcher.fetch(f"http://media.test:{host.port}/", kind="image")
            assert len(host.heads) == 2
            assert b"cookie" not in host.heads[1].lower()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("domains", "allowed"),
    [
        ((), False), (("media.test",), False), (("media.test:1",), False), (("other.test:PORT",), False),
        (("*.media.test:PORT",), False), (("edia.test:PORT",), False), (("media.test:PORT",), True),
        (("*.test:PORT",), True), (("a.test", "*:PORT"), True),
    ],
)  # fmt: skip
def test_fetches_from_allowed_hosts_only(domains: tuple[str, ...], allowed: bool) -> None:
    """By default none; the error names the option. A host that is not allowed is not even resolved."""

    async def main() -> None:
        async with listening(responding(ok(b"x"))) as host:
            names = Names(media_test=[HOME])
            async with fetching(*(d.replace("PORT", str(host.port)) for d in domains), names=names) as fetcher:
                url = f"http://media.test:{host.port}/"
                if allowed:
                    assert await fetcher.fetch(url, kind="image") == b"x"
                else:
                    assert "allowed_media_domains" in await refusal(fetcher, url)
                    assert (host.num_connections, names.calls) == (0, [])

    asyncio.run(main())


def test_a_name_with_one_private_address_is_refused() -> None:
    """Also if others are public; a name that does not exist gets the same words."""

    async def main() -> None:
        async with listening(responding(ok(b"x"))) as host:
            names = Names(media_test=[("93.184.215.14", "127.0.0.1")])
            async with fetching(f"*:{host.port}", names=names, is_allowed=is_public) as fetcher:
                mixed = await refusal(fetcher, f"http://media.test:{host.port}/")
                assert await refusal(fetcher, f"http://nowhere.test:{host.port}/") == mixed
                assert host.num_connections == 0

    asyncio.run(main())


def test_a_name_is_resolved_once() -> None:
    """What was checked is connected to, whatever the name server says next (rebinding)."""

    async def main() -> None:
        async with listening(responding(ok(b"first"))) as host, listening(responding(ok(b"second"))) as _:
            names = Names(media_test=[HOME, ("10.0.0.1",)])
            async with fetching(f"*:{host.port}", names=names) as fetcher:
                url = f"http://media.test:{host.port}/"
                assert await fetcher.fetch(url, kind="image") == b"first"
                assert names.calls == ["media.test"]
                await refusal(fetcher, url)
                assert host.num_connections == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:PORT/", "http://[::ffff:127.0.0.1]:PORT/", "//internal.test:PORT/", "http://2130706433:PORT/",
        "file:///etc/passwd", "http://user@media.test:PORT/", "gopher://media.test:PORT/", "http://media.test:1/",
    ],
)  # fmt: skip
def test_redirects_are_checked_again(location: str) -> None:
    """To an address, a name, a scheme or a port that is not allowed: no connection after the first."""

    async def main() -> None:
        async with listening(responding(ok(b"secret"))) as inside:
            to = location.replace("PORT", str(inside.port))
            async with listening(responding(redirect(to))) as host:
                names = Names(media_test=[HOME], internal_test=[("127.0.0.2",)])
                allowed = [f"media.test:{host.port}", f"*.test:{inside.port}"]
                async with fetching(*allowed, names=names) as fetcher:
                    await refusal(fetcher, f"http://media.test:{host.port}/")
                    assert (host.num_connections, inside.num_connections) == (1, 0)

    asyncio.run(main())


@pytest.mark.parametrize("location", ["http://[", "//[::1", "//[x]:1/", "http://\u2100/"])
def test_redirects_to_what_is_no_url(location: str) -> None:
    """Are the client's error, also where the standard library fails on them."""
    with pytest.raises(MediaError, match="URL"):
        parse_url("https://media.test/a").redirected(location)


def counted(num_redirects: int) -> Respond:
    """Redirects to itself that often, relatively, then sends a file."""

    async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
        hop = int(head.split()[1].removeprefix(b"/"))
        content = ok(b"here") if hop == num_redirects else redirect(f"/{hop + 1}", 307)
        await responding(content)(head, writer)

    return respond


@pytest.mark.parametrize(("num_redirects", "arrives"), [(1, True), (3, True), (4, False), (10**9, False)])
def test_follows_three_redirects(num_redirects: int, arrives: bool) -> None:
    """A fourth is refused, also of a host that redirects for ever."""

    async def main() -> None:
        async with listening(counted(num_redirects)) as host, fetching(f"media.test:{host.port}") as fetcher:
            url = f"http://media.test:{host.port}/0"
            if arrives:
                assert await fetcher.fetch(url, kind="image") == b"here"
            else:
                assert "redirects" in await refusal(fetcher, url)
            assert host.num_connections == min(num_redirects, 3) + 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (ok(b"")[:-2], "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", "broke off"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000 + b"\r\n", "HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", ""),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "status 404"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "status 302"),
        (b"HTTP/1.1 206 Partial\r\nContent-Length: 1\r\n\r\nx", "status 206"),
        (ok(gzip.compress(b"0" * 10**8), Content_Encoding="gzip"), "compressed"),
    ],
    ids=["head", "short", "chunked", "ssh", "headers", "digits", "404", "302", "206", "gzip bomb"],
)
def test_broken_hosts_cost_an_error(response: bytes, reason: str) -> None:
    """Truncated files are never returned; nothing is decompressed."""

    async def main() -> None:
        async with listening(responding(response)) as host, fetching(f"media.test:{host.port}") as fetcher:
            assert reason in await refusal(fetcher, f"http://media.test:{host.port}/")

    asyncio.run(main())


def endless(head: bytes) -> Respond:
    """Sends without end after this head."""

    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
            await writer.drain()

    return respond


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["announced", "until closed", "chunked"],
)
def test_huge_files_are_refused(head: bytes) -> None:
    """By their announced size, else when they reach the limit; the connection is closed."""

    async def main() -> None:
        async with (
            listening(endless(head)) as host,
            fetching(f"media.test:{host.port}", max_fetch_bytes=10**6) as fetcher,
        ):
            assert "1000000 bytes" in await refusal(fetcher, f"http://media.test:{host.port}/", MediaTooLargeError)
            await asyncio.wait_for(host.closed.wait(), 600)

    asyncio.run(main())


async def dripping(head: bytes, writer: asyncio.StreamWriter) -> None:
    """Sends a byte at a time: no pause is long, but the whole is."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("respond", [silent, dripping])
def test_slow_hosts_meet_the_deadline(respond: Respond) -> None:
    """It is for the whole download; the connection is closed."""

    async def main() -> None:
        async with listening(respond) as host, fetching(f"media.test:{host.port}", fetch_timeout=0.3) as fetcher:
            assert "0.3 s" in await refusal(fetcher, f"http://media.test:{host.port}/")
            await asyncio.wait_for(host.closed.wait(), 600)

    asyncio.run(main())


def test_a_slow_resolver_meets_the_deadline() -> None:
    """Resolving is a part of the download."""

    async def never(host: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    async def main() -> None:
        async with fetching("media.test", names=never, fetch_timeout=0.1) as fetcher:
            assert "0.1 s" in await refusal(fetcher, "http://media.test/")

    asyncio.run(main())


def test_cancelling_closes_the_connection() -> None:
    """A client that disconnects ends its downloads."""

    async def main() -> None:
        async with listening(silent) as host, fetching(f"media.test:{host.port}") as fetcher:
            task = asyncio.create_task(fetcher.fetch(f"http://media.test:{host.port}/", kind="image"))
            while not host.heads:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(host.closed.wait(), 600)

    asyncio.run(main())


def test_downloads_at_once_are_bounded() -> None:
    """Others wait, and none is lost."""
    most = 0

    async def main() -> None:
        at_once, are_three = 0, asyncio.Event()

        async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            if at_once == 3:
                are_three.set()
            await asyncio.wait_for(are_three.wait(), 600)
            await asyncio.sleep(0.01)
            at_once -= 1
            await responding(ok(b"x"))(head, writer)

        async with listening(respond) as host, fetching(f"media.test:{host.port}", max_concurrent_fetches=3) as fetcher:
            urls = [f"http://media.test:{host.port}/{i}" for i in range(20)]
            assert await asyncio.gather(*(fetcher.fetch(url, kind="image") for url in urls)) == [b"x"] * 20

    asyncio.run(main())
    assert most == 3


def test_the_next_address_is_tried() -> None:
    """If connecting to one fails, as nothing was sent yet; a host that broke off is not asked again."""

    async def main() -> None:
        async with listening(responding(ok(b"x"))) as host:
            names = Names(media_test=[("127.0.0.9", "127.0.0.1")])
            async with fetching(f"*:{host.port}", names=names, is_allowed=lambda _: True) as fetcher:
                assert await fetcher.fetch(f"http://media.test:{host.port}/", kind="image") == b"x"
                assert host.num_connections == 1
        async with listening(responding(b"HTTP/1.1 200 OK\r\n")) as broken:
            names = Names(media_test=[("127.0.0.1", "127.0.0.1")])
            async with fetching(f"*:{broken.port}", names=names) as fetcher:
                await refusal(fetcher, f"http://media.test:{broken.port}/")
                assert broken.num_connections == 1
                unused = broken.port
        async with fetching(f"*:{unused}") as fetcher:
            assert "takes no connection" in await refusal(fetcher, f"http://media.test:{unused}/")

    asyncio.run(main())


def trusting() -> ssl.SSLContext:
    """Verification with the test's certificate as the only authority."""
    return ssl.create_default_context(cafile=str(CERTIFICATE))


def test_certificates_are_verified_against_the_name() -> None:
    """The host's name, not the address that is connected to; an unknown authority is refused, too."""

    async def main() -> None:
        async with listening(responding(ok(b"x")), tls=True) as host:
            names = Names(media_test=[HOME], other_test=[HOME])
            async with fetching(f"*:{host.port}", names=names, verify=trusting()) as fetcher:
                assert await fetcher.fetch(f"https://media.test:{host.port}/", kind="image") == b"x"
                assert "certificate" in await refusal(fetcher, f"https://other.test:{host.port}/")
                assert "certificate" in await refusal(fetcher, f"https://127.0.0.1:{host.port}/")
            async with fetching(f"*:{host.port}", names=names) as fetcher:
                assert "certificate" in await refusal(fetcher, f"https://media.test:{host.port}/")
            assert len(host.heads) == 1

    asyncio.run(main())


def test_https_is_not_left() -> None:
    """A redirect from https to http is refused."""

    async def main() -> None:
        async with listening(responding(ok(b"x"))) as plain:
            to = redirect(f"http://media.test:{plain.port}/")
            async with listening(responding(to), tls=True) as host:
                async with fetching("*:" + str(host.port), f"*:{plain.port}", verify=trusting()) as fetcher:
                    assert "https to http" in await refusal(fetcher, f"https://media.test:{host.port}/")
                assert plain.num_connections == 0

    asyncio.run(main())


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda b: b"HTTP/1.1 200 OK\r\n" + b)))
@settings(max_examples=100)
def test_any_response_is_bytes_or_an_error(response: bytes) -> None:
    """Whatever a host sends, no other error comes out."""

    async def main() -> None:
        async with listening(responding(response)) as host, fetching(f"*:{host.port}") as fetcher:
            outcome = await asyncio.gather(
                fetcher.fetch(f"http://media.test:{host.port}/", kind="image"), return_exceptions=True
            )
            assert isinstance(outcome[0], bytes | MediaError)

    asyncio.run(main())
