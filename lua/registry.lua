-- Notes that a daemon is alive, and tells who else is.
--
-- KEYS[1]  a sorted set: each daemon by the millisecond in which its note ends
-- ARGV[1]  the daemon: its own number, its name and a digest of its list of servers, with blanks between
-- ARGV[2]  milliseconds for which the note holds
-- Reply    every daemon whose note holds, at most a thousand
-- Mirrors  src/store/redis/policy/registry.rs

local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", string.format("%.0f", now))
redis.call("ZADD", KEYS[1], string.format("%.0f", now + ARGV[2]), ARGV[1])
redis.call("PEXPIRE", KEYS[1], ARGV[2])
return redis.call("ZRANGE", KEYS[1], 0, 999)
