// The pictures in a column of bytes.

import { picture, record, whenVisible } from "./cells.js";
import { empty, fill, h, problem, skeleton } from "./dom.js";
import { bytes, whole } from "./format.js";

const SIZE = 60;

export function imagesTab(page) {
  return new Images(page);
}

class Images {
  constructor(page) {
    this.page = page;
    this.query = page.at.query;
    const columns = page.info.columns.filter((each) => each.kind === "blob" || each.kind === "bytes");
    this.column = columns.some((each) => each.name === this.query.column) ? this.query.column : columns[0].name;
    const captionColumns = page.info.columns.filter((each) => each.kind === "text" || each.kind === "number");
    this.caption = captionColumns.find((each) => each.kind === "text")?.name || captionColumns[0]?.name;
    const box = h("select", { onchange: () => page.go({ column: box.value, offset: null }) }, columns.map((each) => h("option", { value: each.name, selected: each.name === this.column }, each.name)));
    this.wall = h("div", {}, skeleton());
    this.pager = h("div", { class: "pager" });
    const filterNote = this.query.filter ? h("span", { class: "muted" }, `where ${this.query.filter}`) : null;
    this.element = h("div", {}, h("div", { class: "bar-line" }, h("label", { class: "select" }, "Column", box), filterNote), this.wall, this.pager);
    this.load();
  }

  close() {
    this.isClosed = true;
  }

  async load() {
    const offset = Number(this.query.offset || 0);
    const columns = [this.column, this.caption].filter(Boolean);
    try {
      this.rowPage = await this.page.ask("rows", { filter: this.query.filter, offset, limit: SIZE, column_shown: columns });
    } catch (error) {
      if (error.name !== "AbortError") fill(this.wall, problem(error, () => this.load()));
      return;
    }
    if (!this.isClosed) this.draw(offset);
  }

  draw(offset) {
    const { rowPage, page } = this;
    const cards = rowPage.rows.map(([value, caption], at) => this.card(value, caption, at, offset));
    fill(this.wall, cards.length ? h("div", { class: "wall" }, cards) : empty("There are no rows"));
    const step = (to) => () => page.go({ offset: to > 0 ? to : null });
    const count = rowPage.rows.length ? `${whole(offset + 1)}–${whole(offset + rowPage.rows.length)}` : "0";
    fill(
      this.pager,
      h("button", { class: "small", disabled: offset === 0, onclick: step(offset - SIZE) }, "Previous"),
      h("span", { class: "muted" }, count),
      h("button", { class: "small", disabled: !rowPage.more, onclick: step(offset + SIZE) }, "Next"),
    );
  }

  card(value, caption, at, offset) {
    const { rowPage, page } = this;
    const where = { place: page.at.place, levels: page.at.levels, version: rowPage.version, row: rowPage.ids[at] };
    const title = caption === null || caption === undefined ? `Row ${whole(offset + at + 1)}` : typeof caption === "object" ? caption.text : String(caption);
    const frame = h("span", { class: "frame" }, h("span", { class: "chip" }, value === null ? "null" : bytes(value.size)));
    if (value && (value.kind === "blob" || value.image)) {
      whenVisible(frame, () =>
        picture(where, this.column)
          .then((element) => fill(frame, element))
          .catch(() => frame.classList.add("no-image")),
      );
    } else frame.classList.add("no-image");
    return h("button", { class: "shot", title, onclick: () => this.open(at, offset) }, frame, h("span", { class: "caption" }, title));
  }

  async open(at, offset) {
    const box = this.page.detail(`Row ${whole(offset + at + 1)}`, skeleton(6));
    try {
      const rowPage = await this.page.ask("rows", { filter: this.query.filter, offset: offset + at, limit: 1 });
      fill(box, record(this.page, rowPage, 0));
    } catch (error) {
      if (error.name !== "AbortError") fill(box, problem(error));
    }
  }
}
