-- Denials that may bring a client a penalty: a record for each bucket whose rule has one.
--
-- No reply of its own: a part of decide.lua, and defined only where ARGV[9] is given.
-- KEYS     of each bucket whose rule has a penalty, behind the notes: its record
-- ARGV[9]  for each bucket the number of its multipliers (1; 0 = no penalty), and where there are any the
--          threshold (4), the detection window and the cool-down in microseconds (7, 7) and the multipliers
--          (4 each)
-- A record holds the denials of the present half of the detection window (4), when that half began (7), when
-- the newest penalty ends (7; zero: there was none), the place of its multiplier (1, from zero) and the
-- denials of the half before (4; daemons of 0.1.0 write none). It is told after the views as it was before,
-- or as one byte where the server had no room for a new one.
-- Mirrors: PenaltyRecord of src/core/penalty.rs and PenaltyRole of src/store/penalties.rs.

local penalties
if (ARGV[9] or "") ~= "" then
  penalties = {}
  local PEEK, TAKE, REPORT, RESERVE = 0, 1, 4, 5
  local HELD_BEFORE, CROWDED = 2, 3

  -- Reads the records.
  function penalties.open(all, place, reply, now)
    local at, terms = 1, ARGV[9]
    for i = 1, #all do
      local count
      count, at = struct.unpack(">B", terms, at)
      if count > 0 then
        local p = { multipliers = {}, close = penalties.close, settle = penalties.settle }
        p.threshold, p.window, p.cool_down, at = struct.unpack(">I4I7I7", terms, at)
        for j = 1, count do p.multipliers[j], at = struct.unpack(">I4", terms, at) end
        place = place + 1
        p.key = KEYS[place]
        local raw = redis.call("GET", p.key) or ""
        p.violations, p.since, p.ends, p.step, p.before = 0, 0, 0, 0, 0
        if raw ~= "" then p.violations, p.since, p.ends, p.step = struct.unpack(">I4I7I7B", raw) end
        if #raw >= 23 then p.before = struct.unpack(">I4", raw, 20) end
        p.is_new = raw == ""
        -- A clock that was set back lengthens none.
        local last = now + p.cool_down * (p.multipliers[p.step + 1] or p.multipliers[#p.multipliers])
        if p.ends > last then p.ends, p.changed = last, true end
        if p.since - now > p.window then p.violations = 0 end
        reply[#reply + 1] = raw
        p.told_at = #reply
        all[i].penalty = p
      end
    end
  end

  -- Shuts a charge out while a penalty is in force.
  function penalties.close(b, now, c)
    local p = b.penalty
    if now >= p.ends then return end
    if c.kind ~= TAKE and c.kind ~= PEEK and c.kind ~= REPORT and c.kind ~= RESERVE then return end
    if c.fate == HELD_BEFORE then return end
    if c.fits and c.retry then c.retry = p.ends - now + 1 end
    c.fits = false
  end

  -- Counts a denial, and begins a penalty where there have been too many.
  function penalties.settle(b, now, c, room_for, reply)
    local p = b.penalty
    if c.fits or now < p.ends or c.fate == CROWDED or (c.kind ~= TAKE and c.kind ~= RESERVE) then return end
    if p.is_new and not p.changed and (p.crowded or not room_for(1)) then
      p.crowded = true
      reply[p.told_at] = "-"
      return
    end
    p.changed = true
    local half = math.max(1, math.ceil(p.window / 2))
    if p.violations == 0 or now - p.since >= 2 * half then p.before, p.violations, p.since = 0, 0, now
    elseif now - p.since >= half then p.before, p.violations, p.since = p.violations, 0, p.since + half end
    p.violations = p.violations + 1
    if p.violations + p.before < p.threshold then return end
    if p.ends > 0 and now - p.ends < p.window then p.step = math.min(p.step + 1, #p.multipliers - 1)
    else p.step = 0 end
    local multiplier = p.multipliers[p.step + 1] or p.multipliers[#p.multipliers]
    p.ends, p.violations, p.before = now + p.cool_down * multiplier, 0, 0
  end

  -- Writes what changed, to expire when it no longer matters.
  function penalties.write(all, now, ttl_fixed)
    for i = 1, #all do
      local p = all[i].penalty
      if p and p.changed then
        local ttl = ttl_fixed or math.min(math.max(1, math.ceil((math.max(p.ends, p.since) + p.window - now) / 1000)), 4e12)
        local value = struct.pack(">I4I7I7BI4", p.violations, p.since, p.ends, p.step, p.before)
        redis.call("SET", p.key, value, "PX", string.format("%.0f", ttl))
      end
    end
  end
end
