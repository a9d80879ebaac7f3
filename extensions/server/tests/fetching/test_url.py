"""URLs have one reading, or none; every form of a private address ends in no connection."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corellm.errors import ConfigError, MediaError
from corellm.fetch_settings import FetchSettings, HostPattern
from corellm_server.fetching.addresses import SystemResolver, is_public
from corellm_server.fetching.url import MediaUrl, parse_url
from extensions.server.tests.fetching.hosts import fetching, listening, ok, responding


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://example.org", ("http", "example.org", 80, "/")),
        ("HTTPS://Example.ORG:8443/A?b=c&d#e", ("https", "example.org", 8443, "/A?b=c&d")),
        ("https://example.org.?q", ("https", "example.org", 443, "/?q")),
        ("http://[2001:DB8:0::1]/%7e@:", ("http", "2001:db8::1", 80, "/%7e@:")),
        ("http://192.0.2.1:80/..", ("http", "192.0.2.1", 80, "/..")),
        ("http://xn--bcher-kva.example/ä", ("http", "xn--bcher-kva.example", 80, "/%C3%A4")),
        ("http://a_b.example/://x", ("http", "a_b.example", 80, "/://x")),
    ],
)
def test_reads(text: str, expected: tuple[str, str, int, str]) -> None:
    """Scheme, host, port and what is asked for, in their usual forms."""
    assert parse_url(text) == MediaUrl(*expected)


@pytest.mark.parametrize(
    "text",
    [
        "", "example.org", "//example.org", "ftp://example.org", "file:///etc/passwd", "data:,x", "http:example.org",
        "http:///example.org", "http://", "http://user@example.org", "http://user:pw@example.org", "http://@example.org",
        "http://example.org@127.0.0.1", "http://example.org:80@127.0.0.1", "http://example.org\\@127.0.0.1",
        "http://127.0.0.1\\.example.org", "http:\\\\example.org", " http://example.org", "http://example.org ",
        "http://exam\tple.org", "http://example.org/\r\nHost:x", "http://example.org/\x00", "http://example.org/\u2028",
        "http://example.org:", "http://example.org:0", "http://example.org:65536", "http://example.org:999999",
        "http://example.org:８０", "http://example.org:-1", "http://%31%32%37.0.0.1", "http://example%2eorg",
        "http://bücher.example", "http://１２７.0.0.1", "http://127。0。0。1", "http://ⓔxample.org", "http://127.0.0.1%00",
        "http://2130706433", "http://0x7f000001", "http://0x7f.1", "http://0177.0.0.1", "http://127.1", "http://127.0.0.01",
        "http://127.0.0.1.", "http://1.2.3.4.5", "http://256.0.0.1", "http://example.0x", "http://[::1", "http://::1",
        "http://[::ffff:127.0.0.1%25eth0]", "http://[fe80::1%eth0]", "http://[v1.a]", "http://[1.2.3.4]",
        "http://a..b", "http://.a", "http://-a.b", "http://a-.b", "http://" + "a" * 64 + ".b",
        "http://" + "a." * 130 + "b", "http://example.org/" + "\U0001f600" * 800,
        "http://example.org/" + "a" * 8192, "http://.", "http://*.example.org", "http://exam\u00adple.org",
    ],
)  # fmt: skip
def test_refuses(text: str) -> None:
    """What parsers disagree about: no host is guessed."""
    with pytest.raises(MediaError):
        parse_url(text)


@given(st.text(max_size=40), st.sampled_from(["", "http://", "https://a.b/", "http://a.b:80@", "http://[", "http://1"]))
def test_any_text_is_a_url_or_an_error(text: str, start: str) -> None:
    """What was read is read again as the same, so nothing is left that a second parser could take for a part."""
    try:
        url = parse_url(start + text)
    except MediaError:
        return
    assert parse_url(f"{url.scheme}://{url.at(url.host)}{url.target}") == url
    assert url.at(url.host).isascii()


SPECIAL = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
)  # fmt: skip
addresses = st.sampled_from([ipaddress.IPv4Network(network) for network in SPECIAL]).flatmap(
    lambda network: st.integers(int(network[0]), int(network[-1])).map(ipaddress.IPv4Address)
)


def forms(address: ipaddress.IPv4Address) -> list[str]:
    """Ways to write an address in a URL."""
    number, octets = int(address), address.packed
    mapped = ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + octets)
    nat64 = ipaddress.IPv6Address(bytes.fromhex("0064ff9b") + b"\0" * 8 + octets)
    sixtofour = ipaddress.IPv6Address(b"\x20\x02" + octets + b"\0" * 10)
    teredo = ipaddress.IPv6Address(b"\x20\x01\0\0" + octets + b"\0" * 4 + bytes(255 - octet for octet in octets))
    compatible = ipaddress.IPv6Address(b"\0" * 12 + octets)
    return [
        str(address), f"{address}.", str(number), f"0x{number:x}", f"0{number:o}",
        ".".join(f"0x{octet:x}" for octet in octets), ".".join(f"0{octet:o}" for octet in octets),
        f"{octets[0]}.{number & 0xFFFFFF}", f"{octets[0]}.{octets[1]}.{number & 0xFFFF}",
        *(f"[{v6}]" for v6 in (mapped, nat64, sixtofour, teredo, compatible)), f"[::ffff:{address}]",
        f"name.{address}.nip.test",
    ]  # fmt: skip


async def like_glibc(host: str) -> Sequence[str]:
    """Reads numbers as the C library does; a name with an address in it is that address."""
    try:
        return [socket.inet_ntoa(socket.inet_aton(host))]
    except OSError:
        return [host.removeprefix("name.").removesuffix(".nip.test")]


@given(addresses)
def test_no_form_of_a_private_address_is_connected_to(address: ipaddress.IPv4Address) -> None:
    """Decimal, octal, hexadecimal, shortened, inside IPv6, as a name: 0 connections."""

    async def main() -> None:
        async with (
            listening(responding(ok(b"secret"))) as host,
            fetching("*", f"*:{host.port}", names=like_glibc, is_allowed=is_public) as fetcher,
        ):
            connections = Connections(fetcher)
            for form in (*forms(address), *forms(ipaddress.IPv4Address("127.0.0.1"))):
                with pytest.raises(MediaError) as caught:
                    await fetcher.fetch(f"http://{form}:{host.port}/", kind="image")
                assert str(address) not in str(caught.value)
            assert (host.num_connections, connections.count) == (0, 0)

    asyncio.run(main())


class Connections:
    """Counts requests that reach a fetcher's transport, which connects to wherever it is told."""

    def __init__(self, fetcher: object) -> None:
        self.count = 0
        fetcher._transport.handle_async_request = self._refuse

    async def _refuse(self, request: object) -> None:
        self.count += 1
        raise AssertionError("no request may get here")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True), ("1.1.1.1", True), ("2606:4700:4700::1111", True), ("::ffff:1.1.1.1", True),
        ("64:ff9b::1.1.1.1", True), ("2002:101:101::1", True), ("168.63.129.16", False), ("100.100.100.200", False),
        ("169.254.169.254", False), ("fd00:ec2::254", False), ("fd20:ce::254", False), ("fe80::1", False),
        ("::1", False), ("ff02::1", False), ("64:ff9b:1::1.1.1.1", False), ("2001:0:101:101::1", False),
        ("2001:db8::1", False), ("3fff::1", False), ("4000::1", False), ("2606:4700::1%eth0", False),
        ("nothing", False), ("::", False),
        ("fec0::1", False), ("2002:7f00:1::", False), ("64:ff9b::a00:1", False), ("::ffff:0:127.0.0.1", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    """Also what they are inside an IPv6 address; clouds' metadata services are not public."""
    assert is_public(address) is public


@given(st.ip_addresses())
def test_public_addresses_are_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """Nothing is public that the standard library calls private, loopback, link-local, multicast or reserved."""
    if is_public(str(address)) and not (isinstance(address, ipaddress.IPv6Address) and address.sixtofour):
        assert address.is_global
        assert not address.is_multicast


def test_the_system_resolves() -> None:
    """All addresses of a name, none for one that does not exist or is malformed."""

    async def main() -> None:
        resolver = SystemResolver(1)
        assert "127.0.0.1" in await resolver("localhost")
        assert await resolver("a" * 64 + ".invalid") == []

    asyncio.run(main())


def test_a_hanging_name_server_takes_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose caller was cancelled counts until it ends; none keeps the process from exiting."""
    answered = threading.Event()
    hanging: list[threading.Thread] = []

    def hang(*_: object, **__: object) -> list[object]:
        hanging.append(threading.current_thread())
        answered.wait(600)
        return []

    async def main() -> None:
        monkeypatch.setattr(socket, "getaddrinfo", hang)
        resolver = SystemResolver(2)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(resolver("slow.test"), 0.05)
        while len(hanging) < 2:  # a thread begins when the machine lets it
            await asyncio.sleep(0.01)
        assert len(hanging) == 2
        assert all(thread.daemon for thread in hanging)
        answered.set()
        assert await resolver("slow.test") == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("Example.org", ["http://example.org", "https://EXAMPLE.org."], ["http://a.example.org", "http://example.org:81"]),
        ("*.example.org", ["http://a.b.example.org"], ["http://example.org", "http://badexample.org"]),
        ("example.org:8443", ["https://example.org:8443"], ["https://example.org", "http://example.org"]),
        ("[2001:db8::1]", ["http://[2001:db8:0::1]"], ["http://[2001:db8::2]"]),
        ("*", ["http://a.b", "https://1.1.1.1"], ["http://a.b:22", "http://a.b:8080"]),
    ],
)  # fmt: skip
def test_patterns(pattern: str, allowed: list[str], refused: list[str]) -> None:
    """A host, its subdomains, all; two ports unless one is given."""
    hosts = HostPattern.parse(pattern)
    assert all(hosts.allows(url.host, url.port) for url in map(parse_url, allowed))
    assert not any(hosts.allows(url.host, url.port) for url in map(parse_url, refused))


@pytest.mark.parametrize(
    "options",
    [
        *({"allowed_media_domains": (text,)} for text in ("", "http://a.b", "a.b/c", "*a.b", "a.*.b", "a b", "a:0")),
        {"allowed_media_domains": "example.org"}, {"allowed_media_domains": True}, {"allowed_media_domains": [1]},
        {"allowed_media_domains": {"example.org": 1}}, {"fetch_timeout": 0}, {"fetch_timeout": float("nan")},
        {"fetch_timeout": 10**400},
        {"fetch_timeout": "1"}, {"max_fetch_bytes": -1}, {"max_fetch_bytes": 1.5}, {"max_concurrent_fetches": 0},
        {"max_concurrent_fetches": True},
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(options: dict[str, object]) -> None:
    """At the start, not at the first request."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        FetchSettings(**options)
