// What a table is made of, and what is made of it: a picture, and the same in words.

import { empty, fill, h, problem, svg, waiting } from "./dom.js";
import { address, dotted, plural } from "./format.js";
import { failures } from "./schema.js";

const LONGEST = 29;
const LONGEST_NAME = 24;

export function lineageTab(page) {
  const element = h("div", { class: "lineage" }, waiting());
  const load = async () => {
    try {
      fill(element, lineage(page, await page.ask("lineage")));
    } catch (error) {
      if (error.name !== "AbortError") fill(element, problem(error, load));
    }
  };
  load();
  return { element };
}

function lineage(page, told) {
  const { tables, edges } = told;
  const isAlone = tables.length === 1 && !edges.length && !told.hidden;
  const isPlain = isAlone && !tables[0].computed.length;
  return h(
    "div",
    {},
    isPlain ? empty("Nothing is computed here", "The table has no computed columns, is not a materialized view, and has none.") : drawing(told),
    isPlain ? null : words(page, told),
    h("p", { class: "muted lead" }, notes(told).join(" ")),
  );
}

function notes(told) {
  return [
    told.hidden ? "A view here is made of a table that is gone, or that you may not read." : null,
    told.whole ? null : "There is more: not all tables are shown.",
    told.views_known
      ? "Views of this table are those that were created in the server's own warehouses, as far as you may read them; copies, and views that were registered, are not found."
      : "Views of this table are not known: only the server's own warehouses record them.",
  ].filter(Boolean);
}

// The list below says the same: the picture is for the eye and the mouse alone.
function drawing(told) {
  const boxes = told.tables.map((table) => box(table, told.box));
  const lines = told.edges.map((edge) => svg("path", { d: edge.path, class: "lineage-edge", "marker-end": "url(#lineage-arrow)" }));
  const arrow = svg(
    "marker",
    { id: "lineage-arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto-start-reverse" },
    svg("path", { d: "M0 0.5 7.5 4 0 7.5z", class: "lineage-tip" }),
  );
  const size = { width: told.width, height: told.height, viewBox: `0 0 ${told.width} ${told.height}` };
  return h("div", { class: "scroll lineage-scroll" }, svg("svg", { ...size, class: "lineage-picture", "aria-hidden": "true" }, svg("defs", {}, arrow), lines, boxes));
}

function box(table, width) {
  const kind = table.depth === 0 ? "this" : table.view ? "view" : "source";
  const lines = [
    line(12, 21, "lineage-name", last(table)),
    line(12, 38, "lineage-place", dotted([table.in, ...table.levels.slice(0, -1)])),
    ...(table.view ? [line(12, 58, "lineage-by", `made by ${table.view.title}`)] : []),
  ];
  const first = table.view ? 78 : 58;
  table.computed.forEach((each, at) => {
    lines.push(line(12, first + at * 20, "lineage-column", `${each.column} ← ${each.inputs.join(", ") || each.title}`, `${each.column}: ${each.title}`));
  });
  if (table.more) lines.push(line(12, first + table.computed.length * 20, "lineage-place", `and ${table.more} more`));
  const drawn = svg(
    "svg",
    { x: table.x, y: table.y, width, height: table.height, class: `lineage-box ${kind}` },
    svg("rect", { x: 0.75, y: 0.75, width: width - 1.5, height: table.height - 1.5, rx: 8 }),
    lines,
  );
  if (table.depth === 0) return drawn;
  return svg("a", { href: to(table), tabindex: "-1" }, drawn);
}

function line(x, y, kind, text, title = text) {
  const drawn = svg("text", { x, y, class: kind });
  const most = kind === "lineage-name" ? LONGEST_NAME : LONGEST;
  drawn.append(text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const whole = svg("title", {});
  whole.append(title);
  drawn.append(whole);
  return drawn;
}

function last(table) {
  return table.levels[table.levels.length - 1];
}

function to(table) {
  return address("lance", table.in, table.levels, { tab: "lineage" });
}

function words(page, told) {
  const { tables, edges } = told;
  const sources = new Map(edges.map((edge) => [edge.to, edge.from]));
  const order = tables.map((_, at) => at).sort((one, other) => tables[one].depth - tables[other].depth || one - other);
  return h(
    "ul",
    { class: "lineage-list", "aria-label": "Lineage" },
    order.map((at) => {
      const table = tables[at];
      const source = tables[sources.get(at)];
      return h(
        "li",
        {},
        named(table),
        table.view ? [" is a view of ", source ? named(source) : "a table that is not shown"] : null,
        table.view?.inputs.length ? [", made by ", h("code", {}, table.view.title), " from ", list(table.view.inputs)] : null,
        table.view?.columns.length ? [", with ", list(table.view.columns)] : null,
        table.view?.where ? [" where ", h("code", {}, table.view.where)] : null,
        table.view?.inputs.length && !table.depth ? [" ", failed(page, source)] : null,
        table.computed.length
          ? h(
              "ul",
              {},
              table.computed.map((each) => h("li", {}, h("code", {}, each.column), " is computed by ", h("code", {}, each.title), each.inputs.length ? [" from ", list(each.inputs)] : null)),
              table.more ? h("li", { class: "muted" }, `and ${plural(table.more, "more computed column")}`) : null,
            )
          : null,
      );
    }),
  );
}

// Rows of the source that the view leaves out.
function failed(page, source) {
  const at = source && { place: source.in, levels: source.levels };
  return h("button", { class: "small", onclick: () => failures(page, "Rows that the view leaves out", {}, at) }, "Rows that failed");
}

function named(table) {
  const name = dotted([table.in, ...table.levels]);
  return table.depth === 0 ? h("strong", {}, name) : h("a", { href: to(table) }, name);
}

function list(names) {
  return names.map((each, at) => [at ? ", " : "", h("code", {}, each)]);
}
