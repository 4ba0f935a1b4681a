// The tabs Versions and Activity: the history of a table, and who changed it.

import { empty, fill, h, icon, problem, skeleton, svg } from "./dom.js";
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
    this.versions = [];
    this.chart = h("div", {});
    this.list = h("ol", { class: "timeline" });
    this.foot = h("div", {});
    this.element = h("div", {}, this.refs(), this.chart, this.list, this.foot);
    fill(this.list, skeleton());
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
      const page = await this.page.ask("versions", { token: this.next, version: null });
      if (isFirst) fill(this.list);
      this.versions = [...this.versions, ...page.versions];
      this.next = page.next;
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") fill(isFirst ? this.list : this.foot, problem(error, () => this.more(isFirst)));
    }
  }

  draw() {
    if (!this.versions.length) {
      fill(this.list, empty("There is no version yet"));
      return;
    }
    fill(this.chart, this.versions.length > 2 && this.versions[0].rows !== null ? chart(this.versions, (version) => this.open(version)) : null);
    fill(this.list, this.versions.map((version, at) => this.row(version, this.versions[at + 1])));
    fill(this.foot, this.next ? h("button", { class: "more", onclick: (event) => this.follow(event.target) }, "Older versions") : null);
  }

  follow(button) {
    button.disabled = true;
    this.more(false);
  }

  tagsOf(version) {
    const { tags } = this.page.info;
    return Object.entries(tags).filter(([, to]) => !to.branch && to.version === String(version.version));
  }

  row(version, before) {
    const isLance = this.page.info.kind === "lance";
    const isShown = String(this.page.at.query.version || this.page.info.summary?.version || "") === String(version.version);
    return h(
      "li",
      { class: `version ${colour(version)} ${isShown ? "current" : ""}` },
      h("span", { class: "dot", "aria-hidden": "true" }),
      h(
        "div",
        { class: "version-head" },
        h("strong", {}, isLance || this.page.info.kind === "view" ? `Version ${version.version}` : version.version),
        h("span", { class: "operation" }, WORDS[version.operation] || version.operation || "unknown"),
        change(version, before),
        this.tagsOf(version).map(([name]) => h("span", { class: "ref tag" }, icon("tag", "tag"), name)),
        isShown && isLance ? h("span", { class: "muted" }, "shown") : null,
        isLance && !isShown ? h("button", { class: "ghost small", onclick: () => this.open(version) }, "Rows as of then") : null,
      ),
      h(
        "div",
        { class: "version-line muted" },
        h("time", { title: moment(version.timestamp_ms), datetime: new Date(version.timestamp_ms).toISOString() }, `${ago(version.timestamp_ms)}, ${moment(version.timestamp_ms)}`),
        version.by ? h("span", { class: "by" }, icon("person"), version.by.principal, version.by.client ? h("span", { class: "client", title: version.by.client }, `with ${product(version.by.client)}`) : null) : null,
        version.rows !== null && version.rows !== undefined ? h("span", {}, `${plural(version.rows, "row")}, ${plural(version.files, "file")}, ${bytes(version.bytes)}`) : null,
      ),
      version.message ? h("p", { class: "message" }, version.message) : null,
      this.properties(version),
    );
  }

  properties(version) {
    const pairs = Object.entries(version.properties || {});
    const sql = (version.sql || []).map((each) => h("pre", { class: "code" }, each.sql));
    if (!pairs.length) return sql;
    return [
      sql,
      h(
        "details",
        { class: "commit-properties" },
        h("summary", {}, "Properties of the commit"),
        h("dl", { class: "pairs slim" }, pairs.map(([key, value]) => [h("dt", {}, key), h("dd", {}, h("code", {}, value))])),
      ),
    ];
  }

  open(version) {
    const latest = this.versions[0].version === version.version ? null : version.version;
    this.page.go({ version: latest, tab: "rows", offset: null });
  }
}

function colour(version) {
  return COLOURS[(version.operation || "").toLowerCase()] || "other";
}

function change(version, before) {
  if (!before || version.rows === null || before.rows === null || version.rows === before.rows) return null;
  const more = version.rows - before.rows;
  return h("span", { class: more > 0 ? "plus" : "minus" }, `${more > 0 ? "+" : "−"}${whole(Math.abs(more))}`);
}

// Rows in each version, the oldest at the left.
function chart(versions, open) {
  const recent = versions.slice(0, 120).reverse();
  const most = Math.max(...recent.map((each) => each.rows), 1);
  const wide = Math.min(100 / recent.length, 2.6);
  const bars = recent.map((version, at) => {
    const tall = Math.max(1.5, (version.rows / most) * 46);
    const bar = svg("rect", { x: at * wide + wide * 0.12, y: 50 - tall, width: wide * 0.76, height: tall, class: `fill-${colour(version)}` });
    const title = document.createElementNS(ROOT, "title");
    title.textContent = `Version ${version.version}: ${plural(version.rows, "row")}, ${moment(version.timestamp_ms)}`;
    bar.append(title);
    bar.addEventListener("click", () => open(version));
    return bar;
  });
  const label = `Rows in the last ${plural(recent.length, "version")}`;
  return h(
    "figure",
    { class: "chart" },
    svg("svg", { viewBox: "0 0 100 50", preserveAspectRatio: "none", role: "img", "aria-label": label }, bars),
    h("figcaption", { class: "muted" }, `${label}, up to ${whole(most)}`),
  );
}

export function activityTab(page) {
  const element = h("div", {}, skeleton());
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
  const rows = changes.map((entry) =>
    h(
      "tr",
      {},
      h("td", { title: moment(entry.at_ms) }, ago(entry.at_ms)),
      h("td", {}, entry.principal),
      h("td", {}, entry.operation),
      h("td", { class: "right" }, entry.version ?? "–"),
      h("td", { class: "muted", title: entry.client }, entry.client ? product(entry.client) : "–"),
      h("td", { class: "muted" }, h("code", {}, entry.request || "–")),
    ),
  );
  return h(
    "div",
    {},
    h("p", { class: "muted lead" }, "What the catalog accepted, newest first.", info.managed_by === "storage" ? " Versions of this table are committed in its storage, without the catalog, so it cannot tell who committed them." : ""),
    h(
      "div",
      { class: "scroll" },
      h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ["When", "Who", "What", "Version", "With", "Request"].map((each) => h("th", { scope: "col", class: each === "Version" ? "right" : null }, each)))), h("tbody", {}, rows)),
    ),
  );
}
