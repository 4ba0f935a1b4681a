// The columns of a table or view.

import { copyButton, empty, fill, h } from "./dom.js";
import { bytes } from "./format.js";

const HIDDEN = new Set(["lance-encoding:blob", "ARROW:extension:name", "ARROW:extension:metadata"]);

export function schemaTab(page) {
  const { info } = page;
  const element = h("div", {});
  const draw = (sizes) => {
    const most = Math.max(...Object.values(sizes), 1);
    const hasNotes = info.columns.some(isNoted);
    const rows = info.columns.flatMap((column) => lines(column, 0, sizes, most, hasNotes));
    const hasSizes = Object.keys(sizes).length > 0;
    const head = ["Column", "Type", "May be null", hasSizes ? "On disk" : null, hasNotes ? "Notes" : null].filter(Boolean);
    fill(
      element,
      layout(info),
      info.columns.length
        ? h("div", { class: "scroll" }, h("table", { class: "plain schema" }, h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows)))
        : empty("There are no columns"),
    );
  };
  draw({});
  if (info.kind === "lance") {
    page
      .ask("fragments")
      .then((told) => draw(Object.fromEntries(told.columns)))
      .catch(() => {}); // the columns are there without their sizes
  }
  return { element };
}

function layout(info) {
  const parts = [
    info.partition?.length ? ["Partitioned by", info.partition.join(", ")] : null,
    info.sort?.length ? ["Sorted by", info.sort.join(", ")] : null,
  ].filter(Boolean);
  return parts.length ? h("dl", { class: "pairs slim" }, parts.map(([key, value]) => [h("dt", {}, key), h("dd", {}, h("code", {}, value))])) : null;
}

function notesOf(column) {
  return Object.entries(column.metadata).filter(([key]) => !HIDDEN.has(key));
}

function isNoted(column) {
  return notesOf(column).length > 0 || column.fields.some(isNoted);
}

function lines(column, depth, sizes, most, hasNotes) {
  const size = depth === 0 ? sizes[column.name] : undefined;
  const hasSizes = Object.keys(sizes).length > 0;
  const row = h(
    "tr",
    {},
    h("td", {}, h("span", { class: "indent", css: { "--depth": depth } }), h("span", { class: `kind kind-${column.kind}` }), h("code", { class: "name" }, column.name), depth ? null : copyButton(column.name, "Copy the name")),
    h("td", {}, h("code", { class: "type-text" }, column.type)),
    h("td", { class: "muted" }, column.nullable ? "yes" : "no"),
    hasSizes ? h("td", {}, size === undefined ? "" : meter(size, most)) : null,
    hasNotes ? h("td", { class: "notes" }, notesOf(column).map(([key, value]) => h("span", { class: "note" }, h("span", { class: "muted" }, `${key} `), value))) : null,
  );
  return [row, ...column.fields.flatMap((field) => lines(field, depth + 1, sizes, most, hasNotes))];
}

export function meter(size, most) {
  return h("span", { class: "meter" }, h("span", { class: "meter-bar", css: { width: `${Math.max(1, (size / most) * 100)}%` } }), h("span", { class: "meter-text" }, bytes(size)));
}
