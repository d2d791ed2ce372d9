-- One bucket, whichever way it counts: read once, changed in memory, written once.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua. A value begins with the shape (4 bytes: the
-- algorithm, then a hash of domain and window), then the newest instant seen (7 bytes), then for fixed_window
-- its count (4), for sliding_window both counts (4, 4), for both what is owed (4) where something is, for a
-- level whole permits and the part of one (4, 6), last the earliest lapse (7) where something is reserved
-- (see notes.lua; what is owed stands before it in any case), and of a level, behind a lapse that is zero
-- where there is none, what undone charges gave back (4, modulo 2^32); big-endian. The log is a list, see
-- sliding_log.lua; the holders of concurrency are a sorted set, see holders.lua.
-- Mirrors: State of src/core/algorithm/mod.rs and the packing of src/core/algorithm/packed.rs.

-- Reads the state. False where the key holds another shape's bucket.
local function bucket_load(b)
  b.at, b.first, b.second, b.debt, b.pending, b.raw = 0, 0, 0, 0, 0, ""
  local kind = b.kind
  local raw
  if kind == SLIDING_LOG then
    b.base, b.len, b.newest, b.total, b.fresh = 0, 0, 0, 0, true
    raw = redis.pcall("LINDEX", b.key, 0)
  elseif kind == CONCURRENCY then
    raw = redis.pcall("ZCARD", b.key)
    if type(raw) == "number" then
      b.len = raw
      return true
    end
  else
    raw = redis.pcall("GET", b.key)
  end
  if not raw then return true end
  if raw.err then
    if not string.find(raw.err, "WRONGTYPE", 1, true) then
      -- No other type, but no permission: say it as Redis does.
      if kind == SLIDING_LOG then redis.call("LINDEX", b.key, 0)
      elseif kind == CONCURRENCY then redis.call("ZCARD", b.key)
      else redis.call("GET", b.key) end
    end
    return false
  end
  if struct.unpack(">I4", raw) ~= b.shape then return false end
  if kind == SLIDING_LOG then
    b.fresh = false
    log_load(b, raw)
    return true
  end
  b.raw = raw
  local _
  if kind == FIXED_WINDOW then
    _, b.at, b.first = struct.unpack(">I4I7I4", raw)
    if #raw > 15 then
      b.debt = struct.unpack(">I4", raw, 16)
      if #raw > 19 then b.due = struct.unpack(">I7", raw, 20) end
    end
  elseif kind == SLIDING_WINDOW then
    _, b.at, b.first, b.second = struct.unpack(">I4I7I4I4", raw)
    if #raw > 19 then
      b.debt = struct.unpack(">I4", raw, 20)
      if #raw > 23 then b.due = struct.unpack(">I7", raw, 24) end
    end
  else
    _, b.at, b.first, b.second = struct.unpack(">I4I7I4I6", raw)
    if #raw > 21 then level_read_tail(b, raw) end
  end
  return true
end

-- A clock that shows so much less than a bucket has seen was set back. Then nobody knows any more what the
-- bucket had counted, and it is used up now. Mirrors: State::brought_back and bring_places_back of
-- src/core/algorithm/brought_back.rs.
local SET_BACK_ABOVE = 5000000
local function bucket_bring_back(b, now)
  local ahead, kind = b.at - now, b.kind
  if kind == CONCURRENCY then return held_bring_back(b, now) end
  if ahead <= SET_BACK_ABOVE then return end
  local windows = 2
  if counts_by_level(b) then windows = b.permits == 0 and 1 or floor(level_capacity(b) / b.permits) + 1 end
  if ahead <= b.window * windows then return end
  if kind == SLIDING_LOG then
    local used = math.max(log_used(b, b.at), b.permits)
    redis.call("DEL", b.key)
    b.at, b.base, b.len, b.newest, b.total, b.fresh = 0, 0, 0, 0, 0, true
    if used > 0 then log_put(b, now, used) end
    return
  end
  if counts_by_level(b) then
    local capacity = level_capacity(b)
    if b.first < capacity then b.first, b.second = capacity, 0 end
  else
    b.first = math.max(b.first, b.permits)
    if kind == SLIDING_WINDOW then b.second = 0 end
  end
  b.at, b.changed = now, true
end

local function bucket_free(b, now)
  if b.kind == FIXED_WINDOW then return fixed_window_free(b, now) end
  if b.kind == SLIDING_WINDOW then return sliding_window_free(b, now) end
  if b.kind == SLIDING_LOG then return 0 end
  return level_free(b, now)
end

local function bucket_fits(b, now, asked)
  return asked <= bucket_free(b, now)
end

local function window_report(b, now, cost, debt_max)
  b.changed = true
  if b.kind == FIXED_WINDOW then return fixed_window_report(b, now, cost, debt_max) end
  return sliding_window_report(b, now, cost, debt_max)
end

-- Pays what is owed from what a view leaves in the window.
local function bucket_settle(b, now)
  if b.debt > 0 then window_report(b, now, 0, 0) end
end

-- Charges whatever is left. Returns what was charged. A limit of zero would never pay a debt.
local function bucket_report(b, now, cost, debt_max)
  if b.limit == 0 and (b.kind ~= FIXED_WINDOW or debt_max ~= U32_MAX) then
    bucket_settle(b, now)
    return 0
  end
  if b.kind == FIXED_WINDOW or b.kind == SLIDING_WINDOW then return window_report(b, now, cost, debt_max) end
  local charged
  if b.kind == SLIDING_LOG then charged = log_report(b, now, cost, debt_max)
  else charged = level_report(b, now, cost, debt_max) end
  if charged > 0 then b.changed = true end
  return charged
end

local function bucket_put(b, now, cost)
  b.changed = true
  bucket_settle(b, now)
  if b.kind == FIXED_WINDOW then return fixed_window_put(b, now, cost) end
  if b.kind == SLIDING_WINDOW then return sliding_window_put(b, now, cost) end
  if b.kind == SLIDING_LOG then return log_put(b, now, cost) end
  return level_put(b, now, cost)
end

-- Permits that could be given back, a started one of a level counted. Mirrors: State::returnable of
-- src/core/algorithm/mod.rs.
local function bucket_returnable(b, now)
  if b.kind == FIXED_WINDOW then return fixed_window_returnable(b, now) end
  if b.kind == SLIDING_WINDOW then return sliding_window_returnable(b, now) end
  local whole, part = level_amount(b, now)
  return (part > 0 and whole + 1 or whole) - (b.rights and level_unreturnable(b) or 0)
end

-- Gives back what of an earlier charge still counts, in the window that counted it. Returns how many permits.
local function bucket_give_back(b, now, at, cost)
  if b.kind == SLIDING_LOG then return log_give_back(b, now, at, cost) end
  local _, window = place(b, math.max(now, b.at))
  local _, own = place(b, at)
  if own ~= window then return 0 end
  if b.kind == FIXED_WINDOW then return fixed_window_refund(b, now, cost) end
  return sliding_window_refund(b, now, cost)
end

-- `of` is the charge that goes back, where it is named.
local function bucket_refund(b, now, cost, of)
  local returned
  bucket_settle(b, now)
  if of then
    if counts_by_level(b) then return level_undo(b, now, cost, of) end
    returned = bucket_give_back(b, now, of.at, cost)
    if returned > 0 then b.changed = true end
    return returned
  end
  if b.kind == FIXED_WINDOW then returned = fixed_window_refund(b, now, cost)
  elseif b.kind == SLIDING_WINDOW then returned = sliding_window_refund(b, now, cost)
  elseif b.kind == SLIDING_LOG then returned = log_refund(b, now, cost)
  else returned = level_refund(b, now, cost) end
  if returned > 0 then b.changed = true end
  return returned
end

-- Counts at least so much as used: the store forgot a part of what its region had used.
-- Mirrors: State::restore of src/core/algorithm/restored.rs.
local function bucket_restore(b, now, known)
  if b.kind == FIXED_WINDOW then fixed_window_restore(b, now, known)
  elseif b.kind == SLIDING_WINDOW then sliding_window_restore(b, now, known)
  elseif b.kind == SLIDING_LOG then log_restore(b, now, known)
  elseif b.kind ~= CONCURRENCY then level_restore(b, now, known)
  end
end

-- Milliseconds until a bucket can no longer matter, and `kept` microseconds more.
local function bucket_ttl(b, now, kept)
  local expiry
  if b.kind == FIXED_WINDOW then expiry = fixed_window_expiry(b)
  elseif b.kind == SLIDING_WINDOW then expiry = sliding_window_expiry(b)
  elseif b.kind == SLIDING_LOG then expiry = log_expiry(b)
  elseif b.kind == CONCURRENCY then expiry = b.newest
  else expiry = level_expiry(b) + (b.undone and level_undone_kept(b) or 0)
  end
  return math.min(math.max(1, math.ceil((expiry + kept - now) / 1000)), 4e12)
end

-- Writes what changed, to expire `kept` microseconds after it can no longer matter, to the next millisecond.
-- A clock given by a test says nothing of the server's, so there it stays for a minute.
local function bucket_write(b, now, ttl_fixed, kept)
  local value
  if b.kind == FIXED_WINDOW then
    value = struct.pack(">I4I7I4", b.shape, b.at, b.first) .. pack_debt(b)
  elseif b.kind == SLIDING_WINDOW then
    value = struct.pack(">I4I7I4I4", b.shape, b.at, b.first, b.second) .. pack_debt(b)
  elseif counts_by_level(b) then
    value = struct.pack(">I4I7I4I6", b.shape, b.at, b.first, b.second) .. level_tail(b)
  end
  local ttl = string.format("%.0f", ttl_fixed or bucket_ttl(b, now, kept))
  if value then
    redis.call("SET", b.key, value, "PX", ttl)
  else
    redis.call("PEXPIRE", b.key, ttl)
  end
end

-- Keeps a bucket that denies for as long as it has told: since it was charged the limit may have become a
-- lower one, at whose pace it takes longer until nothing is left of a level or a debt.
-- Mirrors: KeySlot::keep_denied of src/store/slot.rs.
local function bucket_keep_denied(b, now, kept)
  if b.raw == "" or not (counts_by_level(b) or b.debt > 0) then return end
  redis.call("PEXPIRE", b.key, string.format("%.0f", bucket_ttl(b, now, kept)))
end
