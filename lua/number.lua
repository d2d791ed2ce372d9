-- Whole numbers in doubles, exact. A double holds whole numbers up to 2^53, and products of amounts need up
-- to 2^98, so they are divided digit by digit.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua.
-- Mirrors: the u128 arithmetic of src/core/algorithm (level.rs, aligned.rs, sliding_window.rs).

local fmod, floor = math.fmod, math.floor
local EXACT = 9007199254740992 -- 2^53
local U32_MAX = 4294967295

-- Quotient and remainder of x / y.
local function divide(x, y)
  local rest = fmod(x, y)
  return (x - rest) / y, rest
end

-- Quotient and remainder of a * b / c, for a <= c <= 2^45 and b < 2^53.
local function multiply_divide(a, b, c)
  local product = a * b
  if product < EXACT then return divide(product, c) end
  local quotient, rest = 0, 0
  local scale = 562949953421312 -- 2^49: eight digits of 7 bits
  while scale >= 1 do
    local digit = floor(b / scale)
    b = b - digit * scale
    local step = rest * 128 + a * digit -- < 2^52 + 2^52
    rest = fmod(step, c)
    quotient = quotient * 128 + (step - rest) / c
    scale = scale / 128
  end
  return quotient, rest
end
