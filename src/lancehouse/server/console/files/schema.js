// The columns of a table or view.

import { copyButton, empty, fill, h, problem } from "./dom.js";
import { address, bytes, plural, whole } from "./format.js";

const HIDDEN = new Set(["lance-encoding:blob", "ARROW:extension:name", "ARROW:extension:metadata"]);

export function schemaTab(page) {
  const { info } = page;
  const element = h("div", {});
  const companions = info.kept_columns || [];
  const states = new Map(); // keeps the counts when the sizes arrive and all is drawn again
  let sizes = {};
  let showsCompanions = false;
  const draw = () => {
    const most = Math.max(...Object.values(sizes), 1);
    const columns = showsCompanions ? [...info.columns, ...companions] : info.columns;
    const hasNotes = columns.some(isNoted);
    const hasSizes = Object.keys(sizes).length > 0;
    const columnCount = 3 + Number(hasSizes) + Number(hasNotes);
    const rows = columns.flatMap((column) => {
      const [first, ...rest] = lines(column, 0, sizes, most, hasNotes);
      if (!column.computed) return [first, ...rest];
      if (!states.has(column.name)) states.set(column.name, stateLine(page, column));
      return [first, computedRow(column, states.get(column.name), columnCount), ...rest];
    });
    const head = ["Column", "Type", "May be null", hasSizes ? "On disk" : null, hasNotes ? "Notes" : null].filter(Boolean);
    fill(
      element,
      layout(info),
      info.columns.length
        ? h("div", { class: "scroll" }, h("table", { class: "plain schema" }, h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows)))
        : empty("There are no columns"),
      companions.length ? h("button", { class: "ghost small companions", onclick: toggle }, showsCompanions ? "Hide" : "Show", ` ${plural(companions.length, "column")} that Lancehouse keeps beside them`) : null,
    );
  };
  const toggle = () => {
    showsCompanions = !showsCompanions;
    draw();
  };
  draw();
  if (info.kind === "lance") {
    page
      .ask("fragments")
      .then((storage) => {
        sizes = Object.fromEntries(storage.columns);
        draw();
      })
      .catch(() => {}); // without sizes, the columns are still shown
  }
  return { element };
}

// The row that says what computes a column.
function computedRow(column, states, columnCount) {
  const { function: name, version, title, inputs, since } = column.computed;
  const isSql = title !== `${name} ${version}`;
  return h(
    "tr",
    { class: "computed-row" },
    h(
      "td",
      { colspan: columnCount },
      h(
        "div",
        { class: "computed-text" },
        h("span", { class: "badge computed" }, "computed"),
        " by ",
        h("code", {}, name),
        isSql ? null : [", version ", h("code", {}, version)],
        inputs.length ? [", from ", inputs.map((each, at) => [at ? ", " : "", h("code", {}, each)])] : null,
        h("span", { class: "muted" }, `, since version ${since} of the table`),
        states,
      ),
    ),
  );
}

// Counting reads the column's companion, so it needs a click.
function stateLine(page, column) {
  const box = h("span", { class: "states" });
  const count = async () => {
    fill(box, h("span", { class: "muted" }, "Counting…"));
    try {
      const counts = await page.ask("states", { column: column.name });
      fill(
        box,
        h("span", { class: "state good" }, `${whole(counts.filled)} filled`),
        h("span", { class: counts.missing ? "state missing" : "state muted" }, `${whole(counts.missing)} missing`),
        counts.failed
          ? h("button", { class: "small state-bad", onclick: () => failures(page, `Rows without ${column.name}`, { column: column.name }, page.at) }, `${whole(counts.failed)} failed`)
          : h("span", { class: "state muted" }, "0 failed"),
      );
    } catch (error) {
      if (error.name !== "AbortError") fill(box, problem(error, count));
    }
  };
  return fill(box, h("button", { class: "small", onclick: count }, "Count its rows"));
}

// Lists the rows for which a column or view failed, a page at a time, at the side. `at` is the table that contains them, if it is known.
export function failures(page, title, parameters, at) {
  const list = h("ul", { class: "failures" });
  const foot = h("div", {});
  const body = page.detail(title, list, foot);
  let offset = 0;
  const more = async () => {
    fill(foot, h("span", { class: "muted" }, "Loading…"));
    try {
      const failurePage = await page.ask("failures", { ...parameters, offset });
      offset += failurePage.rows.length;
      for (const row of failurePage.rows) {
        const name = `Row id ${row.row}`;
        const rows = at && address("lance", at.place, at.levels, { ...at.query, tab: "rows", filter: `_rowid = ${row.row}`, offset: null });
        list.append(
          h(
            "li",
            {},
            rows ? h("a", { href: rows }, name) : name,
            h("span", { class: "muted" }, ` ${row.state}, version ${row.version}`),
            h("pre", { class: "value" }, row.exception ?? "The exception is not stored here: run lancehouse table errors."),
          ),
        );
      }
      fill(foot, failurePage.more ? h("button", { class: "more", onclick: more }, "More") : offset ? null : empty("No row has failed"));
    } catch (error) {
      if (error.name !== "AbortError" && body.isConnected) fill(foot, problem(error, more));
    }
  };
  more();
}

function layout(info) {
  const parts = [
    info.partition?.length ? ["Partitioned by", info.partition.join(", ")] : null,
    info.sort?.length ? ["Sorted by", info.sort.join(", ")] : null,
  ].filter(Boolean);
  return parts.length ? h("dl", { class: "pairs slim" }, parts.map(([key, value]) => [h("dt", {}, key), h("dd", {}, h("code", {}, value))])) : null;
}

function notesOf(column) {
  return Object.entries(column.metadata).filter(([key]) => !HIDDEN.has(key));
}

function isNoted(column) {
  return notesOf(column).length > 0 || column.fields.some(isNoted);
}

function lines(column, depth, sizes, most, hasNotes) {
  const size = depth === 0 ? sizes[column.name] : undefined;
  const hasSizes = Object.keys(sizes).length > 0;
  const row = h(
    "tr",
    {},
    h("td", {}, h("span", { class: "indent", css: { "--depth": depth } }), h("span", { class: `kind kind-${column.kind}` }), h("code", { class: "name" }, column.name), depth ? null : copyButton(column.name, "Copy the name")),
    h("td", {}, h("code", { class: "type-text" }, column.type)),
    h("td", { class: "muted" }, column.nullable ? "yes" : "no"),
    hasSizes ? h("td", {}, size === undefined ? "" : meter(size, most)) : null,
    hasNotes ? h("td", { class: "notes" }, notesOf(column).map(([key, value]) => h("span", { class: "note" }, h("span", { class: "muted" }, `${key} `), value))) : null,
  );
  return [row, ...column.fields.flatMap((field) => lines(field, depth + 1, sizes, most, hasNotes))];
}

export function meter(size, most) {
  return h("span", { class: "meter" }, h("span", { class: "meter-bar", css: { width: `${Math.max(1, (size / most) * 100)}%` } }), h("span", { class: "meter-text" }, bytes(size)));
}
