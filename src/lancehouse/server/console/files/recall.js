// The last measurement of how well and how fast an index finds rows: a picture, and the same as a table.

import { h, svg } from "./dom.js";
import { ago, moment, plural, short } from "./format.js";
import { COLOURS } from "./vectors.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [440, 240, 44, 16, 14, 44];
const SHORTEST_MS = 0.001;

export function recallOf(index) {
  const { recall } = index;
  const efforts = [...new Set(recall.points.map((each) => each.refine_factor))];
  const colours = new Map(efforts.map((each, at) => [each, COLOURS[at % COLOURS.length]]));
  return h(
    "section",
    { class: "block recall" },
    h("h2", {}, "Recall of ", h("code", { class: "name" }, index.index_name)),
    h("p", { class: "muted" }, "How many of the ", plural(recall.k, "nearest row"), ` a search by this index finds: ${plural(recall.queries, "search", "searches")} at version ${recall.version}, `, h("span", { title: moment(recall.measured_ms) }, ago(recall.measured_ms)), "."),
    recall.index_has_changed ? h("p", { class: "advice" }, "This is older than the index: ", h("code", {}, "lancehouse table recall"), " measures it again.") : null,
    h("div", { class: "recall-both" }, h("div", {}, picture(recall.points, colours), legend(colours)), h("div", { class: "scroll" }, list(recall.points))),
  );
}

function list(points) {
  const heads = ["nprobes", "refine_factor", "Recall", "Median", "95 %"];
  const line = (each) => [each.nprobes ?? "default", each.refine_factor ?? "default", each.recall.toFixed(3), `${short(each.median_ms)} ms`, `${short(each.p95_ms)} ms`];
  return h(
    "table",
    { class: "plain" },
    h("thead", {}, h("tr", {}, heads.map((each) => h("th", { scope: "col", class: "right" }, each)))),
    h("tbody", {}, points.map((point) => h("tr", {}, line(point).map((each) => h("td", { class: "right" }, each))))),
  );
}

function legend(colours) {
  const label = (factor) => (factor === null ? "default" : `refine_factor ${factor}`);
  return h("div", { class: "legend" }, [...colours].map(([factor, colour]) => h("span", { class: "key" }, h("i", { css: { background: colour } }), label(factor))), h("span", {}, "at points: nprobes"));
}

// Screen readers use the table beside it, which says the same. Times are on a logarithmic scale.
function picture(points, colours) {
  const log = (ms) => Math.log10(Math.max(ms, SHORTEST_MS));
  const times = points.map((each) => log(each.median_ms));
  const first = Math.floor(Math.min(...times) * 3) / 3;
  const last = Math.ceil(Math.max(...times) * 3 + 0.01) / 3;
  const lowest = Math.min(Math.floor(Math.min(...points.map((each) => each.recall)) * 10) / 10, 0.9);
  const x = (ms) => LEFT + ((WIDTH - LEFT - RIGHT) * (log(ms) - first)) / (last - first);
  const y = (recall) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (recall - lowest)) / (1 - lowest);
  const every = Math.ceil((last - first) / 2);
  const text = (at, content, attributes = {}) => svg("text", { x: at[0], y: at[1], ...attributes }, content);
  const tenths = Array.from({ length: Math.round((1 - lowest) * 10) + 1 }, (_, at) => lowest + at / 10);
  const thirds = Array.from({ length: Math.round((last - first) * 3) + 1 }, (_, at) => at).filter((at) => at % every === 0);
  const grid = tenths.flatMap((each) => [svg("line", { x1: LEFT, y1: y(each), x2: WIDTH - RIGHT, y2: y(each), class: "recall-grid" }), text([LEFT - 8, y(each) + 4], each.toFixed(1), { "text-anchor": "end" })]);
  const scale = thirds.map((at) => 10 ** (first + at / 3)).map((ms) => text([x(ms), HEIGHT - BOTTOM + 16], short(Number(ms.toPrecision(2))), { "text-anchor": "middle" }));
  const lines = [...colours].map(([factor, colour]) => {
    const series = points.filter((each) => each.refine_factor === factor);
    const dots = series.flatMap((each) => [
      svg("circle", { cx: x(each.median_ms), cy: y(each.recall), r: factor === null ? 7 : 3.5, fill: factor === null ? "none" : colour, stroke: colour, "stroke-width": 2 }),
      each.nprobes === null ? null : text([x(each.median_ms) + 5, y(each.recall) + 13], String(each.nprobes), { class: "recall-probes" }),
    ]);
    return svg("g", {}, svg("polyline", { points: series.map((each) => `${x(each.median_ms)},${y(each.recall)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 2 }), dots);
  });
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "recall-picture", "aria-hidden": "true" },
    grid,
    scale,
    text([LEFT, HEIGHT - 6], "median time of a search, in milliseconds"),
    lines,
  );
}
