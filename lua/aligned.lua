-- Windows aligned to the epoch or of a calendar, and what a worldwide view leaves of one.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua. A view is a value of its own key (see pack_view in
-- src/store/redis/batch/call.rs): window (7 bytes), budget (4), next budget (4), others (7), others before
-- (7), error bound (7), divided capacity (4; 0.1.0 did not write it), big-endian.
-- Mirrors: WindowPlace, WindowShare, WindowAccount, carried and faded of src/core/algorithm/aligned.rs.

-- The window of a bucket that holds `at`: its begin, its index, and the part of it that has passed.
local function place(b, at)
  if b.stretches then return stretch_place(b.stretches, at) end
  local index, elapsed = divide(at, b.window)
  return at - elapsed, index, elapsed
end

-- The begin of a bucket's window of this index.
local function window_start(b, index)
  if b.stretches then return stretch_start(b.stretches, index) end
  return index * b.window
end

-- How many windows before the one at `start` the instant `earlier` lies: 0, 1 or 2 for any older.
local function windows_since(start, length, earlier)
  if earlier >= start then return 0 end
  if start - earlier <= length then return 1 end
  return 2
end

-- Budget, what others admitted in the window of this index, and in the one before.
local function share(b, index)
  local view = b.view
  if view then
    if view.window == index then
      return math.min(view.budget, b.permits), view.others, view.others_before
    elseif view.window + 1 == index then
      return math.min(view.next_budget, b.permits), 0, view.others
    end
  end
  return b.permits, 0, 0
end

-- The debt that is left `windows` after the window that counts `count`, if nothing else came. A window pays
-- what it may admit here.
local function carried(b, count, debt, windows)
  local each = b.view and math.min(b.view.next_budget, b.permits) or b.permits
  local at_the_end = b.view and 0 or math.max(0, b.permits - count)
  return math.max(0, debt - at_the_end - each * (windows - 1))
end

-- Counts `cost` more; what finds no `room` in the window is owed. Returns what was charged.
local function account_report(b, count, debt, room, cost, debt_max)
  local owed = debt + cost
  local paid = math.min(owed, room)
  local beyond = owed - paid
  local kept = math.min(beyond, math.max(debt_max, debt - paid))
  b.first, b.debt = math.min(count + paid, U32_MAX), kept
  return cost - (beyond - kept)
end

-- For how many windows after its own a debt lasts. Where rights move, a window pays with its region's own.
local function debt_windows(b)
  if b.debt == 0 then return 0 end
  local each = b.limit or b.permits
  if each == 0 then return 1 end
  if b.rights and b.burst > 0 then each = math.min(b.burst, each) end
  return math.ceil(b.debt / each)
end

-- A debt, and the earliest lapse of what is reserved, as they are written behind the counts.
local function pack_debt(b)
  if b.due then return struct.pack(">I4I7", b.debt, b.due) end
  return b.debt > 0 and struct.pack(">I4", b.debt) or ""
end

-- amount * left / length, rounded up.
local function faded(amount, left, length)
  if amount == 0 then return 0 end
  local quotient, rest = multiply_divide(left, amount, length)
  return rest > 0 and quotient + 1 or quotient
end

local function read_view(raw)
  if not raw then return nil end
  local view = {}
  view.window, view.budget, view.next_budget, view.others, view.others_before =
    struct.unpack(">I7I4I4I7I7", raw)
  view.capacity = #raw >= 40 and struct.unpack(">I4", raw, 37) or 0
  return view
end
