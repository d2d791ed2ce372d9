-- The name of a request that its gateway gave it (X-Request-Id), so that a denial is found from a trace or a log line.
-- Rows that are there, and those of daemons of the version before, have none.
ALTER TABLE audit_log ADD COLUMN request_id text;

-- A key's decisions, and those of an outcome that is rare, newest first: neither reads a month.
CREATE INDEX audit_log_by_key ON audit_log (key_id, at) WHERE key_id IS NOT NULL;
CREATE INDEX audit_log_by_outcome ON audit_log (outcome, at) WHERE outcome <> 'allowed';
CREATE INDEX audit_log_by_request ON audit_log (request_id, at) WHERE request_id IS NOT NULL;
