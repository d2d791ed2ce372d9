-- Windows of a calendar: stretches of windows of one length, around now.
--
-- No KEYS or reply of its own: a part of decide.lua and rights.lua, and defined only where ARGV[7] is given.
-- ARGV[7]  for each bucket that counts by a calendar: its place in KEYS (2), how many stretches (1), then of
--          each where it begins (7), the index of its first window (6) and the length of its windows (6);
--          big-endian
-- The last window of a stretch ends where the next stretch begins. Before the first stretch and after the
-- last one windows are as long as theirs: so many are told that this matters to nobody's count.
-- Mirrors: Calendar of src/core/calendar.rs.

local calendars, stretch_place, stretch_start
if ARGV[7] then
  calendars = {}
  local from = 1
  while from <= #ARGV[7] do
    local place_, count
    place_, count, from = struct.unpack(">I2B", ARGV[7], from)
    local stretches = {}
    for i = 1, count do
      local s = {}
      s.start, s.first, s.step, from = struct.unpack(">I7I6I6", ARGV[7], from)
      stretches[i] = s
    end
    calendars[place_] = stretches
  end

  -- The window that holds `at`: its begin, its index, and the part of it that has passed.
  function stretch_place(stretches, at)
    local i = #stretches
    while i > 1 and stretches[i].start > at do i = i - 1 end
    local s, after = stretches[i], stretches[i + 1]
    local number = floor((at - s.start) / s.step)
    if after then number = math.min(number, after.first - s.first - 1) end
    local start = s.start + number * s.step
    return start, s.first + number, at - start
  end

  -- The begin of the window of an index.
  function stretch_start(stretches, index)
    local i = #stretches
    while i > 1 and stretches[i].first > index do i = i - 1 end
    return stretches[i].start + (index - stretches[i].first) * stretches[i].step
  end
end
