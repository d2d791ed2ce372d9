-- Marks a server's memory as one that reaches back to before anything was spent in any region.
--
-- KEYS[1]  the mark, see ledger.lua
-- ARGV[1]  8 bytes that name the first start, the same from all daemons that were part of it
-- Reply    1 if it is marked so, 0 if it had a mark of another kind
-- Mirrors  src/store/redis/policy/first_start.rs

local id = string.match(redis.call("INFO", "replication"), "master_replid:(%w+)")
if not id then return 0 end
local mark = ARGV[1] .. id
if redis.call("SET", KEYS[1], mark, "NX") then return 1 end
return redis.call("GET", KEYS[1]) == mark and 1 or 0
