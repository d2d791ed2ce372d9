"""The client in both ways of calling. Each method is one call of `_calls`."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, contextmanager
from typing import Any, AsyncIterator, Generic, Iterator, Sequence, TypeVar

import httpx

from . import _away, _calls
from ._address import bearer, read_address, read_timeout
from ._answers import Away, Decision, Denied, Lease, Reservation, Settled, TidegateError
from ._away import WhenAway
from ._calls import Attributes, Call

Answer = TypeVar("Answer")
Transport = TypeVar("Transport", httpx.Client, httpx.AsyncClient)

_NOTHING_HELD = Settled(committed=False, lapsed=False, degraded=False)


# The longest body that a daemon reads. It may close the connection while a longer one is still being sent, which
# would look as if no daemon answered: then whoever fills a value could pass every limit.
_BODY_BYTES_MAX = 1 << 20


class _Common(Generic[Transport]):
    """What both clients share: where the daemon is, how long they wait, and what they do without an answer."""

    def __init__(
        self,
        address: str = "http://127.0.0.1:8080",
        *,
        timeout: float = 0.25,
        when_away: WhenAway = "open",
        domain: str = "default",
        token: str | None = None,
        http: Transport | None = None,
    ):
        """`address` is `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`. `timeout` is how many seconds
        connecting, sending and waiting for the answer may each take. `when_away` says what is decided once it
        has passed.

        `http` is a client of httpx of one's own: for certificates or a proxy. Its `timeout` counts, and its
        `base_url` where it has one. It is not closed here.
        """
        self._when_away, self._domain = _away.read_when_away(when_away), domain
        self._owned = http is None
        self._headers = {"Content-Type": "application/json"} | bearer(token)
        if http is not None and str(http.base_url):
            address = str(http.base_url)
        self._base, socket = read_address(address)
        if http is None:
            # The daemon stands beside the service: what a proxy of the environment names is never between them.
            http = self._made(socket, timeout=read_timeout(timeout), trust_env=False)
        elif socket is not None:
            raise ValueError("a Unix socket of an httpx client of one's own is set by its transport: HTTPTransport(uds=PATH)")
        self._http: Transport = http

    def _made(self, socket: str | None, **how: Any) -> Transport:
        raise NotImplementedError

    def _sent(self, call: Call[Answer]) -> dict[str, Any]:
        content = json.dumps(call.body, allow_nan=False, separators=(",", ":")).encode()
        if len(content) > _BODY_BYTES_MAX:
            raise TidegateError(
                413, "body_too_large", f"a body has at most {_BODY_BYTES_MAX} bytes, and this one has {len(content)}"
            )
        return {"url": self._base + call.route, "content": content, "headers": self._headers}

    def _unanswered(self, call: Call[Answer], error: httpx.RequestError) -> Answer:
        # An answer that cannot be decoded is one, though no daemon's.
        if not isinstance(error, httpx.TransportError):
            raise _stranger(self._base + call.route, 200, f"{error!r}") from error
        return self._without(call, error)

    def _answer(self, call: Call[Answer], reply: httpx.Response) -> Answer:
        if reply.status_code == 200:
            try:
                return call.read(reply.json())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise _stranger(str(reply.url), 200, f"{error!r}") from error
        # A daemon that starts, drains or is crowded decides nothing: it is as good as away.
        if reply.status_code in (502, 503, 504):
            return self._without(call, TidegateError(reply.status_code, "unavailable", reply.text))
        raise _refusal(reply)

    def _without(self, call: Call[Answer], cause: Exception) -> Answer:
        if call.stand_in is None:
            raise Away(f"{call.route} was not answered: {cause}") from cause
        return call.stand_in([_away.decide(self._when_away, cost, cause) for cost in call.costs])


def _stranger(url: str, status: int, text: str) -> TidegateError:
    said = f": {text.strip():.200}" if text.strip() else ""
    return TidegateError(
        status,
        "unexpected",
        f"{url} answered {status} with something else than a daemon's answer{said}; is it a Tidegate?",
    )


def _refusal(reply: httpx.Response) -> TidegateError:
    """Reads why a daemon refused, or what something else said."""
    try:
        error = reply.json()["error"]
        return TidegateError(reply.status_code, str(error["code"]), str(error["message"]), error.get("field"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return _stranger(str(reply.url), reply.status_code, reply.text)


class Tidegate(_Common[httpx.Client]):
    """Asks a daemon and waits for its answer. One client serves any number of threads."""

    def _made(self, socket: str | None, **how: Any) -> httpx.Client:
        transport = None if socket is None else httpx.HTTPTransport(uds=socket)
        return httpx.Client(transport=transport, **how)

    def close(self) -> None:
        """Closes the connections, unless `http` was passed in."""
        if self._owned:
            self._http.close()

    def __enter__(self) -> Tidegate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, call: Call[Answer]) -> Answer:
        try:
            reply = self._http.post(**self._sent(call))
        except httpx.RequestError as error:
            return self._unanswered(call, error)
        return self._answer(call, reply)

    def check(self, attributes: Attributes, *, cost: int = 1, domain: str | None = None) -> Decision:
        """Decides one request and charges it if it may pass. A cost of 0 only asks."""
        return self._ask(_calls.check(attributes, cost, domain or self._domain))

    def check_many(self, checks: Sequence[Attributes | tuple[Attributes, int]], *, domain: str | None = None) -> list[Decision]:
        """Decides up to 1,000 requests in order, with one call. A tuple has the cost beside the attributes."""
        return self._ask(_calls.check_many(checks, domain or self._domain))

    def report(self, attributes: Attributes, cost: int, *, id: str | None = None, domain: str | None = None) -> Decision:
        """Charges what was used already, in full. With an `id` it is charged once, however often it is sent."""
        return self._ask(_calls.report(attributes, cost, domain or self._domain, id))

    def reserve(
        self, attributes: Attributes, amount: int | None = None, *, ttl: str | None = None, id: str | None = None, domain: str | None = None
    ) -> Reservation:
        """Holds `amount` permits, or what such calls used lately. Look at `decision.allowed`."""
        return self._ask(_calls.reserve(attributes, amount, ttl, domain or self._domain, id))

    def commit(self, reservation: Reservation, actual: int) -> Settled:
        """Charges what was really used, and gives the rest back."""
        return _NOTHING_HELD if reservation.token is None else self._ask(_calls.commit(reservation, actual))

    def cancel(self, reservation: Reservation) -> Settled:
        """Gives everything back."""
        return _NOTHING_HELD if reservation.token is None else self._ask(_calls.cancel(reservation))

    def acquire(self, attributes: Attributes, *, cost: int = 1, id: str | None = None, domain: str | None = None) -> Lease:
        """Takes places of `concurrency` rules. Look at `decision.allowed`; release what was taken."""
        return self._ask(_calls.acquire(attributes, cost, domain or self._domain, id))

    def renew(self, lease: Lease) -> bool:
        """Holds the places for another `expires_ms`. False: they are held no longer."""
        return True if lease.token is None else self._ask(_calls.renew(lease))

    def release(self, lease: Lease) -> bool:
        """Gives the places back."""
        return False if lease.token is None else self._ask(_calls.release(lease))

    @contextmanager
    def in_flight(self, attributes: Attributes, *, cost: int = 1, domain: str | None = None) -> Iterator[Lease]:
        """Holds places while the block runs; raises `Denied` where there are none."""
        lease = self.acquire(attributes, cost=cost, domain=domain)
        if not lease.decision.allowed:
            raise Denied(lease.decision)
        try:
            yield lease
        finally:
            _quietly(lambda: self.release(lease))


class AsyncTidegate(_Common[httpx.AsyncClient]):
    """Asks a daemon without blocking the event loop. One client serves any number of tasks of a loop."""

    def _made(self, socket: str | None, **how: Any) -> httpx.AsyncClient:
        transport = None if socket is None else httpx.AsyncHTTPTransport(uds=socket)
        return httpx.AsyncClient(transport=transport, **how)

    async def close(self) -> None:
        """Closes the connections, unless `http` was passed in."""
        if self._owned:
            await self._http.aclose()

    async def __aenter__(self) -> AsyncTidegate:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, call: Call[Answer]) -> Answer:
        try:
            reply = await self._http.post(**self._sent(call))
        except httpx.RequestError as error:
            return self._unanswered(call, error)
        return self._answer(call, reply)

    async def check(self, attributes: Attributes, *, cost: int = 1, domain: str | None = None) -> Decision:
        """Decides one request and charges it if it may pass. A cost of 0 only asks."""
        return await self._ask(_calls.check(attributes, cost, domain or self._domain))

    async def check_many(self, checks: Sequence[Attributes | tuple[Attributes, int]], *, domain: str | None = None) -> list[Decision]:
        """Decides up to 1,000 requests in order, with one call. A tuple has the cost beside the attributes."""
        return await self._ask(_calls.check_many(checks, domain or self._domain))

    async def report(self, attributes: Attributes, cost: int, *, id: str | None = None, domain: str | None = None) -> Decision:
        """Charges what was used already, in full. With an `id` it is charged once, however often it is sent."""
        return await self._ask(_calls.report(attributes, cost, domain or self._domain, id))

    async def reserve(
        self, attributes: Attributes, amount: int | None = None, *, ttl: str | None = None, id: str | None = None, domain: str | None = None
    ) -> Reservation:
        """Holds `amount` permits, or what such calls used lately. Look at `decision.allowed`."""
        return await self._ask(_calls.reserve(attributes, amount, ttl, domain or self._domain, id))

    async def commit(self, reservation: Reservation, actual: int) -> Settled:
        """Charges what was really used, and gives the rest back."""
        return _NOTHING_HELD if reservation.token is None else await self._ask(_calls.commit(reservation, actual))

    async def cancel(self, reservation: Reservation) -> Settled:
        """Gives everything back."""
        return _NOTHING_HELD if reservation.token is None else await self._ask(_calls.cancel(reservation))

    async def acquire(self, attributes: Attributes, *, cost: int = 1, id: str | None = None, domain: str | None = None) -> Lease:
        """Takes places of `concurrency` rules. Look at `decision.allowed`; release what was taken."""
        return await self._ask(_calls.acquire(attributes, cost, domain or self._domain, id))

    async def renew(self, lease: Lease) -> bool:
        """Holds the places for another `expires_ms`. False: they are held no longer."""
        return True if lease.token is None else await self._ask(_calls.renew(lease))

    async def release(self, lease: Lease) -> bool:
        """Gives the places back."""
        return False if lease.token is None else await self._ask(_calls.release(lease))

    @asynccontextmanager
    async def in_flight(self, attributes: Attributes, *, cost: int = 1, domain: str | None = None) -> AsyncIterator[Lease]:
        """Holds places while the block runs; raises `Denied` where there are none."""
        lease = await self.acquire(attributes, cost=cost, domain=domain)
        if not lease.decision.allowed:
            raise Denied(lease.decision)
        try:
            yield lease
        finally:
            try:
                await self.release(lease)
            except (Away, TidegateError):
                pass  # The places are free when their hold ends.


def _quietly(settle: Any) -> None:
    # What could not be given back is free when it lapses; the caller's own result matters more.
    try:
        settle()
    except (Away, TidegateError):
        pass
