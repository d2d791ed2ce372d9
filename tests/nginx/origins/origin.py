"""Python's own server: its readings of the path that came, as JSON: decoded as WSGI does, made normal, as urllib
splits it, and the file that its web server takes it for."""

import json
import posixpath
import sys
import urllib.parse
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Origin(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One segment for an answer: two would wait for each other.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self):
        decoded = urllib.parse.unquote(self.path)
        readings = [
            decoded,
            posixpath.normpath(decoded),
            urllib.parse.urlparse(self.path).path,
            self.translate_path(self.path),
        ]
        body = json.dumps(readings).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True


host, port = sys.argv[1].split(":")
Server((host, int(port)), lambda *arguments: Origin(*arguments, directory="/")).serve_forever()
