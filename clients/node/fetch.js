import { headersOf, heldBack } from "./index.js";

/**
 * Wraps a handler of `Request` that returns a `Response` (Hono, Next.js, Deno, Bun, workers): asks before it is called.
 * `attributes` names who asks; it may return undefined for a request that is not to be asked for.
 * A request that a rule throttles is held back for as long as the daemon says.
 */
export function limit(client, handler, { attributes = byPath, cost = () => 1 } = {}) {
  return async (request, ...more) => {
    const named = await attributes(request, ...more);
    if (!named) return handler(request, ...more);
    const decision = await client.check(named, { cost: cost(request) });
    const headers = headersOf(decision);
    if (!decision.allowed) return new Response(decision.message ?? "Too many requests", { status: decision.status, headers });
    await heldBack(decision);
    const answered = await handler(request, ...more);
    // A response that came from fetch has headers that cannot be changed.
    const response = new Response(answered.body, answered);
    for (const [name, value] of Object.entries(headers)) response.headers.set(name, value);
    return response;
  };
}

function byPath(request) {
  return { method: request.method, path: new URL(request.url).pathname };
}
