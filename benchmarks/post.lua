-- wrk ... -s post.lua URL -- BODY_FILE CONTENT_TYPE [INFERENCE_HEADER_LENGTH]
-- Sends one fixed body; ends with one line of JSON, so that nothing has to be read out of wrk's prose.
local request_text

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local body = file:read("*all")
  file:close()
  local headers = { ["Content-Type"] = args[2] }
  if args[3] then headers["Inference-Header-Content-Length"] = args[3] end
  request_text = wrk.format("POST", nil, headers, body)
end

function request()
  return request_text
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "failed": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d}\n',
    summary.requests,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    summary.duration, latency:percentile(50), latency:percentile(99)))
end
