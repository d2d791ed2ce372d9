"""A web server that gives one answer to everything, in a daemon's place."""

import contextlib
import http.server
import json
import threading

# What a daemon answers to a check, as far as clients read it.
DECISION = {"allowed": True, "status": 200, "cost": 1, "retry_after_ms": 0, "delay_ms": 0, "degraded": False, "rules": []}


def decision(**more) -> str:
    return json.dumps(DECISION | more)


@contextlib.contextmanager
def answering(body: str, status: int = 200):
    """Serves while the block runs; gives its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
