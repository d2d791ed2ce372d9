-- Decides any number of decisions over the buckets of one slot, in order, each all-or-nothing.
--
-- KEYS     the buckets, then the views of those that are worldwide, in the same order
-- ARGV[1]  empty; a test may give the time in microseconds, which is the server's TIME otherwise
-- ARGV[2]  23 bytes a bucket, big-endian: shape (4, the highest byte is the algorithm), permits (4), window in microseconds
--          (6), burst (4), queue (4), flags (1: bit 0 = worldwide)
-- ARGV[3]  the decisions: what to do (1: 0 charge, 1 only ask, 2 put without asking), number of charges (2), then for each
--          the bucket's place in KEYS (2), flags (1: bits 0-1 = peek, take, refund or lease; bit 2 = enforced; bits 3-7 =
--          a lease takes at most this part of what is free) and permits (5)
-- Reply    the time; a string with 1 or 0 for each decision, admitted or not; each bucket's value as it was before
--          (empty: none, or a log); each view (empty: none); then for each charge of a log or lease, in order, 35 bytes:
--          fits (1), remaining (7), reset (7), retry plus one (7, zero: never), used (7), returned or leased (6)
--          -1 and the places (2 bytes each) where a bucket of another shape was found; nothing is changed then
-- Mirrors  replay in src/store/redis/replay.rs, which also makes the verdicts from the values before

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
local count = #ARGV[2] / 23
local views = count
for i = 1, count do
  local shape, permits, window, burst, queue, flags = struct.unpack(">I4I4I6I4I4B", ARGV[2], i * 23 - 22)
  local b = {
    key = KEYS[i], shape = shape, kind = floor(shape / 16777216),
    permits = permits, window = window, burst = burst, queue = queue,
  }
  if not bucket_load(b) then strangers = (strangers or "") .. struct.pack(">I2", i) end
  if flags == 1 then
    views = views + 1
    local raw = redis.call("GET", KEYS[views])
    b.view = read_view(raw)
    reply[2 + views] = raw or ""
  end
  buckets[i] = b
  reply[2 + i] = b.raw
end
if strangers then return { -1, strangers } end

local PEEK, TAKE, REFUND, LEASE = 0, 1, 2, 3
local function tell(fits, remaining, reset, retry, used, moved)
  reply[#reply + 1] = struct.pack(">BI7I7I7I7I6", fits and 1 or 0, remaining, reset, retry, used, moved)
end

-- Takes what fits for the time being. Says whether everything enforced fits.
local function try(charges)
  local admitted = true
  for i = 1, #charges do
    local c = charges[i]
    local b = buckets[c.place]
    if not b.saved then b.saved = { b.at, b.first, b.second, b.changed } end
    local cost = c.kind == TAKE and c.permits or 0
    local fits = true
    if c.kind == LEASE then
      c.permits = math.min(c.permits, floor(bucket_free(b, now) / c.part))
      if c.permits > 0 then bucket_put(b, now, c.permits) end
      c.moved = c.permits
    elseif b.kind == SLIDING_LOG then
      fits, c.remaining, c.reset, c.retry, c.used = log_check(b, now, math.max(cost, 1), cost)
      -- A refund always fits, but its verdict is a peek's.
      c.fits = fits
      if c.kind == REFUND then fits = true end
      if fits then b.pending = b.pending + cost end
    elseif c.kind == REFUND then
      bucket_refund(b, now, c.permits)
    else
      fits = bucket_fits(b, now, math.max(cost, 1))
      if fits and cost > 0 then bucket_put(b, now, cost) end
    end
    c.taken = fits
    if not fits and c.enforced then admitted = false end
  end
  return admitted
end

-- Ends a trial: keeps it or undoes it. A log is changed only now, since its changes are calls.
local function settle(charges, keep)
  for i = 1, #charges do
    local c = charges[i]
    local b = buckets[c.place]
    if b.saved then
      if not keep then b.at, b.first, b.second, b.changed = b.saved[1], b.saved[2], b.saved[3], b.saved[4] end
      b.saved = nil
    end
    b.pending = 0
  end
  for i = 1, #charges do
    local c = charges[i]
    local b = buckets[c.place]
    if b.kind == SLIDING_LOG and c.kind ~= LEASE then
      c.moved = 0
      if keep and c.taken and c.kind == TAKE then
        bucket_put(b, now, c.permits)
        b.fresh = false
      elseif keep and c.kind == REFUND then
        c.moved = bucket_refund(b, now, c.permits)
      end
      tell(c.fits, c.remaining, c.reset, c.retry, c.used, c.moved)
    elseif c.kind == LEASE then
      tell(true, 0, 0, 0, 0, keep and c.moved or 0)
    end
  end
end

local at, verdicts, input = 1, {}, ARGV[3]
while at <= #input do
  local action, length
  action, length, at = struct.unpack(">BI2", input, at)
  local charges = {}
  for i = 1, length do
    local place_, flags, permits
    place_, flags, permits, at = struct.unpack(">I2BI5", input, at)
    charges[i] = {
      place = place_, permits = permits, kind = flags % 4,
      enforced = floor(flags / 4) % 2 == 1, part = math.max(1, floor(flags / 8)),
    }
  end
  if action == 2 then
    for i = 1, length do
      local b = buckets[charges[i].place]
      if charges[i].kind == REFUND then bucket_refund(b, now, charges[i].permits)
      else bucket_put(b, now, charges[i].permits) b.fresh = false end
    end
    verdicts[#verdicts + 1] = "1"
  else
    local admitted = try(charges)
    settle(charges, admitted and action == 0)
    verdicts[#verdicts + 1] = admitted and "1" or "0"
  end
end
for i = 1, count do
  if buckets[i].changed then bucket_write(buckets[i], now, ttl_fixed) end
end
reply[2] = table.concat(verdicts)
return reply
