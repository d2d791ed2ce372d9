-- token_bucket, leaky_bucket and gcra: a level that rises by what is taken and drains at `permits` a window.
-- Fields: at, first = whole permits, second = a part of one, in 1/window permits.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua.
-- Mirrors: Level of src/core/algorithm/level.rs, the capacities of token_bucket.rs, leaky_bucket.rs and
-- gcra.rs, and Allowance::of_capacity of in_force.rs. The theoretical arrival time of GCRA is `now` plus the
-- time the level takes to drain, so the same sum decides.

local level_amount, level_capacity, level_view, level_free, level_hold, level_put, level_report, level_refund,
  level_unreturnable, level_restore, level_expiry
local level_read_tail, level_tail, level_take_back, level_undo, level_undone_kept
if kinds[TOKEN_BUCKET] or kinds[LEAKY_BUCKET] or kinds[GCRA] then
  -- Whole permits and the part of one in use at `now`.
  function level_amount(b, now)
    local window = math.max(b.window, 1)
    local whole, part = b.first, math.min(b.second, window - 1)
    if now <= b.at then return whole, part end
    local windows, rest = divide(now - b.at, window)
    local gone = windows * b.permits
    if gone > whole then return 0, 0 end
    local drained, drained_part = multiply_divide(rest, b.permits, window)
    whole, part = whole - gone - drained, part - drained_part
    if part < 0 then whole, part = whole - 1, part + window end
    if whole < 0 then return 0, 0 end
    return whole, part
  end

  function level_capacity(b)
    if b.permits == 0 then return 0 end
    if b.kind == LEAKY_BUCKET then
      return b.queue == 0 and b.burst or math.min(b.burst, b.queue)
    end
    return math.min(b.burst + b.queue, U32_MAX)
  end

  -- Makes a view of a bucket that holds less or more one of this bucket, by the same parts.
  function level_view(b)
    local view, capacity = b.view, level_capacity(b)
    local divided = view and view.capacity or 0
    if divided == 0 or divided == capacity then return end
    local function part(held)
      local whole, rest = multiply_divide(capacity, held, divided)
      return math.min(rest > 0 and whole + 1 or whole, U32_MAX)
    end
    view.budget, view.others = part(view.budget), part(view.others)
  end

  -- What a worldwide view holds back for others at `now`: whole permits and the part of one.
  local function level_held(b, now)
    local view, window = b.view, math.max(b.window, 1)
    if not view then return 0, 0 end
    local whole, part = view.others, 0
    if now > view.window then
      local windows, rest = divide(now - view.window, window)
      local grown, grown_part = multiply_divide(rest, view.next_budget, window)
      whole, part = whole + windows * view.next_budget + grown, grown_part
    end
    if whole >= view.budget then return view.budget, 0 end
    return whole, part
  end

  function level_free(b, now)
    local whole, part = level_amount(b, now)
    local held, held_part = level_held(b, math.max(now, b.at))
    whole, part = whole + held, part + held_part
    local started = part > math.max(b.window, 1) and 2 or part > 0 and 1 or 0
    return math.max(0, level_capacity(b) + (b.kept or 0) - whole - started)
  end

  function level_hold(b, now, whole, part)
    if whole > U32_MAX then whole, part = U32_MAX, 0 end
    b.first, b.second = whole, part
    b.at = math.max(b.at, now)
  end

  function level_put(b, now, cost)
    local whole, part = level_amount(b, now)
    level_hold(b, now, whole + cost, part)
  end

  -- Rises above the capacity by `debt_max` at most.
  function level_report(b, now, cost, debt_max)
    local whole, part = level_amount(b, now)
    local most = math.min(level_capacity(b) + (b.kept or 0) + debt_max, U32_MAX)
    local charged = math.min(cost, math.max(0, most - whole - (part > 0 and 1 or 0)))
    if charged > 0 then level_hold(b, now, whole + charged, part) end
    return charged
  end

  function level_refund(b, now, cost)
    local whole, part = level_amount(b, now)
    if whole == 0 and part == 0 then return 0 end
    b.changed = true -- also where no whole permit comes out
    if cost > whole then
      level_hold(b, now, 0, 0)
      return whole
    end
    level_hold(b, now, whole - cost, part)
    return cost
  end

  -- Permits that a level under escrow holds and a refund here cannot give back: those charged to its capacity
  -- or not known, and kept ones, which their givers' levels paid for. Mirrors: LevelTerms::unreturnable.
  function level_unreturnable(b)
    return b.least + (b.ledger and b.ledger.taken or 0)
  end

  function level_restore(b, now, known)
    if level_amount(b, now) >= known.used then return end
    level_hold(b, now, known.used, 0)
    b.changed = true
  end

  -- How long beyond its expiry a level is kept that counts what was undone: what is under way finds it then.
  -- A charge that fitted has drained when a full bucket has.
  local UNDONE_KEPT_MAX = 60000000
  function level_undone_kept(b)
    if b.permits == 0 then return UNDONE_KEPT_MAX end
    return math.min(UNDONE_KEPT_MAX, math.ceil(level_capacity(b) / b.permits * math.max(b.window, 1)))
  end

  function level_read_tail(b, raw)
    local due = struct.unpack(">I7", raw, 22)
    if due > 0 then b.due = due end
    if #raw > 28 then b.undone = struct.unpack(">I4", raw, 29) end
  end

  function level_tail(b)
    if b.undone then return struct.pack(">I7I4", b.due or 0, b.undone) end
    return b.due and struct.pack(">I7", b.due) or ""
  end

  if ARGV[8] then
    -- Takes an amount back out of a level, down to nothing. Returns the whole permits and the part of one.
    function level_take_back(b, now, whole, part)
      local has, has_part = level_amount(b, now)
      if whole > has or (whole == has and part > has_part) then whole, part = has, has_part end
      if whole == 0 and part == 0 then return 0, 0 end
      local left, left_part = has - whole, has_part - part
      if left_part < 0 then left, left_part = left - 1, left_part + math.max(b.window, 1) end
      level_hold(b, now, left, left_part)
      b.changed = true
      return whole, part
    end

    -- Gives back of a charge what has not drained meanwhile, whatever else was undone. Returns the whole
    -- permits given back. Mirrors: UndoneCharge of src/store/redis/batch/call.rs.
    function level_undo(b, now, permits, of)
      local since = ((b.undone or 0) - of.undone) % 4294967296
      local used = of.used - since
      if since > 2147483647 or used < permits then used = permits end
      local left = { at = of.at, first = used, second = 0, window = b.window, permits = b.permits }
      local whole, part = level_amount(left, now)
      if permits <= whole then whole, part = permits, 0 end
      whole, part = level_take_back(b, now, whole, part)
      local started = part > 0 and whole + 1 or whole
      if started > 0 then b.undone = ((b.undone or 0) + started) % 4294967296 end
      return whole
    end
  end

  -- Rounded up by at most a microsecond where doubles do not reach.
  function level_expiry(b)
    local window = math.max(b.window, 1)
    local part = math.min(b.second, window - 1)
    if b.first == 0 and part == 0 then return b.at end
    if b.permits == 0 then return b.at + window end
    local amount = b.first * window + part
    if amount < EXACT then return b.at + math.ceil(amount / b.permits) end
    return b.at + math.ceil(amount / b.permits) + 1
  end
end
