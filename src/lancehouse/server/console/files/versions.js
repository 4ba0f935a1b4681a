// What became of a table: its versions in time, and who did that.

import { empty, fill, h, icon, problem, svg, waiting } from "./dom.js";
import { ago, bytes, moment, plural, whole } from "./format.js";

const COLOURS = {
  append: "grow",
  overwrite: "replace",
  create: "replace",
  delete: "shrink",
  update: "change",
  merge: "change",
  createindex: "index",
  dropindex: "index",
  rewrite: "tidy",
  replace: "tidy",
};
const WORDS = {
  CreateIndex: "Index created",
  DropIndex: "Index dropped",
  Rewrite: "Compaction",
  Append: "Append",
  Overwrite: "Overwrite",
  Delete: "Delete",
  Update: "Update",
  Merge: "Columns changed",
  Project: "Columns dropped or renamed",
  Restore: "Restored an older version",
  UpdateConfig: "Settings changed",
};
const ROOT = "http://www.w3.org/2000/svg";

export function versionsTab(page) {
  return new Versions(page);
}

class Versions {
  constructor(page) {
    this.page = page;
    this.made = [];
    this.chart = h("div", {});
    this.list = h("ol", { class: "timeline" });
    this.foot = h("div", {});
    this.element = h("div", {}, this.refs(), this.chart, this.list, this.foot);
    fill(this.list, waiting());
    this.more(true);
  }

  refs() {
    const { tags, branches } = this.page.info;
    const chips = [
      ...Object.entries(tags).map(([name, to]) => this.chip("tag", name, to)),
      ...Object.entries(branches).map(([name, from]) => this.chip("branch", name, from)),
    ];
    return chips.length ? h("p", { class: "refs" }, chips) : null;
  }

  chip(kind, name, to) {
    const what = kind === "tag" ? `version ${to.version}${to.branch ? ` of ${to.branch}` : ""}` : `from version ${to.version}`;
    return h("span", { class: `ref ${kind}` }, icon(kind, kind), name, h("span", { class: "muted" }, what));
  }

  async more(isFirst) {
    try {
      const told = await this.page.ask("versions", { token: this.next, version: null });
      if (isFirst) fill(this.list);
      this.made = [...this.made, ...told.versions];
      this.next = told.next;
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") fill(isFirst ? this.list : this.foot, problem(error, () => this.more(isFirst)));
    }
  }

  draw() {
    if (!this.made.length) {
      fill(this.list, empty("There is no version yet"));
      return;
    }
    fill(this.chart, this.made.length > 2 && this.made[0].rows !== null ? chart(this.made, (made) => this.open(made)) : null);
    fill(this.list, this.made.map((made, at) => this.row(made, this.made[at + 1])));
    fill(this.foot, this.next ? h("button", { class: "more", onclick: (event) => this.follow(event.target) }, "Older versions") : null);
  }

  follow(button) {
    button.disabled = true;
    this.more(false);
  }

  named(made) {
    const { tags } = this.page.info;
    return Object.entries(tags).filter(([, to]) => !to.branch && to.version === String(made.version));
  }

  row(made, before) {
    const isLance = this.page.info.kind === "lance";
    const isShown = String(this.page.at.query.version || this.page.info.summary?.version || "") === String(made.version);
    return h(
      "li",
      { class: `made ${colour(made)} ${isShown ? "shown" : ""}` },
      h("span", { class: "dot", "aria-hidden": "true" }),
      h(
        "div",
        { class: "made-head" },
        h("strong", {}, isLance || this.page.info.kind === "view" ? `Version ${made.version}` : made.version),
        h("span", { class: "operation" }, WORDS[made.operation] || made.operation || "unknown"),
        change(made, before),
        this.named(made).map(([name]) => h("span", { class: "ref tag" }, icon("tag", "tag"), name)),
        isShown && isLance ? h("span", { class: "muted" }, "shown") : null,
        isLance && !isShown ? h("button", { class: "ghost small", onclick: () => this.open(made) }, "Rows as of then") : null,
      ),
      h(
        "div",
        { class: "made-line muted" },
        h("time", { title: moment(made.timestamp_ms), datetime: new Date(made.timestamp_ms).toISOString() }, `${ago(made.timestamp_ms)}, ${moment(made.timestamp_ms)}`),
        made.by ? h("span", { class: "by" }, icon("person"), made.by.principal, made.by.client ? h("span", { class: "client", title: made.by.client }, `with ${product(made.by.client)}`) : null) : null,
        made.rows !== null && made.rows !== undefined ? h("span", {}, `${plural(made.rows, "row")}, ${plural(made.files, "file")}, ${bytes(made.bytes)}`) : null,
      ),
      made.message ? h("p", { class: "message" }, made.message) : null,
      this.told(made),
    );
  }

  told(made) {
    const pairs = Object.entries(made.properties || {});
    const sql = (made.sql || []).map((each) => h("pre", { class: "code" }, each.sql));
    if (!pairs.length) return sql;
    return [
      sql,
      h(
        "details",
        { class: "told" },
        h("summary", {}, "Properties of the commit"),
        h("dl", { class: "pairs slim" }, pairs.map(([key, value]) => [h("dt", {}, key), h("dd", {}, h("code", {}, value))])),
      ),
    ];
  }

  open(made) {
    const latest = this.made[0].version === made.version ? null : made.version;
    this.page.go({ version: latest, tab: "rows", offset: null });
  }
}

function colour(made) {
  return COLOURS[(made.operation || "").toLowerCase()] || "other";
}

function change(made, before) {
  if (!before || made.rows === null || before.rows === null || made.rows === before.rows) return null;
  const more = made.rows - before.rows;
  return h("span", { class: more > 0 ? "plus" : "minus" }, `${more > 0 ? "+" : "−"}${whole(Math.abs(more))}`);
}

// Rows in each version, the oldest at the left.
function chart(made, open) {
  const shown = made.slice(0, 120).reverse();
  const most = Math.max(...shown.map((each) => each.rows), 1);
  const wide = Math.min(100 / shown.length, 2.6);
  const bars = shown.map((each, at) => {
    const tall = Math.max(1.5, (each.rows / most) * 46);
    const bar = svg("rect", { x: at * wide + wide * 0.12, y: 50 - tall, width: wide * 0.76, height: tall, class: `fill-${colour(each)}` });
    const title = document.createElementNS(ROOT, "title");
    title.textContent = `Version ${each.version}: ${plural(each.rows, "row")}, ${moment(each.timestamp_ms)}`;
    bar.append(title);
    bar.addEventListener("click", () => open(each));
    return bar;
  });
  const label = `Rows in the last ${plural(shown.length, "version")}`;
  return h(
    "figure",
    { class: "chart" },
    svg("svg", { viewBox: "0 0 100 50", preserveAspectRatio: "none", role: "img", "aria-label": label }, bars),
    h("figcaption", { class: "muted" }, `${label}, up to ${whole(most)}`),
  );
}

export function activityTab(page) {
  const element = h("div", {}, waiting());
  const load = async () => {
    try {
      fill(element, activity(await page.ask("changes", { version: null }), page.info));
    } catch (error) {
      if (error.name !== "AbortError") fill(element, problem(error, load));
    }
  };
  load();
  return { element };
}

function product(client) {
  return client.split(" ")[0];
}

function activity({ changes }, info) {
  if (changes === null) return empty("This catalog has no record of changes", "The tab Versions shows what writers said about their versions.");
  const rows = changes.map((each) =>
    h(
      "tr",
      {},
      h("td", { title: moment(each.at_ms) }, ago(each.at_ms)),
      h("td", {}, each.principal),
      h("td", {}, each.operation),
      h("td", { class: "right" }, each.version ?? "–"),
      h("td", { class: "muted", title: each.client }, each.client ? product(each.client) : "–"),
      h("td", { class: "muted" }, h("code", {}, each.request || "–")),
    ),
  );
  return h(
    "div",
    {},
    h("p", { class: "muted lead" }, "What the catalog accepted, newest first.", info.managed_by === "storage" ? " Versions of this table are made in its storage, without asking the catalog: it cannot tell who made those." : ""),
    h(
      "div",
      { class: "scroll" },
      h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ["When", "Who", "What", "Version", "With", "Request"].map((each) => h("th", { scope: "col", class: each === "Version" ? "right" : null }, each)))), h("tbody", {}, rows)),
    ),
  );
}
