// The vectors of a column, projected to a plane, and the nearest neighbours of one of them.

import { cell, record } from "./cells.js";
import { empty, fill, h, problem, skeleton } from "./dom.js";
import { plural, short, whole } from "./format.js";

export const COLOURS = ["#5b5bd6", "#e5940a", "#0d9f6e", "#d6409f", "#0e9bd8", "#e5484d", "#a18072", "#8a8f98"];
const MANY = COLOURS.length;
const NEAR_PX = 14;
const FIELDS = 6;

export function vectorsTab(page) {
  return new Vectors(page);
}

class Vectors {
  constructor(page) {
    this.page = page;
    this.query = page.at.query;
    const columns = page.info.columns.filter((each) => each.kind === "vector");
    const labels = page.info.columns.filter((each) => ["text", "number", "bool", "time"].includes(each.kind));
    this.column = columns.some((each) => each.name === this.query.column) ? this.query.column : columns[0].name;
    const likely = labels.find((each) => ["label", "category", "class", "topic", "kind", "type", "folder"].includes(each.name.toLowerCase())) || labels.find((each) => each.kind === "text") || labels[0];
    this.label = labels.some((each) => each.name === this.query.label) ? this.query.label : likely?.name;
    this.plot = h("div", { class: "plot" }, skeleton(8));
    this.side = h("div", { class: "near" }, this.hint());
    this.note = h("p", { class: "muted" });
    this.element = h(
      "div",
      { class: "vectors" },
      h("div", { class: "bar-line" }, select("Column", columns, this.column, (name) => page.go({ column: name, row: null })), labels.length ? select("Label", labels, this.label, (name) => page.go({ label: name })) : null, this.note),
      h("div", { class: "plane" }, this.plot, this.side),
    );
    this.redraw = () => this.scatter?.draw();
    document.addEventListener("theme", this.redraw);
    this.load();
  }

  close() {
    this.isClosed = true;
    document.removeEventListener("theme", this.redraw);
    this.scatter?.close();
  }

  update(query) {
    const isSame = ["column", "label"].every((key) => (query[key] || "") === (this.query[key] || ""));
    const wasRow = this.query.row;
    this.query = query;
    if (isSame && query.row !== wasRow) this.showRow();
    return isSame;
  }

  async load() {
    try {
      this.projection = await this.page.ask("plane", { column: this.column, label: this.label });
    } catch (error) {
      if (error.name !== "AbortError") fill(this.plot, problem(error, () => this.load()));
      return;
    }
    if (this.isClosed) return;
    const { projection } = this;
    if (!projection.points.length) {
      fill(this.plot, empty("No row has a vector in this column"));
      return;
    }
    const share = Math.round((projection.spread[0] + projection.spread[1]) * 100);
    const all = projection.points.length >= projection.rows;
    this.note.textContent = `${all ? plural(projection.rows, "vector") : `${whole(projection.points.length)} of ${whole(projection.rows)} vectors`}, along the two directions of most variance (${share} % of it)`;
    const palette = createPalette(projection.labels);
    this.scatter = new Scatter(projection, palette, this.label, (at) => this.page.go({ row: projection.ids[at] }));
    fill(this.plot, this.scatter.element, legend(palette));
    this.scatter.start();
    this.showRow();
  }

  hint() {
    return h("p", { class: "muted" }, "Click a point to see the rows that are nearest to it. With the keyboard: arrow keys, then Enter.");
  }

  async showRow() {
    const { row } = this.query;
    if (!row) {
      this.scatter?.mark(null, null);
      fill(this.side, this.hint());
      return;
    }
    this.scatter?.mark(row, null);
    fill(this.side, skeleton(6));
    const others = this.page.info.columns.filter((each) => each.kind !== "vector" && each.name !== this.label).map((each) => each.name);
    const columns = [...(this.label ? [this.label] : []), ...others].slice(0, FIELDS);
    try {
      const neighbours = await this.page.ask("neighbours", { column: this.column, row, k: 10, column_shown: columns.length ? columns : [this.column] });
      if (row !== this.query.row || this.isClosed) return;
      this.scatter?.mark(row, neighbours);
      fill(this.side, this.neighbourList(neighbours));
    } catch (error) {
      if (error.name !== "AbortError") fill(this.side, problem(error, () => this.showRow()));
    }
  }

  neighbourList(neighbours) {
    const methods = { index: "by the index", table: "by comparing all rows", sample: "among the points drawn: without an index, all rows would be too many to compare" };
    const most = Math.max(...neighbours.distances, 1e-12);
    const rows = neighbours.ids.map((id, at) => {
      const where = { place: this.page.at.place, levels: this.page.at.levels, version: neighbours.version, row: id };
      const cells = neighbours.columns.map((name, place) => h("div", { class: "near-field" }, h("span", { class: "type" }, name), cell(neighbours.rows[at][place], name, where)));
      return h(
        "li",
        { onpointerenter: () => this.scatter?.point(id), onpointerleave: () => this.scatter?.point(null) },
        h("div", { class: "near-head" }, h("strong", {}, `${at + 1}`), h("span", { class: "meter" }, h("span", { class: "meter-bar", css: { width: `${(neighbours.distances[at] / most) * 100}%` } }), h("span", { class: "meter-text" }, short(neighbours.distances[at]))), h("button", { class: "small", onclick: () => this.page.go({ row: id }) }, "From here")),
        h("button", { class: "near-row", "aria-label": `Neighbour ${at + 1}, all columns shown`, onclick: () => this.page.detail(`Neighbour ${at + 1}`, record(this.page, neighbours, at)) }, cells),
      );
    });
    const itself = neighbours.own.filter((value) => typeof value === "string").map((value) => value.slice(0, 60));
    return h(
      "div",
      {},
      h("h2", {}, "Nearest", h("button", { class: "ghost small", onclick: () => this.page.go({ row: null }) }, "Clear")),
      itself.length ? h("p", {}, `to ${itself.slice(0, 2).join(", ")}`) : null,
      h("p", { class: "muted" }, `Found ${methods[neighbours.searched]}.`),
      rows.length ? h("ol", { class: "near-list" }, rows) : empty("There is no other row"),
    );
  }
}

function select(title, columns, current, choose) {
  const box = h("select", { onchange: () => choose(box.value) }, columns.map((each) => h("option", { value: each.name, selected: each.name === current }, each.name)));
  return h("label", { class: "select" }, title, box);
}

function text(value) {
  return value === null || value === undefined ? "null" : typeof value === "object" ? value.text || "" : String(value);
}

// The most frequent labels have colours of their own, unless there are too many labels.
function createPalette(labels) {
  if (!labels) return null;
  const counts = new Map();
  for (const value of labels) counts.set(text(value), (counts.get(text(value)) || 0) + 1);
  if (counts.size < 2 || counts.size > Math.max(24, labels.length / 20)) return null;
  const byCount = [...counts].sort((a, b) => b[1] - a[1]);
  const names = byCount.slice(0, counts.size > MANY ? MANY - 1 : MANY).map(([name]) => name);
  return { names, hasOthers: counts.size > names.length };
}

function legend(palette) {
  if (!palette) return null;
  const items = palette.names.map((name, at) => h("span", { class: "key" }, h("i", { css: { background: COLOURS[at] } }), name || "empty"));
  if (palette.hasOthers) items.push(h("span", { class: "key" }, h("i", { css: { background: COLOURS[MANY - 1] } }), "others"));
  return h("div", { class: "legend" }, items);
}

class Scatter {
  constructor(projection, palette, label, choose) {
    this.projection = projection;
    this.choose = choose;
    this.label = label;
    this.places = new Map(projection.ids.map((id, at) => [id, at]));
    this.colourOf = (value) => colourOf(palette, value);
    this.colours = projection.points.map((_, at) => this.colourOf(projection.labels?.[at]));
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "application",
      "aria-label": "Vectors in a plane. Arrow keys move from point to point, Enter shows what is near.",
      onpointermove: (event) => this.hover(this.find(event)),
      onpointerleave: () => this.hover(null),
      onclick: (event) => this.chooseAt(this.find(event)),
      onkeydown: (event) => this.onKey(event),
      onblur: () => this.hover(null),
    });
    this.tip = h("div", { class: "tip", role: "status", hidden: true });
    this.element = h("div", { class: "canvas-box" }, this.canvas, this.tip);
    this.neighbours = null;
    this.row = null;
    this.over = null;
  }

  start() {
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.element);
  }

  close() {
    this.sizes?.disconnect();
  }

  mark(row, neighbours) {
    this.row = row;
    this.neighbours = neighbours;
    this.draw();
  }

  point(id) {
    this.hover(id === null ? null : (this.places.get(id) ?? null), true);
  }

  chooseAt(at) {
    if (at !== null) this.choose(at);
  }

  layout() {
    const wide = this.element.clientWidth;
    const tall = this.element.clientHeight;
    if (!wide || !tall) return false;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = wide * ratio;
    this.canvas.height = tall * ratio;
    const xs = this.projection.points.map(([x]) => x);
    const ys = this.projection.points.map(([, y]) => y);
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const pad = 22;
    const scale = Math.min((wide - 2 * pad) / (right - left || 1), (tall - 2 * pad) / (high - low || 1));
    const midX = (left + right) / 2;
    const midY = (low + high) / 2;
    this.spot = ([x, y]) => [wide / 2 + (x - midX) * scale, tall / 2 - (y - midY) * scale];
    this.spots = this.projection.points.map(this.spot);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.pen = pen;
    return true;
  }

  draw() {
    if (!this.layout()) return;
    const { pen, spots } = this;
    const style = getComputedStyle(this.element);
    pen.clearRect(0, 0, this.element.clientWidth, this.element.clientHeight);
    const ownAt = this.places.get(this.row);
    const own = this.neighbours ? this.spot(this.neighbours.point) : spots[ownAt];
    const isFaint = this.row !== null && this.row !== undefined;
    const size = spots.length > 800 ? 2.6 : 3.6;
    pen.globalAlpha = isFaint ? 0.28 : 0.78;
    spots.forEach((spot, at) => dot(pen, spot, size, this.colours[at]));
    pen.globalAlpha = 1;
    if (own) {
      pen.strokeStyle = style.getPropertyValue("--muted");
      pen.lineWidth = 1;
      const near = (this.neighbours?.points || []).map((point, at) => point && [this.spot(point), this.colourOf(this.labelOf(this.neighbours.rows[at]))]);
      for (const neighbour of near) if (neighbour) line(pen, own, neighbour[0]);
      for (const neighbour of near) if (neighbour) dot(pen, neighbour[0], size + 2, neighbour[1]);
      ring(pen, own, size + 5, style.getPropertyValue("--text"));
      dot(pen, own, size + 2.5, this.neighbours ? this.colourOf(this.labelOf(this.neighbours.own)) : this.colours[ownAt]);
    }
    if (this.over !== null) {
      dot(pen, spots[this.over], size + 2.5, this.colours[this.over]);
      ring(pen, spots[this.over], size + 4.5, style.getPropertyValue("--text"));
    }
  }

  // The label of a row among the neighbours.
  labelOf(row) {
    return row[this.neighbours.columns.indexOf(this.label)];
  }

  find(event) {
    if (!this.spots) return null;
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best = null;
    let least = NEAR_PX ** 2;
    this.spots.forEach(([px, py], at) => {
      const far = (px - x) ** 2 + (py - y) ** 2;
      if (far < least) [best, least] = [at, far];
    });
    return best;
  }

  hover(at, isQuiet) {
    if (at === this.over) return;
    this.over = at;
    this.canvas.classList.toggle("pointing", at !== null);
    this.draw();
    const label = at === null || !this.projection.labels ? null : text(this.projection.labels[at]);
    this.tip.hidden = at === null || isQuiet || label === null;
    if (this.tip.hidden) return;
    this.tip.textContent = `${this.label}: ${label.length > 120 ? `${label.slice(0, 120)}…` : label}`;
    const [x, y] = this.spots[at];
    this.tip.style.left = `${Math.min(x + 12, this.element.clientWidth - 220)}px`;
    this.tip.style.top = `${y + 12}px`;
  }

  onKey(event) {
    const directions = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const direction = directions[event.key];
    if (direction && this.spots) this.hover(this.nextPoint(direction));
    else if ((event.key === "Enter" || event.key === " ") && this.over !== null) this.chooseAt(this.over);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // The nearest point in a direction.
  nextPoint([dx, dy]) {
    const own = this.places.get(this.row);
    const from = this.over ?? own;
    if (from === undefined || from === null) return 0;
    const [x, y] = this.spots[from];
    let best = from;
    let least = Infinity;
    this.spots.forEach(([px, py], at) => {
      const along = (px - x) * dx + (py - y) * dy;
      const aside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
      const cost = along + aside * 2;
      if (at !== from && along > 0.5 && cost < least) [best, least] = [at, cost];
    });
    return best;
  }
}

function colourOf(palette, label) {
  if (!palette) return COLOURS[0];
  const place = palette.names.indexOf(text(label));
  return COLOURS[place < 0 ? MANY - 1 : place];
}

function dot(pen, [x, y], size, colour) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, size, 0, 7);
  pen.fill();
}

function ring(pen, [x, y], size, colour) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1.6;
  pen.beginPath();
  pen.arc(x, y, size, 0, 7);
  pen.stroke();
}

function line(pen, [x, y], [toX, toY]) {
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(toX, toY);
  pen.stroke();
}
