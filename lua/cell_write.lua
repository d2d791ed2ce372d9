-- Writes a cell if it is still as it was read. ARGV: the text that was read, empty for none; the new text,
-- empty to free the key; for how many milliseconds, empty for ever, or "keep" for as long as it is kept.
-- Returns 1 if it was written.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
    return 0
end
if ARGV[2] == '' then
    redis.call('DEL', KEYS[1])
elseif ARGV[3] == 'keep' then
    redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
elseif ARGV[3] == '' then
    redis.call('SET', KEYS[1], ARGV[2])
else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
