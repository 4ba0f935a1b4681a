// Search for tables and namespaces by their names.

import { get } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { address, dottedName, KINDS } from "./format.js";

const WAIT_MS = 120;

export class Search {
  constructor(element, nodes) {
    this.nodes = nodes;
    this.matches = [];
    this.at = -1;
    this.input = h("input", {
      type: "search",
      placeholder: "Search tables and namespaces",
      autocomplete: "off",
      spellcheck: "false",
      role: "combobox",
      "aria-label": "Search tables and namespaces",
      "aria-expanded": "false",
      "aria-controls": "search-results",
      "aria-autocomplete": "list",
      oninput: () => this.later(),
      onfocus: () => this.input.value && this.later(),
      onkeydown: (event) => this.onKey(event),
    });
    this.list = h("ul", { id: "search-results", class: "search-results", role: "listbox", "aria-label": "Search results", hidden: true });
    fill(element, icon("search"), this.input, h("kbd", { class: "slash", "aria-hidden": "true" }, "/"), this.list);
    document.addEventListener("pointerdown", (event) => {
      if (!element.contains(event.target)) this.close();
    });
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), WAIT_MS);
  }

  async ask() {
    const words = this.input.value.trim();
    this.abort?.abort();
    if (!words) {
      this.close();
      return;
    }
    this.abort = new AbortController();
    try {
      const results = await get("search", { q: words }, this.abort.signal);
      this.show([...results.found, ...this.foreignMatches(words)], words, results.whole);
    } catch (error) {
      if (error.name !== "AbortError") this.note(error.message);
    }
  }

  // Matches in the nodes of backends that the tree has loaded: the server does not search those.
  foreignMatches(words) {
    const parts = words.toLowerCase().split(/\s+/);
    const fits = (node) => parts.every((word) => [node.place, ...node.levels].join(".").toLowerCase().includes(word));
    return this.nodes()
      .filter(fits)
      .slice(0, 50)
      .map((node) => ({ in: node.place, levels: node.levels, kind: node.kind }));
  }

  show(matches, words, isWhole) {
    this.matches = matches;
    this.at = matches.length ? 0 : -1;
    if (!matches.length) {
      this.note(`Nothing is called “${words}”.`);
      return;
    }
    const more = isWhole ? null : h("li", { class: "note", role: "presentation" }, "There are more matches: type more of the name.");
    fill(this.list, matches.map((match, at) => this.row(match, at)), more);
    this.open();
    this.mark();
  }

  row(match, at) {
    const name = match.levels[match.levels.length - 1];
    return h(
      "li",
      { id: `match-${at}`, role: "option", onpointerdown: (event) => event.preventDefault(), onclick: () => this.go(at) },
      icon(match.kind, KINDS[match.kind]),
      h("span", { class: "name" }, name),
      h("span", { class: "where" }, dottedName([match.in, ...match.levels.slice(0, -1)])),
    );
  }

  note(text) {
    this.matches = [];
    fill(this.list, h("li", { class: "note", role: "presentation" }, text));
    this.open();
  }

  open() {
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  mark() {
    [...this.list.children].forEach((row, at) => row.setAttribute("aria-selected", String(at === this.at)));
    this.list.children[this.at]?.scrollIntoView({ block: "nearest" });
    if (this.at >= 0) this.input.setAttribute("aria-activedescendant", `match-${this.at}`);
  }

  go(at) {
    const match = this.matches[at];
    if (!match) return;
    this.close();
    this.input.value = "";
    this.input.blur();
    location.hash = address(match.kind, match.in, match.levels);
  }

  onKey(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      if (this.matches.length) this.at = (this.at + step + this.matches.length) % this.matches.length;
      this.mark();
    } else if (event.key === "Enter") this.go(this.at);
    else if (event.key === "Escape") {
      if (this.list.hidden) {
        this.input.value = "";
        this.input.blur();
      }
      this.close();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
