// Requests to the server. The token is stored for this tab only, and sent in a header.

const KEY = "lancehouse.token";
const HINTS = {
  503: "The server is busy, or the request was too large: a narrower filter or an index on its column helps.",
};

export class RequestError extends Error {
  constructor(status, message, type) {
    super(message);
    this.status = status;
    this.type = type;
    this.hint = HINTS[status];
  }
}

let handleUnauthorized = () => {};

export function onUnauthorized(handler) {
  handleUnauthorized = handler;
}

export function token() {
  return sessionStorage.getItem(KEY);
}

export function storeToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

function headers() {
  const stored = token();
  return stored ? { Authorization: `Bearer ${stored}` } : {};
}

function query(values) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== undefined && item !== null && item !== "") parameters.append(name, item);
    }
  }
  return parameters.toString();
}

async function send(path, params, signal) {
  let reply;
  try {
    reply = await fetch(`/console/v1/${path}?${query(params)}`, { headers: headers(), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "The server cannot be reached.");
  }
  if (reply.ok) return reply;
  const body = await reply.json().catch(() => null);
  const error = new RequestError(reply.status, body?.error?.message || `The server answered ${reply.status}.`, body?.error?.type);
  if (reply.status === 401) handleUnauthorized(error);
  throw error;
}

export async function get(path, params = {}, signal = undefined) {
  return (await send(path, params, signal)).json();
}

export async function image(params, signal) {
  return (await send("image", params, signal)).blob();
}

export async function exchange(id, secret) {
  const body = new URLSearchParams({ grant_type: "client_credentials", client_id: id, client_secret: secret, scope: "catalog" });
  const reply = await fetch("/iceberg/v1/oauth/tokens", { method: "POST", body });
  const granted = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new RequestError(reply.status, granted.error_description || "The client id or the secret is wrong.");
  return granted.access_token;
}
