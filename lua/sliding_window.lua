-- sliding_window: this window's count plus the fading part of the one before, and what is owed beyond it.
-- Fields: at, first = this one's count, second = the one's before, debt.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua.
-- Mirrors: SlidingWindow of src/core/algorithm/sliding_window.rs.

local sliding_window_free, sliding_window_fits, sliding_window_put, sliding_window_report, sliding_window_refund,
  sliding_window_expiry
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

  -- What may still be taken; nil where a view narrows the limit and only a comparison is exact.
  function sliding_window_free(b, now)
    local current, debt, previous, index, elapsed = sliding_window_counts(b, now)
    local budget, _, others_before = share(b, index)
    if budget ~= b.permits then return nil end
    local past = faded(previous + others_before, b.window - elapsed, b.window)
    return math.max(0, budget - past - current - debt)
  end

  -- Whether the window has room for `permits` in all where a view narrows the limit, without dividing:
  -- floor(budget * free / all) >= permits.
  local function sliding_window_holds(b, now)
    local _, _, previous, index, elapsed = sliding_window_counts(b, now)
    local budget, _, others_before = share(b, index)
    local all = times(digits(b.permits), digits(b.window))
    local weight = times(digits(previous + others_before), digits(b.window - elapsed))
    local none = b.permits == 0 or compare(weight, all) >= 0
    local left = not none and times(digits(budget), minus(all, weight))
    return function(permits)
      if none then return permits == 0 end
      return compare(left, times(digits(permits), all)) >= 0
    end
  end

  function sliding_window_fits(b, now, asked)
    local free = sliding_window_free(b, now)
    if free then return asked <= free end
    local current, debt = sliding_window_counts(b, now)
    return sliding_window_holds(b, now)(asked + current + debt)
  end

  -- What the window has room for beside `current`, what is owed put aside.
  local function sliding_window_room(b, now, current)
    local _, _, previous, index, elapsed = sliding_window_counts(b, now)
    local budget, _, others_before = share(b, index)
    if budget == b.permits then
      return math.max(0, budget - faded(previous + others_before, b.window - elapsed, b.window) - current)
    end
    local holds = sliding_window_holds(b, now)
    local low, high = 0, budget + 1
    while high - low > 1 do
      local middle = floor((low + high) / 2)
      if holds(middle) then low = middle else high = middle end
    end
    return math.max(0, low - current)
  end

  function sliding_window_put(b, now, cost)
    local current, debt, previous = sliding_window_counts(b, now)
    account_report(b, current, debt, math.max(0, b.permits - current), 0, 0)
    b.first, b.second = math.min(b.first + cost, U32_MAX), previous
    b.at = math.max(b.at, now)
  end

  function sliding_window_report(b, now, cost, debt_max)
    local current, debt, previous = sliding_window_counts(b, now)
    local charged = account_report(b, current, debt, sliding_window_room(b, now, current), cost, debt_max)
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

  function sliding_window_expiry(b)
    if b.first == 0 and b.second == 0 and b.debt == 0 then return b.at end
    local finish = place(b, b.at) + b.window
    if b.debt > 0 then return finish + b.window * (1 + debt_windows(b)) end
    return b.first == 0 and finish or finish + b.window
  end
end
