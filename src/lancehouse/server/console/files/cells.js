// Values of rows, as the server cut them.

import { get, image } from "./api.js";
import { fill, h, icon, problem, waiting } from "./dom.js";
import { bytes } from "./format.js";

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    entry.target.dispatchEvent(new Event("seen"));
  }
});

export function isRight(kind) {
  return kind === "number";
}

// One value in a grid.
export function cell(value, column, where) {
  if (value === null) return h("span", { class: "null" }, "null");
  if (typeof value === "boolean") return h("span", { class: "bool" }, String(value));
  if (typeof value === "number") return h("span", { class: "num" }, String(value));
  if (typeof value === "string") return h("span", { class: "text" }, value || h("span", { class: "null" }, "empty"));
  switch (value.kind) {
    case "text":
      return h("span", { class: "text" }, value.text, h("span", { class: "cut" }, ` … ${bytes(value.size)}`));
    case "number":
      return h("span", { class: "num" }, value.text);
    case "vector":
      return h("span", { class: "vector" }, sparks(value.text), h("span", { class: "dim" }, `${value.size}`));
    case "bytes":
    case "blob":
      return bytesCell(value, column, where);
    default:
      return h("span", { class: "nested" }, value.text);
  }
}

// A vector's first numbers as little bars.
function sparks(text) {
  const numbers = (text.match(/-?\d[\d.e+-]*/g) || []).map(Number);
  const most = Math.max(...numbers.map(Math.abs), 1e-12);
  return h(
    "span",
    { class: "sparks", title: text },
    numbers.map((number) => h("i", { class: number < 0 ? "below" : "", css: { height: `${Math.max(8, (Math.abs(number) / most) * 100)}%` } })),
  );
}

const notImages = new Set();

function bytesCell(value, column, where) {
  const label = h("span", { class: "chip" }, value.size === null ? "bytes" : bytes(value.size));
  const key = `${where.place}/${where.levels.join("/")}/${column}`;
  if (value.kind === "bytes" ? !value.image : notImages.has(key)) return label;
  const box = h("span", { class: "thumb" }, label);
  box.addEventListener("seen", async () => {
    try {
      fill(box, await picture(where, column));
    } catch (error) {
      if (value.kind === "blob" && error.message?.includes("is no image")) notImages.add(key);
    }
  });
  seen.observe(box);
  return box;
}

// An image that is fetched with the token, and drawn from memory.
export async function picture(where, column, signal) {
  const found = await image({ in: where.place, level: where.levels, version: where.version, column, row: where.row }, signal);
  const url = URL.createObjectURL(found);
  const drawn = h("img", { alt: `${column} of row ${where.row}`, decoding: "async" });
  drawn.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  drawn.addEventListener("error", () => URL.revokeObjectURL(url), { once: true });
  drawn.src = url;
  return drawn;
}

export function whenSeen(element, does) {
  element.addEventListener("seen", does, { once: true });
  seen.observe(element);
}

// A row with all its columns, one below the other; what was cut is fetched whole when it is asked for.
export function record(page, told, at) {
  const { version, ids, columns, rows } = told;
  const where = { place: page.at.place, levels: page.at.levels, version, row: ids[at] };
  const hasIds = !page.info.restricted; // a part of a table is shown without row ids, by which values are fetched
  const fields = columns.map((name, place) => {
    const value = rows[at][place];
    const column = [...page.info.columns, ...(page.info.kept_columns || [])].find((each) => each.name === name);
    const box = h("dd", {}, large(value, name, where));
    if (hasIds && isCut(value)) box.append(h("button", { class: "small", onclick: (event) => wholeValue(event.target, box, where, name) }, "Show all"));
    if (hasIds && value && value.kind === "vector") box.append(h("button", { class: "small", onclick: () => page.go({ tab: "vectors", column: name, row: ids[at] }) }, icon("near"), "What is near"));
    return [h("dt", {}, name, h("span", { class: "type" }, column?.type || "")), box];
  });
  return h("dl", { class: "record" }, fields);
}

function isCut(value) {
  return Boolean(value) && typeof value === "object" && (value.kind === "text" || value.kind === "vector" || (value.kind === "nested" && value.text.includes("…")));
}

function large(value, name, where) {
  if (value && (value.kind === "blob" || (value.kind === "bytes" && value.image))) {
    const box = h("div", { class: "picture" }, h("span", { class: "chip" }, bytes(value.size)));
    picture(where, name)
      .then((drawn) => box.prepend(drawn))
      .catch(() => {});
    return box;
  }
  if (value && typeof value === "object" && value.text !== undefined) return h("pre", { class: "value" }, value.text);
  return typeof value === "string" ? h("pre", { class: "value" }, value) : cell(value, name, where);
}

async function wholeValue(button, box, where, column) {
  fill(box, waiting(2));
  try {
    const told = await get("value", { in: where.place, level: where.levels, version: where.version, row: where.row, column });
    const text = typeof told.value === "object" ? told.value?.text : String(told.value);
    fill(box, h("pre", { class: "value tall", tabindex: "0" }, text ?? "null"));
  } catch (error) {
    fill(box, problem(error));
  }
}
