-- A commit leaves a row of its own, beside the decision that reserved: its cost is what was used less what had been
-- reserved, so that sums of permits are sums of what was used.
--
-- Rows that are there were checked when they were written, so none is read again.
ALTER TABLE audit_log DROP CONSTRAINT audit_log_outcome_check;
ALTER TABLE audit_log ADD CONSTRAINT audit_log_outcome_check
    CHECK (outcome IN ('allowed', 'denied', 'shadow_denied', 'committed')) NOT VALID;
