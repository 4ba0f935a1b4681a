// Which maintenance is due, running and done.

import { get } from "./api.js";
import { empty, fill, h, problem, skeleton } from "./dom.js";
import { address, ago, bytes, dottedName, moment, plural } from "./format.js";

const REFRESH_MS = 5000;

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
    fill(this.body, skeleton());
    this.load();
  }

  close() {
    this.abort.abort();
    clearTimeout(this.timer);
  }

  async load() {
    try {
      this.draw(await get("maintenance", {}, this.abort.signal));
      this.timer = setTimeout(() => this.load(), REFRESH_MS);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.body, problem(error, () => this.load()));
    }
  }

  draw(status) {
    const counts = status.counts
      ? `${plural(status.counts.due, "table")} due, ${status.counts.running} running, ${status.counts.failing} failing`
      : plural(status.tables.length, "table");
    fill(this.body, h("p", { class: "muted count" }, counts), this.tables(status), this.runs(status));
  }

  tables(status) {
    if (!status.tables.length) return empty("Nothing is due within the hour");
    const rows = status.tables.map((table) => [
      tableLink(table),
      table.state,
      when(table.state === "running" ? table.started_ms : table.due_ms, status.now_ms),
      table.error || table.why,
      table.worker,
    ]);
    return section("Due and running", ["Table", "State", "When", "Why", "Worker"], rows);
  }

  runs(status) {
    if (!status.runs.length) return empty("Nothing was done yet");
    const rows = status.runs.map((run) => [
      when(run.ended_ms, status.now_ms),
      tableLink(run),
      `${run.operation} ${run.outcome}`,
      run.message,
      run.why,
      run.bytes_before === null ? "" : `${bytes(run.bytes_before)} → ${bytes(run.bytes_after ?? run.bytes_before)}`,
      run.bytes_removed ? bytes(run.bytes_removed) : "",
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

function tableLink(table) {
  return h("a", { href: address("lance", table.in, table.levels) }, dottedName([table.in, ...table.levels]));
}

function when(ms, now) {
  if (!ms) return "";
  return h("time", { title: moment(ms) }, ms > now ? moment(ms) : ago(ms, now));
}
