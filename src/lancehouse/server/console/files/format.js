// Numbers, sizes, times and names as people read them.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const MOMENT = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "medium" });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const STEPS = [
  ["year", 31557600],
  ["month", 2629800],
  ["week", 604800],
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
];

export function whole(number) {
  return number === null || number === undefined ? "–" : WHOLE.format(number);
}

export function short(number) {
  return SHORT.format(number);
}

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  let at = 0;
  let amount = size;
  while (amount >= 1024 && at < UNITS.length - 1) {
    amount /= 1024;
    at += 1;
  }
  return `${at ? SHORT.format(amount) : amount} ${UNITS[at]}`;
}

export function ago(ms, now = Date.now()) {
  if (!ms) return "–";
  const seconds = (ms - now) / 1000;
  for (const [unit, size] of STEPS) {
    if (Math.abs(seconds) >= size) return RELATIVE.format(Math.trunc(seconds / size), unit);
  }
  return "just now";
}

export function moment(ms) {
  return ms ? MOMENT.format(new Date(ms)) : "–";
}

export function plural(count, word, many = `${word}s`) {
  return `${whole(count)} ${count === 1 ? word : many}`;
}

// The levels of a name joined by dots. A level that contains a dot is in backquotes.
export function dottedName(levels) {
  return levels.map((level) => (/[.$`]/.test(level) ? `\`${level.replaceAll("`", "``")}\`` : level)).join(".");
}

export const KINDS = {
  lance: "Lance table",
  iceberg: "Iceberg table",
  view: "View",
  namespace: "Namespace",
  warehouse: "Warehouse",
  backend: "Backend",
};

const PLACES = { namespace: "ns", warehouse: "ns", backend: "ns" };

export function address(kind, place, levels, query = {}) {
  const path = [place, ...levels].map(encodeURIComponent).join("/");
  const parameters = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const tail = parameters.length ? `?${new URLSearchParams(parameters)}` : "";
  return `#/${PLACES[kind] || "table"}/${path}${tail}`;
}

export function parseHash(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page, ...rest] = path.split("/").filter(Boolean);
  const names = rest.map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { page: page || "home", place: names[0], levels: names.slice(1), query: Object.fromEntries(new URLSearchParams(query || "")) };
}
