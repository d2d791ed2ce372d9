"""Each call once, as a route, a body and a way to read the answer: both clients send these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Generic, Mapping, Sequence, TypeVar

from ._answers import Decision, Lease, Reservation, Settled

Answer = TypeVar("Answer")
Attributes = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One question to a daemon. `costs` are what a client decides by itself while none answers."""

    route: str
    body: dict[str, Any]
    read: Callable[[Mapping[str, Any]], Answer]
    costs: tuple[int, ...] = ()
    stand_in: Callable[[list[Decision]], Answer] | None = None


def _check(attributes: Attributes, cost: int, domain: str) -> dict[str, Any]:
    return {"domain": domain, "attributes": dict(attributes), "cost": cost}


def check(attributes: Attributes, cost: int, domain: str) -> Call[Decision]:
    return Call("/v1/check", _check(attributes, cost, domain), Decision.of, (cost,), lambda made: made[0])


def check_many(checks: Sequence[Attributes | tuple[Attributes, int]], domain: str) -> Call[list[Decision]]:
    pairs = [one if isinstance(one, tuple) else (one, 1) for one in checks]

    def read(answer: Mapping[str, Any]) -> list[Decision]:
        decisions = [Decision.of(one) for one in answer["decisions"]]
        if len(decisions) != len(pairs):
            raise ValueError(f"{len(pairs)} checks were answered with {len(decisions)} decisions")
        return decisions

    return Call(
        "/v1/check",
        {"checks": [_check(attributes, cost, domain) for attributes, cost in pairs]},
        read,
        tuple(cost for _, cost in pairs),
        lambda made: made,
    )


def report(attributes: Attributes, cost: int, domain: str, id: str | None) -> Call[Decision]:
    body = _check(attributes, cost, domain) | ({} if id is None else {"id": id})
    return Call("/v1/report", body, Decision.of)


def reserve(attributes: Attributes, amount: int | None, ttl: str | None, domain: str, id: str | None) -> Call[Reservation]:
    body: dict[str, Any] = {"domain": domain, "attributes": dict(attributes)}
    body |= {name: value for name, value in (("amount", amount), ("ttl", ttl), ("id", id)) if value is not None}

    def read(answer: Mapping[str, Any]) -> Reservation:
        return Reservation(Decision.of(answer), answer.get("reservation"), answer.get("expires_ms"))

    return Call("/v1/reserve", body, read, (amount or 1,), lambda made: Reservation(made[0], None, None))


def commit(reservation: Reservation, actual: int) -> Call[Settled]:
    return Call("/v1/commit", {"reservation": reservation.token, "actual": actual}, _settled)


def cancel(reservation: Reservation) -> Call[Settled]:
    return Call("/v1/cancel", {"reservation": reservation.token}, _settled)


def _settled(body: Mapping[str, Any]) -> Settled:
    return Settled(body["committed"], body["lapsed"], body["degraded"])


def acquire(attributes: Attributes, cost: int, domain: str, id: str | None) -> Call[Lease]:
    body = _check(attributes, cost, domain) | ({} if id is None else {"id": id})

    def read(answer: Mapping[str, Any]) -> Lease:
        return Lease(Decision.of(answer), answer.get("lease"), answer.get("expires_ms"))

    return Call("/v1/acquire", body, read, (cost,), lambda made: Lease(made[0], None, None))


def renew(lease: Lease) -> Call[bool]:
    return Call("/v1/renew", {"lease": lease.token}, lambda body: bool(body["renewed"]))


def release(lease: Lease) -> Call[bool]:
    return Call("/v1/release", {"lease": lease.token}, lambda body: bool(body["released"]))
