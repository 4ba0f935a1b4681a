// What maintenance is due, running and done.

import { get } from "./api.js";
import { empty, fill, h, problem, waiting } from "./dom.js";
import { address, ago, bytes, dotted, moment, plural } from "./format.js";

const AGAIN_MS = 5000;

export function maintenance() {
  return new Maintenance();
}

class Maintenance {
  constructor() {
    this.abort = new AbortController();
    this.body = h("div", {});
    this.element = h(
      "article",
      { class: "page" },
      h("h1", {}, "Maintenance"),
      h("p", { class: "lead" }, "Tables are compacted, indexed and cleaned up by policy: ", h("code", {}, "lancehouse maintenance set")),
      this.body,
    );
    fill(this.body, waiting());
    this.load();
  }

  close() {
    this.abort.abort();
    clearTimeout(this.timer);
  }

  async load() {
    try {
      this.draw(await get("maintenance", {}, this.abort.signal));
      this.timer = setTimeout(() => this.load(), AGAIN_MS);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.body, problem(error, () => this.load()));
    }
  }

  draw(told) {
    const counts = told.counts
      ? `${plural(told.counts.due, "table")} due, ${told.counts.running} running, ${told.counts.failing} failing`
      : plural(told.tables.length, "table");
    fill(this.body, h("p", { class: "muted count" }, counts), this.tables(told), this.runs(told));
  }

  tables(told) {
    if (!told.tables.length) return empty("Nothing is due within the hour");
    const rows = told.tables.map((each) => [
      link(each),
      each.state,
      when(each.state === "running" ? each.started_ms : each.due_ms, told.now_ms),
      each.error || each.why,
      each.worker,
    ]);
    return section("Due and running", ["Table", "State", "When", "Why", "Worker"], rows);
  }

  runs(told) {
    if (!told.runs.length) return empty("Nothing was done yet");
    const rows = told.runs.map((each) => [
      when(each.ended_ms, told.now_ms),
      link(each),
      `${each.operation} ${each.outcome}`,
      each.message,
      each.why,
      each.bytes_before === null ? "" : `${bytes(each.bytes_before)} → ${bytes(each.bytes_after ?? each.bytes_before)}`,
      each.bytes_removed ? bytes(each.bytes_removed) : "",
    ]);
    return section("Done", ["When", "Table", "What", "Result", "Why", "Data", "Deleted"], rows);
  }
}

function section(title, heads, rows) {
  return h(
    "section",
    { class: "block" },
    h("h2", {}, title),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "plain" },
        h("thead", {}, h("tr", {}, heads.map((each) => h("th", { scope: "col" }, each)))),
        h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((each) => h("td", {}, each))))),
      ),
    ),
  );
}

function link(each) {
  return h("a", { href: address("lance", each.in, each.levels) }, dotted([each.in, ...each.levels]));
}

function when(ms, now) {
  if (!ms) return "";
  return h("time", { title: moment(ms) }, ms > now ? moment(ms) : ago(ms, now));
}
