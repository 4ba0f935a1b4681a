// What a table is computed from, and what is computed from it: a picture, and the same as a list.

import { empty, fill, h, problem, skeleton, svg } from "./dom.js";
import { address, dottedName, plural } from "./format.js";
import { failures } from "./schema.js";

const LONGEST = 29;
const LONGEST_NAME = 24;

export function lineageTab(page) {
  const element = h("div", { class: "lineage" }, skeleton());
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

function lineage(page, graph) {
  const { tables, edges } = graph;
  const isAlone = tables.length === 1 && !edges.length && !graph.hidden;
  const isPlain = isAlone && !tables[0].computed.length;
  return h(
    "div",
    {},
    isPlain ? empty("Nothing is computed here", "The table has no computed columns, is not a materialized view, and has none.") : drawing(graph),
    isPlain ? null : description(page, graph),
    h("p", { class: "muted lead" }, notes(graph).join(" ")),
  );
}

function notes(graph) {
  return [
    graph.hidden ? "A view here is computed from a table that is gone, or that you may not read." : null,
    graph.whole ? null : "Not all tables are shown.",
    graph.views_known
      ? "Views of this table are those that were created in the server's own warehouses, as far as you may read them; copies, and views that were registered, are not found."
      : "Views of this table are not known: only the server's own warehouses record them.",
  ].filter(Boolean);
}

// Screen readers and the keyboard use the list below, which says the same.
function drawing(graph) {
  const boxes = graph.tables.map((table) => box(table, graph.box));
  const lines = graph.edges.map((edge) => svg("path", { d: edge.path, class: "lineage-edge", "marker-end": "url(#lineage-arrow)" }));
  const arrow = svg(
    "marker",
    { id: "lineage-arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto-start-reverse" },
    svg("path", { d: "M0 0.5 7.5 4 0 7.5z", class: "lineage-tip" }),
  );
  const size = { width: graph.width, height: graph.height, viewBox: `0 0 ${graph.width} ${graph.height}` };
  return h("div", { class: "scroll lineage-scroll" }, svg("svg", { ...size, class: "lineage-picture", "aria-hidden": "true" }, svg("defs", {}, arrow), lines, boxes));
}

function box(table, width) {
  const kind = table.depth === 0 ? "this" : table.view ? "view" : "source";
  const lines = [
    line(12, 21, "lineage-name", lastLevel(table)),
    line(12, 38, "lineage-place", dottedName([table.in, ...table.levels.slice(0, -1)])),
    ...(table.view ? [line(12, 58, "lineage-by", `made by ${table.view.title}`)] : []),
  ];
  const first = table.view ? 78 : 58;
  table.computed.forEach(({ column, inputs, title }, at) => {
    lines.push(line(12, first + at * 20, "lineage-column", `${column} ← ${inputs.join(", ") || title}`, `${column}: ${title}`));
  });
  if (table.more) lines.push(line(12, first + table.computed.length * 20, "lineage-place", `and ${table.more} more`));
  const frame = svg(
    "svg",
    { x: table.x, y: table.y, width, height: table.height, class: `lineage-box ${kind}` },
    svg("rect", { x: 0.75, y: 0.75, width: width - 1.5, height: table.height - 1.5, rx: 8 }),
    lines,
  );
  if (table.depth === 0) return frame;
  return svg("a", { href: tableAddress(table), tabindex: "-1" }, frame);
}

function line(x, y, kind, text, title = text) {
  const element = svg("text", { x, y, class: kind });
  const most = kind === "lineage-name" ? LONGEST_NAME : LONGEST;
  element.append(text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const tooltip = svg("title", {});
  tooltip.append(title);
  element.append(tooltip);
  return element;
}

function lastLevel(table) {
  return table.levels[table.levels.length - 1];
}

function tableAddress(table) {
  return address("lance", table.in, table.levels, { tab: "lineage" });
}

function description(page, graph) {
  const { tables, edges } = graph;
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
        tableLink(table),
        table.view ? [" is a view of ", source ? tableLink(source) : "a table that is not shown"] : null,
        table.view?.inputs.length ? [", made by ", h("code", {}, table.view.title), " from ", codeList(table.view.inputs)] : null,
        table.view?.columns.length ? [", with ", codeList(table.view.columns)] : null,
        table.view?.where ? [" where ", h("code", {}, table.view.where)] : null,
        table.view?.inputs.length && !table.depth ? [" ", failuresButton(page, source)] : null,
        table.computed.length
          ? h(
              "ul",
              {},
              table.computed.map((each) => h("li", {}, h("code", {}, each.column), " is computed by ", h("code", {}, each.title), each.inputs.length ? [" from ", codeList(each.inputs)] : null)),
              table.more ? h("li", { class: "muted" }, `and ${plural(table.more, "more computed column")}`) : null,
            )
          : null,
      );
    }),
  );
}

// Rows of the source that the view leaves out.
function failuresButton(page, source) {
  const at = source && { place: source.in, levels: source.levels };
  return h("button", { class: "small", onclick: () => failures(page, "Rows that the view leaves out", {}, at) }, "Rows that failed");
}

function tableLink(table) {
  const name = dottedName([table.in, ...table.levels]);
  return table.depth === 0 ? h("strong", {}, name) : h("a", { href: tableAddress(table) }, name);
}

function codeList(names) {
  return names.map((name, at) => [at ? ", " : "", h("code", {}, name)]);
}
