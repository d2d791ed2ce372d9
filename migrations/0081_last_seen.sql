-- When a user or an API key was last seen, by any daemon that writes here: to the minute, and a moment later.
--
-- In tables of their own: a change of a row of users or api_keys is told to every daemon, which looks it up again.
CREATE TABLE user_seen (
    id text PRIMARY KEY REFERENCES users (id) ON UPDATE CASCADE ON DELETE CASCADE,
    at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE key_seen (
    id text PRIMARY KEY REFERENCES api_keys (id) ON UPDATE CASCADE ON DELETE CASCADE,
    at timestamptz NOT NULL
) WITH (fillfactor = 70);
