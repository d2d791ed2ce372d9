-- What a reservation used is remembered when it is committed, beside the decision that reserved: its cost is what was used
-- less what had been reserved, so that sums of permits are sums of what was used.
--
-- What is there already was checked when it was written, so no row is read again.
ALTER TABLE audit_log DROP CONSTRAINT audit_log_outcome_check;
ALTER TABLE audit_log ADD CONSTRAINT audit_log_outcome_check
    CHECK (outcome IN ('allowed', 'denied', 'shadow_denied', 'committed')) NOT VALID;
