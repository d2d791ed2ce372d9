-- fixed_window: one count for each window, aligned or of a calendar, and what is owed beyond it.
-- Fields of a bucket: at, first = count, debt.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua.
-- Mirrors: FixedWindow of src/core/algorithm/fixed_window.rs.

local fixed_window_account, fixed_window_free, fixed_window_put, fixed_window_report, fixed_window_refund,
  fixed_window_returnable, fixed_window_restore, fixed_window_expiry
if kinds[FIXED_WINDOW] then
  -- The count and the debt as of `now`, and their window.
  function fixed_window_account(b, now)
    local start, index = place(b, math.max(now, b.at))
    if b.at >= start then return b.first, b.debt, index end
    if b.debt == 0 then return 0, 0, index end
    local _, own = place(b, b.at)
    return 0, carried(b, b.first, b.debt, index - own), index
  end

  function fixed_window_free(b, now)
    local count, debt, index = fixed_window_account(b, now)
    local budget = share(b, index)
    return math.max(0, budget - count - debt)
  end

  function fixed_window_put(b, now, cost)
    local count, debt = fixed_window_account(b, now)
    account_report(b, count, debt, math.max(0, b.permits - count), 0, 0)
    b.first = math.min(b.first + cost, U32_MAX)
    b.at = math.max(b.at, now)
  end

  function fixed_window_report(b, now, cost, debt_max)
    local count, debt, index = fixed_window_account(b, now)
    local budget = share(b, index)
    local charged = account_report(b, count, debt, math.max(0, budget - count), cost, debt_max)
    b.at = math.max(b.at, now)
    return charged
  end

  function fixed_window_refund(b, now, cost)
    local count, debt = fixed_window_account(b, now)
    local owed = math.min(debt, cost)
    local counted = math.min(count, cost - owed)
    if owed + counted == 0 then return 0 end
    b.first, b.debt = count - counted, debt - owed
    b.at = math.max(b.at, now)
    return owed + counted
  end

  function fixed_window_returnable(b, now)
    local count, debt = fixed_window_account(b, now)
    return count + debt
  end

  function fixed_window_restore(b, now, known)
    local count, debt, index = fixed_window_account(b, now)
    if index ~= known.window or count + debt >= known.used then return end
    b.first, b.debt = math.min(known.used - debt, U32_MAX), debt
    b.at, b.changed = math.max(b.at, now), true
  end

  function fixed_window_expiry(b)
    if b.first == 0 and b.debt == 0 then return b.at end
    local _, index = place(b, b.at)
    return window_start(b, index + 1) + b.window * debt_windows(b)
  end
end
