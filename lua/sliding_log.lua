-- sliding_log: every admission of the last window. A list: a header (shape 4 bytes, newest instant seen 7,
-- the running total before the first entry 7, the earliest lapse 7 where something is reserved), then the
-- entries, oldest first (instant 7, running total up to and with it 7). What lies between two instants is a
-- difference of two totals, found by halving, however long the log.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua.
-- Mirrors: SlidingLog of src/core/algorithm/sliding_log.rs.

local log_load, log_used, log_check, log_put, log_report, log_refund, log_give_back, log_restore, log_expiry
if kinds[SLIDING_LOG] then
  local function log_entry(b, i)
    return struct.unpack(">I7I7", redis.call("LINDEX", b.key, i))
  end

  -- Reads what every check needs: the length, the newest entry and its total.
  function log_load(b, header)
    local _
    _, b.at, b.base = struct.unpack(">I4I7I7", header)
    if #header > 18 then b.due = struct.unpack(">I7", header, 19) end
    b.len = redis.call("LLEN", b.key) - 1
    b.newest, b.total = 0, b.base
    if b.len > 0 then b.newest, b.total = log_entry(b, -1) end
  end

  local function log_total_before(b, i)
    if i == 0 then return b.base end
    local _, total = log_entry(b, i)
    return total
  end

  -- How many entries from the front make `holds(at, total)` true; it is true for a prefix of them.
  local function log_partition(b, holds)
    local low, high = 0, b.len
    while low < high do
      local middle = floor((low + high) / 2)
      if holds(log_entry(b, middle + 1)) then low = middle + 1 else high = middle end
    end
    return low
  end

  local function log_gone(b, now)
    if b.len == 0 then return 0 end
    if now - b.newest >= b.window then return b.len end
    if now - log_entry(b, 1) < b.window then return 0 end
    return log_partition(b, function(at) return now - at >= b.window end)
  end

  local function log_others(b, now)
    if not b.view then return 0 end
    local _, index, elapsed = place(b, now)
    local _, others, others_before = share(b, index)
    return others + faded(others_before, b.window - elapsed, b.window)
  end

  function log_used(b, now)
    return b.total - log_total_before(b, log_gone(b, math.max(now, b.at)))
  end

  -- What the budget of the aligned window at `now` leaves in the whole interval that ends then.
  local function log_budgeted(b, now)
    if not b.view then return b.permits end
    local _, index = place(b, now)
    return math.max(0, share(b, index) - log_used(b, now))
  end

  -- When own use is down to `left`.
  local function log_down_to(b, now, left)
    local freed = log_partition(b, function(_, total) return b.total - total > left end)
    if freed == b.len then return now end
    return math.max(log_entry(b, freed + 1) + b.window, now)
  end

  -- From when on a budget has room for `asked`, not before `from`.
  local function log_budgeted_from(b, now, from, asked)
    local start, index = place(b, now)
    local next = start + b.window
    local after = next + b.window
    local function fits_from(at, earliest)
      local left = share(b, at) - asked
      if left < 0 then return after end
      return log_used(b, earliest) <= left and earliest or log_down_to(b, earliest, left)
    end
    local here = fits_from(index, from)
    if here < next then return here end
    local there = fits_from(index + 1, math.max(from, next))
    if there < after then return there end
    return math.max(from, after)
  end

  -- Some instant that fits after one that does not: for a view of a window to come, which may take back what
  -- fits now.
  local function log_halved(b, now, left, asked)
    local low, high = now, math.max(log_down_to(b, now, left), place(b, now) + 3 * b.window)
    while high - low > 1 do
      local middle = low + floor((high - low) / 2)
      if asked <= log_budgeted(b, middle) and log_used(b, middle) + log_others(b, middle) <= left then
        high = middle
      else
        low = middle
      end
    end
    return high
  end

  -- From when on `left` permits are the most in use worldwide.
  local function log_left_from(b, now, left)
    -- Own use falls in steps; between two steps only the others' fades.
    local gone = log_gone(b, now)
    local step = log_partition(b, function(at, total)
      local leaves = at + b.window
      return leaves <= now or b.total - total + log_others(b, leaves) > left
    end)
    local low, high = now, 0
    if step > gone then low = math.max(now, (log_entry(b, step)) + b.window) end
    local own = b.total - log_total_before(b, step)
    if step < b.len then
      high = log_entry(b, step + 1) + b.window
    else
      high = place(b, low) + b.window * 3
    end
    while high - low > 1 do
      local middle = low + floor((high - low) / 2)
      if own + log_others(b, middle) <= left then high = middle else low = middle end
    end
    return high
  end

  -- In how long `asked` permits fit.
  local function log_retry(b, now, asked)
    local left = b.permits - asked
    if not b.view then return log_down_to(b, now, left) - now end
    local _, index = place(b, now)
    if b.view.window > index then return log_halved(b, now, left, asked) - now end
    local fits = log_used(b, now) + log_others(b, now) <= left
    local from = fits and now or log_left_from(b, now, left)
    return log_budgeted_from(b, now, from, asked) - now
  end

  -- Whether `cost` permits (zero: a peek) fit, and the verdict: remaining, reset, retry plus one (0: never).
  -- A clock that was set back has to catch up first.
  function log_check(b, now, cost)
    local behind = math.max(b.at - now, 0)
    now = now + behind
    local asked = math.max(cost, 1)
    local free = math.max(0, b.permits - log_used(b, now) - log_others(b, now))
    free = math.min(free, log_budgeted(b, now))
    local fits = asked <= free
    local newest = fits and cost > 0 and now or b.newest
    local reset = newest > 0 and math.max(newest + b.window - now, 0) or 0
    if reset > 0 then reset = reset + behind end
    local retry = 0
    if not fits and asked <= b.permits then retry = log_retry(b, now, asked) + behind + 1
    -- Permits that other regions have would do.
    elseif not fits and asked <= (b.whole or 0) then retry = b.hold + 1 end
    if b.shut then return false, 0, reset, b.shut + 1 end
    return fits, fits and free - cost or free, reset, retry
  end

  local function log_write_header(b)
    b.fresh = false
    local header = struct.pack(">I4I7I7", b.shape, b.at, b.base)
    if b.due then header = header .. struct.pack(">I7", b.due) end
    redis.call("LPUSH", b.key, header)
  end

  -- Moves to `now` and forgets what has left the window. Leaves the list without its header.
  local function log_advance(b, now)
    b.changed = true
    b.at = math.max(b.at, now)
    local gone = log_gone(b, b.at)
    if gone == b.len then
      redis.call("DEL", b.key)
      b.len, b.base, b.total, b.newest = 0, 0, 0, 0
    else
      if gone > 0 then b.base = log_total_before(b, gone) end
      redis.call("LTRIM", b.key, 1 + gone, -1)
      b.len = b.len - gone
    end
  end

  local function log_push(b)
    redis.call("RPUSH", b.key, struct.pack(">I7I7", b.newest, b.total))
    b.len = b.len + 1
  end

  -- Pushes before it trims: a full server refuses a script's first write only if that takes memory.
  function log_put(b, now, cost)
    b.changed = true
    b.at = math.max(b.at, now)
    local gone = log_gone(b, b.at)
    local kept = b.len - gone
    if kept == 0 then b.base, b.total = 0, 0 elseif gone > 0 then b.base = log_total_before(b, gone) end
    b.total = b.total + cost
    if kept > 0 and b.newest == b.at then
      redis.call("RPOP", b.key)
      kept = kept - 1
    end
    b.newest = b.at
    log_push(b)
    if not b.fresh then redis.call("LTRIM", b.key, 1 + gone, -1) end
    b.len = kept + 1
    log_write_header(b)
  end

  -- An entry beyond the limit is one like any other. Returns the permits charged.
  function log_report(b, now, cost, debt_max)
    local charged = math.min(cost, math.max(0, (b.most or b.limit) + debt_max - log_used(b, now)))
    if charged > 0 then log_put(b, now, charged) end
    return charged
  end

  -- Takes from the newest admissions first.
  function log_refund(b, now, cost)
    if b.fresh then return 0 end
    log_advance(b, now)
    local used = b.total - b.base
    local returned = math.min(cost, used)
    if returned == used then
      redis.call("DEL", b.key)
      b.len, b.base, b.total, b.newest = 0, 0, 0, 0
    elseif returned > 0 then
      local total = b.total - returned
      log_write_header(b)
      local kept = log_partition(b, function(_, sum) return sum < total end)
      b.newest = log_entry(b, kept + 1)
      b.total = total
      redis.call("LTRIM", b.key, 1, kept)
      b.len = kept
      log_push(b)
    end
    log_write_header(b)
    return returned
  end

  if ARGV[8] then
    -- Takes permits of one charge back out of its entry. Of what lies before and behind it the shorter is
    -- written anew, since only differences of totals mean anything.
    local function log_take_out(b, i, returned, whole)
      local shorter, moved = b.len - i > i, returned
      local from, to = 1, i
      if not shorter then from, to, moved = i + 1, b.len, -returned end
      local entries = from <= to and redis.call("LRANGE", b.key, from, to) or {}
      for j = 1, #entries do
        local at, total = struct.unpack(">I7I7", entries[j])
        entries[j] = struct.pack(">I7I7", at, total + moved)
      end
      if shorter then
        redis.call("LTRIM", b.key, to + (whole and 2 or 1), -1)
        for j = #entries, 1, -1 do redis.call("LPUSH", b.key, entries[j]) end
        b.base = b.base + returned
        log_write_header(b)
      else
        redis.call("LTRIM", b.key, 0, i)
        for j = whole and 2 or 1, #entries do redis.call("RPUSH", b.key, entries[j]) end
      end
      if whole then b.len = b.len - 1 end
      b.newest, b.total = log_entry(b, -1)
    end

    -- Gives back of what was charged at `at` as far as it is still in the log. Returns the permits given
    -- back.
    function log_give_back(b, now, at, cost)
      if b.fresh then return 0 end
      log_advance(b, now)
      log_write_header(b)
      local i = log_partition(b, function(own) return own < at end)
      if i == b.len then return 0 end
      local own_at, total = log_entry(b, i + 1)
      if own_at ~= at then return 0 end
      local own = total - log_total_before(b, i)
      local returned = math.min(cost, own)
      if returned == 0 then return 0 end
      if returned == own and b.len == 1 then
        redis.call("DEL", b.key)
        b.len, b.base, b.total, b.newest = 0, 0, 0, 0
        log_write_header(b)
      else
        log_take_out(b, i, returned, returned == own)
      end
      return returned
    end
  end

  -- Nobody knows any more when it was used, so all of it counts from now on.
  function log_restore(b, now, known)
    local _, index = place(b, math.max(now, b.at))
    local missing = known.used - log_used(b, now)
    if index == known.window and missing > 0 then log_put(b, now, missing) end
  end

  function log_expiry(b)
    return b.len == 0 and b.at or b.newest + b.window
  end
end
