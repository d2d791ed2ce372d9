-- The rights of an escrow rule's bucket, and what of them this server can know.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua and rights.lua. The value lies beside the bucket:
-- window (7 bytes), replication epoch (40), minted (5), given (5), taken (5), closed window (7), what was
-- used in it (5), then for each region that rights went to (kind 0) or came from (kind 1): kind (1), its
-- session (8), permits (5, or 7 where 16 was added to the kind), length and name; big-endian. Of a bucket
-- without windows `given` is what was forwarded and not acknowledged, the place of the closed window holds
-- the own session, and kind 2 is what a region has acknowledged; `taken` is what is kept beyond the
-- capacity (kind 3, by region and session), and in the place of what was used stands until when, in
-- milliseconds after that of the own session. A replication epoch is one server's time as a primary: its
-- replication id. What was written before it may be lost, so a window that began before it mints nothing,
-- and a level counts as full when it began. A primary takes another id, and loses nothing, when its first
-- replica or backup comes and an hour after the last one left. So what was written since the epoch began
-- counts on, whichever id it bears. A flush changes no id, so a server's memory bears a mark as well, in a
-- key of its own: 8 bytes that name it, and, where nothing was spent in any region before this server was
-- asked first, the id that it had then. A caller that knows another mark, or none where none is there, has
-- the memory begin now. In a cluster, where a script reads the keys of its slot alone, there is none.
-- Mirrors: WindowLedger of src/core/regions/escrow/window.rs, LevelTerms of level.rs beside it, and the
-- terms of src/store/rights.rs.

local read_epoch, session_of, write_ledger, ledger_enter, ledger_budget, minted, under_way_max, level_raise,
  kept_until, rights_terms, rights_used, pack_view, is_of_epoch, DOUBT_MARGIN, KEPT, MESSAGE_LIFE, KEPT_LIFE
if escrowed then
  DOUBT_MARGIN = 1000000
  -- What is exact outlives its window by this: a server's clock may step back so far without minting twice.
  KEPT = 60000000
  local LEDGER_HEAD = 74
  -- No message arrives later than this after it was sent.
  MESSAGE_LIFE = 60000000
  -- For so long permits of other regions are kept beyond a capacity.
  KEPT_LIFE = 3000000

  local function info(section, field)
    return string.match(redis.call("INFO", section), field .. ":(%w+)")
  end

  local function never_promoted()
    return info("replication", "master_replid2") == string.rep("0", 40)
  end

  local MARK, UNMARKED = "tg:{memory}", string.rep("\0", 8)

  -- A new mark; none where there is no room for it.
  local function set_mark()
    local time = redis.call("TIME")
    local name = struct.pack(">I8", tonumber(time[1]) * 1000000 + tonumber(time[2]))
    local set = redis.pcall("SET", MARK, name)
    return set.ok and name or UNMARKED
  end

  -- This server's replication epoch and since when it lasts; `learned` where the caller did not know it.
  function read_epoch(known, now)
    local id = info("replication", "master_replid") or string.rep("0", 40)
    local mark = redis.pcall("GET", MARK)
    local name = type(mark) == "string" and string.sub(mark, 1, 8) or UNMARKED
    local at, flushed = 1, false
    while at + 54 <= #known do
      if string.sub(known, at, at + 39) == id then
        if string.sub(known, at + 47, at + 54) == name then
          return { id = id, begun = struct.unpack(">I7", known, at + 40), mark = name }
        end
        flushed = true
      end
      at = at + 55
    end
    -- Promoted, flushed or seen for the first time: it remembers since now, as far as anyone knows.
    local begun = now
    if mark == false then
      name = set_mark()
    elseif not flushed and type(mark) == "string" and string.sub(mark, 9) == id then
      begun = 0
    elseif not flushed and never_promoted() then
      -- It has been a primary since it started.
      begun = now - (tonumber(info("server", "uptime_in_seconds")) or 0) * 1000000
    end
    return { id = id, begun = begun, mark = name, learned = id .. struct.pack(">I7", begun) .. name }
  end

  -- 52 bits of the replication epoch and its mark, as other regions know this memory.
  function session_of(epoch)
    local marked = struct.unpack(">I4", epoch.mark, 5)
    local low = bit.bxor(tonumber(string.sub(epoch.id, 6, 13), 16), marked)
    return struct.pack(">I4I4", tonumber(string.sub(epoch.id, 1, 5), 16), low % 4294967296)
  end

  local function read_ledger(raw)
    if not raw or #raw < LEDGER_HEAD then return nil end
    local l = {}
    l.window, l.epoch, l.minted, l.given, l.taken, l.closed_window, l.closed_used =
      struct.unpack(">I7c40I5I5I5I7I5", raw)
    l.entries = string.sub(raw, LEDGER_HEAD + 1)
    return l
  end

  function write_ledger(l)
    return struct.pack(
      ">I7c40I5I5I5I7I5", l.window, l.epoch, l.minted, l.given, l.taken, l.closed_window, l.closed_used
    ) .. l.entries
  end

  -- Goes on to a window, or begins anew where what was known belongs to another replication epoch.
  function ledger_enter(l, epoch, window, minted, used)
    if l.epoch ~= epoch.id then
      l.closed_window, l.closed_used = 0, 0
    elseif window > l.window then
      l.closed_window, l.closed_used = l.window, used
    else
      return false
    end
    l.epoch, l.window, l.minted, l.given, l.taken, l.entries = epoch.id, window, minted, 0, 0, ""
    return true
  end

  function ledger_budget(l)
    return math.max(0, l.minted + l.taken - l.given)
  end

  -- Of a window that a ledger counts under an earlier id of this server: what is left of it. Its entries are
  -- of another session, so they are folded into this number.
  function minted(b, epoch, window, l)
    if window_start(b, window) < epoch.begun + DOUBT_MARGIN then return 0 end
    if l and l.epoch ~= epoch.id and l.window == window then return math.min(ledger_budget(l), b.burst) end
    return b.burst
  end

  -- True of a ledger of levels or places, which names its session by the time when it was made, that is of
  -- this memory: under this id, or an earlier one of the same epoch. A server that never was promoted counts
  -- its time in whole seconds, so its epoch may seem to begin up to a second later than it did under the id
  -- before; its sessions are named a second after that.
  function is_of_epoch(epoch, id, session)
    if id == epoch.id then return true end
    return session >= epoch.begun + (never_promoted() and 0 or DOUBT_MARGIN)
  end

  -- The most of a capacity that is ever forwarded and not acknowledged.
  function under_way_max(capacity)
    return math.max(math.min(capacity - floor(capacity / 4), capacity - 1), math.min(capacity, 1))
  end

  -- Until when what is kept beyond the capacity can be used.
  function kept_until(l)
    return (floor(l.closed_window / 1000) + l.closed_used) * 1000
  end

  -- The permits that are not known to have drained yet: all may have been taken before this replication
  -- epoch. They are worked out anew for whoever asks, since daemons of one region may hold different shares
  -- for a while.
  local function unknown(b, now)
    -- A leaky bucket's queue is part of its burst.
    local most = b.kind == LEAKY_BUCKET and b.burst or math.min(b.burst + b.queue, U32_MAX)
    local full = { at = b.begun, first = most, second = 0, window = b.window, permits = b.permits }
    local whole, part = level_amount(full, now)
    return whole + (part > 0 and 1 or 0)
  end

  -- Permits of other regions that lowered a level, or found no room in it: kind 1, less what is kept.
  local function let_in(l)
    local sum, from = -l.taken, 1
    while from <= #l.entries do
      local form = string.byte(l.entries, from) >= 16 and ">Bc8I7B" or ">Bc8I5B"
      local kind, _, permits, length, name_at = struct.unpack(form, l.entries, from)
      if kind % 16 == 1 then sum = sum + permits end
      from = name_at + length
    end
    return math.max(0, sum)
  end

  -- Has a level hold what is charged to its capacity, or not known. Mirrors: LevelTerms::least, which shows
  -- why what was let in since need not be held.
  function level_raise(b, now)
    local least = math.min((b.ledger and b.ledger.given or 0) + b.doubt, level_capacity(b))
    local full = unknown(b, now)
    if full > 0 and b.ledger then full = full - let_in(b.ledger) end
    least = math.max(least, full)
    b.least = least
    if level_amount(b, now) < least then level_hold(b, now, least, 0) end
  end

  -- What a bucket is held to now. Sets its view, and moves it on where the ledger is ahead of the clock.
  function rights_terms(b, epoch, now)
    if b.kind == FIXED_WINDOW then
      local _, counted = place(b, math.max(now, b.at))
      local l = read_ledger(redis.call("GET", b.rights))
      local window = math.max(counted, l and l.window or 0)
      local budget = minted(b, epoch, window, l)
      if l and l.epoch == epoch.id and l.window == window then
        -- The daemon that minted it knew this replication epoch at least as well.
        l.minted = math.min(l.minted, b.burst)
        budget = ledger_budget(l)
      end
      b.ledger = l
      b.view = { window = window, budget = math.min(budget, U32_MAX), next_budget = 0, others = 0, others_before = 0 }
      b.view.next_budget = minted(b, epoch, window)
      local start = window_start(b, window)
      if start > math.max(now, b.at) then
        local _, debt = fixed_window_account(b, start)
        b.at, b.first, b.debt, b.start = start, 0, debt, start
        b.raw = struct.pack(">I4I7I4", b.shape, b.at, b.first) .. pack_debt(b)
      end
    elseif b.kind == CONCURRENCY or slides(b) then
      -- For so long at most a permit counts after it was admitted, or a place is held.
      b.hold = b.kind == SLIDING_WINDOW and 2 * b.window or b.window
      b.doubt = epoch.begun + b.hold + DOUBT_MARGIN
    else
      b.begun = epoch.begun
      -- Of an earlier replication epoch; what it may have held is not known.
      if b.at < epoch.begun then b.at, b.first, b.second = epoch.begun, 0, 0 end
      local l = read_ledger(redis.call("GET", b.rights))
      if l and is_of_epoch(epoch, l.epoch, l.closed_window) then
        l.epoch, b.ledger = epoch.id, l
      end
      b.doubt = now < epoch.begun + MESSAGE_LIFE + KEPT_LIFE + DOUBT_MARGIN and under_way_max(level_capacity(b)) or 0
      b.kept = b.ledger and now < kept_until(b.ledger) and b.ledger.taken or 0
      level_raise(b, now)
      b.raw = struct.pack(">I4I7I4I6", b.shape, b.at, b.first, b.second) .. level_tail(b)
    end
  end

  -- The part of a window's `budget` that is used, the debt included.
  function rights_used(b, window, budget)
    local _, index = place(b, b.at)
    if index == window then return b.first + math.min(b.debt, math.max(0, budget - b.first)) end
    if index > window or b.debt == 0 then return 0 end
    return math.min(carried(b, b.first, b.debt, window - index), budget)
  end

  -- The view as it is written elsewhere.
  function pack_view(view)
    if not view then return "" end
    return struct.pack(">I7I4I4I7I7I7", view.window, view.budget, view.next_budget, 0, 0, 0)
  end
end
