// The first page, and the page of a warehouse, a backend or a namespace.

import { get } from "./api.js";
import { copyButton, empty, fill, h, icon, problem, waiting } from "./dom.js";
import { address, dotted, KINDS, moment, plural } from "./format.js";

const PAGE = 200;
const SPACES = 1000;

export function home(_, session) {
  const cards = session.backends.map((each) =>
    h(
      "a",
      { class: "card", href: address("warehouse", each.name, []) },
      icon(each.warehouse ? "warehouse" : "backend"),
      h("span", { class: "card-name" }, each.name),
      h("span", { class: "muted" }, each.warehouse ? each.location : `${each.impl}, behind this server`),
    ),
  );
  const element = h(
    "article",
    { class: "page" },
    h("h1", {}, "Catalog"),
    h("p", { class: "lead" }, session.backends.length ? "Choose where to look, or press / and type the name of a table." : ""),
    cards.length ? h("div", { class: "cards" }, cards) : empty("You see nothing here yet", "You have no role on any warehouse: ask an administrator for one."),
    h("p", {}, h("a", { href: "#/maintenance" }, "Maintenance: what is due and done")),
    programs(),
  );
  return { element };
}

function programs() {
  const base = location.origin;
  const lines = [
    ["Iceberg REST", `${base}/iceberg`, "pyiceberg, Spark, and Lance through the iceberg client"],
    ["Lance REST Namespace", `${base}/lance/NAME`, "lance, LanceDB; NAME is a warehouse or a backend"],
    ["Metrics", `${base}/metrics`, "for Prometheus"],
  ];
  return h(
    "section",
    { class: "block" },
    h("h2", {}, "For programs"),
    h(
      "dl",
      { class: "pairs" },
      lines.map(([name, url, what]) => [h("dt", {}, name), h("dd", {}, h("code", {}, url), copyButton(url), h("span", { class: "muted" }, what))]),
    ),
  );
}

export function crumbs(place, levels) {
  const parts = [h("a", { href: address("namespace", place, []) }, place)];
  levels.slice(0, -1).forEach((level, at) => {
    parts.push(h("span", { class: "sep", "aria-hidden": "true" }, "/"), h("a", { href: address("namespace", place, levels.slice(0, at + 1)) }, level));
  });
  return h("nav", { class: "crumbs", "aria-label": "Where this is" }, levels.length ? parts : []);
}

function sheet(head, rows) {
  return h("div", { class: "scroll" }, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, head.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows)));
}

function droppedTables(told, at) {
  if (!told.tables.length) return empty("No dropped table can be restored here");
  const rows = told.tables.map((each) => {
    const command = `lancehouse table undrop ${quoted([at.place, ...each.namespace, each.name])}`;
    return h(
      "tr",
      {},
      h("td", {}, dotted([...each.namespace, each.name])),
      h("td", {}, moment(Date.parse(each["dropped-at"]))),
      h("td", {}, each.principal),
      h("td", {}, moment(Date.parse(each["expires-at"]))),
      h("td", {}, each.purge ? "are deleted" : "stay"),
      h("td", {}, h("code", {}, command), copyButton(command)),
    );
  });
  return sheet(["Table", "Dropped", "By", "Can be restored until", "Its data then", "To restore it"], rows);
}

// Quoted for a shell.
function quoted(levels) {
  return `'${dotted(levels).replaceAll("'", "'\\''")}'`;
}

function changes(told) {
  if (!told.changes.length) return empty("Nothing has changed here since the audit began");
  const rows = told.changes.map((each) =>
    h(
      "tr",
      {},
      h("td", {}, moment(Date.parse(each.time))),
      h("td", {}, each.principal),
      h("td", {}, each.peer),
      h("td", {}, each.action),
      h("td", {}, dotted([...each.namespace, ...(each.name ? [each.name] : [])])),
      h("td", {}, h("code", {}, [each.before, each.after].filter(Boolean).map((state) => JSON.stringify(state)).join(" → "))),
    ),
  );
  return [sheet(["When", "Who", "From", "Action", "What", "Change"], rows), told.next ? h("p", { class: "muted" }, "Older ones: lancehouse audit") : null];
}

export function namespace(at, session) {
  return new Namespace(at, session);
}

class Namespace {
  constructor(at, session) {
    this.at = at;
    this.abort = new AbortController();
    this.names = [];
    this.spaces = [];
    const backend = session.backends.find((each) => each.name === at.place);
    const kind = at.levels.length ? "namespace" : backend && !backend.warehouse ? "backend" : "warehouse";
    this.about = h("div", {});
    this.list = h("div", {});
    this.field = h("input", { type: "search", class: "narrow-list", placeholder: "Narrow down", "aria-label": "Narrow down the list", hidden: true, oninput: () => this.draw() });
    this.element = h(
      "article",
      { class: "page" },
      crumbs(at.place, at.levels),
      h(
        "header",
        { class: "title" },
        icon(kind),
        h("h1", {}, at.levels[at.levels.length - 1] || at.place),
        h("span", { class: "badge" }, KINDS[kind]),
        copyButton(dotted([at.place, ...at.levels]), "Copy the name"),
      ),
      this.about,
      this.field,
      this.list,
      backend?.warehouse ? [this.fold("Dropped tables", "dropped", droppedTables), this.fold("Changes", "audit", changes)] : [],
    );
    fill(this.list, waiting());
    this.load();
  }

  // What few want to see is asked for when it is opened.
  fold(title, what, drawn) {
    const body = h("div", {});
    const load = async (event) => {
      if (!event.target.open) return;
      fill(body, waiting(2));
      try {
        fill(body, drawn(await this.ask(what), this.at));
      } catch (error) {
        if (error.name !== "AbortError") fill(body, problem(error));
      }
    };
    return h("details", { class: "block fold", ontoggle: load }, h("summary", {}, title), body);
  }

  close() {
    this.abort.abort();
  }

  filter() {
    if (!this.field.hidden) this.field.focus();
  }

  async load() {
    const asked = { in: this.at.place, level: this.at.levels };
    const about = get("namespace", asked, this.abort.signal);
    about.catch(() => {});
    try {
      const [spaces, tables] = await Promise.all([this.ask("namespaces", SPACES), this.ask("entries", PAGE)]);
      this.names = [];
      this.spaces = [];
      this.isUnlisted = spaces.listed === false;
      this.addSpaces(spaces);
      this.addNames(tables);
      this.draw();
      this.properties((await about).properties);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.list, problem(error, () => this.load()));
    }
  }

  ask(what, limit, token) {
    return get(what, { in: this.at.place, level: this.at.levels, limit, token }, this.abort.signal);
  }

  addSpaces(told) {
    this.spaces = [...this.spaces, ...told.names];
    this.nextSpaces = told.next;
  }

  addNames(told) {
    this.names = [...this.names, ...told.names.map((name, at) => ({ name, kind: told.kinds[at] }))];
    this.next = told.next;
  }

  async more() {
    if (this.nextSpaces) this.addSpaces(await this.ask("namespaces", SPACES, this.nextSpaces));
    else this.addNames(await this.ask("entries", PAGE, this.next));
  }

  properties(told) {
    const pairs = Object.entries(told);
    if (!pairs.length) return;
    fill(this.about, h("dl", { class: "pairs slim" }, pairs.map(([key, value]) => [h("dt", {}, key), h("dd", {}, h("code", {}, value))])));
  }

  draw() {
    const word = this.field.value.trim().toLowerCase();
    const fits = (name) => name.toLowerCase().includes(word);
    this.field.hidden = this.names.length + this.spaces.length < 8;
    const all = [
      ...this.spaces.filter(fits).map((name) => ({ name, kind: "namespace" })),
      ...this.names.filter((each) => fits(each.name)),
    ];
    if (this.isUnlisted) {
      fill(this.list, this.named());
      return;
    }
    if (!all.length) {
      fill(this.list, word ? empty(`Nothing here has “${word}” in its name`) : this.nothing());
      return;
    }
    const rows = all.map((each) =>
      h(
        "li",
        {},
        h("a", { href: address(each.kind, this.at.place, [...this.at.levels, each.name]) }, icon(each.kind), h("span", { class: "name" }, each.name), h("span", { class: "muted" }, KINDS[each.kind])),
      ),
    );
    const more = this.next || this.nextSpaces
      ? h("button", { class: "more", onclick: (event) => this.follow(event.target) }, "Show more")
      : null;
    const counted = (names, next, what) => plural(names.length, what) + (next ? " so far" : "");
    const told = [counted(this.names, this.next, "table"), ...(this.spaces.length ? [counted(this.spaces, this.nextSpaces, "namespace")] : [])].join(", ");
    fill(this.list, h("p", { class: "muted count" }, told), h("ul", { class: "names" }, rows), more);
  }

  async follow(button) {
    button.disabled = true;
    try {
      await this.more();
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") button.replaceWith(problem(error));
    }
  }

  // Some catalogs do not tell what they have at the top.
  named() {
    const field = h("input", { type: "text", "aria-label": "Name of a warehouse or catalog", placeholder: "warehouse or catalog", spellcheck: "false" });
    const enter = (event) => {
      event.preventDefault();
      if (field.value.trim()) location.hash = address("namespace", this.at.place, [field.value.trim()]);
    };
    return h(
      "form",
      { class: "bar-line", onsubmit: enter },
      h("p", { class: "muted whole-line" }, "This catalog does not list its warehouses. Type the name of one:"),
      field,
      h("button", { class: "primary", type: "submit" }, "Open"),
    );
  }

  nothing() {
    const id = JSON.stringify([this.at.place, ...this.at.levels, "docs"]);
    return h(
      "div",
      {},
      empty(this.at.levels.length ? "There is no table in here yet" : "There is no namespace in here yet"),
      this.at.levels.length ? h("pre", { class: "code" }, `lance.write_dataset(rows, namespace_client=ns, table_id=${id}, mode="create")`) : null,
    );
  }
}
