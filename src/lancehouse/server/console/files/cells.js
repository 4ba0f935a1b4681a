// Values of rows. The server shortens the long ones.

import { get, image } from "./api.js";
import { fill, h, icon, problem, skeleton } from "./dom.js";
import { bytes } from "./format.js";

const visibility = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    visibility.unobserve(entry.target);
    entry.target.dispatchEvent(new Event("visible"));
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
      return h("span", { class: "text" }, value.text, h("span", { class: "full-size" }, ` … ${bytes(value.size)}`));
    case "number":
      return h("span", { class: "num" }, value.text);
    case "vector":
      return h("span", { class: "vector" }, sparkline(value.text), h("span", { class: "dim" }, `${value.size}`));
    case "bytes":
    case "blob":
      return bytesCell(value, column, where);
    default:
      return h("span", { class: "nested" }, value.text);
  }
}

// The first numbers of a vector as little bars.
function sparkline(text) {
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
  box.addEventListener("visible", async () => {
    try {
      fill(box, await picture(where, column));
    } catch (error) {
      if (value.kind === "blob" && error.message?.includes("is no image")) notImages.add(key);
    }
  });
  visibility.observe(box);
  return box;
}

// An image element. The image is fetched with the token, which an address in `src` could not send.
export async function picture(where, column, signal) {
  const blob = await image({ in: where.place, level: where.levels, version: where.version, column, row: where.row }, signal);
  const url = URL.createObjectURL(blob);
  const element = h("img", { alt: `${column} of row ${where.row}`, decoding: "async" });
  element.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  element.addEventListener("error", () => URL.revokeObjectURL(url), { once: true });
  element.src = url;
  return element;
}

export function whenVisible(element, handler) {
  element.addEventListener("visible", handler, { once: true });
  visibility.observe(element);
}

// A row with all its columns, one below the other. A button fetches the whole of a shortened value.
export function record(page, rowPage, at) {
  const { version, ids, columns, rows } = rowPage;
  const where = { place: page.at.place, levels: page.at.levels, version, row: ids[at] };
  const hasIds = !page.info.restricted; // who sees only a part of a table gets no row ids, which fetching a value needs
  const fields = columns.map((name, place) => {
    const value = rows[at][place];
    const column = [...page.info.columns, ...(page.info.kept_columns || [])].find((each) => each.name === name);
    const box = h("dd", {}, largeValue(value, name, where));
    if (hasIds && isShortened(value)) box.append(h("button", { class: "small", onclick: (event) => showWholeValue(event.target, box, where, name) }, "Show all"));
    if (hasIds && value && value.kind === "vector") box.append(h("button", { class: "small", onclick: () => page.go({ tab: "vectors", column: name, row: ids[at] }) }, icon("near"), "What is near"));
    return [h("dt", {}, name, h("span", { class: "type" }, column?.type || "")), box];
  });
  return h("dl", { class: "record" }, fields);
}

function isShortened(value) {
  return Boolean(value) && typeof value === "object" && (value.kind === "text" || value.kind === "vector" || (value.kind === "nested" && value.text.includes("…")));
}

function largeValue(value, name, where) {
  if (value && (value.kind === "blob" || (value.kind === "bytes" && value.image))) {
    const box = h("div", { class: "picture" }, h("span", { class: "chip" }, bytes(value.size)));
    picture(where, name)
      .then((element) => box.prepend(element))
      .catch(() => {});
    return box;
  }
  if (value && typeof value === "object" && value.text !== undefined) return h("pre", { class: "value" }, value.text);
  return typeof value === "string" ? h("pre", { class: "value" }, value) : cell(value, name, where);
}

async function showWholeValue(button, box, where, column) {
  fill(box, skeleton(2));
  try {
    const { value } = await get("value", { in: where.place, level: where.levels, version: where.version, row: where.row, column });
    const text = typeof value === "object" ? value?.text : String(value);
    fill(box, h("pre", { class: "value tall", tabindex: "0" }, text ?? "null"));
  } catch (error) {
    fill(box, problem(error));
  }
}
