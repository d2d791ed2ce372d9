-- The audit log as it is written and asked: sampled rows, sums that merge, partitions that are made without stopping
-- writers, and what has left for the archive.

-- How many decisions a row stands for: 1 for a denial, more for an allowed one that was sampled.
ALTER TABLE audit_log ADD COLUMN weight integer NOT NULL DEFAULT 1 CHECK (weight >= 1);


-- Latencies as counts by log-linear bucket: they add up, and percentiles are read from the sum.
ALTER TABLE usage_minute ALTER COLUMN latency TYPE bigint[] USING NULL;
ALTER TABLE usage_hour ALTER COLUMN latency TYPE bigint[] USING NULL;
ALTER TABLE usage_day ALTER COLUMN latency TYPE bigint[] USING NULL;

CREATE FUNCTION tidegate_add_counts(one bigint[], other bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN one IS NULL THEN other WHEN other IS NULL THEN one ELSE
        (SELECT array_agg(coalesce(a, 0) + coalesce(b, 0) ORDER BY place)
         FROM ROWS FROM (unnest(one), unnest(other)) WITH ORDINALITY AS both_of (a, b, place)) END
$$;

-- Sums are updated in place, over and over: room in each page, and no index on what changes.
ALTER TABLE usage_minute SET (fillfactor = 70);
ALTER TABLE usage_hour SET (fillfactor = 70);
ALTER TABLE usage_day SET (fillfactor = 70);
-- Totals by time, without reading the sums of every user and path.
CREATE INDEX usage_minute_totals ON usage_minute (bucket, rule) WHERE user_id = '' AND path = '';
CREATE INDEX usage_hour_totals ON usage_hour (bucket, rule) WHERE user_id = '' AND path = '';
CREATE INDEX usage_day_totals ON usage_day (bucket, rule) WHERE user_id = '' AND path = '';

-- A rule's decisions of every outcome, newest first.
DROP INDEX audit_log_by_rule;
CREATE INDEX audit_log_by_rule ON audit_log (rule, at);

-- As before, but attached rather than made in place: whoever writes other months meanwhile is not held up.
CREATE OR REPLACE FUNCTION tidegate_audit_partition(moment timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    first timestamp := date_trunc('month', moment AT TIME ZONE 'UTC');
    name text := 'audit_log_' || to_char(first, 'YYYY_MM');
BEGIN
    IF EXISTS (SELECT 1 FROM pg_inherits
               WHERE inhparent = 'audit_log'::regclass AND inhrelid = to_regclass(name)) THEN
        RETURN name;
    END IF;
    -- Several daemons may want it at once.
    PERFORM pg_advisory_xact_lock(hashtext('tidegate_audit_partition'));
    IF EXISTS (SELECT 1 FROM pg_inherits
               WHERE inhparent = 'audit_log'::regclass AND inhrelid = to_regclass(name)) THEN
        RETURN name;
    END IF;
    EXECUTE format('CREATE TABLE IF NOT EXISTS %I (LIKE audit_log INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
    EXECUTE format('ALTER TABLE audit_log ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
        name, first AT TIME ZONE 'UTC', (first + interval '1 month') AT TIME ZONE 'UTC');
    RETURN name;
END $$;

-- The months that are there.
CREATE VIEW audit_partitions AS
    SELECT child.relname::text AS name,
        to_date(right(child.relname, 7), 'YYYY_MM') AS month,
        pg_total_relation_size(child.oid) AS bytes,
        greatest(child.reltuples, 0)::bigint AS rows_about
    FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
    WHERE inhparent = 'audit_log'::regclass AND child.relname ~ '^audit_log_\d{4}_\d{2}$';

-- What has left for the archive. A month may leave more than once: what a spool delivered late follows in another part.
CREATE TABLE audit_archives (
    month date NOT NULL,
    part integer NOT NULL CHECK (part >= 1),
    location text NOT NULL,
    rows bigint NOT NULL CHECK (rows >= 0),
    bytes bigint NOT NULL CHECK (bytes >= 0),
    -- SHA-256 over the rows in their order.
    checksum text NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT now(),
    region text NOT NULL,
    node text NOT NULL,
    PRIMARY KEY (month, part)
);

-- Forgets a month: detached and dropped in the transaction that notes where it went.
CREATE FUNCTION tidegate_drop_audit_partition(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF name !~ '^audit_log_\d{4}_\d{2}$' THEN
        RAISE EXCEPTION '% is no month of the audit log', name;
    END IF;
    EXECUTE format('ALTER TABLE audit_log DETACH PARTITION %I', name);
    EXECUTE format('DROP TABLE %I', name);
END $$;

-- Keeps everyone from writing a month until the transaction ends, and counts its rows.
CREATE FUNCTION tidegate_close_audit_partition(name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    rows bigint;
BEGIN
    IF name !~ '^audit_log_\d{4}_\d{2}$' THEN
        RAISE EXCEPTION '% is no month of the audit log', name;
    END IF;
    EXECUTE format('LOCK TABLE %I IN SHARE ROW EXCLUSIVE MODE', name);
    EXECUTE format('SELECT count(*) FROM %I', name) INTO rows;
    RETURN rows;
END $$;
