-- Whole numbers in doubles, exact. A double holds whole numbers up to 2^53; amounts need up to 2^77 and
-- comparisons up to 2^111, so products are divided digit by digit or kept as digits.
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

local digits, times, compare, minus
if kinds[SLIDING_WINDOW] then
  -- x as digits of 20 bits, lowest first.
  function digits(x)
    local d = {}
    repeat
      local high, low = divide(x, 1048576)
      d[#d + 1] = low
      x = high
    until x == 0
    return d
  end

  -- The product of two rows of digits.
  function times(x, y)
    local d = {}
    for i = 1, #x + #y do d[i] = 0 end
    for i = 1, #x do
      local carry = 0
      for j = 1, #y do
        carry, d[i + j - 1] = divide(d[i + j - 1] + x[i] * y[j] + carry, 1048576)
      end
      d[i + #y] = carry
    end
    return d
  end

  -- -1, 0 or 1 as x is below, at or above y.
  function compare(x, y)
    for i = math.max(#x, #y), 1, -1 do
      local a, b = x[i] or 0, y[i] or 0
      if a ~= b then return a < b and -1 or 1 end
    end
    return 0
  end

  -- x - y, for x >= y.
  function minus(x, y)
    local d, borrow = {}, 0
    for i = 1, #x do
      local digit = x[i] - (y[i] or 0) - borrow
      borrow = digit < 0 and 1 or 0
      d[i] = digit + borrow * 1048576
    end
    return d
  end
end
