-- What passed after a delay and what was blocked are told apart from what passed at once and what a limit denied.
--
-- Rows that are there were checked when they were written, so none is read again. They stay what they are: a block of
-- before is `denied` with the cause `blocked`.
ALTER TABLE audit_log DROP CONSTRAINT audit_log_outcome_check;
ALTER TABLE audit_log ADD CONSTRAINT audit_log_outcome_check
    CHECK (outcome IN ('allowed', 'throttled', 'denied', 'blocked', 'shadow_denied', 'committed')) NOT VALID;

-- Parts of `allowed` and of `denied`, which stay what they were: daemons of the version before add to those alone.
-- Without a check of their own, for which every row would be read.
ALTER TABLE usage_minute
    ADD COLUMN throttled bigint NOT NULL DEFAULT 0,
    ADD COLUMN blocked bigint NOT NULL DEFAULT 0;
ALTER TABLE usage_hour
    ADD COLUMN throttled bigint NOT NULL DEFAULT 0,
    ADD COLUMN blocked bigint NOT NULL DEFAULT 0;
ALTER TABLE usage_day
    ADD COLUMN throttled bigint NOT NULL DEFAULT 0,
    ADD COLUMN blocked bigint NOT NULL DEFAULT 0;
ALTER TABLE usage_total
    ADD COLUMN throttled bigint NOT NULL DEFAULT 0,
    ADD COLUMN blocked bigint NOT NULL DEFAULT 0;
ALTER TABLE usage_key
    ADD COLUMN throttled bigint NOT NULL DEFAULT 0,
    ADD COLUMN blocked bigint NOT NULL DEFAULT 0;
