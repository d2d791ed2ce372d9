import { headersOf } from "./index.js";

/**
 * Middleware for Express and Connect: asks before each request, and answers what may not pass.
 * `attributes` names who asks; it may return undefined for a request that is not to be asked for.
 */
export function limit(client, { attributes = byAddress, cost = () => 1 } = {}) {
  return async (request, response, next) => {
    let decision;
    try {
      const named = await attributes(request);
      if (!named) return next();
      decision = await client.check(named, { cost: cost(request) });
    } catch (error) {
      return next(error);
    }
    for (const [name, value] of Object.entries(headersOf(decision))) response.setHeader(name, value);
    if (decision.allowed) return next();
    response.statusCode = decision.status;
    response.setHeader("Content-Type", "text/plain; charset=utf-8");
    response.end(decision.message ?? "Too many requests");
  };
}

function byAddress(request) {
  const path = (request.originalUrl ?? request.url).split("?", 1)[0];
  return { ip: request.ip ?? request.socket.remoteAddress, method: request.method, path };
}
