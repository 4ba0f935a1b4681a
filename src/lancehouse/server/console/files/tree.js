// The catalog as a tree. Only the rows in sight are in the page, and children are asked for when they are needed.

import { get } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { address } from "./format.js";

const ROW = 28;
const PAGE = 2000;
const SPARE = 8;
const TYPED_MS = 700;

export class Tree {
  constructor(element, open) {
    this.element = element;
    this.open = open;
    this.roots = [];
    this.visible = [];
    this.active = null;
    this.selected = null;
    this.typed = { text: "", at: 0 };
    this.rows = h("div", { class: "tree-rows", role: "presentation" });
    this.box = h(
      "div",
      {
        class: "tree",
        role: "tree",
        tabindex: "0",
        "aria-label": "Warehouses, namespaces and tables",
        onscroll: () => this.later(),
        onkeydown: (event) => this.key(event),
        onclick: (event) => this.clicked(event),
      },
      this.rows,
    );
    fill(element, this.box);
    new ResizeObserver(() => this.later()).observe(this.box);
  }

  show(backends) {
    this.roots = backends.map((each) => ({
      kind: each.warehouse ? "warehouse" : "backend",
      place: each.name,
      levels: [],
      label: each.name,
      depth: 0,
      isOpen: false,
    }));
    this.changed();
    if (this.roots.length === 1) this.expand(this.roots[0]);
  }

  focus() {
    this.box.focus();
  }

  // Nodes of backends that the server's own search does not look into.
  loaded() {
    const found = [];
    const walk = (node) => {
      if (node.levels.length && node.isForeign && !node.isPart) found.push(node);
      (node.children || []).forEach(walk);
    };
    this.roots.forEach((root) => {
      if (root.kind === "backend") walk(root);
    });
    return found;
  }

  async expand(node) {
    if (!isBranch(node)) return;
    node.isOpen = true;
    if (!node.children) await this.load(node);
    this.changed();
  }

  collapse(node) {
    node.isOpen = false;
    this.changed();
  }

  load(node) {
    node.loading ??= this.fetch(node).finally(() => {
      node.loading = null;
      this.changed();
    });
    this.changed();
    return node.loading;
  }

  async fetch(node) {
    const asked = { in: node.place, level: node.levels, limit: PAGE };
    try {
      const [spaces, entries] = await Promise.all([
        node.spacesAfter === null ? null : get("namespaces", { ...asked, token: node.spacesAfter }),
        node.entriesAfter === null ? null : get("entries", { ...asked, token: node.entriesAfter }),
      ]);
      const names = spaces?.listed === false ? known(node.place) : spaces?.names || [];
      node.isUnlisted = spaces?.listed === false;
      node.spaces = [...(node.spaces || []), ...names.map((name) => child(node, name, "namespace"))];
      const found = (entries?.names || []).map((name, at) => child(node, name, entries.kinds[at]));
      node.entries = [...(node.entries || []), ...found];
      node.spacesAfter = spaces?.next ?? null;
      node.entriesAfter = entries?.next ?? null;
      node.error = null;
    } catch (error) {
      node.error = error.message;
    }
    node.children = [...(node.spaces || []), ...(node.entries || []), ...ending(node)];
  }

  // Opens the way to a place, and loads as many pages as that takes.
  async reveal(place, levels, isTable) {
    let node = this.roots.find((each) => each.place === place);
    for (let depth = 1; node && depth <= levels.length; depth += 1) {
      if (!node.isOpen || !node.children) await this.expand(node);
      const wanted = levels[depth - 1];
      const isLast = isTable && depth === levels.length;
      if (node.isUnlisted && !within(node, wanted, false)) this.remember(node, wanted);
      let found = within(node, wanted, isLast);
      while (!found && !node.error && (isLast ? node.entriesAfter : node.spacesAfter)) {
        await this.load(node);
        found = within(node, wanted, isLast);
      }
      if (!found) break;
      node = found;
    }
    this.selected = node || null;
    this.active = node || this.active;
    if (node && !isTable && !node.isOpen) this.expand(node);
    this.changed();
    this.scrollTo(this.active);
  }

  // A warehouse of a backend that does not tell which it has.
  remember(node, name) {
    localStorage.setItem(`lancehouse.known.${node.place}`, JSON.stringify([...known(node.place), name]));
    node.spaces.push(child(node, name, "namespace"));
    node.children = [...node.spaces, ...node.entries, ...ending(node)];
  }

  changed() {
    this.visible = [];
    const walk = (node) => {
      this.visible.push(node);
      if (node.isOpen) (node.children || [waiting(node)]).forEach(walk);
    };
    this.roots.forEach(walk);
    this.visible.forEach((node, at) => {
      node.at = at;
    });
    if (this.active && this.visible[this.active.at] !== this.active) this.active = this.selected;
    this.rows.style.height = `${this.visible.length * ROW}px`;
    this.later();
  }

  later() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - SPARE);
    const last = Math.min(this.visible.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + SPARE);
    fill(this.rows, this.visible.slice(first, last).map((node) => this.row(node)));
    this.box.setAttribute("aria-activedescendant", this.active ? `node-${this.active.at}` : "");
    const more = this.visible.slice(first, last).find((node) => node.kind === "more" && !node.parent.loading);
    if (more) this.load(more.parent);
  }

  row(node) {
    const branch = isBranch(node);
    const names = ["node", node === this.active ? "active" : "", node === this.selected ? "selected" : "", node.isPart ? "part" : ""];
    return h(
      "div",
      {
        id: `node-${node.at}`,
        class: names.filter(Boolean).join(" "),
        role: "treeitem",
        "data-at": node.at,
        "aria-level": node.depth + 1,
        "aria-expanded": branch ? String(Boolean(node.isOpen)) : null,
        "aria-selected": String(node === this.selected),
        title: node.kind === "error" ? node.label : null,
        css: { transform: `translateY(${node.at * ROW}px)`, "--depth": node.depth },
      },
      h("span", { class: `twist ${branch ? "" : "none"} ${node.isOpen ? "open" : ""}` }, branch ? icon("chevron") : null),
      node.kind === "error" ? icon("warn") : node.isPart ? null : icon(node.kind),
      h("span", { class: "label" }, node.label),
    );
  }

  clicked(event) {
    const row = event.target.closest("[data-at]");
    const node = row && this.visible[Number(row.dataset.at)];
    if (!node) return;
    if (node.kind === "error") {
      this.load(node.parent);
      return;
    }
    if (node.isPart) return;
    this.active = node;
    if (isBranch(node)) {
      if (event.target.closest(".twist") || node === this.selected) {
        if (node.isOpen) this.collapse(node);
        else this.expand(node);
        if (event.target.closest(".twist")) return;
      } else this.expand(node);
    }
    this.go(node);
  }

  go(node) {
    this.selected = node;
    this.open(address(node.kind, node.place, node.levels), !isBranch(node));
    this.later();
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const node = this.active;
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.visible.length, End: this.visible.length };
    if (event.key in moves) this.move(node ? node.at + moves[event.key] : 0, Math.sign(moves[event.key]));
    else if (event.key === "ArrowRight" && node && isBranch(node)) {
      if (node.isOpen) this.move(node.at + 1, 1);
      else this.expand(node);
    } else if (event.key === "ArrowLeft" && node) {
      if (node.isOpen) this.collapse(node);
      else if (node.parent) this.move(node.parent.at, -1);
    } else if ((event.key === "Enter" || event.key === " ") && node && !node.isPart) {
      if (isBranch(node)) this.expand(node);
      this.go(node);
    } else if (event.key.length === 1 && !"/? ".includes(event.key)) this.type(event.key);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  type(letter) {
    const now = Date.now();
    this.typed = { text: (now - this.typed.at < TYPED_MS ? this.typed.text : "") + letter.toLowerCase(), at: now };
    const from = this.active ? this.active.at + (this.typed.text.length === 1 ? 1 : 0) : 0;
    const order = [...this.visible.slice(from), ...this.visible.slice(0, from)];
    const found = order.find((node) => !node.isPart && node.label.toLowerCase().startsWith(this.typed.text));
    if (found) this.move(found.at, 1);
  }

  move(at, direction) {
    let place = Math.min(this.visible.length - 1, Math.max(0, at));
    while (this.visible[place]?.isPart && this.visible[place + direction]) place += direction;
    this.active = this.visible[place]?.isPart ? this.active : this.visible[place];
    this.scrollTo(this.active);
    this.later();
  }

  scrollTo(node) {
    if (!node) return;
    const top = node.at * ROW;
    const bottom = top + ROW - this.box.clientHeight;
    const isFar = top < this.box.scrollTop - 3 * ROW || bottom > this.box.scrollTop + 3 * ROW;
    if (isFar) this.box.scrollTop = top - this.box.clientHeight / 3;
    else this.box.scrollTop = Math.min(Math.max(this.box.scrollTop, bottom), top);
  }
}

function isBranch(node) {
  return node.kind === "warehouse" || node.kind === "backend" || node.kind === "namespace";
}

function known(place) {
  try {
    return JSON.parse(localStorage.getItem(`lancehouse.known.${place}`)) || [];
  } catch {
    return [];
  }
}

function within(node, name, isTable) {
  return (isTable ? node.entries : node.spaces)?.find((each) => each.label === name);
}

function child(parent, name, kind) {
  const isForeign = parent.isForeign || parent.kind === "backend";
  return { kind, place: parent.place, levels: [...parent.levels, name], label: name, depth: parent.depth + 1, parent, isForeign };
}

function part(parent, kind, label) {
  return { kind, label, depth: parent.depth + 1, parent, isPart: true, levels: [] };
}

function waiting(node) {
  return part(node, "waiting", "Loading…");
}

function ending(node) {
  if (node.error) return [part(node, "error", node.error)];
  if (node.spacesAfter || node.entriesAfter) return [part(node, "more", "Loading more…")];
  if (node.spaces.length + node.entries.length) return [];
  return [part(node, "nothing", node.isUnlisted ? "Name one of its catalogs" : "Nothing in it")];
}
