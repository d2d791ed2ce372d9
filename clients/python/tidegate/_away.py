"""What a client decides while no daemon answers."""

from __future__ import annotations

import threading
import time
from typing import Callable, Literal, Union

from ._answers import Away, Decision


class LocalShare:
    """Lets `limit` of cost pass in each `window` seconds while no daemon answers: this process's own share.

    One bucket for all that the client asks, so that it holds a few numbers however many users there are.
    """

    def __init__(self, limit: float, window: float, clock: Callable[[], float] = time.monotonic):
        if not (limit > 0 and window > 0):
            raise ValueError("limit and window must be more than 0")
        self._rate, self._burst, self._clock = limit / window, float(limit), clock
        self._left, self._seen = self._burst, clock()
        self._lock = threading.Lock()

    def decide(self, cost: int) -> Decision:
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._seen) * self._rate)
            self._seen = now
            if cost <= self._left:
                self._left -= cost
                return Decision(allowed=True, cost=cost, away=True)
            wait = None if cost > self._burst else int((cost - self._left) / self._rate * 1000) + 1
        return Decision(False, 429, "no rate limiter answers, and the local share is used up", cost, retry_after_ms=wait, away=True)


# "open" lets every request pass, "closed" none, "raise" raises `Away`.
WhenAway = Union[Literal["open", "closed", "raise"], LocalShare]


def read_when_away(when_away: WhenAway) -> WhenAway:
    """Returns it, or refuses what is none: a wrong word would be found out only once the daemon is away."""
    if isinstance(when_away, LocalShare) or when_away in ("open", "closed", "raise"):
        return when_away
    raise ValueError(f'when_away is "open", "closed", "raise" or a LocalShare, not {when_away!r}')


def decide(when_away: WhenAway, cost: int, cause: Exception) -> Decision:
    """Returns what the client answers in the daemon's place, or raises `Away`."""
    if isinstance(when_away, LocalShare):
        return when_away.decide(cost)
    if when_away == "open":
        return Decision(allowed=True, cost=cost, away=True)
    if when_away == "closed":
        return Decision(False, 503, "no rate limiter answers", cost, retry_after_ms=1000, away=True)
    raise Away(f"no daemon answered: {cause}") from cause
