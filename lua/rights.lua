-- One step on the rights of an escrow rule's bucket, atomic with the decisions on it: reads, gives or takes.
--
-- KEYS     the bucket, its rights
-- ARGV[1]  as in decide.lua
-- ARGV[2]  the bucket, 23 bytes as in decide.lua
-- ARGV[3]  the stints that the caller knows, 47 bytes each: replication id (40), since when in microseconds (7)
-- ARGV[4]  the step: window (7), kind (1: 0 read, 1 give, 2 take), the other region's session (8), the session of ours that
--          it is meant for (8), permits (5), then the other region's name
-- Reply    the time; the rights after it, see ledger.lua; what is used in their window; the own session (8); the stint (47)
--          if the caller did not know it, or an empty string
--          -1 where the key holds a bucket of another shape
-- Mirrors  Ledger::carry_out of src/core/worldwide/escrow/ledger.rs

local now = ARGV[1]
local ttl_fixed
if now == "" then
  local time = redis.call("TIME")
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
else
  now = tonumber(now)
  ttl_fixed = 60000
end
local READ, GIVE, TAKE = 0, 1, 2
local TOTALS_MAX = 128

local shape, permits, window, burst, queue = struct.unpack(">I4I4I6I4I4", ARGV[2])
local b = {
  key = KEYS[1], rights = KEYS[2], shape = shape, kind = floor(shape / 16777216),
  permits = permits, window = window, burst = burst, queue = queue,
}
if b.kind ~= FIXED_WINDOW or not bucket_load(b) then return { -1 } end
local stint = read_stint(ARGV[3], now)
rights_terms(b, stint, now)
local at = b.view.window
local mint = minted(b, stint, at)
local l = b.ledger
  or { window = at, stint = stint.id, minted = mint, given = 0, taken = 0, closed_window = 0, closed_used = 0, entries = "" }
ledger_enter(l, stint, at, mint, rights_used(b, l.window))
l.minted = math.min(l.minted, b.burst)
local used = rights_used(b, at)

local for_window, kind, session, own, amount, next_at = struct.unpack(">I7Bc8c8I5", ARGV[4])
local region = string.sub(ARGV[4], next_at)

-- Changes the total of one region and session. Returns by how much it grew.
local function change(wanted, change_by)
  local entries, count, from = l.entries, 0, 1
  while from <= #entries do
    local entry_kind, entry_session, total, length, name_at = struct.unpack(">Bc8I5B", entries, from)
    local name = string.sub(entries, name_at, name_at + length - 1)
    local after = name_at + length
    if entry_kind == wanted then
      count = count + 1
      if entry_session == session and name == region then
        local grown = change_by(total) - total
        if grown <= 0 then return 0 end
        l.entries = string.sub(entries, 1, from - 1)
          .. struct.pack(">Bc8I5B", wanted, session, total + grown, #region) .. region
          .. string.sub(entries, after)
        return grown
      end
    end
    from = after
  end
  local total = change_by(0)
  if count >= TOTALS_MAX or total <= 0 then return 0 end
  l.entries = entries .. struct.pack(">Bc8I5B", wanted, session, total, #region) .. region
  return total
end

if for_window == at then
  if kind == GIVE and amount > 0 and amount <= ledger_budget(l) - used then
    l.given = l.given + change(0, function(total) return total + amount end)
  elseif kind == TAKE and own == session_of(stint) then
    l.taken = l.taken + change(1, function(total) return math.max(total, amount) end)
  end
end

-- It says how its window ended until the next one ends.
local value = write_ledger(l)
local ttl = ttl_fixed or math.min(math.max(1, math.ceil(((at + 2) * window + KEPT - now) / 1000)), 4e12)
redis.call("SET", b.rights, value, "PX", string.format("%.0f", ttl))
return { now, value, used, session_of(stint), stint.learned or "" }
