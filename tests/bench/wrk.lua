-- Without an argument, the requests are wrk's own, all alike: the script then costs nothing until the end.
-- With arguments, requests from a file: one line each, the path, a tab, and the Range header (or nothing). They are made
-- ready before the clock starts; each thread begins at another place of the list.
-- The result is the last line of the output, as JSON.

local threads = 0

function setup(thread)
  thread:set("first", threads)
  threads = threads + 1
end

function init(arguments)
  if not arguments[1] then return end
  local requests, at = {}, 0
  for line in io.lines(arguments[1]) do
    local path, range = line:match("^([^\t]*)\t(.*)$")
    local headers = {}
    if range ~= "" then headers["Range"] = range end
    requests[#requests + 1] = wrk.format("GET", path, headers)
  end
  at = math.floor(first * #requests / tonumber(arguments[2]))
  function request()
    at = at % #requests + 1
    return requests[at]
  end
end

function done(summary, latency, _)
  local e = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %.6f, "bytes": %d, "errors": %d, "p50_s": %.6f, "p99_s": %.6f}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
