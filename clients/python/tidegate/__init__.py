"""Asks a Tidegate daemon whether a request may pass, and tells it what requests cost."""

from ._answers import Away, Decision, Denied, Lease, Reservation, RuleAnswer, Settled, TidegateError
from ._away import LocalShare
from ._clients import AsyncTidegate, Tidegate

__all__ = [
    "AsyncTidegate",
    "Away",
    "Decision",
    "Denied",
    "Lease",
    "LocalShare",
    "Reservation",
    "RuleAnswer",
    "Settled",
    "Tidegate",
    "TidegateError",
]
