// Questions to the server. The token is kept for this tab only, and goes out in a header.

const KEY = "lancehouse.token";
const HINTS = {
  503: "The server is busy, or the request was too large: a narrower filter or an index on its column helps.",
};

export class Refused extends Error {
  constructor(status, message, type) {
    super(message);
    this.status = status;
    this.type = type;
    this.hint = HINTS[status];
  }
}

let refusedBy = () => {};

export function onSignIn(handler) {
  refusedBy = handler;
}

export function token() {
  return sessionStorage.getItem(KEY);
}

export function keepToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

function headers() {
  const known = token();
  return known ? { Authorization: `Bearer ${known}` } : {};
}

function query(params) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") asked.append(name, each);
    }
  }
  return asked.toString();
}

async function send(path, params, signal) {
  let reply;
  try {
    reply = await fetch(`/console/v1/${path}?${query(params)}`, { headers: headers(), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server cannot be reached.");
  }
  if (reply.ok) return reply;
  const told = await reply.json().catch(() => null);
  const error = new Refused(reply.status, told?.error?.message || `The server answered ${reply.status}.`, told?.error?.type);
  if (reply.status === 401) refusedBy(error);
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
  const told = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Refused(reply.status, told.error_description || "The client id or the secret is wrong.");
  return told.access_token;
}
