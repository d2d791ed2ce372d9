-- Why a decision was denied, in the words of the answer's `cause`. Rows that are there, and those of daemons of the
-- version before, have none. What words there are is the daemon's business: a list here would refuse the rows of a
-- newer one.
ALTER TABLE audit_log ADD COLUMN cause text CHECK (cause ~ '^[a-z_]{1,32}$');
