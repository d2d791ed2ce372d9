-- sliding_window: this window's count plus the fading part of the one before. Fields: at, first = this one's count,
-- second = the one's before.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua.
-- Mirrors: SlidingWindow of src/core/algorithm/sliding_window.rs.

local sliding_window_free, sliding_window_fits, sliding_window_put, sliding_window_refund, sliding_window_expiry
if kinds[SLIDING_WINDOW] then
  -- Both counts as of `now`, and where that lies.
  local function sliding_window_counts(b, now)
    local start, index, elapsed = place(b.window, math.max(now, b.at))
    local since = windows_since(start, b.window, b.at)
    if since == 0 then return b.first, b.second, index, elapsed end
    if since == 1 then return 0, b.first, index, elapsed end
    return 0, 0, index, elapsed
  end

  -- What may still be taken; nil where a view narrows the limit and only a comparison is exact.
  function sliding_window_free(b, now)
    local current, previous, index, elapsed = sliding_window_counts(b, now)
    local budget, _, others_before = share(b, index)
    if budget ~= b.permits then return nil end
    return math.max(0, budget - faded(previous + others_before, b.window - elapsed, b.window) - current)
  end

  function sliding_window_fits(b, now, asked)
    local free = sliding_window_free(b, now)
    if free then return asked <= free end
    local current, previous, index, elapsed = sliding_window_counts(b, now)
    local budget, _, others_before = share(b, index)
    local before, left, permits = previous + others_before, b.window - elapsed, b.permits
    -- floor(budget * free / all) >= asked + current, without dividing.
    local all = times(digits(permits), digits(b.window))
    local weight = times(digits(before), digits(left))
    if permits == 0 or compare(weight, all) >= 0 then return false end
    return compare(times(digits(budget), minus(all, weight)), times(digits(asked + current), all)) >= 0
  end

  function sliding_window_put(b, now, cost)
    local current, previous = sliding_window_counts(b, now)
    b.first, b.second = math.min(current + cost, U32_MAX), previous
    b.at = math.max(b.at, now)
  end

  function sliding_window_refund(b, now, cost)
    local current, previous = sliding_window_counts(b, now)
    cost = math.min(cost, U32_MAX)
    local newer = math.min(current, cost)
    local older = math.min(previous, cost - newer)
    if newer + older == 0 then return 0 end
    b.first, b.second = current - newer, previous - older
    b.at = math.max(b.at, now)
    return newer + older
  end

  function sliding_window_expiry(b)
    if b.first == 0 and b.second == 0 then return b.at end
    local finish = place(b.window, b.at) + b.window
    return b.first == 0 and finish or finish + b.window
  end
end
