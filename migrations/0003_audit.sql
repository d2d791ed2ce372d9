-- What was decided: the log, by month; what each daemon has delivered of it; and its sums by minute, hour and day.

CREATE TABLE audit_log (
    at timestamptz NOT NULL,
    region text NOT NULL,
    node text NOT NULL,
    domain text NOT NULL,
    -- The deciding rule; null where none applied.
    rule text,
    user_id text,
    key_id text,
    address inet,
    path text,
    method text,
    outcome text NOT NULL CHECK (outcome IN ('allowed', 'denied', 'shadow_denied')),
    cost bigint NOT NULL,
    -- Permits in use after the decision, and the limit that held.
    count bigint,
    permits bigint,
    status smallint NOT NULL CHECK (status BETWEEN 100 AND 599),
    retry_after_ms bigint CHECK (retry_after_ms >= 0),
    latency_us bigint CHECK (latency_us >= 0)
) PARTITION BY RANGE (at);
CREATE INDEX audit_log_by_time ON audit_log (at);
CREATE INDEX audit_log_by_rule ON audit_log (rule, at) WHERE outcome <> 'allowed';
CREATE INDEX audit_log_by_user ON audit_log (user_id, at) WHERE user_id IS NOT NULL;

-- Makes the partition of the month (UTC) that holds this time, if it is not there. Returns its name.
CREATE FUNCTION tidegate_audit_partition(moment timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    first timestamp := date_trunc('month', moment AT TIME ZONE 'UTC');
    name text := 'audit_log_' || to_char(first, 'YYYY_MM');
BEGIN
    IF to_regclass(name) IS NULL THEN
        -- Several daemons may want it at once.
        PERFORM pg_advisory_xact_lock(hashtext('tidegate_audit_partition'));
        EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF audit_log FOR VALUES FROM (%L) TO (%L)',
            name, first AT TIME ZONE 'UTC', (first + interval '1 month') AT TIME ZONE 'UTC');
    END IF;
    RETURN name;
END $$;
SELECT tidegate_audit_partition(now()), tidegate_audit_partition(now() + interval '1 month');

-- Which batches have arrived: written in the transaction that writes their rows, so that none is written twice.
CREATE TABLE audit_batches (
    region text NOT NULL,
    node text NOT NULL,
    -- When the writing process began, in ms since the epoch.
    incarnation bigint NOT NULL,
    sequence bigint NOT NULL,
    rows integer NOT NULL CHECK (rows >= 0),
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (region, node, incarnation, sequence)
);
CREATE INDEX audit_batches_by_time ON audit_batches (at);

CREATE TABLE usage_minute (
    bucket timestamptz NOT NULL,
    region text NOT NULL,
    rule text NOT NULL,
    user_id text NOT NULL DEFAULT '',
    path text NOT NULL DEFAULT '',
    allowed bigint NOT NULL DEFAULT 0 CHECK (allowed >= 0),
    denied bigint NOT NULL DEFAULT 0 CHECK (denied >= 0),
    cost bigint NOT NULL DEFAULT 0,
    -- A histogram that merges by addition.
    latency bytea,
    PRIMARY KEY (bucket, region, rule, user_id, path)
);
CREATE INDEX usage_minute_by_rule ON usage_minute (rule, bucket);
CREATE INDEX usage_minute_by_user ON usage_minute (user_id, bucket) WHERE user_id <> '';
CREATE TABLE usage_hour (LIKE usage_minute INCLUDING ALL);
CREATE TABLE usage_day (LIKE usage_minute INCLUDING ALL);
