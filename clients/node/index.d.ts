export type Attributes = Record<string, string>;

/** One rule's own answer. */
export interface RuleAnswer {
  rule: string;
  allowed: boolean;
  limit: number;
  window_ms: number;
  remaining: number;
  reset_ms: number;
  retry_after_ms: number | null;
  degraded: boolean;
}

/** Whether a request may pass. `rule` to `reset_ms` are those of the tightest rule, absent where none applied. */
export interface Decision {
  allowed: boolean;
  status: number;
  message?: string;
  cost: number;
  rule?: string;
  limit?: number;
  remaining?: number;
  reset_ms?: number;
  /** null where this cost can never pass. */
  retry_after_ms: number | null;
  /** How long to hold an admitted request back, by a rule that throttles. */
  delay_ms: number;
  /** What to use instead of what was asked for, by a rule with `on_deny` that has nothing left for it. */
  use?: string;
  /** The store did not answer, so the daemon decided by itself. */
  degraded: boolean;
  /** No daemon answered, so this client decided. */
  away?: boolean;
  rules: RuleAnswer[];
}

/** Permits that are held until they are committed or cancelled, or `expires_ms` have passed. `cost` is the amount. */
export interface Reservation extends Decision {
  reservation?: string;
  expires_ms?: number;
}

/** Places in flight that are held until they are released, or `expires_ms` have passed without a renewal. */
export interface Lease extends Decision {
  lease?: string;
  expires_ms?: number;
}

/** What became of a reservation. `committed` is false where an earlier call settled it, or no rule counts it any more. */
export interface Settled {
  committed: boolean;
  lapsed: boolean;
  degraded: boolean;
}

/**
 * The daemon refused the call itself, or something else than a daemon answered (`code` is "unexpected"). Thrown
 * whatever `whenAway` says.
 */
export class TidegateError extends Error {
  readonly status: number;
  readonly code: string;
  readonly field?: string;
}
export class Away extends Error {}
export class Denied extends Error {
  readonly decision: Decision;
}

/** What is decided while no daemon answers. */
export type WhenAway = "open" | "closed" | "throw" | ((cost: number) => Decision);

export function localShare(limit: number, windowMs: number, now?: () => number): (cost: number) => Decision;

export interface Options {
  /** `http://HOST:PORT` or `https://HOST:PORT`; another one is refused. */
  address?: string;
  /** The deadline of a whole call: longer than `max_delay` of rules with `delay = "hold"`. */
  timeoutMs?: number;
  whenAway?: WhenAway;
  domain?: string;
  token?: string;
  /** Another fetch: for TLS, a Unix socket or a proxy of one's own. */
  fetch?: typeof globalThis.fetch;
}

export interface BudgetOptions<T> {
  amount?: number;
  ttl?: string;
  /** Reads what a result used, which is rounded up; what is no number from 0 on charges the whole amount. */
  used?: (result: T) => number | undefined | Promise<number | undefined>;
  domain?: string;
  /** Hears of a result that did not say what it used, and of a commit that failed; `console.warn` unless said. */
  onUncharged?: (error: Error) => void;
}

export class Tidegate {
  constructor(options?: Options);
  check(attributes: Attributes, options?: { cost?: number; domain?: string }): Promise<Decision>;
  checkMany(checks: { attributes: Attributes; cost?: number; domain?: string }[]): Promise<Decision[]>;
  report(attributes: Attributes, cost: number, options?: { id?: string; domain?: string }): Promise<Decision>;
  reserve(
    attributes: Attributes,
    options?: { amount?: number; ttl?: string; id?: string; domain?: string },
  ): Promise<Reservation>;
  commit(held: Reservation, actual: number): Promise<Settled>;
  cancel(held: Reservation): Promise<Settled>;
  withinBudget<T>(attributes: Attributes, call: () => Promise<T>, options?: BudgetOptions<T>): Promise<T>;
  acquire(attributes: Attributes, options?: { cost?: number; id?: string; domain?: string }): Promise<Lease>;
  renew(held: Lease): Promise<boolean>;
  release(held: Lease): Promise<boolean>;
  inFlight<T>(
    attributes: Attributes,
    work: (held: Lease) => Promise<T>,
    options?: { cost?: number; domain?: string },
  ): Promise<T>;
}

export function totalTokens(result: unknown): number | undefined;
export function headersOf(decision: Decision): Record<string, string>;
/** Waits for as long as a rule that throttles wants an admitted request held back. */
export function heldBack(decision: Decision): Promise<void>;
