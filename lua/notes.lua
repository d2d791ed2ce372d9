-- The reservations of a bucket: a note for each, until it is committed or lapses. The permits
-- themselves are charged to the bucket. So whatever goes back, the bucket never counts less than what was
-- used.
--
-- No reply of its own: a part of decide.lua, and defined only where ARGV[8] is given. An earliest lapse is
-- written behind a bucket's value, so that who looks at no notes knows when to.
-- KEYS     of each bucket whose notes are looked at, behind the views: a hash and a sorted set
-- ARGV[8]  a byte a bucket: 1 = its notes are looked at
-- The hash holds by a reservation's id (16 bytes) its charge: permits (5), the instant that it counts at (7),
-- whole permits in use then, of a level alone (4), how many were noted before (6), when it lapses (7), and
-- what had been given back until then (7). Beside them: "n" how many were noted; "t" what was given back;
-- "l" the lowest number that is not forgotten; and by level (1) and place (6) what charges gave back whose
-- numbers begin with that place in 16ths. The sorted set holds three orders, apart by their scores: numbers
-- below zero (of a level alone), instants at which notes end, and beyond them until when a commit is
-- remembered.
-- Mirrors: ReservationNotes of src/core/reservation_notes.rs and State::give_back of
-- src/core/algorithm/mod.rs.

local notes
if (ARGV[8] or "") ~= "" then
  -- The kinds of charges beside those that decide.lua knows.
  local RESERVE, COMMIT = 5, 6
  notes = { RESERVE = RESERVE, COMMIT = COMMIT }
  -- How an id begins among the instants at which notes end: its permits are free again then, or stay charged.
  local RELEASED_THEN, CHARGED_THEN = "d", "k"
  local HELD, HELD_BEFORE, CROWDED, RELEASED, LAPSED, REPEATED = 1, 2, 3, 4, 5, 6
  local RESERVATIONS_MAX, COMMITS_MAX, LAPSES_MAX = 10000, 10000, 100
  local TTL_MAX, COMMIT_KEPT, CROWDED_RETRY = 600000000, 1200000000, 1000000
  -- Numbers lie as far below zero as instants of commits above it; instants of lapse lie between.
  local APART = 4503599627370496 -- 2^52
  local BELOW_APART, HELD_NUMBERS = "(4503599627370496", "(0"
  local RADIX = 16
  local FORGOTTEN_MAX = 32
  -- Names no reservation: its commit only gives back what has lapsed.
  local NONE = string.rep("\0", 16)

  -- The instant that a bucket counts at: rights may be ahead of the clock.
  local function instant(b, now)
    return math.max(now, b.start or 0)
  end

  local function tail(b)
    return b.due and struct.pack(">I7", b.due) or ""
  end

  -- Notes the earliest lapse where those who look at no notes see it.
  local function mark_due(b)
    local first = redis.call("ZRANGE", b.order, 0, BELOW_APART, "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
    local due = tonumber(first[2])
    if due == b.due then return end
    b.due = due
    if b.kind == SLIDING_LOG then
      if not b.fresh then
        redis.call("LSET", b.key, 0, struct.pack(">I4I7I7", b.shape, b.at, b.base) .. tail(b))
      end
    elseif b.raw ~= "" then
      b.marked = true
    end
  end

  -- Opens the notes of those buckets whose notes are looked at. Returns how many keys they have.
  function notes.open(all, place, ttl_fixed)
    notes.ttl_fixed = ttl_fixed
    local opened = 0
    for i = 1, #all do
      local b = all[i]
      if string.byte(ARGV[8], i) == 1 then
        -- Each bucket carries these functions: a captured variable would cost every call.
        b.noted, b.notes, b.order = notes, KEYS[place + 1], KEYS[place + 2]
        place = place + 2
        if b.kind ~= CONCURRENCY then mark_due(b) end
        opened = opened + 2
      end
    end
    return opened
  end

  -- The number of keys that a note would make.
  function notes.missing(b)
    if b.due then return 0 end
    return redis.call("ZCARD", b.order) > 0 and 1 or 2
  end

  -- Keeps what is noted as long as it may matter.
  local function keep(b, now)
    local most = math.max(b.window + TTL_MAX, COMMIT_KEPT)
    if counts_by_level(b) then most = math.max(most, level_expiry(b) - now) end
    local ttl = notes.ttl_fixed or math.min(math.ceil(most / 1000), 4e12)
    ttl = string.format("%.0f", ttl)
    redis.call("PEXPIRE", b.notes, ttl)
    redis.call("PEXPIRE", b.order, ttl)
  end

  local function charge_of(b, id)
    local raw = redis.call("HGET", b.notes, id)
    if not raw then return nil end
    local c = { id = id }
    c.permits, c.at, c.used, c.number, c.due, c.total = struct.unpack(">I5I7I4I6I7I7", raw)
    return c
  end

  local function node(level, place)
    return struct.pack(">BI6", level, place)
  end

  local function given_back(b)
    return tonumber(redis.call("HGET", b.notes, "t") or 0)
  end

  -- The permits that charges before this one gave back since it was noted.
  local function before_gave_back(b, c)
    local total = given_back(b)
    local later, fields = 0, {}
    local level, from, to = 0, c.number, tonumber(redis.call("HGET", b.notes, "n"))
    while from < to do
      for place_ = from + 1, math.min(to, from - from % RADIX + RADIX - 1) do fields[#fields + 1] = node(level, place_) end
      level, from, to = level + 1, floor(from / RADIX), floor(to / RADIX)
    end
    if #fields > 0 then
      for _, returned in ipairs(redis.call("HMGET", b.notes, unpack(fields))) do
        later = later + tonumber(returned or 0)
      end
    end
    return total - later - c.total
  end

  local function note_given_back(b, c, returned)
    local text = string.format("%.0f", returned)
    redis.call("HINCRBY", b.notes, "t", text)
    local level, place_ = 0, c.number
    repeat
      redis.call("HINCRBY", b.notes, node(level, place_), text)
      level, place_ = level + 1, floor(place_ / RADIX)
    until place_ == 0
  end

  -- Forgets what was given back by numbers below all that are held: nobody asks for it any more.
  local function forget_numbers(b)
    local first = redis.call("ZRANGE", b.order, "-inf", HELD_NUMBERS, "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
    if not first[2] then return end
    local lowest, low = tonumber(first[2]) + APART, tonumber(redis.call("HGET", b.notes, "l") or 0)
    local forgotten = {}
    local last = math.min(lowest, low + FORGOTTEN_MAX)
    if low >= last then return end
    while low < last do
      local level, place_ = 0, low
      low = low + 1
      repeat
        forgotten[#forgotten + 1] = node(level, place_)
        level, place_ = level + 1, (place_ + 1) / RADIX - 1
      until place_ < 1 or place_ ~= floor(place_)
    end
    redis.call("HDEL", b.notes, unpack(forgotten))
    redis.call("HSET", b.notes, "l", string.format("%.0f", low))
  end

  -- Takes a note out of all orders. What is given back is noted only while others are held.
  local function drop(b, c, returned)
    redis.call("ZREM", b.order, RELEASED_THEN .. c.id, CHARGED_THEN .. c.id, "n" .. c.id)
    redis.call("HDEL", b.notes, c.id)
    if redis.call("ZCOUNT", b.order, 0, BELOW_APART) == 0 then
      redis.call("DEL", b.notes)
    elseif counts_by_level(b) then
      if returned > 0 then note_given_back(b, c, returned) end
      forget_numbers(b)
    end
  end

  -- Gives back what of an earlier charge still counts. Returns the whole permits given back, the same with a
  -- started one, and the part of that.
  local function give_back(b, now, c, permits)
    if counts_by_level(b) then
      local used = math.max(0, c.used - before_gave_back(b, c))
      local left = { at = c.at, first = used, second = 0, window = b.window, permits = b.permits }
      local whole, part = level_amount(left, now)
      if permits <= whole then whole, part = permits, 0 end
      whole, part = level_take_back(b, now, whole, part)
      return whole, part > 0 and whole + 1 or whole, part
    end
    local returned = bucket_give_back(b, now, c.at, permits)
    if returned > 0 then b.changed = true end
    return returned, returned, 0
  end

  -- Gives back what has lapsed, a bounded part at a time. Returns the permits given back.
  function notes.lapse(b, now)
    local at, lapsed = instant(b, now), 0
    local ids = redis.call("ZRANGE", b.order, 0, at, "BYSCORE", "LIMIT", 0, LAPSES_MAX)
    for i = 1, #ids do
      local c = charge_of(b, string.sub(ids[i], 2))
      if c then
        local returned, started = 0, 0
        if string.sub(ids[i], 1, 1) == RELEASED_THEN then returned, started = give_back(b, at, c, c.permits) end
        drop(b, c, started)
        lapsed = lapsed + returned
      else
        redis.call("ZREM", b.order, ids[i])
      end
    end
    if #ids > 0 then
      -- A charge to a capacity whose rights move goes on being held.
      if b.rights and counts_by_level(b) then level_raise(b, now) end
      keep(b, now)
      mark_due(b)
    end
    return lapsed
  end

  -- Asks a bucket for a reservation, or before a commit. What has lapsed is given back before.
  function notes.look(b, now, c)
    local at = instant(b, now)
    c.lapsed = b.due and b.due <= at and notes.lapse(b, now) or 0
    local known = c.kind == RESERVE and charge_of(b, c.id) or nil
    local held = c.kind == COMMIT or known ~= nil
    local cost = b.pending + (held and 0 or c.permits)
    if b.kind == SLIDING_LOG then
      c.fits, c.remaining, c.reset, c.retry = log_check(b, now, cost)
    else
      c.fits, c.retry = bucket_fits(b, now, cost), 0
    end
    if held then
      c.fits, c.retry = true, 0
      if known then c.fate, c.reserved = HELD_BEFORE, known.permits end
    elseif c.fits and redis.call("ZCOUNT", b.order, 0, BELOW_APART) >= RESERVATIONS_MAX then
      c.fits, c.retry, c.fate = false, CROWDED_RETRY + 1, CROWDED
    end
  end

  -- Takes what fits, and notes it.
  local function reserve(b, now, c)
    local at = instant(b, now)
    if redis.call("HEXISTS", b.notes, c.id) == 1 then
      c.fate, c.reserved = HELD_BEFORE, charge_of(b, c.id).permits
      return
    end
    c.fate = HELD
    bucket_put(b, now, c.permits)
    redis.call("ZREM", b.order, "c" .. c.id)
    local number = redis.call("HINCRBY", b.notes, "n", 1)
    -- Of a reservation the time until its note ends stands where a commit has its debt.
    local used, due = 0, at + c.debt_max
    if counts_by_level(b) then
      used = level_amount(b, at)
      redis.call("ZADD", b.order, number - APART, "n" .. c.id)
    end
    local total = given_back(b)
    redis.call("HSET", b.notes, c.id, struct.pack(">I5I7I4I6I7I7", c.permits, math.max(at, b.at), used, number, due, total))
    redis.call("ZADD", b.order, due, (c.kept and CHARGED_THEN or RELEASED_THEN) .. c.id)
    keep(b, now)
    mark_due(b)
  end

  local function remember_commit(b, at, id)
    redis.call("ZREMRANGEBYSCORE", b.order, APART, APART + at)
    if redis.call("ZCOUNT", b.order, APART, "+inf") >= COMMITS_MAX then
      local oldest = redis.call("ZRANGE", b.order, APART, "+inf", "BYSCORE", "LIMIT", 0, 1)
      redis.call("ZREM", b.order, oldest[1])
    end
    redis.call("ZADD", b.order, APART + at + COMMIT_KEPT, "c" .. id)
  end

  -- True if the bucket holds all that is in use. Mirrors: State::owes_nothing of src/core/algorithm/mod.rs.
  local function owes_nothing(b, now)
    local holds, used = b.permits, 0
    if b.kind == FIXED_WINDOW then
      local count, debt = fixed_window_account(b, now)
      used = count + debt
    elseif b.kind == SLIDING_WINDOW then
      used = sliding_window_used(b, now)
    elseif b.kind == SLIDING_LOG then
      used = log_used(b, now)
    else
      local whole, part = level_amount(b, now)
      holds = level_capacity(b) + (b.kept or 0)
      used = part > 0 and whole + 1 or whole
    end
    return holds > 0 and used <= holds
  end

  -- Releases what is reserved and charges what was really used. Returns the permits charged beyond what was
  -- reserved, or given back.
  local function commit(b, now, c)
    local at = instant(b, now)
    bucket_settle(b, now)
    -- As every charge, the first commit of a window closes the one before, also where it moves nothing.
    if b.view and b.ledger then window_report(b, now, 0, 0) end
    c.reserved = 0
    local known = redis.call("ZSCORE", b.order, "c" .. c.id)
    if c.id == NONE or (known and tonumber(known) > APART + at) then
      c.fate = REPEATED
      c.fits = c.id == NONE or owes_nothing(b, now)
      return 0
    end
    local moved, charge = 0, charge_of(b, c.id)
    c.fate = charge and RELEASED or LAPSED
    c.reserved = charge and charge.permits or 0
    if c.permits > c.reserved then
      local more = c.permits - c.reserved
      if b.kind == SLIDING_LOG then c.fits = log_check(b, now, more) else c.fits = bucket_fits(b, now, more) end
      moved = bucket_report(b, now, more, c.debt_max)
      if charge then drop(b, charge, 0) end
    elseif charge then
      local started
      moved, started, c.back_part = give_back(b, at, charge, c.reserved - c.permits)
      drop(b, charge, started)
    end
    remember_commit(b, at, c.id)
    keep(b, now)
    mark_due(b)
    return moved
  end

  -- Does to a bucket what is asked for its reservation. Returns what was moved.
  function notes.settle(b, now, c, admitted, action)
    local moved, charged = 0, false
    if c.kind == COMMIT then
      charged = action % 2 == 0
      if charged then moved = commit(b, now, c) end
    elseif c.fits and not admitted then
      c.retry, charged = 0, true
    elseif c.fits and action == 0 and not c.fate then
      reserve(b, now, c)
    end
    if charged and b.kind == SLIDING_LOG then
      local _, retry
      _, c.remaining, c.reset, retry = log_check(b, now, 0)
      c.retry = c.fits and 0 or retry
    end
    return moved
  end

  -- Writes those buckets of which only the earliest lapse is another.
  function notes.write(all, now)
    for i = 1, #all do
      local b = all[i]
      if b.marked and not b.changed then bucket_write(b, now, notes.ttl_fixed, b.rights and KEPT or 0) end
    end
  end

  -- A bucket's value as it is when it is asked, without its shape.
  function notes.seen(b)
    if b.kind == FIXED_WINDOW then
      return struct.pack(">I7I4I4", b.at, b.first, b.debt)
    elseif b.kind == SLIDING_WINDOW then
      return struct.pack(">I7I4I4I4", b.at, b.first, b.second, b.debt)
    elseif counts_by_level(b) then
      return struct.pack(">I7I4I6", b.at, b.first, b.second)
    end
    return ""
  end

  -- The rest of the answer to a charge of a bucket whose notes are looked at.
  function notes.tell(c)
    return struct.pack(">BI6I6I6", c.fate or 0, c.lapsed or 0, c.reserved or 0, c.back_part or 0) .. c.seen
  end
end
