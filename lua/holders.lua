-- concurrency: who holds places now. A sorted set: a member for each place (the holder's 16 bytes, then the
-- place's number among the holder's, 2 bytes) whose score is the microsecond in which its hold ends. What is
-- held is counted, not summed, so no two numbers can ever disagree.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua. `permits` is the most places, `window` the hold.
-- Mirrors: Concurrency of src/core/algorithm/concurrency.rs.

local held_reset, held_check, held_step, held_bring_back
if kinds[CONCURRENCY] then
  local HOLDER_PLACES_MAX = 1000
  local MOVED_BACK_MAX = 1000

  local function whole(x) return string.format("%.0f", x) end

  local function place_name(holder, i) return holder .. struct.pack(">I2", i) end

  -- How many are held at `now`, how many have ended and are not yet forgotten, and when the last one ends:
  -- read once a call.
  local function held_read(b, now)
    if b.used then return end
    b.ended = redis.call("ZCOUNT", b.key, "-inf", whole(now))
    b.used = b.len - b.ended
    b.newest = tonumber(redis.call("ZRANGE", b.key, -1, -1, "WITHSCORES")[2] or 0)
  end

  -- How many places this holder has at `now`.
  local function held_by(b, now, holder)
    local count = 0
    while count < HOLDER_PLACES_MAX do
      local ends = redis.call("ZSCORE", b.key, place_name(holder, count))
      if not ends or tonumber(ends) <= now then break end
      count = count + 1
    end
    return count
  end

  -- How long until `needed` more places are free, at most a hold, plus one.
  local function held_retry(b, now, needed)
    local at = b.ended + needed - 1
    local ends = tonumber(redis.call("ZRANGE", b.key, whole(at), whole(at), "WITHSCORES")[2] or b.newest)
    return math.min(math.max(ends - now, 0), b.window) + 1
  end

  function held_reset(b, now)
    return math.min(math.max(b.newest - now, 0), b.window)
  end

  -- Answers a charge: sets its fits, remaining, reset and retry (plus one; zero: never or not needed). A step
  -- of a holder is TAKE (acquire), REFUND (release) or LEASE (renew), by their numbers; `cost` is what the
  -- decision asks of the bucket up to and with this one.
  function held_check(b, now, c, cost)
    held_read(b, now)
    local free = math.max(0, b.permits - b.used)
    local has = c.kind > 0 and c.holder and held_by(b, now, c.holder) or 0
    c.remaining, c.reset, c.retry = free, held_reset(b, now), 0
    if c.kind == 1 and has > 0 then c.had = has end
    if c.kind == 2 then
      c.fits = true
    elseif c.kind == 3 or has > 0 then
      c.fits = has > 0 and b.used <= b.permits
      if c.fits then c.reset = b.window
      elseif c.kind == 1 then c.retry = held_retry(b, now, b.used - b.permits) end
    else
      local asked = math.max(cost, 1)
      c.fits = asked <= math.min(free, HOLDER_PLACES_MAX)
      if c.fits then
        c.remaining = free - cost
        if cost > 0 then c.reset = b.window end
      elseif asked <= math.min(b.permits, HOLDER_PLACES_MAX) then
        c.retry = held_retry(b, now, b.used + asked - b.permits)
      elseif asked <= math.min(b.whole or 0, HOLDER_PLACES_MAX) then
        -- Places of other regions would do.
        c.retry = b.window + 1
      end
    end
    -- Places that an earlier memory of this region admitted may still be held.
    if b.doubt and now < b.doubt and c.kind < 2 then
      c.fits, c.remaining, c.retry = false, 0, b.doubt - now + 1
    end
  end

  -- Has nobody hold for longer than from now on: a clock that was set back would keep places for as long as
  -- the step.
  function held_bring_back(b, now)
    held_read(b, now)
    local last = now + b.window
    if b.newest <= last then return end
    local late = redis.call("ZRANGE", b.key, "(" .. whole(last), "+inf", "BYSCORE", "LIMIT", 0, MOVED_BACK_MAX)
    for i = 1, #late do redis.call("ZADD", b.key, "XX", whole(last), late[i]) end
    if #late < MOVED_BACK_MAX then b.newest = last end
  end

  -- Forgets who has ended, too.
  local function held_tidy(b, now)
    redis.call("ZREMRANGEBYSCORE", b.key, "-inf", whole(now))
    b.ended = 0
    held_bring_back(b, now)
  end

  -- Adds places, or keeps those that are there for a whole hold from now on. Adds before it forgets: a full
  -- server refuses a script's first write only if that takes memory.
  local function held_put(b, now, holder, count)
    local ends, args = whole(now + b.window), {}
    for i = 0, count - 1 do
      args[#args + 1] = ends
      args[#args + 1] = place_name(holder, i)
    end
    redis.call("ZADD", b.key, unpack(args))
  end

  -- Carries out a step. Returns the places that were newly taken, kept or given back.
  function held_step(b, now, c)
    held_read(b, now)
    local has = held_by(b, now, c.holder)
    local moved = 0
    if c.kind == 2 then
      for i = 0, has - 1 do redis.call("ZREM", b.key, place_name(c.holder, i)) end
      moved, b.used = has, b.used - has
    elseif has > 0 then
      held_put(b, now, c.holder, has)
      moved = c.kind == 3 and has or 0
    elseif c.kind == 1 and c.permits > 0 then
      moved = math.min(c.permits, HOLDER_PLACES_MAX)
      held_put(b, now, c.holder, moved)
      b.used = b.used + moved
    end
    held_tidy(b, now)
    b.newest = tonumber(redis.call("ZRANGE", b.key, -1, -1, "WITHSCORES")[2] or 0)
    b.changed = true
    return moved
  end
end
