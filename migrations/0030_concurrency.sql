-- Rules whose places are held: algorithm = "concurrency" with a hold in the place of a window.

ALTER TABLE rules DROP CONSTRAINT rules_algorithm_is_known;
ALTER TABLE rules ADD CONSTRAINT rules_algorithm_is_known CHECK (
    CASE WHEN document ? 'algorithm' THEN coalesce(document ->> 'algorithm' IN ('fixed_window',
        'sliding_window', 'sliding_log', 'token_bucket', 'leaky_bucket', 'gcra', 'concurrency'), false) ELSE true END);
ALTER TABLE rules ADD CONSTRAINT rules_hold_is_a_duration CHECK (
    CASE WHEN document ? 'hold'
        THEN coalesce(document ->> 'hold' ~ '^[0-9]+(ms|s|m|h|d|w)$', false) ELSE true END);
