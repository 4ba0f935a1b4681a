// The first page, and the page of a warehouse, a backend or a namespace.

import { get } from "./api.js";
import { copyButton, empty, fill, h, icon, problem, skeleton } from "./dom.js";
import { address, dottedName, KINDS, moment, plural } from "./format.js";

const PAGE = 200;
const SPACES = 1000;

export function home(_, session) {
  const cards = session.backends.map((backend) =>
    h(
      "a",
      { class: "card", href: address("warehouse", backend.name, []) },
      icon(backend.warehouse ? "warehouse" : "backend"),
      h("span", { class: "card-name" }, backend.name),
      h("span", { class: "muted" }, backend.warehouse ? backend.location : `${backend.impl}, behind this server`),
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

function droppedTables({ tables }, at) {
  if (!tables.length) return empty("No dropped table can be restored here");
  const rows = tables.map((table) => {
    const command = `lancehouse table undrop ${shellQuote([at.place, ...table.namespace, table.name])}`;
    return h(
      "tr",
      {},
      h("td", {}, dottedName([...table.namespace, table.name])),
      h("td", {}, moment(Date.parse(table["dropped-at"]))),
      h("td", {}, table.principal),
      h("td", {}, moment(Date.parse(table["expires-at"]))),
      h("td", {}, table.purge ? "are deleted" : "stay"),
      h("td", {}, h("code", {}, command), copyButton(command)),
    );
  });
  return sheet(["Table", "Dropped", "By", "Can be restored until", "Its data then", "To restore it"], rows);
}

// A name as one word of a shell.
function shellQuote(levels) {
  return `'${dottedName(levels).replaceAll("'", "'\\''")}'`;
}

function changes(audit) {
  if (!audit.changes.length) return empty("Nothing has changed here since the audit began");
  const rows = audit.changes.map((change) =>
    h(
      "tr",
      {},
      h("td", {}, moment(Date.parse(change.time))),
      h("td", {}, change.principal),
      h("td", {}, change.peer),
      h("td", {}, change.action),
      h("td", {}, dottedName([...change.namespace, ...(change.name ? [change.name] : [])])),
      h("td", {}, h("code", {}, [change.before, change.after].filter(Boolean).map((state) => JSON.stringify(state)).join(" → "))),
    ),
  );
  return [sheet(["When", "Who", "From", "Action", "What", "Change"], rows), audit.next ? h("p", { class: "muted" }, "Older ones: lancehouse audit") : null];
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
        copyButton(dottedName([at.place, ...at.levels]), "Copy the name"),
      ),
      this.about,
      this.field,
      this.list,
      backend?.warehouse ? [this.fold("Dropped tables", "dropped", droppedTables), this.fold("Changes", "audit", changes)] : [],
    );
    fill(this.list, skeleton());
    this.load();
  }

  // Lists that few people need are fetched when they are opened.
  fold(title, path, draw) {
    const body = h("div", {});
    const load = async (event) => {
      if (!event.target.open) return;
      fill(body, skeleton(2));
      try {
        fill(body, draw(await this.ask(path), this.at));
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
    const parameters = { in: this.at.place, level: this.at.levels };
    const about = get("namespace", parameters, this.abort.signal);
    about.catch(() => {});
    try {
      const [spaces, tables] = await Promise.all([this.ask("namespaces", SPACES), this.ask("entries", PAGE)]);
      this.names = [];
      this.spaces = [];
      this.isUnlisted = spaces.listed === false;
      this.addSpaces(spaces);
      this.addNames(tables);
      this.draw();
      this.showProperties((await about).properties);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.list, problem(error, () => this.load()));
    }
  }

  ask(path, limit, token) {
    return get(path, { in: this.at.place, level: this.at.levels, limit, token }, this.abort.signal);
  }

  addSpaces(page) {
    this.spaces = [...this.spaces, ...page.names];
    this.nextSpaces = page.next;
  }

  addNames(page) {
    this.names = [...this.names, ...page.names.map((name, at) => ({ name, kind: page.kinds[at] }))];
    this.next = page.next;
  }

  async loadMore() {
    if (this.nextSpaces) this.addSpaces(await this.ask("namespaces", SPACES, this.nextSpaces));
    else this.addNames(await this.ask("entries", PAGE, this.next));
  }

  showProperties(properties) {
    const pairs = Object.entries(properties);
    if (!pairs.length) return;
    fill(this.about, h("dl", { class: "pairs slim" }, pairs.map(([key, value]) => [h("dt", {}, key), h("dd", {}, h("code", {}, value))])));
  }

  draw() {
    const part = this.field.value.trim().toLowerCase();
    const fits = (name) => name.toLowerCase().includes(part);
    this.field.hidden = this.names.length + this.spaces.length < 8;
    const all = [
      ...this.spaces.filter(fits).map((name) => ({ name, kind: "namespace" })),
      ...this.names.filter((each) => fits(each.name)),
    ];
    if (this.isUnlisted) {
      fill(this.list, this.nameForm());
      return;
    }
    if (!all.length) {
      fill(this.list, part ? empty(`Nothing here has “${part}” in its name`) : this.emptyHint());
      return;
    }
    const rows = all.map((entry) =>
      h(
        "li",
        {},
        h("a", { href: address(entry.kind, this.at.place, [...this.at.levels, entry.name]) }, icon(entry.kind), h("span", { class: "name" }, entry.name), h("span", { class: "muted" }, KINDS[entry.kind])),
      ),
    );
    const more = this.next || this.nextSpaces
      ? h("button", { class: "more", onclick: (event) => this.showMore(event.target) }, "Show more")
      : null;
    const countOf = (names, next, word) => plural(names.length, word) + (next ? " so far" : "");
    const counts = [countOf(this.names, this.next, "table"), ...(this.spaces.length ? [countOf(this.spaces, this.nextSpaces, "namespace")] : [])].join(", ");
    fill(this.list, h("p", { class: "muted count" }, counts), h("ul", { class: "names" }, rows), more);
  }

  async showMore(button) {
    button.disabled = true;
    try {
      await this.loadMore();
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") button.replaceWith(problem(error));
    }
  }

  // For catalogs that cannot list their warehouses.
  nameForm() {
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

  emptyHint() {
    const id = JSON.stringify([this.at.place, ...this.at.levels, "docs"]);
    return h(
      "div",
      {},
      empty(this.at.levels.length ? "There is no table in here yet" : "There is no namespace in here yet"),
      this.at.levels.length ? h("pre", { class: "code" }, `lance.write_dataset(rows, namespace_client=ns, table_id=${id}, mode="create")`) : null,
    );
  }
}
