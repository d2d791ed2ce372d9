"""Middleware for any ASGI framework: FastAPI, Starlette, Litestar, Quart, Django."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Mapping

from ._answers import Decision
from ._clients import AsyncTidegate

Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


def by_address(scope: Scope) -> dict[str, str]:
    """Names a request by its client's address, its method and its path."""
    client = scope.get("client")
    out = {"method": scope["method"], "path": scope["path"]}
    return out | ({"ip": client[0]} if client else {})


class TidegateMiddleware:
    """Asks before each request, and answers what may not pass in the application's place.

    `attributes` names who asks: authenticate first, and name the user. It may return None for a request
    that is not to be asked for. `cost` says what a request costs.
    """

    def __init__(
        self,
        app: App,
        client: AsyncTidegate,
        attributes: Callable[[Scope], Mapping[str, str] | None] = by_address,
        cost: Callable[[Scope], int] = lambda scope: 1,
    ):
        self.app, self.client, self.attributes, self.cost = app, client, attributes, cost

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        named = self.attributes(scope) if scope["type"] == "http" else None
        if named is None:
            return await self.app(scope, receive, send)
        decision = await self.client.check(named, cost=self.cost(scope))
        headers = [(name.lower().encode(), value.encode()) for name, value in decision.headers().items()]
        if not decision.allowed:
            return await _refuse(decision, headers, send)

        async def with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = message | {"headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await self.app(scope, receive, with_headers)


async def _refuse(decision: Decision, headers: list[tuple[bytes, bytes]], send: Send) -> None:
    text = (decision.message or "Too many requests").encode()
    kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": decision.status, "headers": kind + headers})
    await send({"type": "http.response.body", "body": text})
