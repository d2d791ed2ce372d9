import { TidegateError, headersOf, heldBack } from "./index.js";

/**
 * Middleware for Express and Connect: asks before each request, and answers what may not pass.
 * `attributes` names who asks; it may return undefined for a request that is not to be asked for.
 * A request that a rule throttles is held back for as long as the daemon says.
 */
export function limit(client, { attributes = byAddress, cost = () => 1 } = {}) {
  return async (request, response, next) => {
    let decision;
    try {
      const named = await attributes(request);
      if (named) decision = await client.check(named, { cost: cost(request) });
    } catch (error) {
      return next(error instanceof TidegateError ? undecided(error) : error);
    }
    if (!decision) return next();
    for (const [name, value] of Object.entries(headersOf(decision))) response.setHeader(name, value);
    if (decision.allowed) {
      await heldBack(decision);
      return next();
    }
    response.statusCode = decision.status;
    response.setHeader("Content-Type", "text/plain; charset=utf-8");
    response.end(decision.message ?? "Too many requests");
  };
}

// Express would answer with the status of an error that has one: what the daemon said is not said to the client.
function undecided(cause) {
  return new Error(`the request was not decided: ${cause.message}`, { cause });
}

function byAddress(request) {
  const path = (request.originalUrl ?? request.url).split("?", 1)[0];
  const ip = request.ip ?? request.socket.remoteAddress;
  return { ...(ip && { ip }), method: request.method, path };
}
