-- What a region keeps to while no view speaks of now: what the last view gave it, or its first share.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua, and defined only where ARGV[6] is given. A view
-- without windows names an instant in the place of a window.
-- Mirrors: Allowance::in_force of src/core/algorithm/in_force.rs.

local view_in_force
if (ARGV[6] or "") ~= "" then
  -- For how many windows after its own a view may speak.
  local function windows_spoken_of(window)
    local remembered = math.min(math.max(16 * window, 60000000), 300000000)
    return math.max(3, floor(remembered / window))
  end

  local function level_in_force(b, view, first, now)
    local held = math.min(math.max(0, level_capacity(b) - first), U32_MAX)
    if not view then return { window = now, budget = held, next_budget = 0, others = held, others_before = 0 } end
    if now - view.window > 60000000 then
      view.budget, view.others = math.max(view.budget, held), math.max(view.others, held)
    end
    return view
  end

  -- The view that is enforced at `now`. `first` is the region's first share; all bits set: only what was told
  -- is enforced.
  function view_in_force(b, view, first, now)
    if first == U32_MAX then return view end
    if counts_by_level(b) then return level_in_force(b, view, first, now) end
    local _, index = place(b, now)
    local budget = first
    if view and view.window <= index then
      local age, spoken = index - view.window, windows_spoken_of(b.window)
      if age <= 1 then return view end
      if age <= spoken then budget = view.next_budget
      elseif age <= spoken + 2 then budget = math.min(view.next_budget, first) end
    end
    return { window = index, budget = budget, next_budget = budget, others = 0, others_before = 0 }
  end
end
