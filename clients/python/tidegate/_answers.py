"""What a daemon answers, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping


class TidegateError(Exception):
    """The daemon refused the call itself: a mistake in it, or a right that the caller lacks.

    Also where something else than a daemon answers: `code` is `unexpected` then. It is raised whatever
    `when_away` says, so that no mistake lets requests pass.
    """

    def __init__(self, status: int, code: str, message: str, at: str | None = None):
        super().__init__(f"{message} (at {at})" if at else message)
        self.status, self.code, self.message, self.at = status, code, message, at


class Away(Exception):
    """No daemon answered within the deadline, and the client was told to raise rather than to decide."""


class Denied(Exception):
    """A request may not pass, or is to use something else (`decision.use`). Nothing was charged for it."""

    def __init__(self, decision: Decision):
        wait = decision.retry_after
        hint = "" if wait is None else f"; again in {wait:g} s"
        if decision.use is not None:
            hint = f"; use {decision.use} instead"
        super().__init__((decision.message or f"{decision.rule or 'a limit'} is used up") + hint)
        self.decision = decision

    @property
    def retry_after(self) -> float | None:
        """Seconds after which it may pass; None where waiting does not help."""
        return self.decision.retry_after


@dataclass(frozen=True, slots=True)
class RuleAnswer:
    """One rule's own answer."""

    rule: str
    allowed: bool
    limit: int
    remaining: int
    reset_ms: int
    retry_after_ms: int | None
    degraded: bool

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> RuleAnswer:
        return cls(
            rule=body["rule"],
            allowed=body["allowed"],
            limit=body["limit"],
            remaining=body["remaining"],
            reset_ms=body["reset_ms"],
            retry_after_ms=body["retry_after_ms"],
            degraded=body["degraded"],
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a request may pass. `rule` to `retry_after_ms` are those of the tightest rule."""

    allowed: bool
    status: int = 200
    message: str | None = None
    cost: int = 1
    rule: str | None = None
    limit: int | None = None
    remaining: int | None = None
    reset_ms: int | None = None
    # Milliseconds; None where this cost can never pass.
    retry_after_ms: int | None = 0
    # How long to hold an admitted request back, by a rule that throttles.
    delay_ms: int = 0
    # What to use instead of what was asked for, by a rule with `on_deny` that has nothing left for it.
    use: str | None = None
    # The store did not answer, so the daemon decided by itself.
    degraded: bool = False
    # No daemon answered, so this client decided.
    away: bool = False
    rules: tuple[RuleAnswer, ...] = ()
    # The whole answer, for fields that this version of the client does not name.
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def retry_after(self) -> float | None:
        """Seconds after which it may pass; None where waiting does not help."""
        return None if self.retry_after_ms is None else self.retry_after_ms / 1000

    def headers(self) -> dict[str, str]:
        """Returns the headers that tell an HTTP client of its limit, as the daemon's forward-auth does."""
        out: dict[str, str] = {}
        if self.limit is not None:
            out["X-RateLimit-Limit"] = str(self.limit)
            out["X-RateLimit-Remaining"] = str(self.remaining)
        if not self.allowed and self.retry_after_ms is not None:
            out["Retry-After"] = str(max(1, -(-self.retry_after_ms // 1000)))
        if self.allowed and self.delay_ms > 0:
            out["X-RateLimit-Delay-Ms"] = str(self.delay_ms)
        if self.use is not None:
            out["X-Tidegate-Use"] = self.use
        return out

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Decision:
        return cls(
            allowed=body["allowed"],
            status=body["status"],
            message=body.get("message"),
            cost=body["cost"],
            rule=body.get("rule"),
            limit=body.get("limit"),
            remaining=body.get("remaining"),
            reset_ms=body.get("reset_ms"),
            retry_after_ms=body["retry_after_ms"],
            delay_ms=body["delay_ms"],
            use=body.get("use"),
            degraded=body["degraded"],
            rules=tuple(RuleAnswer.of(one) for one in body["rules"]),
            body=body,
        )


@dataclass(frozen=True, slots=True)
class Reservation:
    """Permits that are held until they are committed or cancelled, or `expires_ms` have passed."""

    decision: Decision
    # None where no rule counted, or where no daemon answered and the client let the call pass.
    token: str | None
    expires_ms: int | None

    @property
    def amount(self) -> int:
        """The permits that are held: what was asked for, or the daemon's estimate."""
        return self.decision.cost


@dataclass(frozen=True, slots=True)
class Lease:
    """Places in flight that are held until they are released, or `expires_ms` have passed without a renewal."""

    decision: Decision
    token: str | None
    expires_ms: int | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a reservation. `committed` is false where an earlier call settled it, or no rule counts it any more."""

    committed: bool
    lapsed: bool
    degraded: bool
