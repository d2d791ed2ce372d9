import type { IncomingMessage, ServerResponse } from "node:http";
import type { Attributes, Tidegate } from "./index.js";

export interface LimitOptions<R> {
  /** Names who asks: authenticate first, and name the user. undefined: the request is not asked for. */
  attributes?: (request: R) => Attributes | undefined | Promise<Attributes | undefined>;
  cost?: (request: R) => number;
}

export function limit<R extends IncomingMessage>(
  client: Tidegate,
  options?: LimitOptions<R>,
): (request: R, response: ServerResponse, next: (error?: unknown) => void) => Promise<void>;
