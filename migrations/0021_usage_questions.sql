-- Two questions about the past whose answers must not depend on how many rules or users there are: what was decided over
-- time, and who was denied most by a rule.

-- Everything that was decided in a region, by time: one row where the sums have one for each rule. What daemons of an older
-- version add to the sums after this migration is missing here.
CREATE TABLE usage_total (
    step text NOT NULL CHECK (step IN ('minute', 'hour', 'day')),
    bucket timestamptz NOT NULL,
    region text NOT NULL,
    allowed bigint NOT NULL DEFAULT 0 CHECK (allowed >= 0),
    denied bigint NOT NULL DEFAULT 0 CHECK (denied >= 0),
    cost bigint NOT NULL DEFAULT 0,
    latency bigint[],
    PRIMARY KEY (step, bucket, region)
) WITH (fillfactor = 70);

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

-- How often a user was denied, to the next power of two: 1 for one time, 2 for two or three, 3 for four to seven. It changes
-- seldom, so that most updates of a sum leave the indexes alone, and leads to those who were denied most without reading
-- the others.
CREATE FUNCTION tidegate_heat(denied bigint) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN nullif(width_bucket(denied, ARRAY[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536,
    131072, 262144, 524288, 1048576, 2097152, 4194304, 8388608, 16777216, 33554432, 67108864, 134217728, 268435456,
    536870912, 1073741824]::bigint[]), 0)::smallint;
ALTER TABLE usage_hour ADD COLUMN heat smallint
    GENERATED ALWAYS AS (CASE WHEN user_id <> '' THEN tidegate_heat(denied) END) STORED;
ALTER TABLE usage_day ADD COLUMN heat smallint
    GENERATED ALWAYS AS (CASE WHEN user_id <> '' THEN tidegate_heat(denied) END) STORED;
DROP INDEX usage_hour_rule_bucket_idx, usage_day_rule_bucket_idx;
CREATE INDEX usage_hour_by_rule ON usage_hour (rule, bucket, heat);
CREATE INDEX usage_day_by_rule ON usage_day (rule, bucket, heat);

-- Who was denied most by a rule, in steps ('hour' or 'day') that begin from `since` on and before `until`.
--
-- A user has a sum for each region and step: n at most. The users of the many * n hottest sums are `many` at least; if the
-- last of the first `many` of them was denied t times, whoever was denied as often has a sum of t / n or more, and so a heat
-- that is not below that. Only users with such a sum are added up. Where nobody stands out, everyone with denials is.
CREATE FUNCTION tidegate_most_denied(step text, wanted_rule text, since timestamptz, until timestamptz, wanted_region text,
    many bigint)
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
            GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1 LIMIT $4', sums)
            USING wanted_rule, buckets, regions, many;
    ELSE
        RETURN QUERY EXECUTE format('SELECT hot.user_id, whole.allowed, whole.denied, whole.cost
            FROM (SELECT DISTINCT user_id FROM %1$I
                WHERE rule = $1 AND bucket = ANY ($2) AND region = ANY ($3) AND heat >= $5) AS hot,
            LATERAL (SELECT sum(own.allowed)::bigint AS allowed, sum(own.denied)::bigint AS denied,
                    sum(own.cost)::bigint AS cost FROM %1$I AS own
                WHERE own.bucket = ANY ($2) AND own.region = ANY ($3) AND own.rule = $1 AND own.user_id = hot.user_id
                    AND own.path = '''' AND own.denied > 0) AS whole
            ORDER BY 3 DESC, 2 DESC, 1 LIMIT $4', sums)
            USING wanted_rule, buckets, regions, many, edge;
    END IF;
END $$;
