// The tabs Storage, Indices and Details of a table.

import { copyButton, empty, fill, h, problem, skeleton } from "./dom.js";
import { ago, bytes, dottedName, moment, plural, whole } from "./format.js";
import { recallOf } from "./recall.js";
import { meter } from "./schema.js";

const LISTED = 100;
const COPIED = new Set(["Location", "Id"]);

function lazyTab(page, path, draw) {
  const element = h("div", {}, skeleton());
  const load = async () => {
    try {
      fill(element, draw(await page.ask(path)));
    } catch (error) {
      if (error.name !== "AbortError") fill(element, problem(error, load));
    }
  };
  load();
  return { element };
}

export function storageTab(page) {
  return lazyTab(page, "fragments", storage);
}

function storage(layout) {
  if (!layout.count) return empty("There is no fragment: the table is empty");
  const most = Math.max(...layout.fragments.map((each) => each.bytes || 0), 1);
  const dead = layout.deleted / Math.max(1, layout.rows + layout.deleted);
  const small = layout.fragments.filter((each) => each.rows < 1024 * 1024).length;
  const isSplit = layout.count > 20 && small > layout.count * 0.8;
  const advice = isSplit ? ["Most fragments are small: ", "puts them together."] : dead > 0.2 ? ["Many rows are deleted but still stored: ", "removes them."] : null;
  const list = h("tbody", {}, lines(layout.fragments.slice(0, LISTED), most));
  const more = layout.fragments.length > LISTED ? h("button", { class: "more", onclick: (event) => all(event.target) }, "Show all") : null;
  const all = (button) => {
    fill(list, lines(layout.fragments, most));
    button.remove();
  };
  return h(
    "div",
    {},
    h(
      "p",
      { class: "muted" },
      `${plural(layout.count, "fragment")}, ${bytes(layout.bytes)}, ${plural(layout.rows, "row")}`,
      layout.deleted ? `, ${plural(layout.deleted, "deleted row")} (${Math.round(dead * 100)} %)` : "",
      ".",
    ),
    advice ? h("p", { class: "advice" }, advice[0], h("code", {}, "lancehouse table compact"), ` ${advice[1]}`) : null,
    strip(layout.fragments),
    layout.fragments.length < layout.count ? h("p", { class: "muted" }, `The first ${whole(layout.fragments.length)} are shown.`) : null,
    h(
      "div",
      { class: "scroll" },
      h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ["Fragment", "Size", "Rows", "Deleted", "Files"].map((each, at) => h("th", { scope: "col", class: at > 1 || at === 0 ? "right" : null }, each)))), list),
    ),
    more,
  );
}

function lines(fragments, most) {
  return fragments.map((fragment) =>
    h(
      "tr",
      {},
      h("td", { class: "right" }, whole(fragment.id)),
      h("td", {}, fragment.bytes === null ? "unknown" : meter(fragment.bytes, most)),
      h("td", { class: "right" }, whole(fragment.rows)),
      h("td", { class: "right" }, fragment.deleted ? whole(fragment.deleted) : "–"),
      h("td", { class: "right" }, whole(fragment.files)),
    ),
  );
}

// The first fragments side by side, as wide as their bytes.
function strip(fragments) {
  const total = fragments.reduce((sum, each) => sum + (each.bytes || 0), 0);
  if (fragments.length < 2 || !total) return null;
  const first = fragments.slice(0, 400);
  return h(
    "div",
    { class: "strip", role: "img", "aria-label": "Fragments, as wide as their bytes" },
    first.map((fragment) => h("i", { title: `Fragment ${fragment.id}: ${bytes(fragment.bytes)}, ${plural(fragment.rows, "row")}`, css: { "flex-grow": String(Math.max(fragment.bytes || 0, total / 4000)) } })),
  );
}

export function indicesTab(page) {
  return lazyTab(page, "indices", (body) => indices(body.indices, page));
}

function indices(list, page) {
  const id = dottedName([page.at.place, ...page.at.levels]);
  if (!list.length) {
    return h(
      "div",
      {},
      empty("There is no index", "Filters and searches look at every row. An index on a column makes them quick:"),
      h("pre", { class: "code" }, `lancehouse table index ${id} ${page.info.columns[0]?.name || "COLUMN"}`),
    );
  }
  const rows = list.map((index) => {
    const all = (index.num_indexed_rows || 0) + (index.num_unindexed_rows || 0);
    const share = all ? (index.num_indexed_rows || 0) / all : 1;
    return h(
      "tr",
      {},
      h("td", {}, h("code", { class: "name" }, index.index_name)),
      h("td", {}, h("span", { class: "badge" }, index.index_type || "unknown")),
      h("td", {}, h("code", {}, (index.columns || []).join(", "))),
      h("td", { title: `${whole(index.num_indexed_rows)} of ${whole(all)} rows` }, h("span", { class: "meter" }, h("span", { class: "meter-bar", css: { width: `${share * 100}%` } }), h("span", { class: "meter-text" }, `${Math.floor(share * 100)} %`))),
      h("td", { class: "right" }, bytes(index.size_bytes)),
      h("td", { class: "muted", title: index.created_at ? moment(Date.parse(index.created_at)) : null }, index.created_at ? ago(Date.parse(index.created_at)) : "–"),
    );
  });
  const isBehind = list.some((each) => each.num_unindexed_rows > 0);
  return h(
    "div",
    {},
    h("div", { class: "scroll" }, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ["Index", "Kind", "Columns", "Rows covered", "Size", "Created"].map((each) => h("th", { scope: "col", class: each === "Size" ? "right" : null }, each)))), h("tbody", {}, rows))),
    isBehind ? h("p", { class: "advice" }, "Rows were added since an index was built: ", h("code", {}, "lancehouse table optimize-indices"), " adds them to it.") : null,
    list.filter((each) => each.recall).map(recallOf),
  );
}

export function detailsTab(page) {
  const { info, at } = page;
  const pairs = [
    ["Location", info.location],
    ["Commits", info.managed_by ? (info.managed_by === "impl" ? "accepted by the catalog (managed_by=impl)" : "as storage has them (managed_by=storage)") : null],
    ["Format", info.summary?.format],
    ["Id", info.uuid],
    ["Entry created", info.created_ms ? moment(info.created_ms) : null],
    ["Entry changed", info.updated_ms ? moment(info.updated_ms) : null],
  ].filter(([, value]) => value);
  const properties = Object.entries(info.properties || {}).sort();
  return {
    element: h(
      "div",
      {},
      h("section", { class: "block" }, h("dl", { class: "pairs" }, pairs.map(([key, value]) => [h("dt", {}, key), h("dd", {}, COPIED.has(key) ? [h("code", {}, value), copyButton(value)] : value)]))),
      properties.length
        ? h("section", { class: "block" }, h("h2", {}, "Properties"), h("dl", { class: "pairs" }, properties.map(([key, value]) => [h("dt", {}, h("code", {}, key)), h("dd", {}, h("code", {}, value))])))
        : null,
      info.kind === "view" ? null : opening(at, info),
    ),
  };
}

function opening(at, info) {
  const isLance = info.kind === "lance";
  const lance = [
    "import lance, lance_namespace",
    "",
    `ns = lance_namespace.connect("rest", {"uri": "${location.origin}/lance/${encodeURIComponent(at.place)}"})`,
    `table = lance.dataset(namespace_client=ns, table_id=${JSON.stringify(at.levels)})`,
  ].join("\n");
  const iceberg = [
    "from pyiceberg.catalog import load_catalog",
    "",
    `catalog = load_catalog("lancehouse", type="rest", uri="${location.origin}/iceberg", warehouse="${at.place}")`,
    `table = catalog.load_table((${at.levels.map((level) => JSON.stringify(level)).join(", ")}))`,
  ].join("\n");
  const text = isLance ? lance : iceberg;
  return h("section", { class: "block" }, h("h2", {}, "Open it in Python", copyButton(text)), h("pre", { class: "code" }, text));
}
