-- wrk -t1 -c32 -d5s -s bench/wrk_post.lua URL, with the body in the file that BODY_FILE names.
local file = assert(io.open(os.getenv("BODY_FILE"), "rb"))
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = file:read("*a")
file:close()
