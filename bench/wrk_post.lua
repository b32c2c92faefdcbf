-- wrk -t1 -c32 -d5s -s bench/wrk_post.lua URL, with the body in the file that BODY_FILE names and
-- more headers, one a line, in HEADERS. FRESH is a text of 16 characters that is another one in
-- every request.
local file = assert(io.open(os.getenv("BODY_FILE"), "rb"))
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = file:read("*a")
file:close()
for name, value in (os.getenv("HEADERS") or ""):gmatch("([^:\n]+): ([^\n]+)") do
  wrk.headers[name] = value
end

local fresh = "{fresh-of-16-ch}"
local before, after, number

function init()
  local request = wrk.format()
  local first, last = request:find(fresh, 1, true)
  if first then
    before, after = request:sub(1, first - 1), request:sub(last + 1)
    number = os.time() * 1000000
    _G.request = function()
      number = number + 1
      return before .. ("%016d"):format(number) .. after
    end
  end
end
