-- The limiter: everything it does is one call of this script, so it is atomic, and one round trip.
--
-- KEYS[1]  prefix of all its keys, with the hash tag that keeps them in one slot of a cluster
-- KEYS[2]  WHOLE_SLOT, as `store.py` has it
-- ARGV[1]  what to do: a name in `operations`
-- ARGV[2]  the time in ms since 1970; '': this server's
-- ARGV[3]  arguments, as JSON
-- Returns JSON.
--
--   <prefix>window:<subject>    hash    for each limit that counts: its buckets, their sum, the first, the last
--   <prefix>running:<subject>   set     jobs that have reserved and are not settled
--   <prefix>job:<job>           hash    what a job has reserved, and the tokens it has used so far; or what it
--                                       was charged, which expires
--   <prefix>leases              zset    jobs that have reserved, by when they are given back
--   <prefix>swept               string  when leases were last looked after
--
-- A window is divided into buckets. What is counted in a bucket counts until as many buckets have begun after
-- it as the window has, so a request counts for the whole window and up to one bucket longer: no interval of
-- the window's length ever has more than the limit.

local prefix = KEYS[1]
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Of each limit: its name, its short name in a window, what it counts, a bucket's width in ms, and how many
-- buckets a window has beside the present one.
local LIMITS = {
  {name = 'requests_per_minute', id = 'rm', counts = 'requests', width = 1000, buckets = 60},
  {name = 'tokens_per_minute', id = 'tm', counts = 'tokens', width = 1000, buckets = 60},
  {name = 'requests_per_day', id = 'rd', counts = 'requests', width = 86400000, buckets = 0},
  {name = 'tokens_per_day', id = 'td', counts = 'tokens', width = 86400000, buckets = 0},
}
local CONCURRENT = 'concurrent_requests'
-- A window that nothing is added to is forgotten after this long.
local SHORT_LIFE_S, LONG_LIFE_S = 130, 2 * 86400
local MOST_AT_ONCE = 1000

local function field(limit, bucket)
  return limit.id .. ':' .. string.format('%d', bucket)
end

-- What was read in this run, where nothing else changes it meanwhile: the calls of one `admit` mostly have the
-- same subjects. nil: each is read anew.
local known

-- What `read` returns, read once for a name where that is allowed.
local function once(name, read)
  if not known then return read() end
  if known[name] == nil then known[name] = read() end
  return known[name]
end

-- The window of a subject and a limit, without the buckets that have left it.
local function read_window(subject, limit)
  local key = prefix .. 'window:' .. subject
  local row = redis.call('HMGET', key, limit.id .. ':sum', limit.id .. ':first', limit.id .. ':last')
  local window = {key = key, limit = limit}
  window.sum, window.first, window.last = tonumber(row[1]) or 0, tonumber(row[2]), tonumber(row[3])
  -- A clock that was set back stands still until it has caught up.
  window.bucket = math.max(math.floor(now / limit.width), window.last or 0)
  local oldest = window.bucket - limit.buckets
  if window.first and window.first < oldest then
    local names = {}
    for bucket = window.first, math.min(oldest - 1, window.last) do
      names[#names + 1] = field(limit, bucket)
    end
    local gone = 0
    for _, n in ipairs(redis.call('HMGET', key, unpack(names))) do
      gone = gone + (tonumber(n or 0) or 0)
    end
    redis.call('HDEL', key, unpack(names))
    window.sum = window.sum - gone
    if window.last < oldest then
      window.first, window.last = nil, nil
      redis.call('HDEL', key, limit.id .. ':sum', limit.id .. ':first', limit.id .. ':last')
    else
      window.first = oldest
      redis.call('HSET', key, limit.id .. ':sum', window.sum, limit.id .. ':first', oldest)
    end
  end
  return window
end

local function window_of(subject, limit)
  return once(limit.id .. ' ' .. subject, function() return read_window(subject, limit) end)
end

local function add(window, n)
  local limit = window.limit
  window.sum = window.sum + n
  window.first = math.min(window.first or window.bucket, window.bucket)
  window.last = window.bucket
  redis.call('HINCRBY', window.key, field(limit, window.bucket), n)
  redis.call('HSET', window.key, limit.id .. ':sum', window.sum, limit.id .. ':first', window.first,
    limit.id .. ':last', window.last)
end

local function keep_window(subject, rule)
  local is_daily = rule.limits.requests_per_day or rule.limits.tokens_per_day
  redis.call('EXPIRE', prefix .. 'window:' .. subject, is_daily and LONG_LIFE_S or SHORT_LIFE_S)
end

-- Takes back what was added to a bucket, if that still counts.
local function take_back(subject, limit, bucket, n)
  local key = prefix .. 'window:' .. subject
  local there = tonumber(redis.call('HGET', key, field(limit, bucket)) or nil)
  if there and there > 0 then
    local less = math.min(there, n)
    redis.call('HINCRBY', key, field(limit, bucket), -less)
    redis.call('HINCRBY', key, limit.id .. ':sum', -less)
  end
end

local function reset_ms(window)
  if not window.last or window.sum == 0 then return 0 end
  return (window.last + window.limit.buckets + 1) * window.limit.width - now
end

-- In how many ms `n` more fit; -1: never.
local function wait_ms(window, most, n)
  if n > most then return -1 end
  local missing = n - (most - window.sum)
  for bucket = window.first or 0, window.last or -1 do
    if missing <= 0 then break end
    missing = missing - (tonumber(redis.call('HGET', window.key, field(window.limit, bucket)) or 0) or 0)
    if missing <= 0 then return (bucket + window.limit.buckets + 1) * window.limit.width - now end
  end
  return 0
end

-- The rules of subjects: an entry for each that has one, its own or the one of its kind.
--
-- given  limits by subject or kind
local function rules_of(subjects, given)
  local rules = {}
  for _, subject in ipairs(subjects) do
    local limits = given[subject] or given[string.match(subject, '^%a+:') .. '*']
    if limits and next(limits) then rules[#rules + 1] = {subject = subject, limits = limits} end
  end
  return rules
end

local function running_of(subject)
  return once('running ' .. subject, function() return redis.call('SCARD', prefix .. 'running:' .. subject) end)
end

-- What would be over a limit, of all such the one to be waited for longest; nil if nothing. `cost` says for a
-- rule how many `requests` and `tokens` more there would be, and `running` ones.
-- Also the windows that were looked at.
local function check(rules, cost)
  local worst, windows = nil, {}
  local function refuse(rule, name, used, wait, reset)
    local is_worse = not worst or (worst.wait_ms >= 0 and (wait < 0 or wait > worst.wait_ms))
    if is_worse then
      worst = {subject = rule.subject, name = name, limit = rule.limits[name], used = used, wait_ms = wait,
        reset_ms = reset}
    end
  end
  for _, rule in ipairs(rules) do
    local asked = cost(rule)
    for _, limit in ipairs(LIMITS) do
      local most = rule.limits[limit.name]
      local n = asked[limit.counts] or 0
      if most and n > 0 then
        local window = window_of(rule.subject, limit)
        windows[#windows + 1] = {rule = rule, window = window, n = n}
        if window.sum + n > most then
          refuse(rule, limit.name, window.sum, wait_ms(window, most, n), reset_ms(window))
        end
      end
    end
    local most = rule.limits[CONCURRENT]
    if most and asked.running then
      local running = running_of(rule.subject)
      if running + 1 > most then refuse(rule, CONCURRENT, running, 1000, 0) end
    end
  end
  return worst, windows
end

-- As clients are told.
local function states_of(windows)
  local states = {}
  for _, each in ipairs(windows) do
    local window, most = each.window, each.rule.limits[each.window.limit.name]
    states[#states + 1] = {name = window.limit.counts, limit = most,
      remaining = math.max(0, most - window.sum), reset_ms = reset_ms(window)}
  end
  return states
end

-- Ends a reservation: what it reserved beyond `tokens` is given back, and charged where it is less. With
-- `is_void` its requests too.
local function release(job, row, tokens, is_void)
  for _, held in ipairs(cjson.decode(row)) do
    local subject, limit, bucket, n = held[1], LIMITS[held[2]], held[3], held[4]
    if not limit then
      redis.call('SREM', prefix .. 'running:' .. subject, job)
    elseif limit.counts == 'tokens' and n > tokens then
      take_back(subject, limit, bucket, n - tokens)
    elseif limit.counts == 'tokens' and n < tokens then
      add(window_of(subject, limit), tokens - n)
      redis.call('EXPIRE', prefix .. 'window:' .. subject, LONG_LIFE_S)
    elseif limit.counts == 'requests' and is_void then
      take_back(subject, limit, bucket, n)
    end
  end
  redis.call('ZREM', prefix .. 'leases', job)
  redis.call('DEL', prefix .. 'job:' .. job)
end

local function remember(job, charged, seconds)
  redis.call('HSET', prefix .. 'job:' .. job, 'charged', charged)
  redis.call('EXPIRE', prefix .. 'job:' .. job, seconds)
end

local function charge(rules, tokens)
  for _, rule in ipairs(rules) do
    for _, limit in ipairs(LIMITS) do
      if rule.limits[limit.name] and limit.counts == 'tokens' then
        add(window_of(rule.subject, limit), tokens)
        keep_window(rule.subject, rule)
      end
    end
  end
end

-- Whether Reserve may have something to count: it knows the model, which Admit does not.
local function has_to_reserve(rules, given)
  for _, rule in ipairs(rules) do
    local limits = rule.limits
    if limits.tokens_per_minute or limits.tokens_per_day or limits[CONCURRENT] then return true end
  end
  return given.limits_models
end

-- One request more of these subjects, if none of their limits is used up; and whether Reserve has to be asked.
local function admit(subjects, given)
  local rules = rules_of(subjects, given.rules)
  local worst, windows = check(rules, function() return {requests = 1, tokens = 1, running = true} end)
  if worst then return {refused = worst, states = states_of(windows)} end
  for _, each in ipairs(windows) do
    if each.window.limit.counts == 'requests' then
      add(each.window, 1)
      keep_window(each.rule.subject, each.rule)
    end
  end
  return {states = states_of(windows), has_to_reserve = has_to_reserve(rules, given)}
end

local operations = {}

-- {calls, rules, limits_models}: one request more of the subjects of each call, in their order.
function operations.admit(given)
  local answers = {}
  known = {}
  for i, subjects in ipairs(given.calls) do answers[i] = admit(subjects, given) end
  return {answers = answers}
end

-- {subjects, rules, model, job, tokens, lease_ms}: tokens of all subjects, a request of the model, and a running
-- request of each.
function operations.reserve(given)
  local job = given.job
  local record = redis.call('HGET', prefix .. 'job:' .. job, 'held')
  if record then return {states = {}, lease_ms = given.lease_ms} end
  local rules = rules_of(given.subjects, given.rules)
  if #rules == 0 then return {states = {}, lease_ms = 0} end
  local worst, windows = check(rules, function(rule)
    return {requests = rule.subject == given.model and 1 or 0, tokens = given.tokens, running = true}
  end)
  if worst then return {refused = worst, states = states_of(windows)} end
  local held = {}
  for _, each in ipairs(windows) do
    add(each.window, each.n)
    for i, limit in ipairs(LIMITS) do
      if limit == each.window.limit then
        held[#held + 1] = {each.rule.subject, i, each.window.bucket, each.n}
      end
    end
  end
  for _, rule in ipairs(rules) do
    keep_window(rule.subject, rule)
    redis.call('SADD', prefix .. 'running:' .. rule.subject, job)
    held[#held + 1] = {rule.subject, 0, 0, 1}
  end
  redis.call('DEL', prefix .. 'job:' .. job)
  redis.call('HSET', prefix .. 'job:' .. job, 'held', cjson.encode(held))
  redis.call('ZADD', prefix .. 'leases', now + given.lease_ms, job)
  return {states = states_of(windows), lease_ms = given.lease_ms}
end

-- {jobs, lease_ms}
function operations.renew(given)
  for _, job in ipairs(given.jobs) do
    redis.call('ZADD', prefix .. 'leases', 'XX', now + given.lease_ms, job)
  end
  return {}
end

-- The tokens that a job used in the end, or so far. A partial one leaves the reservation as it is.
local function settle(job, given)
  local key = prefix .. 'job:' .. job.job
  local row = redis.call('HMGET', key, 'held', 'used', 'charged')
  local tokens = math.max(job.tokens, tonumber(row[2] or 0) or 0)
  if row[1] and job.is_partial then
    redis.call('HSET', key, 'used', tokens)
  elseif row[1] and job.is_void then
    release(job.job, row[1], 0, true)
  elseif row[1] then
    release(job.job, row[1], tokens, false)
    remember(job.job, tokens, given.remember_s)
  elseif not job.is_void then
    local rules = rules_of(job.subjects, given.rules)
    if #rules == 0 then return end
    local before = tonumber(row[3] or 0) or 0
    if tokens > before then charge(rules, tokens - before) end
    remember(job.job, math.max(before, tokens), given.remember_s)
  end
end

-- {jobs: {subjects, job, tokens, is_void, is_partial}, rules, remember_s}: each job, in their order.
function operations.settle(given)
  for _, job in ipairs(given.jobs) do settle(job, given) end
  return {}
end

-- {lease_ms, remember_s}: gives back what was not renewed, but for what is known to be used. Time in which
-- gateways could not renew is no time. After a clock was set back, all leases begin anew: their ends are of the
-- time before, and would come only when it has caught up.
function operations.sweep(given)
  local leases, swept = prefix .. 'leases', prefix .. 'swept'
  local last = tonumber(redis.call('GET', swept) or nil)
  redis.call('SET', swept, string.format('%d', now))
  if not last or now < last or now - last > given.lease_ms / 2 then
    for _, job in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
      redis.call('ZADD', leases, now + given.lease_ms, job)
    end
    return {expired = 0}
  end
  local expired = redis.call('ZRANGE', leases, '-inf', now, 'BYSCORE', 'LIMIT', 0, MOST_AT_ONCE)
  for _, job in ipairs(expired) do
    local row = redis.call('HMGET', prefix .. 'job:' .. job, 'held', 'used')
    local used = tonumber(row[2] or 0) or 0
    release(job, row[1] or '[]', used, false)
    if used > 0 then remember(job, used, given.remember_s) end
  end
  return {expired = #expired}
end

-- {subject, rules}: what it has used of its limits.
function operations.usage(given)
  local rules = rules_of({given.subject}, given.rules)
  local usage = {}
  for _, rule in ipairs(rules) do
    for _, limit in ipairs(LIMITS) do
      if rule.limits[limit.name] then
        local window = window_of(rule.subject, limit)
        usage[#usage + 1] = {name = limit.name, limit = rule.limits[limit.name], used = window.sum,
          reset_ms = reset_ms(window)}
      end
    end
    if rule.limits[CONCURRENT] then
      usage[#usage + 1] = {name = CONCURRENT, limit = rule.limits[CONCURRENT],
        used = redis.call('SCARD', prefix .. 'running:' .. rule.subject), reset_ms = 0}
    end
  end
  return {usage = usage}
end

return cjson.encode(operations[ARGV[1]](cjson.decode(ARGV[3])))
