-- Without an argument, the requests are wrk's own, all alike: the script then costs nothing until the end.
-- With arguments, requests from a file: one line each, the path, a tab, and the Range header (or nothing). They are made
-- ready before the clock starts; each thread begins at another place of the list.
-- The second argument is the number of threads; "once": each request is made once, by one thread.
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
  if arguments[2] == "once" then return once(requests) end
  at = math.floor(first * #requests / tonumber(arguments[2]))
  function request()
    at = at % #requests + 1
    return requests[at]
  end
end

-- Each once. wrk wants a request after each answer: after the last one it is the first again, until all have surely come.
-- And it sleeps until its time is over, so that the result is printed, and the process ended, here.
function once(requests)
  -- wrk asks for the first one twice.
  local at, answers, bytes, errors = -1, 0, 0, 0
  function request()
    at = at + 1
    return requests[at] or requests[1]
  end
  function response(status, _, body)
    answers, bytes = answers + 1, bytes + #body
    if status ~= 200 then errors = errors + 1 end
    if answers == #requests + 2000 then
      io.write(string.format('{"requests": %d, "bytes": %d, "errors": %d}\n', answers, bytes, errors))
      io.flush()
      os.exit(0)
    end
  end
end

function done(summary, latency, _)
  local e = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %.6f, "bytes": %d, "errors": %d, "p50_s": %.6f, "p99_s": %.6f}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
