-- wrk -t1 -c32 -d10s -s bench/wrk_write.lua http://127.0.0.1:4000/v0/topics/bench
-- One record of 256 bytes in each request.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"records":[{"data":{"k":"' .. string.rep("x", 248) .. '"}}]}'
