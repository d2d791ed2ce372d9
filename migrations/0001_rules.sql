-- Rules, what became of them, and the regions' quotas: one set with one revision.
--
-- A rule is its document, in the shape of rules.toml and of the API. Whoever changes rules or quotas, by the API, the command
-- line or plain SQL, raises the revision once per transaction and leaves a row in rule_revisions and in rule_changes for each
-- rule or quota changed. Daemons listen on the channel tidegate_rules.

-- The oldest daemons that can still use this schema, by the newest migration they know. A migration that they could not
-- live with raises it.
CREATE TABLE schema_compatibility (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    oldest_version bigint NOT NULL
);
INSERT INTO schema_compatibility (oldest_version) VALUES (1);

CREATE TABLE rules (
    name text GENERATED ALWAYS AS (document ->> 'name') STORED PRIMARY KEY,
    document jsonb NOT NULL,
    CONSTRAINT rules_document_is_an_object CHECK (jsonb_typeof(document) = 'object'),
    CONSTRAINT rules_name_has_1_to_1024_bytes
        CHECK (jsonb_typeof(document -> 'name') = 'string' AND octet_length(name) BETWEEN 1 AND 1024),
    CONSTRAINT rules_domain_has_1_to_1024_bytes CHECK (
        CASE WHEN document ? 'domain' THEN jsonb_typeof(document -> 'domain') = 'string'
            AND octet_length(document ->> 'domain') BETWEEN 1 AND 1024 ELSE true END),
    CONSTRAINT rules_limit_is_from_0_to_4294967295 CHECK (
        CASE WHEN NOT document ? 'limit' THEN true WHEN jsonb_typeof(document -> 'limit') = 'number'
            THEN (document ->> 'limit')::numeric BETWEEN 0 AND 4294967295
                AND (document ->> 'limit')::numeric % 1 = 0 ELSE false END),
    CONSTRAINT rules_window_is_a_duration CHECK (
        CASE WHEN document ? 'window'
            THEN coalesce(document ->> 'window' ~ '^[0-9]+(ms|s|m|h|d|w)$', false) ELSE true END),
    CONSTRAINT rules_algorithm_is_known CHECK (
        CASE WHEN document ? 'algorithm' THEN coalesce(document ->> 'algorithm' IN ('fixed_window',
            'sliding_window', 'sliding_log', 'token_bucket', 'leaky_bucket', 'gcra'), false) ELSE true END),
    CONSTRAINT rules_action_is_known CHECK (
        CASE WHEN document ? 'action' THEN coalesce(document ->> 'action' IN ('reject', 'throttle',
            'log_only', 'allow', 'block'), false) ELSE true END),
    CONSTRAINT rules_status_is_from_400_to_599 CHECK (
        CASE WHEN NOT document ? 'status' THEN true WHEN jsonb_typeof(document -> 'status') = 'number'
            THEN (document ->> 'status')::numeric BETWEEN 400 AND 599 ELSE false END),
    CONSTRAINT rules_match_is_an_object CHECK (
        CASE WHEN document ? 'match' THEN jsonb_typeof(document -> 'match') = 'object' ELSE true END),
    CONSTRAINT rules_per_is_a_list CHECK (
        CASE WHEN document ? 'per' THEN jsonb_typeof(document -> 'per') = 'array' ELSE true END)
);
COMMENT ON TABLE rules IS 'The rules in force, in the shape of rules.toml; the name is the document''s';

-- What each region may spend of a rule's limit; where a rule has rows here they replace the shares in its document.
CREATE TABLE region_quotas (
    rule text NOT NULL REFERENCES rules (name) ON UPDATE CASCADE ON DELETE CASCADE,
    region text NOT NULL CHECK (region ~ '^[A-Za-z0-9._-]{1,64}$'),
    weight bigint NOT NULL CHECK (weight BETWEEN 0 AND 4294967295),
    -- The region's share is never below this part of the limit.
    min_percent smallint NOT NULL DEFAULT 0 CHECK (min_percent BETWEEN 0 AND 100),
    PRIMARY KEY (rule, region)
);

-- One row: which revision the tables hold. Its lock puts the writers in order.
--
-- A database that was restored to an earlier moment counts revisions that were given before to other rules. Daemons
-- therefore compare the generation first: the higher one of this column and of the server's timeline, which a recovery to
-- a point in time raises.
CREATE TABLE rules_head (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    revision bigint NOT NULL,
    generation bigint NOT NULL DEFAULT 0
);
INSERT INTO rules_head (revision) VALUES (0);

CREATE TABLE rule_revisions (
    revision bigint PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    -- Who: a token's name, or the database role of plain SQL.
    actor text NOT NULL,
    -- From which address; null on a Unix socket.
    source inet,
    -- What: apply, put, delete, rollback, quota, sql.
    action text NOT NULL,
    -- Why, in the words of whoever did it.
    reason text,
    transaction xid8 NOT NULL DEFAULT pg_current_xact_id()
);
CREATE INDEX rule_revisions_by_transaction ON rule_revisions (transaction);

CREATE TABLE rule_changes (
    revision bigint NOT NULL REFERENCES rule_revisions (revision) ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('rule', 'quota')),
    rule text NOT NULL,
    -- For quotas.
    region text NOT NULL DEFAULT '',
    -- Null: was not there, is not there any more.
    before jsonb,
    after jsonb,
    PRIMARY KEY (revision, kind, rule, region)
);
CREATE INDEX rule_changes_by_rule ON rule_changes (rule, revision);

-- The revision of this transaction; the first change in it makes one. A daemon names who asked it by the settings
-- tidegate.actor, tidegate.source, tidegate.action and tidegate.reason of its transaction; tidegate.revision and
-- tidegate.generation are what it has in force, which the new revision exceeds.
CREATE FUNCTION tidegate_revise() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
    actor text := nullif(current_setting('tidegate.actor', true), '');
BEGIN
    SELECT revision INTO own FROM rule_revisions WHERE transaction = pg_current_xact_id();
    IF own IS NULL THEN
        UPDATE rules_head SET
            revision = greatest(revision, nullif(current_setting('tidegate.revision', true), '')::bigint) + 1,
            generation = greatest(generation, nullif(current_setting('tidegate.generation', true), '')::bigint)
            RETURNING revision INTO own;
        INSERT INTO rule_revisions (revision, at, actor, source, action, reason) VALUES (
            own,
            clock_timestamp(),
            coalesce(actor, 'role ' || session_user),
            CASE WHEN actor IS NULL THEN inet_client_addr()
                ELSE nullif(current_setting('tidegate.source', true), '')::inet END,
            coalesce(nullif(current_setting('tidegate.action', true), ''), 'sql'),
            nullif(current_setting('tidegate.reason', true), ''));
        PERFORM pg_notify('tidegate_rules', own::text);
    END IF;
    RETURN own;
END $$;

-- Before each statement, so that whoever changes rules holds the head's lock before any rule's: no deadlocks.
CREATE FUNCTION tidegate_lock_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM rules_head FOR UPDATE;
    RETURN NULL;
END $$;

CREATE FUNCTION tidegate_rules_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
BEGIN
    IF EXISTS (SELECT 1 FROM fresh) THEN
        own := tidegate_revise();
        INSERT INTO rule_changes (revision, kind, rule, before, after)
            SELECT own, 'rule', name, NULL, document
            FROM fresh
            ON CONFLICT (revision, kind, rule, region) DO UPDATE SET after = excluded.after;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION tidegate_rules_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
BEGIN
    IF EXISTS (SELECT 1 FROM stale) THEN
        own := tidegate_revise();
        INSERT INTO rule_changes (revision, kind, rule, before, after)
            SELECT own, 'rule', name, document, NULL
            FROM stale
            ON CONFLICT (revision, kind, rule, region) DO UPDATE SET after = NULL;
    END IF;
    RETURN NULL;
END $$;

-- A row that says the same afterwards is no change.
CREATE FUNCTION tidegate_rules_updated() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
BEGIN
    IF EXISTS (SELECT document FROM fresh EXCEPT SELECT document FROM stale) THEN
        own := tidegate_revise();
        INSERT INTO rule_changes (revision, kind, rule, before, after)
            SELECT own, 'rule', coalesce(fresh.name, stale.name), stale.document, fresh.document
            FROM fresh FULL JOIN stale USING (name)
            WHERE fresh.document IS DISTINCT FROM stale.document
            ON CONFLICT (revision, kind, rule, region) DO UPDATE SET after = excluded.after;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION tidegate_rules_truncated() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
BEGIN
    PERFORM 1 FROM rules_head FOR UPDATE;
    own := tidegate_revise();
    INSERT INTO rule_changes (revision, kind, rule, before, after)
        SELECT own, 'rule', name, document, NULL
        FROM rules
        ON CONFLICT (revision, kind, rule, region) DO UPDATE SET after = NULL;
    RETURN NULL;
END $$;

CREATE TRIGGER rules_lock BEFORE INSERT OR UPDATE OR DELETE ON rules
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_lock_rules();
CREATE TRIGGER rules_inserted AFTER INSERT ON rules REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_rules_inserted();
CREATE TRIGGER rules_deleted AFTER DELETE ON rules REFERENCING OLD TABLE AS stale
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_rules_deleted();
CREATE TRIGGER rules_updated AFTER UPDATE ON rules REFERENCING OLD TABLE AS stale NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_rules_updated();
CREATE TRIGGER rules_truncated BEFORE TRUNCATE ON rules
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_rules_truncated();

CREATE FUNCTION tidegate_quota_json(weight bigint, min_percent smallint) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object('weight', weight, 'min_percent', min_percent)
$$;

CREATE FUNCTION tidegate_quotas_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
BEGIN
    IF EXISTS (SELECT 1 FROM fresh) THEN
        own := tidegate_revise();
        INSERT INTO rule_changes (revision, kind, rule, region, before, after)
            SELECT own, 'quota', rule, region, NULL, tidegate_quota_json(weight, min_percent)
            FROM fresh
            ON CONFLICT (revision, kind, rule, region) DO UPDATE SET after = excluded.after;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION tidegate_quotas_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
BEGIN
    IF EXISTS (SELECT 1 FROM stale) THEN
        own := tidegate_revise();
        INSERT INTO rule_changes (revision, kind, rule, region, before, after)
            SELECT own, 'quota', rule, region, tidegate_quota_json(weight, min_percent), NULL
            FROM stale
            ON CONFLICT (revision, kind, rule, region) DO UPDATE SET after = NULL;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION tidegate_quotas_updated() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
BEGIN
    IF EXISTS (SELECT * FROM fresh EXCEPT SELECT * FROM stale) THEN
        own := tidegate_revise();
        INSERT INTO rule_changes (revision, kind, rule, region, before, after)
            SELECT own, 'quota', coalesce(fresh.rule, stale.rule), coalesce(fresh.region, stale.region),
                CASE WHEN stale.rule IS NOT NULL THEN tidegate_quota_json(stale.weight, stale.min_percent) END,
                CASE WHEN fresh.rule IS NOT NULL THEN tidegate_quota_json(fresh.weight, fresh.min_percent) END
            FROM fresh FULL JOIN stale ON fresh.rule = stale.rule AND fresh.region = stale.region
            WHERE (fresh.weight, fresh.min_percent) IS DISTINCT FROM (stale.weight, stale.min_percent)
            ON CONFLICT (revision, kind, rule, region) DO UPDATE SET after = excluded.after;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER region_quotas_lock BEFORE INSERT OR UPDATE OR DELETE ON region_quotas
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_lock_rules();
CREATE TRIGGER region_quotas_inserted AFTER INSERT ON region_quotas REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_quotas_inserted();
CREATE TRIGGER region_quotas_deleted AFTER DELETE ON region_quotas REFERENCING OLD TABLE AS stale
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_quotas_deleted();
CREATE TRIGGER region_quotas_updated AFTER UPDATE ON region_quotas REFERENCING OLD TABLE AS stale NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_quotas_updated();
-- Truncated together with rules they are simply gone with them; alone they must be deleted, so that it is recorded.
CREATE FUNCTION tidegate_quotas_truncated() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own bigint;
BEGIN
    PERFORM 1 FROM rules_head FOR UPDATE;
    own := tidegate_revise();
    INSERT INTO rule_changes (revision, kind, rule, region, before, after)
        SELECT own, 'quota', rule, region, tidegate_quota_json(weight, min_percent), NULL
        FROM region_quotas
        ON CONFLICT (revision, kind, rule, region) DO UPDATE SET after = NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER region_quotas_truncated BEFORE TRUNCATE ON region_quotas
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_quotas_truncated();

-- At commit: the weights of a rule give something, its minimums fit into the limit.
CREATE FUNCTION tidegate_quotas_add_up() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    touched text := coalesce(NEW.rule, OLD.rule);
    weights numeric;
    minimums bigint;
BEGIN
    SELECT sum(weight), sum(min_percent) INTO weights, minimums FROM region_quotas WHERE rule = touched;
    IF weights = 0 THEN
        RAISE EXCEPTION 'the quotas of rule "%" must give at least one region a weight above 0', touched
            USING ERRCODE = 'check_violation', CONSTRAINT = 'region_quotas_add_up';
    END IF;
    IF minimums > 100 THEN
        RAISE EXCEPTION 'the minimums of rule "%" add up to % percent, which is more than its limit', touched, minimums
            USING ERRCODE = 'check_violation', CONSTRAINT = 'region_quotas_add_up';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER region_quotas_add_up AFTER INSERT OR UPDATE OR DELETE ON region_quotas
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tidegate_quotas_add_up();

-- What operators changed besides rules and quotas: identities, tokens, buckets.
CREATE TABLE admin_changes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    role text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    source inet,
    region text NOT NULL,
    node text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    before jsonb,
    after jsonb,
    reason text
);
CREATE INDEX admin_changes_by_time ON admin_changes (at);
CREATE INDEX admin_changes_by_target ON admin_changes (target, at);
