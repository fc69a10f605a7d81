// Addresses of this server, the user's key, and responses as streams of events.

const base = new URL(document.baseURI);
let key = sessionStorage.getItem("stentor-key") ?? "";

export function useKey(text) {
  key = text.trim();
  sessionStorage.setItem("stentor-key", key); // for this tab, until it is closed
}

export function keyInUse() {
  return key;
}

// Where a path of the API is, with the prefix of this server.
export function address(path) {
  return new URL(path, base).href;
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The response; throws ApiError with the server's own words where it is none of 2xx. `body` is JSON, a FormData, or a text
// of that `type`.
export async function call(path, { body, signal, type } = {}) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const isForm = body instanceof FormData;
  if (body !== undefined && !isForm) headers["content-type"] = type ?? "application/json";
  const response = await fetch(new URL(path, base), {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined || isForm || type ? body : JSON.stringify(body),
    signal,
  });
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // a proxy has answered
  }
  throw new ApiError(response.status, message || `${response.status} ${response.statusText}`);
}

// The data of each event of a response, parsed, until it says [DONE].
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(0, event.error.message);
      yield event;
    }
  }
}

// Where a realtime session is opened, and the subprotocols that carry the key: browsers can set no header there.
export function realtimeAddress(model) {
  const url = new URL("v1/realtime", base);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.searchParams.set("model", model);
  return [url, ["realtime", ...(key ? [`openai-insecure-api-key.${key}`] : [])]];
}
