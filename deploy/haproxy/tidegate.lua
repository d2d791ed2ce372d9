-- HAProxy's action `lua.tidegate` asks Tidegate about the request, and answers it where Tidegate denies it.
-- `lua.tidegate_told` adds what Tidegate said of a request that passed to the answer of the service.
--
-- It uses nothing but HAProxy's own HTTP client. What it asks goes to the section `listen tidegate` of
-- haproxy.cfg, which knows where daemons are and whether they are well.

-- Where `listen tidegate` listens.
local ASK_AT = "abns@tidegate"
-- The host in this address is only a name. A domain other than `default` goes into its query: "?domain=web".
local ASK = "http://tidegate/v1/authorize"
-- Longest time that HAProxy's client waits, in milliseconds: more than `listen tidegate` takes with its
-- retries, which is 16 s: three times `timeout queue` and `timeout connect` with a second between, and
-- `timeout server`.
local LONGEST_MS = 20000
-- Headers that carry credentials, as `identity.credentials` names them. They are passed on as they came;
-- nothing else that a client sent is.
local OF_THE_CLIENT = { "authorization", "x-api-key" }
-- Headers that frame an answer of Tidegate's. All others are for the client: the limit's, and those of the
-- rules themselves (`headers`, `headers_admitted`).
local FRAMING = {
    ["connection"] = true, ["content-length"] = true, ["content-type"] = true, ["date"] = true,
    ["keep-alive"] = true, ["server"] = true, ["transfer-encoding"] = true, ["x-tidegate-answered"] = true,
    ["x-tidegate-asked"] = true,
}
-- How long the service should hold a request back (`delay = "header"`), and what it should use instead of
-- what was asked for (`on_deny`): it gets these, too.
local FOR_THE_SERVICE = { "x-ratelimit-delay-ms", "x-tidegate-use" }
local IS_FOR_THE_SERVICE = {}
for _, name in ipairs(FOR_THE_SERVICE) do IS_FOR_THE_SERVICE[name] = true end
-- Most bytes of a question: with its first line it must fit a buffer of HAProxy's (`tune.bufsize`, 16384).
-- Longer ones get 431.
local MOST_BYTES = 14000
-- A host, with or without a port: no user, list, path or escape.
local HOST = "^[%w%.%-_~:%[%]!$&'()*+;=]+$"
local NO_ANSWER = { [502] = true, [503] = true, [504] = true }

-- A request's target: a path, or one with scheme and host before it. `*` and `host:port` are none that rules
-- by path meet, and some services take the first for a path.
local TARGETS = { "^/", "^%a[%w+.-]*://" }

local function list(headers, name)
    local values = {}
    local found = headers and headers[name]
    if found then
        -- HAProxy counts from 0.
        for place = 0, #found do
            if found[place] then values[#values + 1] = found[place] end
        end
    end
    return values
end

local function first(headers, name)
    return list(headers, name)[1]
end

-- The question, one value a header: HAProxy's client of Debian 12 ends the whole process when it is given
-- about as many headers as a request may have. Or the status that the client gets, where no question can be
-- made of its request.
local function question(txn)
    local sent = txn.http:req_get_headers()
    local asked = {}
    for _, name in ipairs(OF_THE_CLIENT) do
        local values = list(sent, name)
        -- Tidegate would read one of them, and your service perhaps another.
        if #values > 1 then return nil, 400 end
        asked[name] = values[1]
    end
    -- Tidegate trusts one hop, this one (`identity.trusted_proxies = 1`): the client's address is the last
    -- entry.
    local hops = list(sent, "x-forwarded-for")
    hops[#hops + 1] = txn.f:src()
    asked["x-forwarded-for"] = table.concat(hops, ", ")
    -- As they came, of any spelling: Tidegate reads path and host in their normal form.
    local target = txn.f:url()
    if not (target:find(TARGETS[1]) or target:find(TARGETS[2])) then return nil, 400 end
    asked["x-original-uri"] = target
    asked["x-original-method"] = txn.f:method()
    -- Names the request in Tidegate's audit log, as the client or the proxy before you named it.
    asked["x-request-id"] = first(sent, "x-request-id")
    -- Without a host, or with what services take for another one (`x@host`), rules that name hosts would pass
    -- the request by.
    local host = first(sent, "host")
    if not host or not host:find(HOST) then return nil, 400 end
    asked["x-forwarded-host"] = host
    local headers, bytes = {}, 0
    for name, value in pairs(asked) do
        headers[name] = { value }
        bytes = bytes + #name + #value
    end
    if bytes > MOST_BYTES then return nil, 431 end
    return headers
end

-- Headers of an answer that are for the client, a name and a value each.
local function told(answer)
    local headers = {}
    for name in pairs(answer.headers) do
        if not FRAMING[name] then
            for _, value in ipairs(list(answer.headers, name)) do headers[#headers + 1] = { name, value } end
        end
    end
    return headers
end

local function refuse(txn, status, answer)
    local reply = txn:reply({ status = status })
    if answer then
        for _, header in ipairs(told(answer)) do reply:add_header(header[1], header[2]) end
        local kind = first(answer.headers, "content-type")
        if kind then reply:add_header("content-type", kind) end
        reply:set_body(answer.body or "")
    end
    txn:done(reply)
end

core.register_action("tidegate", { "http-req" }, function(txn)
    -- A client must not speak of them, whatever the answer; services behind CGI and WSGI take `_` for `-`.
    for name in pairs(txn.http:req_get_headers()) do
        if IS_FOR_THE_SERVICE[(name:lower():gsub("_", "-"))] then txn.http:req_del_header(name) end
    end
    local headers, unfit = question(txn)
    if not headers then return refuse(txn, unfit) end
    local client = core.httpclient()
    local answer = client:get({ url = ASK, dst = ASK_AT, headers = headers, timeout = LONGEST_MS })
    local status = answer and answer.status or 0
    if not (answer and first(answer.headers, "x-tidegate-answered")) then
        if NO_ANSWER[status] then
            -- HAProxy is full, and had no place for the question: that says nothing about Tidegate.
            if not first(answer.headers, "x-tidegate-asked") then return refuse(txn, 503) end
            txn:set_var("txn.tidegate", "absent")
            return
        end
        -- HAProxy itself could not put what the client sent into a question: too long, or no HTTP.
        return refuse(txn, 400)
    end
    if status < 200 or status > 299 then return refuse(txn, status, answer) end
    txn:set_priv(told(answer))
    for _, name in ipairs(FOR_THE_SERVICE) do
        local value = first(answer.headers, name)
        if value then txn.http:req_set_header(name, value) end
    end
    txn:set_var("txn.tidegate", "passed")
end)

core.register_action("tidegate_told", { "http-res" }, function(txn)
    for _, header in ipairs(txn:get_priv() or {}) do txn.http:res_set_header(header[1], header[2]) end
end)
