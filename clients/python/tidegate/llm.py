"""Budgets of language models: reserve the most that a call can cost, then commit what it did."""

from __future__ import annotations

import logging
from typing import Any, Awaitable, Callable, Mapping, TypeVar

from ._answers import Away, Denied, Reservation, TidegateError
from ._clients import AsyncTidegate, Tidegate

Response = TypeVar("Response")
_log = logging.getLogger("tidegate")


def total_tokens(response: Any) -> int:
    """Returns the tokens that a provider counted: `usage.total_tokens`, or input and output added.

    It reads objects and dictionaries, as the libraries of OpenAI, Anthropic and LiteLLM return them. It raises
    `ValueError` where a response says nothing: pass `used` then, or ask the provider for usage in streams.
    """
    usage = _field(response, "usage")
    total = _field(usage, "total_tokens")
    if total is None:
        parts = [_field(usage, name) for name in ("input_tokens", "output_tokens", "prompt_tokens", "completion_tokens")]
        total = sum(part for part in parts if part is not None) if any(part is not None for part in parts) else None
    if total is None:
        raise ValueError("the response does not say what it used: there is no usage")
    return int(total)


def _field(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


def _spent(held: Reservation, response: Response, used: Callable[[Response], int]) -> int:
    try:
        return used(response)
    except ValueError:
        return held.amount


def within_budget(
    client: Tidegate,
    attributes: Mapping[str, str],
    call: Callable[[], Response],
    *,
    amount: int | None = None,
    ttl: str = "2m",
    used: Callable[[Response], int] = total_tokens,
    domain: str | None = None,
) -> Response:
    """Makes the call if the budget has room for `amount`, and charges what it used.

    Raises `Denied` before anything is spent. A call that raises gives its reservation back. A response that
    does not say what it used is charged the whole amount, so that nobody spends by leaving the usage out.
    """
    held = client.reserve(attributes, amount, ttl=ttl, domain=domain)
    if not held.decision.allowed:
        raise Denied(held.decision)
    try:
        response = call()
    except BaseException:
        try:
            client.cancel(held)
        except (Away, TidegateError):
            pass  # The reservation lapses.
        raise
    try:
        client.commit(held, _spent(held, response, used))
    except (Away, TidegateError) as error:
        _log.warning("what a call used was not charged, its reservation lapses: %s", error)
    return response


async def within_budget_async(
    client: AsyncTidegate,
    attributes: Mapping[str, str],
    call: Callable[[], Awaitable[Response]],
    *,
    amount: int | None = None,
    ttl: str = "2m",
    used: Callable[[Response], int] = total_tokens,
    domain: str | None = None,
) -> Response:
    """Does what `within_budget` does, for a call that is awaited."""
    held = await client.reserve(attributes, amount, ttl=ttl, domain=domain)
    if not held.decision.allowed:
        raise Denied(held.decision)
    try:
        response = await call()
    except BaseException:
        try:
            await client.cancel(held)
        except (Away, TidegateError):
            pass  # The reservation lapses.
        raise
    try:
        await client.commit(held, _spent(held, response, used))
    except (Away, TidegateError) as error:
        _log.warning("what a call used was not charged, its reservation lapses: %s", error)
    return response
