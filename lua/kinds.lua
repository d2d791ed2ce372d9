-- The kinds of buckets that this call holds. Nothing is defined that only other kinds need: Redis runs a
-- script from its first line at every call, and all definitions together took a fifth of a decision's time.
--
-- No KEYS or reply of its own: a part of decide.lua and rights.lua.
-- ARGV[2]  23 bytes a bucket: the first is its algorithm, the last modulo 4 is 2 or 3 where it is escrowed;
--          or 22 of the one whose rights move
-- Mirrors  the numbers of the algorithms in src/core/algorithm/packed.rs

local FIXED_WINDOW, SLIDING_WINDOW, SLIDING_LOG, TOKEN_BUCKET, LEAKY_BUCKET, GCRA, CONCURRENCY = 1, 2, 3, 4, 5, 6, 7
local function counts_by_level(b)
  return b.kind == TOKEN_BUCKET or b.kind == LEAKY_BUCKET or b.kind == GCRA
end
-- True of what counts by a sliding window or log.
local function slides(b)
  return b.kind == SLIDING_WINDOW or b.kind == SLIDING_LOG
end
local kinds, escrowed = {}, #ARGV[2] == 22
for i = 1, #ARGV[2], 23 do
  kinds[string.byte(ARGV[2], i)] = true
  escrowed = escrowed or (string.byte(ARGV[2], i + 22) or 0) % 4 >= 2
end

