-- One step on the rights of an escrow rule's bucket, atomic with the decisions on it: reads, gives or takes.
--
-- KEYS     the bucket, its rights
-- ARGV[1]  as in decide.lua
-- ARGV[2]  the bucket, 23 bytes as in decide.lua
-- ARGV[3]  the replication epochs that the caller knows, 55 bytes each: replication id (40), since when in
--          microseconds (7), the mark of the memory (8), see ledger.lua
-- ARGV[4]  the step: first (7: of rights of a window its index; of a level how many permits a take may keep
--          beyond the capacity; of places the instant at which the reason was heard), kind (1: 0 read, 1
--          give, 2 take, 3 acknowledge, 4 open a session, 5 confirm the recovery, 6 give back), the other
--          region's session (8), the session of ours that it is meant for (8), permits (7), then the other
--          region's name. To
--          open a session says in the last two numbers what the region gave and has, each plus one, zero
--          where it did not say; to confirm the recovery names all regions, each after its length
-- ARGV[7]  see calendar.lua; [5] and [6] are empty where it is given
-- Reply    the time; the rights after it, see ledger.lua; what is used in their window; the own session (8);
--          the replication epoch (55) if the caller did not know it, or an empty string
--          of places the value of places.lua, and how many are held; what slides has them, too
--          -1 where the key holds a bucket of another shape, or without windows where it is too early to name
--          this memory
-- Mirrors  WindowLedger::carry_out of src/core/regions/escrow/window.rs; without windows
--          LevelTerms::carry_out of level.rs and places.rs beside it

local now = ARGV[1]
local ttl_fixed
if now == "" then
  local time = redis.call("TIME")
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
else
  now = tonumber(now)
  ttl_fixed = 60000
end
local GIVE, TAKE, ACKNOWLEDGE = 1, 2, 3
local TOTALS_MAX = 128

local shape, permits, window, burst, queue = struct.unpack(">I4I4I6I4I4", ARGV[2])
local b = {
  key = KEYS[1], rights = KEYS[2], shape = shape, kind = floor(shape / 16777216),
  permits = permits, window = window, burst = burst, queue = queue, stretches = calendars and calendars[1],
}
if not bucket_load(b) then return { -1 } end
local epoch = read_epoch(ARGV[3], now)
rights_terms(b, epoch, now)

local first, kind, session, own, amount, next_at = struct.unpack(">I7Bc8c8I7", ARGV[4])
local region = string.sub(ARGV[4], next_at)
local GIVEN, TAKEN, ACKNOWLEDGED, KEPT_BEYOND = 0, 1, 2, 3

if b.hold then
  if now < b.doubt then return { -1 } end
  places_terms(b, epoch, now, true)
  local held
  if b.kind == SLIDING_LOG then held = log_used(b, now)
  elseif b.kind == SLIDING_WINDOW then held = sliding_window_used(b, now)
  else held = b.len and b.len - redis.call("ZCOUNT", b.key, "-inf", string.format("%.0f", now)) or 0 end
  local step = { at = first, kind = kind, session = session, own = own, amount = amount, region = region }
  local value, own_session, kept = places_step(b, epoch, held, now, step)
  local ttl = ttl_fixed or math.ceil(kept / 1000)
  redis.call("SET", b.rights, value, "PX", string.format("%.0f", ttl))
  return { now, value, held, own_session, epoch.learned or "" }
end

-- A total that outgrows 5 bytes takes 7, and its kind says so. It runs for a whole session of a level.
local WIDE, NARROW_MAX = 16, 1099511627775

local function form(kind_of)
  return kind_of >= WIDE and ">Bc8I7B" or ">Bc8I5B"
end

local function pack_entry(kind_of, raw, total, name)
  local written = total > NARROW_MAX and kind_of + WIDE or kind_of
  return struct.pack(form(written), written, raw, total, #name) .. name
end

-- The ledger of a bucket without windows has of each kind one entry for a region: that of its latest session,
-- which has the largest number.
local function number_of(raw)
  local high, low = struct.unpack(">I4I4", raw)
  return high * 4294967296 + low
end

local function read_entries(raw)
  local entries, from = {}, 1
  while from <= #raw do
    local e, length, name_at = {}
    e.kind, e.session, e.permits, length, name_at = struct.unpack(form(string.byte(raw, from)), raw, from)
    e.kind = e.kind % WIDE
    from = name_at + length
    e.region = string.sub(raw, name_at, from - 1)
    entries[#entries + 1] = e
  end
  return entries
end

local function write_entries(entries)
  local parts = {}
  for i = 1, #entries do
    local e = entries[i]
    parts[i] = pack_entry(e.kind, e.session, e.permits, e.region)
  end
  return table.concat(parts)
end

-- The entry of a kind and region, and how many regions have one.
local function find_entry(entries, wanted, name)
  local found, count = nil, 0
  for i = 1, #entries do
    if entries[i].kind == wanted then
      count = count + 1
      if entries[i].region == name then found = entries[i] end
    end
  end
  return found, count
end

-- Follows a region into a later session. False: the session is over, or there is no room for another region.
local function enter_session(entries, name, raw)
  local given, count = find_entry(entries, GIVEN, name)
  if not given then
    if count >= TOTALS_MAX then return false end
    entries[#entries + 1] = { kind = GIVEN, session = raw, permits = 0, region = name }
    entries[#entries + 1] = { kind = ACKNOWLEDGED, session = raw, permits = 0, region = name }
    return true
  end
  if given.session == raw then return true end
  if number_of(given.session) > number_of(raw) then return false end
  local known = find_entry(entries, ACKNOWLEDGED, name)
  given.session, given.permits, known.session, known.permits = raw, 0, raw, 0
  return true
end

-- Permits that had not come before, of `total` that a region sent in all.
local function receive(entries, name, raw, total)
  local taken, count = find_entry(entries, TAKEN, name)
  if not taken then
    if count >= TOTALS_MAX then return 0 end
    entries[#entries + 1] = { kind = TAKEN, session = raw, permits = total, region = name }
    return total
  end
  if taken.session == raw then
    local came = math.max(0, total - taken.permits)
    taken.permits = taken.permits + came
    return came
  end
  if number_of(taken.session) > number_of(raw) then return 0 end
  taken.session, taken.permits = raw, total
  return total
end

-- Keeps permits of a region's session beyond the capacity. False: there is no room to note it.
local function keep(entries, name, raw, amount_kept)
  local count = 0
  for i = 1, #entries do
    local e = entries[i]
    if e.kind == KEPT_BEYOND then
      count = count + 1
      if e.region == name and e.session == raw then
        e.permits = e.permits + amount_kept
        return true
      end
    end
  end
  if count >= TOTALS_MAX then return false end
  entries[#entries + 1] = { kind = KEPT_BEYOND, session = raw, permits = amount_kept, region = name }
  return true
end

local function charged(entries)
  local sum = 0
  for i = 1, #entries do
    local e = entries[i]
    if e.kind == GIVEN then sum = sum + e.permits - find_entry(entries, ACKNOWLEDGED, e.region).permits end
  end
  return sum
end

if b.kind ~= FIXED_WINDOW then
  if now < epoch.begun + DOUBT_MARGIN then return { -1 } end
  local l = b.ledger
    or { window = 0, epoch = epoch.id, given = 0, taken = 0, closed_window = now, closed_used = 0, entries = "" }
  local own_session = struct.pack(">I8", l.closed_window)
  local entries = read_entries(l.entries)
  -- What of the level's use is no charge: so much finds room.
  local function used_freely()
    local whole, part = level_amount(b, now)
    return math.max(0, whole + (part > 0 and 1 or 0) - math.min(l.given + b.doubt, level_capacity(b)))
  end
  if l.taken > 0 then
    -- From here on so much of the room beyond the capacity is the givers' again, and what was used of it.
    local back = now >= kept_until(l) and l.taken or math.min(used_freely(), l.taken)
    level_refund(b, now, back)
    l.taken = l.taken - back
    local rest = {}
    for i = 1, #entries do
      local e = entries[i]
      if e.kind == KEPT_BEYOND then
        local cut = math.min(back, e.permits)
        e.permits, back = e.permits - cut, back - cut
      end
      if e.kind ~= KEPT_BEYOND or e.permits > 0 then rest[#rest + 1] = e end
    end
    entries = rest
    if l.taken == 0 then l.closed_used = 0 end
    b.kept = l.taken
    level_raise(b, now)
  end
  local charged_max = under_way_max(level_capacity(b))
  if kind == GIVE then
    if amount > 0 and amount <= charged_max - l.given and amount <= level_free(b, now)
      and enter_session(entries, region, session) then
      local given = find_entry(entries, GIVEN, region)
      given.permits = given.permits + amount
      level_put(b, now, amount)
    end
  elseif kind == TAKE and own == own_session then
    local came = receive(entries, region, session, amount)
    local kept = math.min(math.max(0, came - used_freely()), math.max(0, first - l.taken))
    if kept > 0 and keep(entries, region, session, kept) then
      if l.taken == 0 then
        l.closed_used = math.max(0, floor((now + KEPT_LIFE) / 1000) - floor(l.closed_window / 1000))
      end
      l.taken = l.taken + kept
      b.kept = now < kept_until(l) and l.taken or 0
    else
      kept = 0
    end
    level_refund(b, now, came - kept)
  elseif kind == ACKNOWLEDGE and enter_session(entries, region, session) then
    local known = find_entry(entries, ACKNOWLEDGED, region)
    known.permits = math.max(known.permits, math.min(amount, find_entry(entries, GIVEN, region).permits))
  end
  l.minted = level_capacity(b) - b.doubt
  l.given, l.entries = charged(entries), write_entries(entries)
  b.ledger = l
  level_raise(b, now)
  -- As it was raised under the charges before: a level does not drain the faster for having been charged.
  bucket_write(b, now, ttl_fixed, KEPT)
  local value = write_ledger(l)
  -- Nothing that was sent from this ledger may arrive after it is forgotten.
  redis.call("SET", b.rights, value, "PX", string.format("%.0f", ttl_fixed or 2 * MESSAGE_LIFE / 1000))
  return { now, value, math.max(0, l.minted + l.taken - level_free(b, now)), own_session, epoch.learned or "" }
end

local at = b.view.window
local mint = minted(b, epoch, at, b.ledger)
local l = b.ledger
  or { window = at, epoch = epoch.id, minted = mint, given = 0, taken = 0, closed_window = 0, closed_used = 0, entries = "" }
ledger_enter(l, epoch, at, mint, rights_used(b, l.window, ledger_budget(l)))
l.minted = math.min(l.minted, b.burst)
local used = rights_used(b, at, ledger_budget(l))

-- Changes the total of one region and session. Returns by how much it grew.
local function change(wanted, change_by)
  local entries, count, from = l.entries, 0, 1
  while from <= #entries do
    local entry_kind, entry_session, total, length, name_at =
      struct.unpack(form(string.byte(entries, from)), entries, from)
    local name = string.sub(entries, name_at, name_at + length - 1)
    local after = name_at + length
    if entry_kind % WIDE == wanted then
      count = count + 1
      if entry_session == session and name == region then
        local grown = change_by(total) - total
        if grown <= 0 then return 0 end
        l.entries = string.sub(entries, 1, from - 1)
          .. pack_entry(wanted, session, total + grown, region)
          .. string.sub(entries, after)
        return grown
      end
    end
    from = after
  end
  local total = change_by(0)
  if count >= TOTALS_MAX or total <= 0 then return 0 end
  l.entries = entries .. pack_entry(wanted, session, total, region)
  return total
end

if first == at then
  if kind == GIVE and amount > 0 and amount <= ledger_budget(l) - used then
    l.given = l.given + change(0, function(total) return total + amount end)
  elseif kind == TAKE and own == session_of(epoch) then
    l.taken = l.taken + change(1, function(total) return math.max(total, amount) end)
  end
  if l.given > NARROW_MAX or l.taken > NARROW_MAX then
    -- Only their difference counts, and the entries say the rest.
    local both = math.min(l.given, l.taken)
    l.given, l.taken = l.given - both, math.min(l.taken - both, NARROW_MAX)
  end
end

if b.debt > 0 and l.window == at then
  -- New permits pay the debt first.
  b.view.budget = math.min(ledger_budget(l), U32_MAX)
  bucket_settle(b, math.max(now, window_start(b, at)))
  bucket_write(b, now, ttl_fixed, KEPT)
  used = rights_used(b, at, ledger_budget(l))
end

-- It says how its window ended until the next one ends.
local value = write_ledger(l)
local ttl = ttl_fixed or math.min(math.max(1, math.ceil((window_start(b, at + 2) + KEPT - now) / 1000)), 4e12)
redis.call("SET", b.rights, value, "PX", string.format("%.0f", ttl))
return { now, value, used, session_of(epoch), epoch.learned or "" }
