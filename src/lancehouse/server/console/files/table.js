// The page of a table or view: what it is, and its tabs.

import { get } from "./api.js";
import { add, copyButton, empty, fill, h, icon, problem, skeleton } from "./dom.js";
import { address, ago, bytes, dottedName, KINDS, moment, whole } from "./format.js";
import { imagesTab } from "./images.js";
import { lineageTab } from "./lineage.js";
import { crumbs } from "./places.js";
import { rowsTab } from "./rows.js";
import { schemaTab } from "./schema.js";
import { detailsTab, indicesTab, storageTab } from "./storage.js";
import { vectorsTab } from "./vectors.js";
import { activityTab, versionsTab } from "./versions.js";

export function tablePage(at) {
  return new TablePage(at);
}

class TablePage {
  constructor(at) {
    this.at = at;
    this.element = h("article", { class: "page table-page" });
    this.load();
  }

  get abort() {
    this.aborting ??= new AbortController();
    return this.aborting;
  }

  close() {
    this.aborting?.abort();
    this.panel?.close?.();
  }

  // For other parameters of the same table, draws again only what depends on them.
  update(at) {
    const isSame = at.page === "table" && at.place === this.at.place && dottedName(at.levels) === dottedName(this.at.levels);
    if (!isSame) return false;
    const old = this.at.query;
    this.at = at;
    if ((old.version || "") !== (at.query.version || "") || !this.info) this.load();
    else if (this.tabOf(old) !== this.tabOf(at.query)) this.draw();
    else if (!this.panel?.update?.(at.query)) this.draw();
    return true;
  }

  async load() {
    this.close();
    this.aborting = null;
    if (!this.info) fill(this.element, this.head(), skeleton(8));
    try {
      this.info = await this.ask("table");
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") fill(this.element, this.head(), problem(error, () => this.load()), this.back());
    }
  }

  ask(path, params = {}) {
    const version = params.version === undefined ? this.at.query.version : params.version;
    return get(path, { in: this.at.place, level: this.at.levels, ...params, version }, this.abort.signal);
  }

  // Changes parameters in the address.
  go(changes, { replace = false } = {}) {
    const hash = address("lance", this.at.place, this.at.levels, { ...this.at.query, ...changes });
    if (replace) history.replaceState(null, "", hash);
    else location.hash = hash;
    if (replace) this.at = { ...this.at, query: { ...this.at.query, ...changes } };
  }

  tabs() {
    const { info } = this;
    const isLance = info.kind === "lance";
    const isReady = info.state === "ready";
    const has = (...kinds) => info.columns.some((column) => kinds.includes(column.kind));
    if (info.restricted) return [["rows", "Rows", rowsTab], ["schema", "Schema", schemaTab]];
    return [
      isLance && isReady && ["rows", "Rows", rowsTab],
      info.kind === "view" && ["sql", "SQL", sqlTab],
      isReady && ["schema", "Schema", schemaTab],
      isReady && ["versions", isLance || info.kind === "view" ? "Versions" : "Snapshots", versionsTab],
      isLance && isReady && has("vector") && ["vectors", "Vectors", vectorsTab],
      isLance && isReady && has("blob", "bytes") && ["images", "Images", imagesTab],
      isLance && isReady && ["indices", "Indices", indicesTab],
      isLance && isReady && ["storage", "Storage", storageTab],
      isLance && isReady && ["lineage", "Lineage", lineageTab],
      ...(isReady ? [] : [["details", "Details", detailsTab]]),
      ["activity", "Activity", activityTab],
      ...(isReady ? [["details", "Details", detailsTab]] : []),
    ].filter(Boolean);
  }

  tabOf(query) {
    const tabs = this.tabs();
    return (tabs.find(([name]) => name === query.tab) || tabs[0])[0];
  }

  tab(number) {
    const tab = this.info && this.tabs()[number];
    if (tab) this.go({ tab: tab[0] });
    return Boolean(tab);
  }

  filter() {
    if (this.panel?.filter) this.panel.filter();
    else if (this.info?.kind === "lance") this.go({ tab: "rows" });
  }

  escape() {
    if (!this.detailBox) return false;
    this.closeDetail();
    return true;
  }

  draw() {
    this.panel?.close?.();
    this.closeDetail();
    const tabs = this.tabs();
    const current = this.tabOf(this.at.query);
    const list = h(
      "div",
      { class: "tabs", role: "tablist", "aria-label": "Parts of the table", onkeydown: (event) => this.arrow(event, tabs, current) },
      tabs.map(([name, title]) =>
        h(
          "button",
          {
            role: "tab",
            id: `tab-${name}`,
            "aria-selected": String(name === current),
            "aria-controls": "panel",
            tabindex: name === current ? "0" : "-1",
            onclick: () => this.go({ tab: name }),
          },
          title,
        ),
      ),
    );
    const panel = h("section", { id: "panel", class: "panel", role: "tabpanel", "aria-labelledby": `tab-${current}` });
    fill(this.element, this.head(), this.banner(), this.stats(), this.state(), list, panel);
    this.panel = tabs.find(([name]) => name === current)[2](this);
    add(panel, [this.panel.element]);
    list.querySelector("[aria-selected=true]").scrollIntoView({ block: "nearest", inline: "nearest" });
    if (this.refocus) document.getElementById(`tab-${current}`).focus();
    this.refocus = false;
  }

  arrow(event, tabs, current) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex(([name]) => name === current);
    this.refocus = true;
    this.go({ tab: tabs[(at + step + tabs.length) % tabs.length][0] });
    event.preventDefault();
  }

  head() {
    const { place, levels } = this.at;
    const { info } = this;
    return h(
      "div",
      {},
      crumbs(place, levels),
      h(
        "header",
        { class: "title" },
        icon(info?.kind || "lance"),
        h("h1", {}, levels[levels.length - 1]),
        info ? h("span", { class: `badge ${info.kind}` }, KINDS[info.kind]) : null,
        info?.summary?.is_view ? h("span", { class: "badge view", title: "Its rows are computed from another table; the tab Lineage shows which" }, "materialized view") : null,
        info?.restricted ? h("span", { class: "badge", title: "Your grant has a row filter or column masks: you see only some rows, and masked values" }, "a part of it") : null,
        info?.managed_by === "impl" ? h("span", { class: "badge", title: "Every commit is accepted by the catalog" }, "commits by the catalog") : null,
        copyButton(dottedName([place, ...levels]), "Copy the name"),
      ),
    );
  }

  banner() {
    const { version } = this.at.query;
    if (!version || this.info.kind !== "lance") return null;
    return h(
      "p",
      { class: "banner", role: "status" },
      `You are looking at version ${version}, of ${moment(this.info.summary?.timestamp_ms)}. `,
      h("button", { class: "small", onclick: () => this.go({ version: null, offset: null }) }, "Back to the latest"),
    );
  }

  back() {
    return this.at.query.version ? h("button", { class: "small", onclick: () => this.go({ version: null, offset: null }) }, "Back to the latest version") : null;
  }

  stats() {
    const { summary } = this.info;
    if (!summary) return null;
    const isIceberg = this.info.kind === "iceberg";
    const numbers = [
      ["Rows", whole(summary.rows), summary.deleted ? `${whole(summary.deleted)} deleted ones are still in its files` : null],
      ["Size", bytes(summary.bytes)],
      [isIceberg ? "Data files" : "Fragments", whole(summary.fragments)],
      ["Columns", whole(this.info.columns.length)],
      isIceberg ? ["Format", summary.format] : ["Version", summary.version],
      ["Changed", ago(summary.timestamp_ms), moment(summary.timestamp_ms)],
    ];
    return h("dl", { class: "stats" }, numbers.map(([name, value, title]) => h("div", { title }, h("dt", {}, name), h("dd", {}, value))));
  }

  state() {
    const { info } = this;
    if (info.state === "broken") return problem({ message: `The catalog has this table, but its data cannot be opened: ${info.problem}.`, hint: "lancehouse doctor says more." });
    if (info.state !== "declared") return null;
    const id = JSON.stringify([this.at.place, ...this.at.levels]);
    return h(
      "div",
      { class: "declared" },
      empty("It is declared, and has no data yet", "The first write gives it columns and rows:"),
      h("pre", { class: "code" }, `lance.write_dataset(rows, namespace_client=ns, table_id=${id}, mode="create")`),
    );
  }

  // Opens a panel at the side, and returns its body.
  detail(title, ...content) {
    this.closeDetail();
    this.focusBefore = document.activeElement;
    const close = h("button", { class: "ghost", "aria-label": "Close", onclick: () => this.closeDetail() }, icon("close"));
    this.detailBox = h("aside", { class: "detail", "aria-label": title, tabindex: "-1" }, h("header", {}, h("h2", {}, title), close), h("div", { class: "detail-body" }, content));
    this.element.append(this.detailBox);
    this.detailBox.focus({ preventScroll: true });
    return this.detailBox.querySelector(".detail-body");
  }

  closeDetail() {
    this.detailBox?.remove();
    if (this.detailBox) this.focusBefore?.focus?.({ preventScroll: true });
    this.detailBox = null;
  }
}

function sqlTab(page) {
  const parts = page.info.sql.map((each) =>
    h("section", { class: "block" }, h("h2", {}, each.dialect, copyButton(each.sql, "Copy the SQL")), h("pre", { class: "code" }, each.sql)),
  );
  return { element: h("div", {}, parts) };
}
