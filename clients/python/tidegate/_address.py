"""Where a daemon is. What can never be asked is refused at once: later it would look as if no daemon answered."""

from __future__ import annotations

import math

import httpx

_EXPECTED = "expected http://HOST:PORT, https://HOST:PORT or unix:/PATH"


def read_address(address: str) -> tuple[str, str | None]:
    """Returns the beginning of every URL, and the path of the Unix socket where it is one."""
    text = str(address)
    if text.startswith("unix:"):
        path = text[len("unix:") :]
        path = path[2:] if path.startswith("//") else path
        if not path.startswith("/"):
            raise ValueError(f"address {text!r}: the socket's path must begin with /; {_EXPECTED}")
        # HTTP wants a host; the socket is the address.
        return "http://localhost", path
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"address {text!r}: {error}; {_EXPECTED}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"address {text!r} does not begin with http:// and a host; {_EXPECTED}")
    if url.port is not None and not 0 < url.port < 65536:
        raise ValueError(f"address {text!r}: a port is from 1 to 65535; {_EXPECTED}")
    if url.query or url.fragment:
        raise ValueError(f"address {text!r} has a query or a fragment; {_EXPECTED}")
    return text.rstrip("/"), None


def read_timeout(timeout: float) -> float:
    """Returns the seconds, or refuses a time within which nobody could answer."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
    return timeout


def bearer(token: str | None) -> dict[str, str]:
    """Returns the header that carries a token; none for none."""
    if not token:
        return {}
    if not token.isascii() or not token.isprintable() or token != token.strip():
        raise ValueError("the token holds a character that no header can hold, such as a line's end: is it a whole file?")
    return {"Authorization": f"Bearer {token}"}
