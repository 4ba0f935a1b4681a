// The rows of a table: a page at a time, filtered in Lance's SQL.

import { cell, isRight, record } from "./cells.js";
import { empty, fill, h, icon, problem, skeleton } from "./dom.js";
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
      onkeydown: (event) => this.onKey(event),
    });
    this.clear = h("button", { class: "ghost", type: "button", "aria-label": "Remove the filter", onclick: () => this.apply(""), hidden: !this.query.filter }, icon("close"));
    this.message = h("div", { class: "filter-message", id: "filter-message", "aria-live": "polite" });
    this.box = h("div", { class: "grid-box", tabindex: "-1" });
    this.pager = h("div", { class: "pager" });
    this.element = h(
      "div",
      { class: "rows" },
      h(
        "form",
        { class: "bar-line", onsubmit: (event) => this.onSubmit(event) },
        h("label", { class: "filter-box" }, h("span", { class: "where-word", "aria-hidden": "true" }, "where"), this.input, this.clear),
        h("button", { class: "primary", type: "submit" }, "Filter"),
        this.chooser(),
      ),
      this.message,
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
    const hasChanged = keys.some((key) => (query[key] || "") !== (this.query[key] || ""));
    this.query = query;
    if (hasChanged) {
      this.input.value = query.filter || "";
      this.clear.hidden = !query.filter;
      this.load();
    }
    return true;
  }

  onKey(event) {
    if (event.key === "Escape" && this.input.value !== (this.query.filter || "")) {
      this.input.value = this.query.filter || "";
      event.preventDefault();
    }
  }

  onSubmit(event) {
    event.preventDefault();
    this.apply(this.input.value.trim());
  }

  apply(filter) {
    if (filter === (this.query.filter || "")) this.load();
    else this.page.go({ filter: filter || null, offset: null });
  }

  columns() {
    try {
      const names = JSON.parse(this.query.cols || "[]");
      return Array.isArray(names) ? names.map(String) : [];
    } catch {
      return [];
    }
  }

  async load() {
    const offset = Number(this.query.offset || 0);
    const parameters = { filter: this.query.filter, offset, limit: SIZE, column_shown: this.columns() };
    const turn = (this.turn = (this.turn || 0) + 1);
    this.box.classList.add("old");
    if (!this.rowPage) fill(this.box, skeleton(10));
    try {
      const rowPage = await this.page.ask("rows", parameters);
      if (turn !== this.turn || !this.isOpen) return;
      this.rowPage = rowPage;
      fill(this.message);
      this.input.removeAttribute("aria-invalid");
      this.draw(offset);
    } catch (error) {
      if (error.name === "AbortError" || turn !== this.turn) return;
      this.showError(error);
    }
    this.box.classList.remove("old");
  }

  showError(error) {
    fill(this.message, problem(error, error.status === 400 ? null : () => this.load()));
    if (this.query.filter) this.input.setAttribute("aria-invalid", "true");
    this.input.setAttribute("aria-describedby", "filter-message");
    if (!this.rowPage) fill(this.box);
    fill(this.pager);
  }

  draw(offset) {
    const { rowPage } = this;
    if (!rowPage.rows.length) {
      const note = this.query.filter ? empty("No row matches", "The filter is valid, but its result is empty.") : empty("There are no rows");
      fill(this.box, offset ? empty("There are no more rows") : note);
    } else fill(this.box, this.grid(offset));
    this.pages(offset);
  }

  grid(offset) {
    const { rowPage, page } = this;
    const kinds = Object.fromEntries([...page.info.columns, ...(page.info.kept_columns || [])].map((column) => [column.name, column]));
    const head = rowPage.columns.map((name) =>
      h("th", { scope: "col", class: isRight(kinds[name]?.kind) ? "right" : null }, h("span", { class: "col-name" }, name), h("span", { class: "type" }, kinds[name]?.type || "")),
    );
    const rows = rowPage.rows.map((row, at) => {
      const where = { place: page.at.place, levels: page.at.levels, version: rowPage.version, row: rowPage.ids[at] };
      const open = h("button", { class: "row-number", "aria-label": `Row ${offset + at + 1}, all columns`, onclick: () => this.open(at) }, whole(offset + at + 1));
      return h(
        "tr",
        { ondblclick: () => this.open(at) },
        h("th", { scope: "row" }, open),
        row.map((value, place) => h("td", { class: `cell-${kinds[rowPage.columns[place]]?.kind || "other"}` }, cell(value, rowPage.columns[place], where))),
      );
    });
    return h("table", { class: "grid" }, h("thead", {}, h("tr", {}, h("th", { class: "corner" }, h("span", { class: "hidden" }, "Row")), head)), h("tbody", {}, rows));
  }

  open(at) {
    this.page.detail(`Row ${whole(Number(this.query.offset || 0) + at + 1)}`, record(this.page, this.rowPage, at));
  }

  pages(offset) {
    const { rowPage } = this;
    // Callers who see only a part of the table must not learn how many rows it has.
    const total = this.query.filter || this.page.info.restricted ? null : this.page.info.summary.rows;
    const range = rowPage.rows.length ? `${whole(offset + 1)}–${whole(offset + rowPage.rows.length)}` : "0";
    const count = h("span", { class: "muted" }, total !== null ? `${range} of ${whole(total)}` : range);
    const step = (to) => () => this.page.go({ offset: to > 0 ? to : null });
    fill(
      this.pager,
      h("button", { class: "small", disabled: offset === 0, onclick: step(offset - SIZE) }, "Previous"),
      count,
      h("button", { class: "small", disabled: !rowPage.more, onclick: step(offset + SIZE) }, "Next"),
      total === null && rowPage.more ? h("button", { class: "ghost small", onclick: (event) => this.count(event.target) }, "Count all that match") : null,
      total === null && !rowPage.more && offset === 0 ? h("span", { class: "muted" }, `${plural(rowPage.rows.length, "row")} match`) : null,
    );
  }

  async count(button) {
    button.disabled = true;
    button.textContent = "Counting…";
    try {
      const { count } = await this.page.ask("count", { filter: this.query.filter });
      button.replaceWith(h("span", { class: "muted" }, `${plural(count, "row")} match`));
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
      const checked = this.columns().length ? this.columns() : (this.rowPage?.columns ?? usual);
      for (const box of boxes) box.checked = checked.includes(box.value);
    };
    const choose = () => {
      const checked = boxes.filter((box) => box.checked).map((box) => box.value);
      menu.open = false;
      const isUsual = checked.length === usual.length && usual.every((name) => checked.includes(name));
      this.page.go({ cols: checked.length && !isUsual ? JSON.stringify(checked) : null });
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
