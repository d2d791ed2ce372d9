-- Who changed lately: what daemons read to be sure, since a notification may be lost. They read from the oldest transaction
-- that was still open at their last look, so that no change that commits late is missed, and forget rows after an hour.

CREATE TABLE identity_changes (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    transaction xid8 NOT NULL DEFAULT pg_current_xact_id(),
    kind text NOT NULL CHECK (kind IN ('user', 'key')),
    -- Null: too many to name.
    name text
);
CREATE INDEX identity_changes_by_transaction ON identity_changes (transaction);
CREATE INDEX identity_changes_by_time ON identity_changes (at);

-- TG_ARGV: the kind.
CREATE FUNCTION tidegate_identities_recorded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    names text[];
BEGIN
    SELECT array_agg(DISTINCT id) INTO names FROM (SELECT id FROM changed LIMIT 1001) AS few;
    IF cardinality(names) > 1000 THEN
        INSERT INTO identity_changes (kind, name) VALUES (TG_ARGV[0], NULL);
    ELSIF names IS NOT NULL THEN
        INSERT INTO identity_changes (kind, name) SELECT TG_ARGV[0], unnest(names);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION tidegate_identities_truncated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO identity_changes (kind, name) VALUES (TG_ARGV[0], NULL);
    PERFORM pg_notify('tidegate_identities', TG_ARGV[0] || 's');
    RETURN NULL;
END $$;

CREATE TRIGGER users_recorded_inserted AFTER INSERT ON users REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_recorded('user');
-- Both, since an update may change the id.
CREATE TRIGGER users_recorded_updated AFTER UPDATE ON users REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_recorded('user');
CREATE TRIGGER users_recorded_renamed AFTER UPDATE ON users REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_recorded('user');
CREATE TRIGGER users_recorded_deleted AFTER DELETE ON users REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_recorded('user');
CREATE TRIGGER users_recorded_truncated AFTER TRUNCATE ON users
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_truncated('user');
CREATE TRIGGER api_keys_recorded_inserted AFTER INSERT ON api_keys REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_recorded('key');
CREATE TRIGGER api_keys_recorded_updated AFTER UPDATE ON api_keys REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_recorded('key');
CREATE TRIGGER api_keys_recorded_renamed AFTER UPDATE ON api_keys REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_recorded('key');
CREATE TRIGGER api_keys_recorded_deleted AFTER DELETE ON api_keys REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_recorded('key');
CREATE TRIGGER api_keys_recorded_truncated AFTER TRUNCATE ON api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_truncated('key');
