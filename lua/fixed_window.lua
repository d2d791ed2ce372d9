-- fixed_window: one count for each aligned window. Fields of a bucket: at, first = count.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua.
-- Mirrors: FixedWindow of src/core/algorithm/fixed_window.rs.

local fixed_window_free, fixed_window_put, fixed_window_refund, fixed_window_expiry
if kinds[FIXED_WINDOW] then
  local function fixed_window_used(b, now)
    local start, index = place(b.window, math.max(now, b.at))
    return b.at >= start and b.first or 0, index
  end

  function fixed_window_free(b, now)
    local used, index = fixed_window_used(b, now)
    local budget = share(b, index)
    return math.max(0, budget - used)
  end

  function fixed_window_put(b, now, cost)
    b.first = math.min(fixed_window_used(b, now) + cost, U32_MAX)
    b.at = math.max(b.at, now)
  end

  function fixed_window_refund(b, now, cost)
    local used = fixed_window_used(b, now)
    local returned = math.min(used, cost)
    if returned == 0 then return 0 end
    b.first = used - returned
    b.at = math.max(b.at, now)
    return returned
  end

  function fixed_window_expiry(b)
    if b.first == 0 then return b.at end
    return place(b.window, b.at) + b.window
  end
end
