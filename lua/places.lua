-- Places of an escrow rule of concurrency that are lent between regions, and the capacity of one that slides.
--
-- No KEYS, ARGV or reply of its own: a part of decide.lua and rights.lua. The value lies beside the bucket:
-- replication epoch (40), places that are the region's own (5), places that could be held when this was
-- written (5), the region's share (5), whether every other region has said what it has of an earlier memory
-- (1), the own session (8), then for each region that was met: its session (8), given (5), taken (5), when it
-- last confirmed a loan (7), flags (1: 1 reported, 2 uncounted, 4 wide), length and name, and where it is
-- wide what given and taken have beyond their 5 bytes (2 each); big-endian.
-- Mirrors: PlacesTerms of src/core/regions/escrow/places.rs, and the terms of src/store/rights.rs.

local places_terms, places_step
if escrowed and (kinds[CONCURRENCY] or kinds[SLIDING_WINDOW] or kinds[SLIDING_LOG]) then
  -- For so long after its owner was heard a region may use what it borrowed; for so long a ledger with loans
  -- is kept.
  local LOAN_LIFE, LENT_KEPT = 60000000, 2592000000000
  local HEAD, PARTNERS_MAX = 64, 128
  -- Totals run for as long as both sessions last. They begin to take more than 5 bytes here.
  local WIDE = 1099511627776

  -- A later session has the larger number.
  local function number_of(raw)
    local high, low = struct.unpack(">I4I4", raw)
    return high * 4294967296 + low
  end

  local function read_places(raw, epoch)
    if not raw or #raw < HEAD then return nil end
    local l = { partners = {} }
    local id, _, from
    id, _, _, _, l.recovered, l.session, from = struct.unpack(">c40I5I5I5Bc8", raw)
    if not is_of_epoch(epoch, id, number_of(l.session)) then return nil end
    while from <= #raw do
      local partner, length, name_at = {}
      partner.session, partner.given, partner.taken, partner.heard, partner.flags, length, name_at =
        struct.unpack(">c8I5I5I7BB", raw, from)
      from = name_at + length
      partner.region = string.sub(raw, name_at, from - 1)
      partner.reported, partner.uncounted = partner.flags % 2 == 1, partner.flags % 4 >= 2
      if partner.flags >= 4 then
        local given, taken
        given, taken, from = struct.unpack(">I2I2", raw, from)
        partner.given, partner.taken = partner.given + given * WIDE, partner.taken + taken * WIDE
      end
      l.partners[#l.partners + 1] = partner
    end
    return l
  end

  -- Until everything lent is back or over.
  local function recall(b) return MESSAGE_LIFE + LOAN_LIFE + b.hold + DOUBT_MARGIN end

  local function is_past(b, now) return now >= b.begun + recall(b) end

  local function own(b, l, now)
    return (l and l.recovered == 1 or is_past(b, now)) and b.burst or 0
  end

  local function lent(l)
    local sum = 0
    for i = 1, #l.partners do sum = sum + math.max(0, l.partners[i].given - l.partners[i].taken) end
    return sum
  end

  local function borrowed(partner) return math.max(0, partner.taken - partner.given) end

  local function is_alive(partner, now) return now < partner.heard + LOAN_LIFE end

  local function is_over(b, partner, now) return now >= partner.heard + LOAN_LIFE + b.hold end

  local function capacity(b, l, now)
    local mine = own(b, l, now)
    if not l then return mine end
    local sum = math.max(0, mine - lent(l))
    for i = 1, #l.partners do
      if is_alive(l.partners[i], now) then sum = sum + borrowed(l.partners[i]) end
    end
    return sum
  end

  local function find(l, region)
    for i = 1, #l.partners do
      if l.partners[i].region == region then return l.partners[i] end
    end
  end

  -- The limit that a bucket's holders are held to now. A daemon without peers keeps its static share, as does
  -- a request's own window.
  function places_terms(b, epoch, now, moves)
    b.begun = epoch.begun
    b.places = read_places(redis.call("GET", b.rights), epoch)
    local held_to = math.min(capacity(b, b.places, now), U32_MAX)
    if moves then
      b.whole, b.permits = b.permits, math.min(held_to, b.permits)
    else
      -- What is lent all the same is not here.
      b.permits = b.places and math.min(b.burst, held_to) or b.burst
    end
  end

  -- Follows a region into a later session. Nothing: this one is over, or there is no room for another region.
  local function open_session(b, l, region, session, now)
    local partner = find(l, region)
    if not partner then
      if #l.partners >= PARTNERS_MAX then return nil end
      partner = { region = region, session = session, given = 0, taken = 0, heard = 0 }
      partner.reported, partner.uncounted = false, false
      l.partners[#l.partners + 1] = partner
      return partner
    end
    if partner.session == session then return partner end
    if number_of(partner.session) > number_of(session) then return nil end
    local still = is_over(b, partner, now) and 0 or borrowed(partner)
    partner.session, partner.given, partner.taken, partner.uncounted = session, 0, still, still > 0
    return partner
  end

  local function confirm(partner, counts, heard)
    if counts or not partner.uncounted then
      partner.uncounted = false
      partner.heard = math.max(partner.heard, heard)
    end
  end

  -- Carries out a step beside which `held` places have holders. Returns the value, and how long to keep it in
  -- microseconds.
  function places_step(b, epoch, held, now, s)
    local l = b.places or { recovered = 0, session = struct.pack(">I8", now), partners = {} }
    for i = 1, #l.partners do
      local partner = l.partners[i]
      if partner.uncounted and is_over(b, partner, now) then
        partner.uncounted, partner.taken = false, math.min(partner.taken, partner.given)
      end
    end
    local heard = math.min(s.at, now)
    if s.kind == 1 or s.kind == 6 then
      local partner = find(l, s.region)
      if partner and s.kind == 6 and s.amount > borrowed(partner) then partner = nil end
      -- The owner has not counted this loan yet, and perhaps never will.
      if partner and partner.session == s.session and s.amount > 0 and not partner.uncounted then
        local room, back = capacity(b, l, now), borrowed(partner)
        local unused = (is_alive(partner, now) or held > room) and 0 or back
        local after = lent(l) + math.max(0, s.amount - back)
        local owned = s.amount <= back or after <= own(b, l, now)
        local enough = s.amount <= math.max(0, room - held) + unused
        if owned and enough then partner.given = partner.given + s.amount end
      end
    elseif s.kind == 2 and s.own == l.session then
      local partner = open_session(b, l, s.region, s.session, now)
      if partner then
        local before = partner.taken
        partner.taken = math.max(before, s.amount)
        confirm(partner, s.amount >= before, heard)
      end
    elseif s.kind == 4 then
      local partner = open_session(b, l, s.region, s.session, now)
      if partner and s.amount > 0 then
        if not partner.reported and l.recovered == 0 and not is_past(b, now) then
          partner.given = math.max(partner.given, s.amount - 1)
        end
        partner.reported = true
      end
      local gave = number_of(s.own)
      if partner and gave > 0 then confirm(partner, gave - 1 >= partner.taken, heard) end
    elseif s.kind == 5 then
      local all, from = true, 1
      while from <= #s.region do
        local length = string.byte(s.region, from)
        local partner = find(l, string.sub(s.region, from + 1, from + length))
        all = all and partner ~= nil and partner.reported
        from = from + 1 + length
      end
      if all then l.recovered = 1 end
    end
    local mine, held_to = own(b, l, now), capacity(b, l, now)
    local held_max = math.min(held_to, WIDE - 1)
    local parts = { struct.pack(">c40I5I5I5Bc8", epoch.id, mine, held_max, b.burst, l.recovered, l.session) }
    local kept = recall(b)
    for i = 1, #l.partners do
      local partner = l.partners[i]
      if partner.given ~= partner.taken then kept = math.max(recall(b), LENT_KEPT) end
      local given, taken = partner.given, partner.taken
      local wide = given >= WIDE or taken >= WIDE
      local flags = (partner.reported and 1 or 0) + (partner.uncounted and 2 or 0) + (wide and 4 or 0)
      local beyond = wide and struct.pack(">I2I2", floor(given / WIDE), floor(taken / WIDE)) or ""
      given, taken = given % WIDE, taken % WIDE
      parts[i + 1] = struct.pack(">c8I5I5I7BB", partner.session, given, taken, partner.heard, flags, #partner.region)
        .. partner.region .. beyond
    end
    return table.concat(parts), l.session, kept
  end
end
