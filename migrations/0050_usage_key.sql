-- How much each API key was let pass and denied: by day (UTC), region and rule, in all and not for keys times users or
-- paths. Months are added up from it.
--
-- Sums by minute would be as many again as those of users, and nobody asks for a key's minutes: single decisions
-- of a key are in audit_log. There are no latencies, for the same reason.
CREATE TABLE usage_key (
    bucket timestamptz NOT NULL,
    region text NOT NULL,
    rule text NOT NULL,
    -- The public name of a key of ours, the fingerprint of any other, or '*' for those beyond keys_max.
    key_id text NOT NULL,
    allowed bigint NOT NULL DEFAULT 0 CHECK (allowed >= 0),
    denied bigint NOT NULL DEFAULT 0 CHECK (denied >= 0),
    cost bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (bucket, region, rule, key_id)
) WITH (fillfactor = 70);
CREATE INDEX usage_key_by_key ON usage_key (key_id, bucket);
