// Node's own server: its readings of the path that came, as JSON: as it came, as a URL both ways, and decoded
// and normal. A path that cannot be decoded is refused.
import http from "node:http";
import path from "node:path";

const resolved = (text) => {
  try {
    return new URL(text, "http://x").pathname;
  } catch {
    return "";
  }
};
const readings = (text) => [
  text,
  new URL("http://x" + text).pathname,
  resolved(text),
  path.posix.normalize(decodeURIComponent(text)),
];
const server = http.createServer((request, response) => {
  let status = 200;
  let body;
  try {
    body = JSON.stringify(readings(request.url));
  } catch {
    [status, body] = [400, "[]"];
  }
  response.writeHead(status, { "content-length": Buffer.byteLength(body) });
  response.end(body);
});
const [host, port] = process.argv[2].split(":");
server.listen(Number(port), host);
