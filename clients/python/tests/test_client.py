"""Asks a real daemon, whose address is in TIDEGATE and which counts by clients/rules.toml."""

import asyncio
import os
import unittest
import uuid
from decimal import Decimal

import httpx

from tidegate import AsyncTidegate, Away, Denied, LocalShare, Tidegate, TidegateError
from tidegate.asgi import TidegateMiddleware
from tidegate.llm import total_tokens, within_budget, within_budget_async

ADDRESS = os.environ["TIDEGATE"]
# A port that nobody listens on.
NOBODY = "http://127.0.0.1:9"


def somebody() -> str:
    return uuid.uuid4().hex


def connect(**how) -> Tidegate:
    return Tidegate(ADDRESS, timeout=10, **how)


# What `used` may return or raise, and what is charged then of 400 that are held.
USED = (
    (5.7, 6), (1.5, 2), (0, 0), (Decimal("7.01"), 8), ("12", 400), (float("nan"), 400), (float("inf"), 400), (-1, 400),
    (-0.5, 400), (None, 400), (True, 400), ([1], 400), (KeyError("usage"), 400), (900, 900), (1e300, 1000),
)


def says(what):
    def used(response):
        if isinstance(what, Exception):
            raise what
        return what

    return used


def logs(some: bool):
    case = unittest.TestCase()
    return case.assertLogs("tidegate", "WARNING") if some else case.assertNoLogs("tidegate", "WARNING")


class Checks(unittest.TestCase):
    def test_a_limit_is_held_and_says_when_to_come_back(self):
        with connect() as client:
            user = {"user": somebody(), "path": "/search"}
            answers = [client.check(user) for _ in range(4)]
        self.assertEqual([one.allowed for one in answers], [True, True, True, False])
        self.assertEqual([one.remaining for one in answers], [2, 1, 0, 0])
        self.assertGreater(answers[3].retry_after, 0)
        self.assertEqual(answers[3].rules[0].rule, "search")
        self.assertEqual(answers[3].headers()["X-RateLimit-Limit"], "3")
        self.assertIn("Retry-After", answers[3].headers())

    def test_many_are_decided_in_one_call(self):
        with connect() as client:
            user = {"user": somebody(), "path": "/search"}
            answers = client.check_many([(user, 2), user, user])
        self.assertEqual([one.allowed for one in answers], [True, True, False])

    def test_a_mistake_names_its_place(self):
        with connect() as client, self.assertRaises(TidegateError) as caught:
            client.check({"": "a name without letters"})
        self.assertEqual((caught.exception.status, caught.exception.code), (400, "invalid_request"))
        self.assertIn("attributes", caught.exception.at)

    def test_a_report_with_an_id_is_charged_once(self):
        with connect() as client:
            team = {"team": somebody(), "kind": "tokens"}
            for _ in range(2):
                client.report(team, 600, id="one call")
            self.assertEqual(client.check(team, cost=0).remaining, 400)


class Budgets(unittest.TestCase):
    def test_what_is_reserved_is_held_and_the_rest_is_given_back(self):
        with connect() as client:
            team = {"team": somebody(), "kind": "tokens"}
            held = client.reserve(team, 900)
            self.assertFalse(client.reserve(team, 200).decision.allowed)
            self.assertTrue(client.commit(held, 100).committed)
            self.assertFalse(client.commit(held, 100).committed)
            self.assertEqual(client.check(team, cost=0).remaining, 900)

    def test_a_call_is_charged_what_its_response_says(self):
        with connect() as client:
            team = {"team": somebody(), "kind": "tokens"}
            made = within_budget(client, team, lambda: {"usage": {"total_tokens": 250}}, amount=1000)
            self.assertEqual(made["usage"]["total_tokens"], 250)
            self.assertEqual(client.check(team, cost=0).remaining, 750)
            with self.assertRaises(Denied):
                within_budget(client, team, lambda: self.fail("it may not be made"), amount=800)

    def test_a_call_that_fails_costs_nothing_and_one_without_usage_all(self):
        with connect() as client:
            team = {"team": somebody(), "kind": "tokens"}

            def fails():
                raise RuntimeError("the provider is away")

            with self.assertRaises(RuntimeError):
                within_budget(client, team, fails, amount=400)
            self.assertEqual(client.check(team, cost=0).remaining, 1000)
            with self.assertLogs("tidegate", "WARNING"):
                within_budget(client, team, lambda: {"text": "hello"}, amount=400)
            self.assertEqual(client.check(team, cost=0).remaining, 600)

    def test_a_call_that_was_paid_returns_its_response_whatever_reads_its_usage(self):
        with connect() as client:
            for said, charged in USED:
                team = {"team": somebody(), "kind": "tokens"}
                with self.subTest(repr(said)), logs(charged == 400):
                    self.assertEqual(within_budget(client, team, lambda: "paid", amount=400, used=says(said)), "paid")
                    self.assertEqual(client.check(team, cost=0).remaining, 1000 - charged)

    def test_usage_is_read_as_providers_write_it(self):
        class Usage:
            input_tokens, output_tokens = 3, 4

        class Response:
            usage = Usage()

        self.assertEqual(total_tokens(Response()), 7)
        self.assertEqual(total_tokens({"usage": {"prompt_tokens": 1, "completion_tokens": 2}}), 3)
        self.assertEqual(total_tokens({"usage": {"total_tokens": 5.7}}), 6)
        for silent in ({}, {"usage": {"total_tokens": [1]}}, {"usage": {"total_tokens": "12"}}, {"usage": {"input_tokens": -1}}):
            with self.assertRaises(ValueError):
                total_tokens(silent)


class InFlight(unittest.TestCase):
    def test_places_are_given_back_however_the_block_ends(self):
        with connect() as client:
            user = {"user": somebody(), "kind": "export"}
            with client.in_flight(user) as first, client.in_flight(user):
                with self.assertRaises(Denied), client.in_flight(user):
                    self.fail("there is no third place")
                self.assertTrue(client.renew(first))
            with self.assertRaises(KeyError), client.in_flight(user), client.in_flight(user):
                raise KeyError
            self.assertTrue(client.acquire(user, cost=2).decision.allowed)


class WhenAway(unittest.TestCase):
    def test_open_lets_pass_closed_refuses_and_raise_raises(self):
        user = {"user": "u"}
        with Tidegate(NOBODY, when_away="open") as client:
            self.assertTrue(client.check(user).allowed and client.check(user).away)
            self.assertEqual(client.check_many([user, user])[1].away, True)
            held = client.reserve(user, 5)
            self.assertFalse(client.commit(held, 3).committed)
        with Tidegate(NOBODY, when_away="closed") as client:
            self.assertEqual(client.check(user).status, 503)
        with Tidegate(NOBODY, when_away="raise") as client, self.assertRaises(Away):
            client.check(user)

    def test_a_local_share_is_held_and_refills(self):
        now = [0.0]
        with Tidegate(NOBODY, when_away=LocalShare(2, 10, lambda: now[0])) as client:
            answers = [client.check({"user": "u"}) for _ in range(3)]
            self.assertEqual([one.allowed for one in answers], [True, True, False])
            now[0] = answers[2].retry_after
            self.assertTrue(client.check({"user": "u"}).allowed)

    def test_a_report_is_never_made_up(self):
        with Tidegate(NOBODY, when_away="open") as client, self.assertRaises(Away):
            client.report({"user": "u"}, 5)


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_parallel_callers_get_the_limit_and_no_more(self):
        async with AsyncTidegate(ADDRESS, timeout=10) as client:
            user = {"user": somebody(), "path": "/search"}
            answers = await asyncio.gather(*(client.check(user) for _ in range(10)))
            self.assertEqual(sum(one.allowed for one in answers), 3)
            team = {"team": somebody(), "kind": "tokens"}

            async def call():
                return {"usage": {"total_tokens": 10}}

            await within_budget_async(client, team, call, amount=900)
            self.assertEqual((await client.check(team, cost=0)).remaining, 990)
            async with client.in_flight({"user": somebody(), "kind": "export"}):
                pass
            for said, charged in USED:
                team = {"team": somebody(), "kind": "tokens"}
                with self.subTest(repr(said)), logs(charged == 400):
                    self.assertTrue(await within_budget_async(client, team, call, amount=400, used=says(said)))
                    self.assertEqual((await client.check(team, cost=0)).remaining, 1000 - charged)

    async def test_the_middleware_answers_in_the_applications_place(self):
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"hello"})

        user = somebody()
        async with AsyncTidegate(ADDRESS, timeout=10) as client:
            guarded = TidegateMiddleware(app, client, lambda scope: {"user": user, "path": scope["path"]})
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guarded), base_url="http://app") as browser:
                replies = [await browser.get("/search") for _ in range(4)]
        self.assertEqual([one.status_code for one in replies], [200, 200, 200, 429])
        self.assertEqual(replies[0].headers["x-ratelimit-remaining"], "2")
        self.assertGreaterEqual(int(replies[3].headers["retry-after"]), 1)


if __name__ == "__main__":
    unittest.main()
