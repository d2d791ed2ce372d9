-- Who may ask for how much: tiers, users, API keys. Daemons listen on the channel tidegate_identities: the payload is
-- `user ID`, `key ID`, `tier NAME`, or `users`, `keys`, `tiers` when too many changed at once to name them.

CREATE TABLE tiers (
    name text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 1024),
    description text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE users (
    id text PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 1024),
    tier text REFERENCES tiers (name) ON UPDATE CASCADE ON DELETE RESTRICT,
    -- {"rule": {"limit": 500, "burst": 600}}
    overrides jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(overrides) = 'object'),
    blocked_at timestamptz,
    blocked_reason text,
    -- Null while blocked: for good.
    blocked_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT users_block_is_whole CHECK (
        blocked_at IS NOT NULL OR (blocked_reason IS NULL AND blocked_until IS NULL)),
    CONSTRAINT users_block_ends_after_it_begins CHECK (blocked_until IS NULL OR blocked_until > blocked_at)
);
CREATE INDEX users_by_tier ON users (tier) WHERE tier IS NOT NULL;
CREATE INDEX users_blocked ON users (blocked_at) WHERE blocked_at IS NOT NULL;

CREATE TABLE api_keys (
    -- Public: it names the key in lists, logs and revocations.
    id text PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 64),
    -- HMAC-SHA-256 or salted SHA-256 of the secret. The secret itself is nowhere.
    hash bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    salt bytea CHECK (octet_length(salt) BETWEEN 16 AND 64),
    owner text REFERENCES users (id) ON UPDATE CASCADE ON DELETE CASCADE,
    tier text REFERENCES tiers (name) ON UPDATE CASCADE ON DELETE RESTRICT,
    overrides jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(overrides) = 'object'),
    active boolean NOT NULL DEFAULT true,
    note text NOT NULL DEFAULT '',
    expires_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT session_user,
    updated_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz,
    revoked_by text,
    CONSTRAINT api_keys_revocation_is_whole CHECK ((revoked_at IS NULL) = (revoked_by IS NULL)),
    CONSTRAINT api_keys_revoked_is_not_active CHECK (revoked_at IS NULL OR NOT active)
);
CREATE INDEX api_keys_by_owner ON api_keys (owner) WHERE owner IS NOT NULL;

-- Tells which rows changed, by name up to a number, beyond it in one word. TG_ARGV: the kind, the column that names a row.
CREATE FUNCTION tidegate_identities_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    kind text := TG_ARGV[0];
    names text[];
    named text;
BEGIN
    EXECUTE format('SELECT array_agg(DISTINCT name) FROM (SELECT %I AS name FROM changed LIMIT 101) AS few', TG_ARGV[1])
        INTO names;
    IF names IS NULL THEN
        RETURN NULL;
    END IF;
    IF cardinality(names) > 100 THEN
        PERFORM pg_notify('tidegate_identities', kind || 's');
    ELSE
        FOREACH named IN ARRAY names LOOP
            PERFORM pg_notify('tidegate_identities', kind || ' ' || named);
        END LOOP;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER tiers_inserted AFTER INSERT ON tiers REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_changed('tier', 'name');
CREATE TRIGGER tiers_updated AFTER UPDATE ON tiers REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_changed('tier', 'name');
CREATE TRIGGER tiers_deleted AFTER DELETE ON tiers REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_changed('tier', 'name');
CREATE TRIGGER users_inserted AFTER INSERT ON users REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_changed('user', 'id');
CREATE TRIGGER users_updated AFTER UPDATE ON users REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_changed('user', 'id');
CREATE TRIGGER users_deleted AFTER DELETE ON users REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_changed('user', 'id');
CREATE TRIGGER api_keys_inserted AFTER INSERT ON api_keys REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_changed('key', 'id');
CREATE TRIGGER api_keys_updated AFTER UPDATE ON api_keys REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_changed('key', 'id');
CREATE TRIGGER api_keys_deleted AFTER DELETE ON api_keys REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_identities_changed('key', 'id');
