// The rows of a table: a page at a time, filtered in Lance's SQL.

import { cell, isRight, record } from "./cells.js";
import { empty, fill, h, icon, problem, waiting } from "./dom.js";
import { plural, whole } from "./format.js";

const SIZE = 50;

export function rowsTab(page) {
  return new Rows(page);
}

class Rows {
  constructor(page) {
    this.page = page;
    this.query = page.at.query;
    this.isOpen = true;
    this.input = h("input", {
      type: "text",
      class: "filter",
      placeholder: example(page.info.columns),
      "aria-label": "Filter in SQL",
      spellcheck: "false",
      autocomplete: "off",
      autocapitalize: "off",
      value: this.query.filter || "",
      onkeydown: (event) => this.typed(event),
    });
    this.clear = h("button", { class: "ghost", type: "button", "aria-label": "Remove the filter", onclick: () => this.apply(""), hidden: !this.query.filter }, icon("close"));
    this.says = h("div", { class: "filter-says", id: "filter-says", "aria-live": "polite" });
    this.box = h("div", { class: "grid-box", tabindex: "-1" });
    this.pager = h("div", { class: "pager" });
    this.element = h(
      "div",
      { class: "rows" },
      h(
        "form",
        { class: "bar-line", onsubmit: (event) => this.submitted(event) },
        h("label", { class: "filter-box" }, h("span", { class: "where-word", "aria-hidden": "true" }, "where"), this.input, this.clear),
        h("button", { class: "primary", type: "submit" }, "Filter"),
        this.chooser(),
      ),
      this.says,
      this.box,
      this.pager,
    );
    this.load();
  }

  close() {
    this.isOpen = false;
  }

  filter() {
    this.input.focus();
    this.input.select();
  }

  update(query) {
    const keys = ["filter", "offset", "cols"];
    const isOther = keys.some((key) => (query[key] || "") !== (this.query[key] || ""));
    this.query = query;
    if (isOther) {
      this.input.value = query.filter || "";
      this.clear.hidden = !query.filter;
      this.load();
    }
    return true;
  }

  typed(event) {
    if (event.key === "Escape" && this.input.value !== (this.query.filter || "")) {
      this.input.value = this.query.filter || "";
      event.preventDefault();
    }
  }

  submitted(event) {
    event.preventDefault();
    this.apply(this.input.value.trim());
  }

  apply(filter) {
    if (filter === (this.query.filter || "")) this.load();
    else this.page.go({ filter: filter || null, offset: null });
  }

  columns() {
    try {
      const chosen = JSON.parse(this.query.cols || "[]");
      return Array.isArray(chosen) ? chosen.map(String) : [];
    } catch {
      return [];
    }
  }

  async load() {
    const offset = Number(this.query.offset || 0);
    const asked = { filter: this.query.filter, offset, limit: SIZE, column_shown: this.columns() };
    const turn = (this.turn = (this.turn || 0) + 1);
    this.box.classList.add("old");
    if (!this.told) fill(this.box, waiting(10));
    try {
      const told = await this.page.ask("rows", asked);
      if (turn !== this.turn || !this.isOpen) return;
      this.told = told;
      fill(this.says);
      this.input.removeAttribute("aria-invalid");
      this.draw(offset);
    } catch (error) {
      if (error.name === "AbortError" || turn !== this.turn) return;
      this.refused(error);
    }
    this.box.classList.remove("old");
  }

  refused(error) {
    fill(this.says, problem(error, error.status === 400 ? null : () => this.load()));
    if (this.query.filter) this.input.setAttribute("aria-invalid", "true");
    this.input.setAttribute("aria-describedby", "filter-says");
    if (!this.told) fill(this.box);
    fill(this.pager);
  }

  draw(offset) {
    const { told } = this;
    if (!told.rows.length) {
      const filtered = this.query.filter ? empty("No row matches", "The filter is valid, but its result is empty.") : empty("There are no rows");
      fill(this.box, offset ? empty("There are no more rows") : filtered);
    } else fill(this.box, this.grid(offset));
    this.pages(offset);
  }

  grid(offset) {
    const { told, page } = this;
    const kinds = Object.fromEntries([...page.info.columns, ...(page.info.kept_columns || [])].map((column) => [column.name, column]));
    const head = told.columns.map((name) =>
      h("th", { scope: "col", class: isRight(kinds[name]?.kind) ? "right" : null }, h("span", { class: "col-name" }, name), h("span", { class: "type" }, kinds[name]?.type || "")),
    );
    const rows = told.rows.map((row, at) => {
      const where = { place: page.at.place, levels: page.at.levels, version: told.version, row: told.ids[at] };
      const open = h("button", { class: "row-number", "aria-label": `Row ${offset + at + 1}, all columns`, onclick: () => this.open(at) }, whole(offset + at + 1));
      return h(
        "tr",
        { ondblclick: () => this.open(at) },
        h("th", { scope: "row" }, open),
        row.map((value, place) => h("td", { class: `cell-${kinds[told.columns[place]]?.kind || "other"}` }, cell(value, told.columns[place], where))),
      );
    });
    return h("table", { class: "grid" }, h("thead", {}, h("tr", {}, h("th", { class: "corner" }, h("span", { class: "hidden" }, "Row")), head)), h("tbody", {}, rows));
  }

  open(at) {
    this.page.detail(`Row ${whole(Number(this.query.offset || 0) + at + 1)}`, record(this.page, this.told, at));
  }

  pages(offset) {
    const { told } = this;
    // Who sees only a part of the table is not told how many rows it has.
    const total = this.query.filter || this.page.info.restricted ? null : this.page.info.summary.rows;
    const range = told.rows.length ? `${whole(offset + 1)}–${whole(offset + told.rows.length)}` : "0";
    const count = h("span", { class: "muted" }, total !== null ? `${range} of ${whole(total)}` : range);
    const step = (to) => () => this.page.go({ offset: to > 0 ? to : null });
    fill(
      this.pager,
      h("button", { class: "small", disabled: offset === 0, onclick: step(offset - SIZE) }, "Previous"),
      count,
      h("button", { class: "small", disabled: !told.more, onclick: step(offset + SIZE) }, "Next"),
      total === null && told.more ? h("button", { class: "ghost small", onclick: (event) => this.count(event.target) }, "Count all that match") : null,
      total === null && !told.more && offset === 0 ? h("span", { class: "muted" }, `${plural(told.rows.length, "row")} match`) : null,
    );
  }

  async count(button) {
    button.disabled = true;
    button.textContent = "Counting…";
    try {
      const told = await this.page.ask("count", { filter: this.query.filter });
      button.replaceWith(h("span", { class: "muted" }, `${plural(told.count, "row")} match`));
    } catch (error) {
      if (error.name !== "AbortError") button.replaceWith(problem(error));
    }
  }

  chooser() {
    const usual = this.page.info.columns.map((column) => column.name);
    const names = [...usual, ...(this.page.info.kept_columns || []).map((column) => column.name)];
    if (names.length < 2) return null;
    const boxes = names.map((name) => h("input", { type: "checkbox", value: name }));
    const mark = () => {
      const shown = this.columns().length ? this.columns() : (this.told?.columns ?? usual);
      for (const box of boxes) box.checked = shown.includes(box.value);
    };
    const choose = () => {
      const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
      menu.open = false;
      const isUsual = chosen.length === usual.length && usual.every((name) => chosen.includes(name));
      this.page.go({ cols: chosen.length && !isUsual ? JSON.stringify(chosen) : null });
    };
    const menu = h(
      "details",
      { class: "chooser" },
      h("summary", { onclick: mark }, "Columns"),
      h(
        "div",
        { class: "chooser-box" },
        h("div", { class: "chooser-list" }, boxes.map((box, at) => h("label", {}, box, names[at]))),
        h("button", { class: "primary", type: "button", onclick: choose }, "Show these"),
      ),
    );
    return menu;
  }
}

function example(columns) {
  const number = columns.find((column) => column.kind === "number");
  const text = columns.find((column) => column.kind === "text");
  const parts = [number && `${number.name} > 10`, text && `${text.name} LIKE 'a%'`].filter(Boolean);
  return parts.join(" AND ") || "a condition in SQL";
}
