// The catalog as a tree. Only visible rows are in the page; children are fetched when a branch is opened.

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
    this.typeahead = { text: "", at: 0 };
    this.rows = h("div", { class: "tree-rows", role: "presentation" });
    this.box = h(
      "div",
      {
        class: "tree",
        role: "tree",
        tabindex: "0",
        "aria-label": "Warehouses, namespaces and tables",
        onscroll: () => this.scheduleDraw(),
        onkeydown: (event) => this.onKey(event),
        onclick: (event) => this.onClick(event),
      },
      this.rows,
    );
    fill(element, this.box);
    new ResizeObserver(() => this.scheduleDraw()).observe(this.box);
  }

  show(backends) {
    this.roots = backends.map((backend) => ({
      kind: backend.warehouse ? "warehouse" : "backend",
      place: backend.name,
      levels: [],
      label: backend.name,
      depth: 0,
      isOpen: false,
    }));
    this.refresh();
    if (this.roots.length === 1) this.expand(this.roots[0]);
  }

  focus() {
    this.box.focus();
  }

  // The nodes of backends, as far as they are loaded: the server's own search does not cover backends.
  foreignNodes() {
    const nodes = [];
    const walk = (node) => {
      if (node.levels.length && node.isForeign && !node.isStatus) nodes.push(node);
      (node.children || []).forEach(walk);
    };
    this.roots.forEach((root) => {
      if (root.kind === "backend") walk(root);
    });
    return nodes;
  }

  async expand(node) {
    if (!isBranch(node)) return;
    node.isOpen = true;
    if (!node.children) await this.load(node);
    this.refresh();
  }

  collapse(node) {
    node.isOpen = false;
    this.refresh();
  }

  load(node) {
    node.loading ??= this.fetch(node).finally(() => {
      node.loading = null;
      this.refresh();
    });
    this.refresh();
    return node.loading;
  }

  async fetch(node) {
    const parameters = { in: node.place, level: node.levels, limit: PAGE };
    try {
      const [spaces, entries] = await Promise.all([
        node.spacesAfter === null ? null : get("namespaces", { ...parameters, token: node.spacesAfter }),
        node.entriesAfter === null ? null : get("entries", { ...parameters, token: node.entriesAfter }),
      ]);
      const names = spaces?.listed === false ? rememberedNames(node.place) : spaces?.names || [];
      node.isUnlisted = spaces?.listed === false;
      node.spaces = [...(node.spaces || []), ...names.map((name) => createChild(node, name, "namespace"))];
      const entryNodes = (entries?.names || []).map((name, at) => createChild(node, name, entries.kinds[at]));
      node.entries = [...(node.entries || []), ...entryNodes];
      node.spacesAfter = spaces?.next ?? null;
      node.entriesAfter = entries?.next ?? null;
      node.error = null;
    } catch (error) {
      node.error = error.message;
    }
    node.children = [...(node.spaces || []), ...(node.entries || []), ...statusNodes(node)];
  }

  // Opens all branches down to a node, and loads as many pages as that needs.
  async reveal(place, levels, isTable) {
    let node = this.roots.find((each) => each.place === place);
    for (let depth = 1; node && depth <= levels.length; depth += 1) {
      if (!node.isOpen || !node.children) await this.expand(node);
      const name = levels[depth - 1];
      const isLast = isTable && depth === levels.length;
      if (node.isUnlisted && !findChild(node, name, false)) this.remember(node, name);
      let next = findChild(node, name, isLast);
      while (!next && !node.error && (isLast ? node.entriesAfter : node.spacesAfter)) {
        await this.load(node);
        next = findChild(node, name, isLast);
      }
      if (!next) break;
      node = next;
    }
    this.selected = node || null;
    this.active = node || this.active;
    if (node && !isTable && !node.isOpen) this.expand(node);
    this.refresh();
    this.scrollTo(this.active);
  }

  // Adds a warehouse to a backend that cannot list its warehouses.
  remember(node, name) {
    localStorage.setItem(`lancehouse.known.${node.place}`, JSON.stringify([...rememberedNames(node.place), name]));
    node.spaces.push(createChild(node, name, "namespace"));
    node.children = [...node.spaces, ...node.entries, ...statusNodes(node)];
  }

  refresh() {
    this.visible = [];
    const walk = (node) => {
      this.visible.push(node);
      if (node.isOpen) (node.children || [loadingNode(node)]).forEach(walk);
    };
    this.roots.forEach(walk);
    this.visible.forEach((node, at) => {
      node.at = at;
    });
    if (this.active && this.visible[this.active.at] !== this.active) this.active = this.selected;
    this.rows.style.height = `${this.visible.length * ROW}px`;
    this.scheduleDraw();
  }

  scheduleDraw() {
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
    const names = ["node", node === this.active ? "active" : "", node === this.selected ? "selected" : "", node.isStatus ? "status" : ""];
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
      node.kind === "error" ? icon("warn") : node.isStatus ? null : icon(node.kind),
      h("span", { class: "label" }, node.label),
    );
  }

  onClick(event) {
    const row = event.target.closest("[data-at]");
    const node = row && this.visible[Number(row.dataset.at)];
    if (!node) return;
    if (node.kind === "error") {
      this.load(node.parent);
      return;
    }
    if (node.isStatus) return;
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
    this.scheduleDraw();
  }

  onKey(event) {
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
    } else if ((event.key === "Enter" || event.key === " ") && node && !node.isStatus) {
      if (isBranch(node)) this.expand(node);
      this.go(node);
    } else if (event.key.length === 1 && !"/? ".includes(event.key)) this.type(event.key);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  type(letter) {
    const now = Date.now();
    this.typeahead = { text: (now - this.typeahead.at < TYPED_MS ? this.typeahead.text : "") + letter.toLowerCase(), at: now };
    const from = this.active ? this.active.at + (this.typeahead.text.length === 1 ? 1 : 0) : 0;
    const order = [...this.visible.slice(from), ...this.visible.slice(0, from)];
    const match = order.find((node) => !node.isStatus && node.label.toLowerCase().startsWith(this.typeahead.text));
    if (match) this.move(match.at, 1);
  }

  move(at, direction) {
    let place = Math.min(this.visible.length - 1, Math.max(0, at));
    while (this.visible[place]?.isStatus && this.visible[place + direction]) place += direction;
    this.active = this.visible[place]?.isStatus ? this.active : this.visible[place];
    this.scrollTo(this.active);
    this.scheduleDraw();
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

function rememberedNames(place) {
  try {
    return JSON.parse(localStorage.getItem(`lancehouse.known.${place}`)) || [];
  } catch {
    return [];
  }
}

function findChild(node, name, isTable) {
  return (isTable ? node.entries : node.spaces)?.find((each) => each.label === name);
}

function createChild(parent, name, kind) {
  const isForeign = parent.isForeign || parent.kind === "backend";
  return { kind, place: parent.place, levels: [...parent.levels, name], label: name, depth: parent.depth + 1, parent, isForeign };
}

function statusNode(parent, kind, label) {
  return { kind, label, depth: parent.depth + 1, parent, isStatus: true, levels: [] };
}

function loadingNode(node) {
  return statusNode(node, "waiting", "Loading…");
}

function statusNodes(node) {
  if (node.error) return [statusNode(node, "error", node.error)];
  if (node.spacesAfter || node.entriesAfter) return [statusNode(node, "more", "Loading more…")];
  if (node.spaces.length + node.entries.length) return [];
  return [statusNode(node, "nothing", node.isUnlisted ? "Name one of its catalogs" : "Nothing in it")];
}
