"""URLs of media, parsed once and strictly. Knows their form; not which hosts are allowed, nor addresses of names.

Only this parser reads a URL: what is checked is what is connected to. Whatever two parsers might read differently
(user information, backslashes, spaces, numbers that only some parsers take for addresses, Unicode hosts) is refused.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import quote, urljoin

from corellm.errors import MediaError

MAX_URL_LENGTH = 8192
"""In characters, percent-encoded."""
_TOO_LONG = f"its URL has more than the {MAX_URL_LENGTH} characters allowed"
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>(?:/[^?#]*)?(?:\?[^#]*)?)(?:#.*)?",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_KEPT = "/?!$&'()*+,;=:@%-._~[]|{}^`\"<>"


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """An `http:` or `https:` URL; `host` is in lower case and without brackets, `target` is path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def is_address(self) -> bool:
        """Whether the host is an address instead of a name."""
        return ":" in self.host or self.host.rpartition(".")[2].isdecimal()

    @property
    def authority(self) -> str:
        """The host as a `Host` header has it, with its port unless that is the scheme's."""
        return self.at(self.host).removesuffix(":80" if self.scheme == "http" else ":443")

    def at(self, address: str) -> str:
        """`host:port` with an address in place of the host."""
        return f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"

    def redirected(self, location: str) -> MediaUrl:
        """Where a `Location` header leads from here.

        Raises:
            MediaError: to a URL that is refused, or from `https:` to `http:`.
        """
        try:
            joined = urljoin(f"{self.scheme}://{self.at(self.host)}{self.target}", location)
        except ValueError:
            raise MediaError("it redirects to something that is no URL") from None
        url = parse_url(joined)
        if self.scheme == "https" and url.scheme == "http":
            raise MediaError("it redirects from https to http")
        return url


def parse_url(text: str) -> MediaUrl:
    """Read an `http:` or `https:` URL.

    Raises:
        MediaError: it is not one, or its form is ambiguous. The message does not have the URL.
    """
    if len(text) > MAX_URL_LENGTH:
        raise MediaError(_TOO_LONG)
    if "\\" in text or not all(character.isprintable() and not character.isspace() for character in text):
        raise MediaError("its URL has a space, a backslash or a control character; percent-encode them")
    found = _URL.fullmatch(text)
    if found is None:
        raise MediaError(
            "its URL is not http://HOST/PATH or https://HOST/PATH (no user name or password; hosts in ASCII, so "
            "internationalized ones in their xn-- form)"
        )
    scheme = found["scheme"].lower()
    port = int(found["port"]) if found["port"] else (80 if scheme == "http" else 443)
    if not 0 < port < 1 << 16:
        raise MediaError(f"its URL has the port {port}; ports are 1 to 65535")
    target = quote(found["target"], safe=_KEPT)
    if len(target) > MAX_URL_LENGTH:
        raise MediaError(_TOO_LONG)
    return MediaUrl(scheme, _host(found["host"].lower()), port, target if target.startswith("/") else f"/{target}")


def _host(text: str) -> str:
    """A host as it is resolved: a name without its last dot, or an address in its usual form."""
    try:
        if text.startswith("["):
            return str(ipaddress.IPv6Address(text[1:-1]))
        labels = text.removesuffix(".").split(".")
        if _NUMBER.fullmatch(labels[-1]):  # a resolver takes 0x7f.1, 2130706433 and 0177.0.0.1 for 127.0.0.1
            return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise MediaError("its URL has a malformed address for a host; write 192.0.2.1 or [2001:db8::1]") from None
    if len(text) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise MediaError("its URL has a malformed host name")
    return ".".join(labels)
