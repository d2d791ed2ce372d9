-- token_bucket, leaky_bucket and gcra: a level that rises by what is taken and drains at `permits` a window.
-- Fields: at, first = whole permits, second = a part of one, in 1/window permits.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua.
-- Mirrors: Level of src/core/algorithm/level.rs, the capacities of token_bucket.rs, leaky_bucket.rs and
-- gcra.rs, and Allowance::of_capacity of in_force.rs. The theoretical arrival time of GCRA is `now` plus the
-- time the level takes to drain, so the same sum decides.

local level_amount, level_capacity, level_view, level_free, level_hold, level_put, level_report, level_refund, level_expiry
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
