-- Places of an escrow rule of concurrency that are lent between regions.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua and rights.lua. The value lies beside the bucket:
-- replication epoch (40), places that are the region's own (5), places that could be held when this was
-- written (5), the region's share (5), whether every other region has said what it has of an earlier memory
-- (1), the own session (8), then for each region that was met: its session (8), given (5), taken (5), when it
-- last confirmed a loan (7), flags (1: 1 reported, 2 uncounted), length and name; big-endian.
-- Mirrors: PlacesTerms of src/core/regions/escrow/places.rs, and the terms of src/store/rights.rs.

local places_terms, places_step
if escrowed and kinds[CONCURRENCY] then
  -- For so long after its owner was heard a region may use what it borrowed; for so long a ledger with loans
  -- is kept.
  local LOAN_LIFE, LENT_KEPT = 60000000, 2592000000000
  local HEAD, BONDS_MAX = 64, 128

  -- A later session has the larger number.
  local function number_of(raw)
    local high, low = struct.unpack(">I4I4", raw)
    return high * 4294967296 + low
  end

  local function read_places(raw, epoch)
    if not raw or #raw < HEAD or string.sub(raw, 1, 40) ~= epoch.id then return nil end
    local l = { bonds = {} }
    local _, from
    _, _, _, _, l.vouched, l.session, from = struct.unpack(">c40I5I5I5Bc8", raw)
    while from <= #raw do
      local bond, length, name_at = {}
      bond.session, bond.given, bond.taken, bond.heard, bond.flags, length, name_at =
        struct.unpack(">c8I5I5I7BB", raw, from)
      from = name_at + length
      bond.region = string.sub(raw, name_at, from - 1)
      bond.told, bond.carried = bond.flags % 2 == 1, bond.flags >= 2
      l.bonds[#l.bonds + 1] = bond
    end
    return l
  end

  -- Until everything lent is back or over.
  local function recall(b) return MESSAGE_LIFE + LOAN_LIFE + b.window + DOUBT_MARGIN end

  local function is_past(b, now) return now >= b.begun + recall(b) end

  local function own(b, l, now)
    return (l and l.vouched == 1 or is_past(b, now)) and b.burst or 0
  end

  local function lent(l)
    local sum = 0
    for i = 1, #l.bonds do sum = sum + math.max(0, l.bonds[i].given - l.bonds[i].taken) end
    return sum
  end

  local function borrowed(bond) return math.max(0, bond.taken - bond.given) end

  local function is_alive(bond, now) return now < bond.heard + LOAN_LIFE end

  local function is_over(b, bond, now) return now >= bond.heard + LOAN_LIFE + b.window end

  local function capacity(b, l, now)
    local mine = own(b, l, now)
    if not l then return mine end
    local sum = math.max(0, mine - lent(l))
    for i = 1, #l.bonds do
      if is_alive(l.bonds[i], now) then sum = sum + borrowed(l.bonds[i]) end
    end
    return sum
  end

  local function find(l, region)
    for i = 1, #l.bonds do
      if l.bonds[i].region == region then return l.bonds[i] end
    end
  end

  -- The limit that a bucket's holders are held to now. A user's own limit keeps its static share, as does a
  -- daemon without peers.
  function places_terms(b, epoch, now, moves)
    b.begun = epoch.begun
    b.places = read_places(redis.call("GET", b.rights), epoch)
    local held_to = math.min(capacity(b, b.places, now), U32_MAX)
    if moves then
      b.whole, b.permits = b.permits, held_to
    else
      -- What is lent all the same is not here.
      b.permits = b.places and math.min(b.burst, held_to) or b.burst
    end
  end

  -- Follows a region into a later session. Nothing: this one is over, or there is no room for another region.
  local function meet(b, l, region, session, now)
    local bond = find(l, region)
    if not bond then
      if #l.bonds >= BONDS_MAX then return nil end
      bond = { region = region, session = session, given = 0, taken = 0, heard = 0, told = false, carried = false }
      l.bonds[#l.bonds + 1] = bond
      return bond
    end
    if bond.session == session then return bond end
    if number_of(bond.session) > number_of(session) then return nil end
    local still = is_over(b, bond, now) and 0 or borrowed(bond)
    bond.session, bond.given, bond.taken, bond.carried = session, 0, still, still > 0
    return bond
  end

  local function confirm(bond, counts, heard)
    if counts or not bond.carried then
      bond.carried = false
      bond.heard = math.max(bond.heard, heard)
    end
  end

  -- Carries out a step beside which `held` places have holders. Returns the value, and how long to keep it in
  -- microseconds.
  function places_step(b, epoch, held, now, s)
    local l = b.places or { vouched = 0, session = struct.pack(">I8", now), bonds = {} }
    for i = 1, #l.bonds do
      local bond = l.bonds[i]
      if bond.carried and is_over(b, bond, now) then
        bond.carried, bond.taken = false, math.min(bond.taken, bond.given)
      end
    end
    local heard = math.min(s.at, now)
    if s.kind == 1 then
      local bond = find(l, s.region)
      -- The owner has not counted a loan that is carried yet, and perhaps never will.
      if bond and bond.session == s.session and s.amount > 0 and not bond.carried then
        local room, back = capacity(b, l, now), borrowed(bond)
        local unused = (is_alive(bond, now) or held > room) and 0 or back
        local after = lent(l) + math.max(0, s.amount - back)
        local owned = s.amount <= back or after <= own(b, l, now)
        if owned and s.amount <= math.max(0, room - held) + unused then bond.given = bond.given + s.amount end
      end
    elseif s.kind == 2 and s.own == l.session then
      local bond = meet(b, l, s.region, s.session, now)
      if bond then
        local before = bond.taken
        bond.taken = math.max(before, s.amount)
        confirm(bond, s.amount >= before, heard)
      end
    elseif s.kind == 4 then
      local bond = meet(b, l, s.region, s.session, now)
      if bond and s.amount > 0 then
        if not bond.told and l.vouched == 0 and not is_past(b, now) then
          bond.given = math.max(bond.given, s.amount - 1)
        end
        bond.told = true
      end
      local gave = number_of(s.own)
      if bond and gave > 0 then confirm(bond, gave - 1 >= bond.taken, heard) end
    elseif s.kind == 5 then
      local all, from = true, 1
      while from <= #s.region do
        local length = string.byte(s.region, from)
        local bond = find(l, string.sub(s.region, from + 1, from + length))
        all = all and bond ~= nil and bond.told
        from = from + 1 + length
      end
      if all then l.vouched = 1 end
    end
    local parts = { struct.pack(">c40I5I5I5Bc8", epoch.id, own(b, l, now), capacity(b, l, now), b.burst, l.vouched, l.session) }
    local kept = recall(b)
    for i = 1, #l.bonds do
      local bond = l.bonds[i]
      if bond.given ~= bond.taken then kept = math.max(recall(b), LENT_KEPT) end
      local flags = (bond.told and 1 or 0) + (bond.carried and 2 or 0)
      parts[i + 1] = struct.pack(">c8I5I5I7BB", bond.session, bond.given, bond.taken, bond.heard, flags, #bond.region)
        .. bond.region
    end
    return table.concat(parts), l.session, kept
  end
end
