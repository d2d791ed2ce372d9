-- Who was denied most by a rule, read off an index: how often each user was denied in a day by all regions together.
--
-- The sums by day keep it, not those who write them: whoever adds to them, a daemon of an older version or an operator by
-- hand, adds here as well, in the same transaction. Whoever writes sums writes those of days in one statement and totals
-- later, so that he holds all of their rows before he waits for one here, and the rows here are taken in order: writers of
-- several regions then never wait for each other in a circle.
CREATE TABLE usage_denied (
    bucket timestamptz NOT NULL,
    rule text NOT NULL,
    user_id text NOT NULL,
    denied bigint NOT NULL,
    PRIMARY KEY (bucket, rule, user_id)
);

-- Writers wait until this is done, in the order in which they take these tables themselves.
LOCK TABLE usage_minute, usage_hour, usage_day, usage_total IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO usage_denied (bucket, rule, user_id, denied)
SELECT bucket, rule, user_id, sum(denied) FROM usage_day WHERE user_id <> '' AND denied > 0 GROUP BY 1, 2, 3;
CREATE INDEX usage_denied_most ON usage_denied (rule, bucket, denied DESC, user_id);

-- Without a join of what was and what is: plans are kept, and one that was made for a few rows would not do for very many.
CREATE FUNCTION tidegate_note_denials() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO usage_denied AS own (bucket, rule, user_id, denied)
        SELECT bucket, rule, user_id, sum(denied) FROM fresh WHERE user_id <> '' AND denied > 0
        GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        ON CONFLICT (bucket, rule, user_id) DO UPDATE SET denied = own.denied + excluded.denied;
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO usage_denied AS own (bucket, rule, user_id, denied)
        SELECT bucket, rule, user_id, sum(denied) FROM (
            SELECT bucket, rule, user_id, denied FROM fresh WHERE user_id <> ''
            UNION ALL SELECT bucket, rule, user_id, -denied FROM stale WHERE user_id <> '') AS both_of
        GROUP BY 1, 2, 3 HAVING sum(denied) <> 0 ORDER BY 1, 2, 3
        ON CONFLICT (bucket, rule, user_id) DO UPDATE SET denied = own.denied + excluded.denied;
    ELSE
        INSERT INTO usage_denied AS own (bucket, rule, user_id, denied)
        SELECT bucket, rule, user_id, -sum(denied) FROM stale WHERE user_id <> '' AND denied > 0
        GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        ON CONFLICT (bucket, rule, user_id) DO UPDATE SET denied = own.denied + excluded.denied;
        DELETE FROM usage_denied AS own USING (SELECT DISTINCT bucket, rule, user_id FROM stale) AS gone
        WHERE own.bucket = gone.bucket AND own.rule = gone.rule AND own.user_id = gone.user_id AND own.denied <= 0;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER usage_day_inserted AFTER INSERT ON usage_day REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_note_denials();
CREATE TRIGGER usage_day_updated AFTER UPDATE ON usage_day REFERENCING OLD TABLE AS stale NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_note_denials();
CREATE TRIGGER usage_day_deleted AFTER DELETE ON usage_day REFERENCING OLD TABLE AS stale
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_note_denials();

-- What daemons from before usage_total added to the sums since it was made is in it from here on.
DELETE FROM usage_total;
WITH sums AS MATERIALIZED (
    SELECT 'minute' AS step, bucket, region, allowed, denied, cost, latency FROM usage_minute WHERE user_id = '' AND path = ''
    UNION ALL
    SELECT 'hour', bucket, region, allowed, denied, cost, latency FROM usage_hour WHERE user_id = '' AND path = ''
    UNION ALL
    SELECT 'day', bucket, region, allowed, denied, cost, latency FROM usage_day WHERE user_id = '' AND path = ''),
counts AS (
    SELECT step, bucket, region, place, sum(n)::bigint AS n
    FROM sums, tidegate_counts(latency) GROUP BY 1, 2, 3, 4),
latencies AS (
    SELECT step, bucket, region, array_agg((place << 48) + n ORDER BY place) AS latency FROM counts GROUP BY 1, 2, 3)
INSERT INTO usage_total (step, bucket, region, allowed, denied, cost, latency)
SELECT step, bucket, region, sum(allowed), sum(denied), sum(cost), latencies.latency
FROM sums LEFT JOIN latencies USING (step, bucket, region) GROUP BY step, bucket, region, latencies.latency;

-- As before, but for one day in all regions, which is what is asked most, so many rows of the index and no more, whether
-- anybody stands out or not. Equals come by name.
CREATE OR REPLACE FUNCTION tidegate_most_denied(step text, wanted_rule text, since timestamptz, until timestamptz,
    wanted_region text, many bigint)
RETURNS TABLE (name text, allowed bigint, denied bigint, cost bigint) LANGUAGE plpgsql STABLE AS $$
DECLARE
    sums constant text := CASE step WHEN 'hour' THEN 'usage_hour' WHEN 'day' THEN 'usage_day' END;
    buckets timestamptz[];
    regions text[];
    n bigint;
    edge bigint;
BEGIN
    -- The rule's sums in all tell which steps and regions there are.
    EXECUTE format('SELECT array_agg(DISTINCT bucket), array_agg(DISTINCT region), count(*) FROM %I
        WHERE rule = $1 AND user_id = '''' AND path = '''' AND bucket >= $2 AND bucket < $3 AND ($4 IS NULL OR region = $4)', sums)
        INTO buckets, regions, n USING wanted_rule, since, until, wanted_region;
    IF step = 'day' AND wanted_region IS NULL AND cardinality(buckets) = 1 THEN
        RETURN QUERY SELECT most.user_id, whole.allowed, most.denied, whole.cost
            FROM (SELECT own.user_id, own.denied FROM usage_denied AS own
                WHERE own.rule = wanted_rule AND own.bucket = buckets[1] AND own.denied > 0
                ORDER BY own.denied DESC, own.user_id LIMIT many) AS most,
            LATERAL (SELECT coalesce(sum(own.allowed), 0)::bigint AS allowed, coalesce(sum(own.cost), 0)::bigint AS cost
                FROM usage_day AS own
                WHERE own.bucket = buckets[1] AND own.region = ANY (regions) AND own.rule = wanted_rule
                    AND own.user_id = most.user_id AND own.path = '') AS whole
            ORDER BY 3 DESC, 1;
        RETURN;
    END IF;
    EXECUTE format('WITH hottest AS (
            SELECT DISTINCT user_id FROM (
                SELECT step.user_id FROM unnest($2) AS wanted (bucket), LATERAL (
                    SELECT own.user_id, own.heat FROM %1$I AS own
                    WHERE own.rule = $1 AND own.bucket = wanted.bucket AND own.heat >= 1 AND own.region = ANY ($3)
                    ORDER BY own.heat DESC LIMIT $4 * $5) AS step
                ORDER BY step.heat DESC LIMIT $4 * $5) AS sums),
        wholes AS (
            SELECT whole.denied FROM hottest, LATERAL (
                SELECT sum(own.denied)::bigint AS denied FROM %1$I AS own
                WHERE own.bucket = ANY ($2) AND own.region = ANY ($3) AND own.rule = $1 AND own.user_id = hottest.user_id
                    AND own.path = '''') AS whole
            ORDER BY 1 DESC LIMIT $4)
        SELECT CASE WHEN count(*) < $4 THEN 1 ELSE tidegate_heat((min(denied) + $5 - 1) / $5) END FROM wholes', sums)
        INTO edge USING wanted_rule, buckets, regions, many, n;
    IF edge <= 1 THEN
        RETURN QUERY EXECUTE format('SELECT user_id, sum(allowed)::bigint, sum(denied)::bigint, sum(cost)::bigint FROM %I
            WHERE rule = $1 AND bucket = ANY ($2) AND region = ANY ($3) AND heat >= 1
            GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT $4', sums)
            USING wanted_rule, buckets, regions, many;
    ELSE
        RETURN QUERY EXECUTE format('SELECT hot.user_id, whole.allowed, whole.denied, whole.cost
            FROM (SELECT DISTINCT user_id FROM %1$I
                WHERE rule = $1 AND bucket = ANY ($2) AND region = ANY ($3) AND heat >= $5) AS hot,
            LATERAL (SELECT sum(own.allowed)::bigint AS allowed, sum(own.denied)::bigint AS denied,
                    sum(own.cost)::bigint AS cost FROM %1$I AS own
                WHERE own.bucket = ANY ($2) AND own.region = ANY ($3) AND own.rule = $1 AND own.user_id = hot.user_id
                    AND own.path = '''' AND own.denied > 0) AS whole
            ORDER BY 3 DESC, 1 LIMIT $4', sums)
            USING wanted_rule, buckets, regions, many, edge;
    END IF;
END $$;

-- Sums of paths, without reading those of every user.
CREATE INDEX usage_minute_paths ON usage_minute (bucket, rule) WHERE path <> '';
CREATE INDEX usage_hour_paths ON usage_hour (bucket, rule) WHERE path <> '';
CREATE INDEX usage_day_paths ON usage_day (bucket, rule) WHERE path <> '';
