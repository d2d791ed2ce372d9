"""What is no answer, and what is no question: neither may look as if no daemon answered, since that lets pass."""

import asyncio
import os
import socketserver
import tempfile
import threading
import unittest

import httpx

from tidegate import AsyncTidegate, Denied, LocalShare, Tidegate, TidegateError
from tidegate.asgi import TidegateMiddleware
from tidegate.llm import within_budget

from answering import answering, decision

ADDRESS = os.environ["TIDEGATE"]
STRANGER = "with something else than a daemon's answer"
# A body of these is longer than a daemon reads.
LONG = "&" * 1_100_000


class Constructors(unittest.TestCase):
    def test_an_address_that_can_never_be_asked_is_refused(self):
        for kind in (Tidegate, AsyncTidegate):
            for address in (
                "127.0.0.1:8080", "localhost:8080", "nonsense", "", "http://", "redis://h", "unix:run/x", "http://h?x=1", "http://h:99999"
            ):
                with self.subTest(kind=kind, address=address), self.assertRaises(ValueError) as caught:
                    kind(address)
                self.assertIn(repr(address), str(caught.exception))
                self.assertIn("expected http://HOST:PORT", str(caught.exception))
            kind("https://limits.internal/tidegate/")

    def test_a_word_that_says_nothing_is_refused_before_the_daemon_is_away(self):
        for how in ({"when_away": "opne"}, {"when_away": None}, {"timeout": 0}, {"timeout": float("nan")}, {"token": "secret\n"}):
            with self.subTest(how), self.assertRaises(ValueError):
                Tidegate(ADDRESS, **how)
        with self.assertRaises(ValueError):
            LocalShare(float("nan"), 1)

    def test_a_client_of_httpx_of_ones_own_asks_the_address_unless_it_has_a_base(self):
        user = {"user": "u"}
        with httpx.Client() as http:
            self.assertFalse(Tidegate(ADDRESS, http=http).check(user).away)
            with self.assertRaises(ValueError):
                Tidegate("127.0.0.1:8080", http=http)
            with self.assertRaises(ValueError):
                Tidegate("unix:/run/tidegate.sock", http=http)
        with httpx.Client(base_url=ADDRESS) as http:
            self.assertFalse(Tidegate(http=http).check(user).away)

    def test_a_unix_socket_is_an_address(self):
        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                self.request.recv(65536)
                body = decision(cost=7)
                self.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())

        async def ask(address):
            async with AsyncTidegate(address, timeout=10) as client:
                return await client.check({"user": "u"})

        with tempfile.TemporaryDirectory() as folder, socketserver.ThreadingUnixStreamServer(f"{folder}/s", Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            with Tidegate(f"unix:{folder}/s", timeout=10) as client:
                self.assertEqual(client.check({"user": "u"}).cost, 7)
            self.assertEqual(asyncio.run(ask(f"unix://{folder}/s")).cost, 7)
            server.shutdown()
            thread.join()


class Answers(unittest.TestCase):
    def test_another_web_server_is_a_mistake_whatever_is_decided_while_none_answers(self):
        for body in ("<html>hello</html>", "{}", "[]", '{"decisions": [{}]}', '{"allowed": true}'):
            with answering(body) as address, Tidegate(address, timeout=10, when_away="open") as client:
                for ask in (
                    lambda: client.check({"user": "u"}),
                    lambda: client.check_many([{"user": "u"}]),
                    lambda: client.reserve({"user": "u"}, 5),
                    lambda: client.acquire({"user": "u"}),
                    lambda: client.report({"user": "u"}, 5),
                ):
                    with self.subTest(body), self.assertRaisesRegex(TidegateError, "is it a Tidegate"):
                        ask()

    def test_a_call_that_is_to_use_something_else_is_not_made(self):
        body = decision(use="small", rule="large", limit=20, remaining=0, reservation="held", expires_ms=1000)
        with answering(body) as address, Tidegate(address, timeout=10) as client:
            told = client.check({"user": "u"})
            self.assertEqual((told.allowed, told.use, told.headers()["X-Tidegate-Use"]), (True, "small", "small"))
            with self.assertRaisesRegex(Denied, "large is used up; use small instead") as denied:
                within_budget(client, {"user": "u"}, lambda: self.fail("it was called"), amount=5)
            self.assertEqual(denied.exception.decision.use, "small")

    def test_fewer_decisions_than_checks_are_a_mistake(self):
        with answering('{"decisions": []}') as address, Tidegate(address, timeout=10) as client:
            with self.assertRaisesRegex(TidegateError, "is it a Tidegate"):
                client.check_many([{"user": "u"}])

    def test_a_refusal_is_told_as_it_is_one_of_something_else_by_its_status_and_one_that_cannot_decide_is_away(self):
        for status, body, said in (
            (404, "no such page\n", f"answered 404 {STRANGER}: no such page; is it a Tidegate?"),
            (405, '{"error": "Not Allowed"}', f'answered 405 {STRANGER}: {{"error": "Not Allowed"}}; is it a Tidegate?'),
            (401, "", f"answered 401 {STRANGER}; is it a Tidegate?"),
            (429, '{"error": {"code": "c", "message": "m", "field": "f"}}', "m (at f)"),
        ):
            with answering(body, status) as address, Tidegate(address, timeout=10) as client:
                with self.subTest(body), self.assertRaises(TidegateError) as caught:
                    client.check({"user": "u"})
                self.assertTrue(str(caught.exception).endswith(said), caught.exception)
                self.assertEqual(caught.exception.status, status)
        with answering("draining", 503) as address, Tidegate(address, timeout=10) as client:
            self.assertTrue(client.check({"user": "u"}).away)

    def test_nothing_that_a_client_wrote_makes_its_request_pass(self):
        with Tidegate(ADDRESS, timeout=10, when_away="open") as client:
            for value, status in ((LONG, 413), ("\udcff", 400), (None, 400), (42, 400)):
                with self.subTest(str(value)[:9]), self.assertRaises(TidegateError) as caught:
                    client.check({"user": value, "path": "/search"})
                self.assertEqual(caught.exception.status, status)


async def hello(scope, receive, send):
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})


class Middleware(unittest.IsolatedAsyncioTestCase):
    async def connect(self, guarded, **scope) -> list:
        """Begins a WebSocket, as a server does; returns what it was sent."""
        sent = []

        async def receive():
            return {"type": "websocket.connect"}

        async def send(message):
            sent.append(message)

        await guarded({"type": "websocket", "path": "/search", "client": ("192.0.2.1", 1)} | scope, receive, send)
        return sent

    async def test_a_refusal_of_the_daemon_is_none_that_passes(self):
        async with AsyncTidegate(ADDRESS, timeout=10, when_away="open") as client:
            guarded = TidegateMiddleware(hello, client, lambda scope: {"user": LONG})
            app = httpx.ASGITransport(app=guarded, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=app, base_url="http://app") as browser:
                self.assertEqual((await browser.get("/search")).status_code, 500)

    async def test_a_request_that_is_throttled_is_held_back(self):
        body = decision(delay_ms=120, rule="paced", limit=20, remaining=0)
        with answering(body) as address:
            async with AsyncTidegate(address, timeout=10) as client:
                guarded = TidegateMiddleware(hello, client)
                loop = asyncio.get_running_loop()
                async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guarded), base_url="http://app") as browser:
                    begun = loop.time()
                    reply = await browser.get("/paced")
                self.assertGreaterEqual(loop.time() - begun, 0.119)
                self.assertEqual(reply.headers["x-ratelimit-delay-ms"], "120")
                accepted = await self.connect(guarded)
                self.assertIn((b"x-ratelimit-delay-ms", b"120"), accepted[0]["headers"])

    async def test_a_websocket_is_asked_for(self):
        async with AsyncTidegate(ADDRESS, timeout=10) as client:
            user = os.urandom(8).hex()
            guarded = TidegateMiddleware(hello, client, lambda scope: {"user": user, "path": scope["path"]})
            for left in (b"2", b"1", b"0"):
                [accepted] = await self.connect(guarded)
                self.assertEqual(accepted["type"], "websocket.accept")
                self.assertIn((b"x-ratelimit-remaining", left), accepted["headers"])
            self.assertEqual(await self.connect(guarded), [{"type": "websocket.close", "code": 1008}])
            start, body = await self.connect(guarded, extensions={"websocket.http.response": {}})
            self.assertEqual((start["type"], start["status"]), ("websocket.http.response.start", 429))
            self.assertIn(b"retry-after", dict(start["headers"]))
            self.assertEqual(body["type"], "websocket.http.response.body")
            # Unless told who asks, the middleware says for what.
            self.assertEqual((await self.connect(TidegateMiddleware(hello, client)))[0]["type"], "websocket.accept")
