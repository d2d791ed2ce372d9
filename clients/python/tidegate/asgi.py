"""Middleware for any ASGI framework: FastAPI, Starlette, Litestar, Quart, Django."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, Mapping

from ._answers import Decision
from ._clients import AsyncTidegate

Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


def by_address(scope: Scope) -> dict[str, str]:
    """Names a request by its client's address, its method and its path. A WebSocket begins with a GET."""
    client = scope.get("client")
    out = {"method": scope.get("method", "GET"), "path": scope["path"]}
    return out | ({"ip": client[0]} if client else {})


class TidegateMiddleware:
    """Asks before each request and each WebSocket, and answers what may not pass in the application's place.

    `attributes` names who asks: authenticate first, and name the user. It may return None for a request
    that is not to be asked for. Its scope is that of a WebSocket too, which has no `method`. `cost` says what
    a request costs. One that a rule throttles is held back for as long as the daemon says.
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
        named = self.attributes(scope) if scope["type"] in _BEGINS else None
        if named is None:
            return await self.app(scope, receive, send)
        decision = await self.client.check(named, cost=self.cost(scope))
        headers = [(name.lower().encode(), value.encode()) for name, value in decision.headers().items()]
        if not decision.allowed:
            return await _refuse(scope, receive, decision, headers, send)
        if decision.delay_ms > 0:
            await asyncio.sleep(decision.delay_ms / 1000)

        async def with_headers(message: dict[str, Any]) -> None:
            if message["type"] in _BEGINS[scope["type"]]:
                message = message | {"headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await self.app(scope, receive, with_headers)


# By what is asked for: the messages that begin its answer and so carry headers.
_BEGINS = {"http": ("http.response.start",), "websocket": ("websocket.accept", "websocket.http.response.start")}


async def _refuse(scope: Scope, receive: Any, decision: Decision, headers: list[tuple[bytes, bytes]], send: Send) -> None:
    answer = "http.response"
    if scope["type"] == "websocket":
        # The server tells of the handshake before it takes an answer to it.
        await receive()
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            # The server makes a 403 of it: it can say no more. 1008 is a policy that was violated.
            return await send({"type": "websocket.close", "code": 1008})
        answer = "websocket.http.response"
    text = (decision.message or "Too many requests").encode()
    kind = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
    await send({"type": f"{answer}.start", "status": decision.status, "headers": kind + headers})
    await send({"type": f"{answer}.body", "body": text})
