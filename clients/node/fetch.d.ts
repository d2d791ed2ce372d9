import type { Attributes, Tidegate } from "./index.js";

export interface LimitOptions<M extends unknown[]> {
  /** Names who asks: authenticate first, and name the user. undefined: the request is not asked for. */
  attributes?: (request: Request, ...more: M) => Attributes | undefined | Promise<Attributes | undefined>;
  cost?: (request: Request) => number;
}

export function limit<M extends unknown[]>(
  client: Tidegate,
  handler: (request: Request, ...more: M) => Response | Promise<Response>,
  options?: LimitOptions<M>,
): (request: Request, ...more: M) => Promise<Response>;
