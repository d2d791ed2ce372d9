-- The server's time, and a cell as it is: its text, or false.
local time = redis.call('TIME')
return { time[1], time[2], redis.call('GET', KEYS[1]) }
