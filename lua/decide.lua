-- Decides any number of decisions over the buckets of one slot, in order, each all-or-nothing.
--
-- KEYS     the buckets, then the views of those that are worldwide, in the same order, then two of each
--          bucket whose notes are looked at, see notes.lua, then one of each whose rule has a penalty
-- ARGV[1]  empty; a test may give the time in microseconds, which is the server's TIME otherwise
-- ARGV[2]  23 bytes a bucket, big-endian: shape (4, the highest byte is the algorithm), permits (4), window
--          in microseconds (6), burst (4; of windows and places what is this region's own of permits), queue
--          (4), flags (1: 1 = worldwide, 2 = escrow: the key in the place of a view holds its rights, 3 = the
--          same, but held to a static share; 4 more = a refund gives back all or nothing)
-- ARGV[3]  the decisions: what to do (1: 0 charge, 1 only ask, 2 put without asking, 3 only look, whatever
--          has lapsed, 4 count at least so much of a single bucket as used: behind its charge follow the
--          window (7), what was used in it (5) and in the one before (5)), number of charges (2), then for
--          each the bucket's place in KEYS (2), flags (1: bits 0-1 = peek, take, refund or lease; bit 2 =
--          enforced; bits 3-7 = a lease takes at most this part of what is free; of a refund: 1 = of one
--          charge that is named behind; of a take: 1 = a report, charged whatever is left, 2 = a reservation,
--          3 = its commit, 4 = a take of a bucket whose notes are looked at, 5 = a reservation whose permits
--          stay charged when it lapses) and permits (5), of a report the most that may be owed (4), of a
--          named charge the instant that it counts at (7), whole permits in use then (5) and what undone
--          charges had given back (4), of a reservation its id (16) and microseconds until its note ends (4),
--          of a commit the id and the most that may be owed, and of concurrency the holder (16; there a take
--          acquires, a refund releases and a lease renews)
-- ARGV[4]  the replication epochs that the caller knows, see rights.lua; empty where nothing is escrowed
-- ARGV[5]  keys that this server may hold before no new ones are made; absent or empty for no bound
-- ARGV[6]  4 bytes a view, in the order of the views: what this region may use while no view speaks of now;
--          all bits set, empty or absent for all of it
-- ARGV[7]  the calendars, see calendar.lua; absent or empty where no bucket counts by one
-- ARGV[8]  see notes.lua; absent or empty where no notes are looked at
-- ARGV[9]  see penalty.lua; absent or empty where no rule has a penalty
-- Reply    the time; a string with 1 or 0 for each decision, admitted or not, or 2 where it found no room for
--          a new key, or 3 where it did not fit and something reserved has lapsed: then nothing was decided,
--          and who asks again has the notes looked at; each bucket's value as it was before (empty: none, or
--          holders; of a log the shape and the newest instant seen); each view (empty: none; of a level under
--          escrow the permits that may be used beyond the capacity (5) and that no refund gives back (6));
--          each record of a penalty as it was before (empty: none), see penalty.lua;
--          then for each charge of a log, of holders or of a lease, in order, 35 bytes: fits (1), remaining
--          (7), reset (7), retry plus one (7, zero: never), used (7), returned, leased, reported or moved
--          (6); where notes are looked at so of every charge, and behind it what became of the reservation
--          (1), the permits that had lapsed (6) and that were reserved (6), of a level the part of a permit
--          that was given back besides (6), and the bucket's value without its shape as it was asked; last,
--          55 bytes of a replication epoch that the caller did not know
--          -1 and the places (2 bytes each) where a bucket of another shape was found; nothing is changed
--          then
-- Mirrors  replay in src/store/redis/batch/replay.rs, which also makes the verdicts from the values before

local now = ARGV[1]
local ttl_fixed
if now == "" then
  local time = redis.call("TIME")
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
else
  now = tonumber(now)
  ttl_fixed = 60000
end

local buckets, reply, strangers = {}, { now, "" }, nil
local epoch
local count = #ARGV[2] / 23
local views = count
for i = 1, count do
  local shape, permits, window, burst, queue, flags = struct.unpack(">I4I4I6I4I4B", ARGV[2], i * 23 - 22)
  local b = {
    key = KEYS[i], shape = shape, kind = floor(shape / 16777216),
    permits = permits, limit = permits, window = window, burst = burst, queue = queue,
    stretches = calendars and calendars[i],
  }
  b.all_or_nothing = flags >= 4
  if b.all_or_nothing then flags = flags - 4 end
  if not bucket_load(b) then strangers = (strangers or "") .. struct.pack(">I2", i) end
  if flags == 1 then
    views = views + 1
    b.gossip = true
    local raw = redis.call("GET", KEYS[views])
    b.view = read_view(raw)
    if counts_by_level(b) then level_view(b) end
    if view_in_force then
      local first = struct.unpack(">I4", ARGV[6], (views - count) * 4 - 3)
      b.view = view_in_force(b, b.view, first, now)
    end
    reply[2 + views] = raw or ""
    bucket_bring_back(b, now)
  elseif flags == 2 or flags == 3 then
    views = views + 1
    epoch = epoch or read_epoch(ARGV[4], now)
    b.rights = KEYS[views]
    b.before_at, b.before_first, b.before_debt = b.at, b.first, b.debt
    rights_terms(b, epoch, now)
    if b.kind == CONCURRENCY then bucket_bring_back(b, now) end
    if b.hold then places_terms(b, epoch, now, flags == 2) end
    if slides(b) then
      b.most = b.permits
      -- Permits that an earlier memory of this region admitted may still count.
      if now < b.doubt then b.permits, b.shut = 0, b.doubt - now end
      reply[2 + views] = struct.pack(">I5I7", b.permits, b.shut or 0)
    else
      reply[2 + views] = counts_by_level(b) and struct.pack(">I5I6", b.kept, level_unreturnable(b)) or pack_view(b.view)
    end
  else
    bucket_bring_back(b, now)
  end
  buckets[i] = b
  reply[2 + i] = b.kind == SLIDING_LOG and not b.fresh and struct.pack(">I4I7", shape, b.at) or b.raw
end
if strangers then return { -1, strangers } end
local noted_keys = notes and notes.open(buckets, views, ttl_fixed) or 0
if penalties then penalties.open(buckets, views + noted_keys, reply, now) end

local PEEK, TAKE, REFUND, LEASE, REPORT = 0, 1, 2, 3, 4

-- A decision that would make a key beyond the bound is left to the caller, and changes nothing. The server is
-- asked how many keys it holds only where one is to be made. Who may not ask that has no bound.
local bound, held = tonumber(ARGV[5] or ""), nil
local function is_new(b)
  if b.roomed then return false end
  if b.kind == SLIDING_LOG then return b.fresh end
  if b.kind == CONCURRENCY then return b.len == 0 end
  return b.raw == ""
end
local function room_for(more)
  if more == 0 or not bound then return true end
  if not held then
    held = redis.pcall("DBSIZE")
    if type(held) ~= "number" then
      bound = nil
      return true
    end
  end
  if held + more > bound then return false end
  held = held + more
  return true
end
local function room_for_all(charges)
  local more = 0
  for i = 1, #charges do
    local c = charges[i]
    local b = buckets[c.place]
    local makes = c.kind == TAKE or c.kind == REPORT or (c.kind == LEASE and b.kind ~= CONCURRENCY)
    if c.id then more, makes = more + b.noted.missing(b), c.permits > 0 end
    if makes and is_new(b) then more = more + 1 end
  end
  if not room_for(more) then return false end
  for i = 1, #charges do buckets[charges[i].place].roomed = true end
  return true
end
local function tell(fits, remaining, reset, retry, used, moved)
  reply[#reply + 1] = struct.pack(">BI7I7I7I7I6", fits and 1 or 0, remaining, reset, retry, used, moved)
end

-- Asks every bucket; what the decision already takes from one counts against it. Says whether everything
-- enforced fits, and whether something does not while reservations have lapsed of which nothing is known
-- here.
local function look(charges)
  local admitted, lapsed, i = true, false, 1
  while i <= #charges do
    local c = charges[i]
    local b = buckets[c.place]
    local takes = c.kind == TAKE or c.kind == REPORT
    local cost = b.pending + (takes and c.permits or 0)
    if c.id then
      b.noted.look(b, now, c)
    elseif b.kind == CONCURRENCY then
      held_check(b, now, c, cost)
      if c.kind == PEEK then c.fits = c.remaining > 0 end
    elseif b.kind == SLIDING_LOG then
      c.fits, c.remaining, c.reset, c.retry = log_check(b, now, cost)
      if c.kind == PEEK then c.fits = c.remaining > 0 end
      if c.kind == REFUND or c.kind == LEASE then
        c.fits, c.retry = c.kind == LEASE or not b.all_or_nothing or log_used(b, now) >= c.permits, 0
      end
    else
      c.fits = (c.kind == REFUND and (not b.all_or_nothing or bucket_returnable(b, now) >= c.permits)) or c.kind == LEASE
        or (c.kind ~= REFUND and bucket_fits(b, now, c.kind == PEEK and cost + 1 or cost))
    end
    if not c.fits and b.due and b.due <= now and b.noted and not c.lapsed then
      -- It is asked once more.
      c.lapsed = b.noted.lapse(b, now)
    else
      if b.noted then c.seen = b.noted.seen(b)
      elseif not c.fits and b.due and b.due <= now then lapsed = true end
      if b.penalty then b.penalty.close(b, now, c) end
      -- What is held already was counted when it was reserved.
      takes = takes or (c.id and c.kind == notes.RESERVE and not c.fate)
      if takes and c.fits then b.pending = b.pending + c.permits end
      if not c.fits and c.enforced then admitted = false end
      i = i + 1
    end
  end
  return admitted, lapsed
end

-- Charges what fits, if anything is to be charged, and reports in any case; tells of logs and leases.
local function settle(charges, admitted, action)
  local keep = admitted and action == 0
  for i = 1, #charges do buckets[charges[i].place].pending = 0 end
  for i = 1, #charges do
    local c = charges[i]
    local b = buckets[c.place]
    local moved = 0
    -- What is owed is paid whatever is decided, so that the other regions hear of it.
    if action == 0 and b.gossip and b.debt > 0 then bucket_settle(b, now) end
    if action == 0 and not c.fits then b.denied = true end
    if b.kind == CONCURRENCY then
      local released = keep and c.kind == REFUND
      if keep and c.fits and c.kind ~= PEEK then moved = held_step(b, now, c) end
      if released or (not admitted and c.kind == TAKE and c.fits) then
        c.remaining, c.reset, c.retry = math.max(0, b.permits - b.used), held_reset(b, now), 0
      end
    elseif c.kind == REPORT then
      if action == 0 then moved = bucket_report(b, now, c.permits, c.debt_max) end
    elseif c.id then
      moved = b.noted.settle(b, now, c, admitted, action)
    elseif keep and c.fits then
      if c.kind == TAKE then
        bucket_put(b, now, c.permits)
      elseif c.kind == REFUND then
        moved = bucket_refund(b, now, c.permits, c.of)
      elseif c.kind == LEASE then
        moved = math.min(c.permits, floor(bucket_free(b, now) / c.part))
        if moved > 0 then bucket_put(b, now, moved) end
      end
    end
    if b.kind == CONCURRENCY then
      tell(c.fits, c.remaining, c.reset, c.retry, b.used, moved)
    elseif c.kind == LEASE then
      tell(true, 0, 0, 0, 0, moved)
    elseif b.kind == SLIDING_LOG then
      local refunded = keep and c.kind == REFUND
      if refunded or (not admitted and c.kind == TAKE and c.fits) then
        local _
        _, c.remaining, c.reset = log_check(b, now, 0)
        c.retry = 0
      elseif c.kind == REPORT and action == 0 then
        local _
        _, c.remaining, c.reset, c.retry = log_check(b, now, 0)
        if c.fits then c.retry = 0 end
      end
      tell(c.fits, c.remaining, c.reset, c.retry, log_used(b, now), moved)
    elseif b.noted then
      tell(c.fits, 0, 0, 0, 0, moved)
    end
    if b.noted then reply[#reply] = reply[#reply] .. b.noted.tell(c) end
    -- Places that a holder has and acquires again, told as a reservation that is held already.
    if c.had then reply[#reply] = reply[#reply] .. struct.pack(">BI6I6I6", 2, 0, c.had, 0) end
    if b.penalty and action == 0 then b.penalty.settle(b, now, c, room_for, reply) end
  end
end

local at, verdicts, input = 1, {}, ARGV[3]
while at <= #input do
  local action, length
  action, length, at = struct.unpack(">BI2", input, at)
  local charges = {}
  local simple = false
  if length == 1 and action == 0 then
    -- The common decision, without a table for it.
    local place_, flags, permits, next_at = struct.unpack(">I2BI5", input, at)
    local b = buckets[place_]
    simple = flags % 4 == TAKE and flags < 8 and b.kind ~= SLIDING_LOG and b.kind ~= CONCURRENCY and not b.penalty
    if simple and bound and is_new(b) and not room_for(1) then
      verdicts[#verdicts + 1] = "2"
      at, length = next_at, 0
    elseif simple then
      b.roomed = true
      local fits = bucket_fits(b, now, permits)
      if fits then bucket_put(b, now, permits)
      else
        b.denied = true
        if b.gossip and b.debt > 0 then bucket_settle(b, now) end
      end
      if fits then verdicts[#verdicts + 1] = "1"
      elseif b.due and b.due <= now then verdicts[#verdicts + 1] = "3"
      else verdicts[#verdicts + 1] = flags < 4 and "1" or "0" end
      at, length = next_at, 0
    end
  end
  for i = 1, length do
    local place_, flags, permits
    place_, flags, permits, at = struct.unpack(">I2BI5", input, at)
    local holder, debt_max, id, kept, of
    local kind = flags % 4
    if kind == TAKE and flags >= 8 then
      if flags < 16 then
        kind, debt_max, at = REPORT, struct.unpack(">I4", input, at)
      elseif flags < 32 then
        kind = flags < 24 and notes.RESERVE or notes.COMMIT
        id, debt_max, at = struct.unpack(">c16I4", input, at)
      elseif flags >= 40 then
        kind, kept = notes.RESERVE, true
        id, debt_max, at = struct.unpack(">c16I4", input, at)
      end
    elseif kind == REFUND and flags >= 8 then
      of = {}
      of.at, of.used, of.undone, at = struct.unpack(">I7I5I4", input, at)
    end
    if buckets[place_].kind == CONCURRENCY then holder, at = struct.unpack("c16", input, at) end
    charges[i] = {
      place = place_, permits = permits, kind = kind, holder = holder, debt_max = debt_max,
      enforced = floor(flags / 4) % 2 == 1, part = math.max(1, floor(flags / 8)),
    }
    -- One more field would make each of these tables twice as large.
    if id then charges[i].id = id end
    if kept then charges[i].kept = true end
    if of then charges[i].of = of end
  end
  local known
  if action == 4 then
    known = {}
    known.window, known.used, known.before, at = struct.unpack(">I7I5I5", input, at)
  end
  if simple then
    -- Decided above.
  elseif bound and action % 2 == 0 and not room_for_all(charges) then
    verdicts[#verdicts + 1] = "2"
  elseif known then
    bucket_restore(buckets[charges[1].place], now, known)
    verdicts[#verdicts + 1] = "1"
  elseif action == 2 then
    for i = 1, length do
      local b = buckets[charges[i].place]
      if b.kind == CONCURRENCY then held_step(b, now, charges[i])
      elseif charges[i].kind == REFUND then bucket_refund(b, now, charges[i].permits, charges[i].of)
      elseif charges[i].kind == REPORT then bucket_report(b, now, charges[i].permits, charges[i].debt_max)
      elseif charges[i].id then
        charges[i].fits = true
        notes.settle(b, now, charges[i], true, 0)
        b.at, b.changed = math.max(b.at, now), true
      else bucket_put(b, now, charges[i].permits) end
    end
    verdicts[#verdicts + 1] = "1"
  else
    local admitted, lapsed = look(charges)
    if lapsed and action ~= 3 then
      for i = 1, length do buckets[charges[i].place].pending = 0 end
      verdicts[#verdicts + 1] = "3"
    else
      settle(charges, admitted, action)
      verdicts[#verdicts + 1] = admitted and "1" or "0"
    end
  end
end
if notes then notes.write(buckets, now) end
if penalties then penalties.write(buckets, now, ttl_fixed) end
for i = 1, count do
  local b = buckets[i]
  if b.changed then
    bucket_write(b, now, ttl_fixed, b.rights and KEPT or 0)
    -- The first charge of a window closes the one before.
    local l = b.view and b.ledger
    if l and b.view.window > l.window then
      local before = {
        window = b.window, permits = b.permits, view = b.view, at = b.before_at, first = b.before_first,
        debt = b.before_debt, stretches = b.stretches,
      }
      local used = rights_used(before, l.window, ledger_budget(l))
      ledger_enter(l, epoch, b.view.window, minted(b, epoch, b.view.window, l), used)
      local ttl = ttl_fixed or math.min(math.max(1, math.ceil((window_start(b, l.window + 2) + KEPT - now) / 1000)), 4e12)
      redis.call("SET", b.rights, write_ledger(l), "PX", string.format("%.0f", ttl))
    end
  elseif b.denied and not ttl_fixed then
    bucket_keep_denied(b, now, b.rights and KEPT or 0)
  end
end
if epoch and epoch.learned then reply[#reply + 1] = epoch.learned end
reply[2] = table.concat(verdicts)
return reply
