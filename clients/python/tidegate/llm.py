"""Budgets of language models: reserve the most that a call can cost, then commit what it did."""

from __future__ import annotations

import logging
import math
from typing import Any, Awaitable, Callable, Mapping, TypeVar

from ._answers import Denied, Reservation
from ._clients import AsyncTidegate, Tidegate

Response = TypeVar("Response")
_log = logging.getLogger("tidegate")
# The most that a daemon takes as one cost.
_PERMITS_MAX = 2**64 - 1


def total_tokens(response: Any) -> int:
    """Returns the tokens that a provider counted: `usage.total_tokens`, or input and output added.

    It reads objects and dictionaries, as the libraries of OpenAI, Anthropic and LiteLLM return them. It raises
    `ValueError` where a response says nothing: pass `used` then, or ask the provider for usage in streams.
    """
    usage = _field(response, "usage")
    total = _field(usage, "total_tokens")
    if total is not None:
        return _permits(total)
    parts = [_field(usage, name) for name in ("input_tokens", "output_tokens", "prompt_tokens", "completion_tokens")]
    counted = [_permits(part) for part in parts if part is not None]
    if not counted:
        raise ValueError("the response does not say what it used: there is no usage")
    return sum(counted)


def _field(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


def _permits(said: Any) -> int:
    """Returns a number rounded up to whole permits, or raises `ValueError` where it is none that can be charged."""
    try:
        whole = math.ceil(said)
    except (TypeError, ValueError, OverflowError):
        whole = -1
    if isinstance(said, bool) or whole < 0 or said < 0:
        raise ValueError(f"what was used is a number from 0 on, not {said!r:.100}")
    return min(whole, _PERMITS_MAX)


def _spent(held: Reservation, response: Response, used: Callable[[Response], float]) -> int:
    # The call is paid already: whatever reading its usage does, the response is returned and something is charged.
    try:
        return _permits(used(response))
    except Exception as error:
        charged = "no daemon held anything, so nothing is charged"
        if held.token is not None:
            charged = f"all {held.amount} that were held are charged"
        _log.warning("what a call used cannot be read; %s: %r", charged, error)
        return held.amount


def within_budget(
    client: Tidegate,
    attributes: Mapping[str, str],
    call: Callable[[], Response],
    *,
    amount: int | None = None,
    ttl: str = "2m",
    used: Callable[[Response], float] = total_tokens,
    domain: str | None = None,
) -> Response:
    """Makes the call if the budget has room for `amount`, and charges what it used.

    Raises `Denied` before anything is spent; where its `decision.use` names something, ask again with that, by the
    name under which it is counted. A call that raises gives its reservation back. What `used` returns
    is rounded up. Where that is no number from 0 on, or `used` raises, the whole amount is charged, so that
    nobody spends by leaving the usage out; the log says so, and the response is returned all the same.
    """
    held = client.reserve(attributes, amount, ttl=ttl, domain=domain)
    if not held.decision.allowed:
        raise Denied(held.decision)
    if held.decision.use is not None:
        try:
            client.cancel(held)
        except Exception:
            pass  # What other rules hold of it lapses.
        raise Denied(held.decision)
    try:
        response = call()
    except BaseException:
        try:
            client.cancel(held)
        except Exception:
            pass  # The reservation lapses.
        raise
    try:
        client.commit(held, _spent(held, response, used))
    except Exception as error:
        _log.warning("what a call used was not charged, its reservation lapses: %s", error)
    return response


async def within_budget_async(
    client: AsyncTidegate,
    attributes: Mapping[str, str],
    call: Callable[[], Awaitable[Response]],
    *,
    amount: int | None = None,
    ttl: str = "2m",
    used: Callable[[Response], float] = total_tokens,
    domain: str | None = None,
) -> Response:
    """Does what `within_budget` does, for a call that is awaited."""
    held = await client.reserve(attributes, amount, ttl=ttl, domain=domain)
    if not held.decision.allowed:
        raise Denied(held.decision)
    if held.decision.use is not None:
        try:
            await client.cancel(held)
        except Exception:
            pass  # What other rules hold of it lapses.
        raise Denied(held.decision)
    try:
        response = await call()
    except BaseException:
        try:
            await client.cancel(held)
        except Exception:
            pass  # The reservation lapses.
        raise
    try:
        await client.commit(held, _spent(held, response, used))
    except Exception as error:
        _log.warning("what a call used was not charged, its reservation lapses: %s", error)
    return response
