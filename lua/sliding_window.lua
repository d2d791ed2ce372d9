-- sliding_window: this window's count plus the fading part of the one before, and what is owed beyond it.
-- Fields: at, first = this one's count, second = the one's before, debt.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua.
-- Mirrors: SlidingWindow of src/core/algorithm/sliding_window.rs.

local sliding_window_free, sliding_window_used, sliding_window_put, sliding_window_report, sliding_window_refund,
  sliding_window_returnable, sliding_window_restore, sliding_window_expiry
if kinds[SLIDING_WINDOW] then
  -- Both counts and what is owed as of `now`, and where that lies.
  local function sliding_window_counts(b, now)
    local start, index, elapsed = place(b, math.max(now, b.at))
    local since = windows_since(start, b.window, b.at)
    if since == 0 then return b.first, b.debt, b.second, index, elapsed end
    if since == 1 then
      local debt = carried(b, b.first, b.debt, 1)
      return 0, debt, b.first + b.debt - debt, index, elapsed
    end
    if b.debt == 0 then return 0, 0, 0, index, elapsed end
    local _, own = place(b, b.at)
    local owed = carried(b, b.first, b.debt, index - own - 1)
    local debt = carried(b, b.first, b.debt, index - own)
    return 0, debt, owed - debt, index, elapsed
  end

  -- What the window has room for in all. What fades is rounded down, and so is a budget's part of the rest.
  local function sliding_window_room(b, previous, index, elapsed)
    local budget, _, others_before = share(b, index)
    local free = math.max(0, b.permits - multiply_divide(b.window - elapsed, previous + others_before, b.window))
    if budget == b.permits then return free end
    return (multiply_divide(free, budget, b.permits))
  end

  function sliding_window_free(b, now)
    local current, debt, previous, index, elapsed = sliding_window_counts(b, now)
    return math.max(0, sliding_window_room(b, previous, index, elapsed) - current - debt)
  end

  -- Permits that it counts now, what is owed included.
  function sliding_window_used(b, now)
    local current, debt, previous, _, elapsed = sliding_window_counts(b, now)
    return current + debt + multiply_divide(b.window - elapsed, previous, b.window)
  end

  function sliding_window_put(b, now, cost)
    local current, debt, previous = sliding_window_counts(b, now)
    account_report(b, current, debt, math.max(0, b.permits - current), 0, 0)
    b.first, b.second = math.min(b.first + cost, U32_MAX), previous
    b.at = math.max(b.at, now)
  end

  function sliding_window_report(b, now, cost, debt_max)
    local current, debt, previous, index, elapsed = sliding_window_counts(b, now)
    local room = math.max(0, sliding_window_room(b, previous, index, elapsed) - current)
    local charged = account_report(b, current, debt, room, cost, debt_max)
    b.second = previous
    b.at = math.max(b.at, now)
    return charged
  end

  function sliding_window_refund(b, now, cost)
    local current, debt, previous = sliding_window_counts(b, now)
    local owed = math.min(debt, cost)
    local newer = math.min(current, cost - owed)
    local older = math.min(previous, cost - owed - newer)
    if owed + newer + older == 0 then return 0 end
    b.first, b.second, b.debt = current - newer, previous - older, debt - owed
    b.at = math.max(b.at, now)
    return owed + newer + older
  end

  function sliding_window_returnable(b, now)
    local current, debt, previous = sliding_window_counts(b, now)
    return current + debt + previous
  end

  function sliding_window_restore(b, now, known)
    local current, debt, previous, index = sliding_window_counts(b, now)
    local used, before = known.used, known.before
    if index == known.window + 1 then used, before = 0, used
    elseif index ~= known.window then return end
    if current + debt >= used and previous >= before then return end
    b.first = math.min(math.max(current, used - debt), U32_MAX)
    b.second, b.debt = math.min(math.max(previous, before), U32_MAX), debt
    b.at, b.changed = math.max(b.at, now), true
  end

  function sliding_window_expiry(b)
    if b.first == 0 and b.second == 0 and b.debt == 0 then return b.at end
    local finish = place(b, b.at) + b.window
    if b.debt > 0 then return finish + b.window * (1 + debt_windows(b)) end
    return b.first == 0 and finish or finish + b.window
  end
end
