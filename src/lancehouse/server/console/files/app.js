// The console. The address says which view is open, so that every view can be linked to.

import { exchange, get, onUnauthorized, storeToken, token } from "./api.js";
import { fill, h, icon, problem } from "./dom.js";
import { parseHash } from "./format.js";
import { home, namespace } from "./places.js";
import { maintenance } from "./maintenance.js";
import { Search } from "./search.js";
import { tablePage } from "./table.js";
import { Tree } from "./tree.js";

const byId = (id) => document.getElementById(id);
const main = byId("main");
const tree = new Tree(byId("side"), open);
const search = new Search(byId("search"), () => tree.foreignNodes());
let session = null;
let page = null;
let signIn = null;

function open(hash, closesDrawer) {
  if (location.hash === hash) route();
  else location.hash = hash;
  if (closesDrawer) showDrawer(false);
}

async function start() {
  try {
    session = await get("places");
  } catch (error) {
    if (error.status !== 401) fill(main, problem(error, start));
    return;
  }
  byId("who").textContent = session.principal === "anonymous" ? "" : session.principal;
  byId("who").title = session.principal === "anonymous" ? "" : `Signed in as ${session.principal}`;
  byId("leave").hidden = !token();
  tree.show(session.backends);
  route();
}

function route() {
  if (!session) return;
  const at = parseHash(location.hash);
  if (page?.update?.(at)) return;
  page?.close?.();
  const pages = { ns: namespace, table: tablePage };
  const isKnown = at.place && Object.hasOwn(pages, at.page);
  page = (isKnown ? pages[at.page] : at.page === "maintenance" ? maintenance : home)(at, session);
  fill(main, page.element);
  main.scrollTop = 0;
  document.title = isKnown ? `${at.levels[at.levels.length - 1] || at.place} · Lancehouse` : "Lancehouse";
  if (isKnown) tree.reveal(at.place, at.levels, at.page === "table");
}

// Signing in

function showSignIn(error) {
  if (signIn) return;
  const oldToken = token();
  storeToken(null);
  const tokenField = h("input", { type: "password", name: "token", autocomplete: "off", placeholder: "lh_… or a JWT", "aria-label": "Token" });
  const id = h("input", { type: "text", autocomplete: "username", "aria-label": "Client id", placeholder: "client id" });
  const secret = h("input", { type: "password", autocomplete: "off", "aria-label": "Client secret", placeholder: "client secret" });
  const message = h("p", { class: "sign-problem", role: "alert" }, oldToken ? error.message : "");
  const submit = async (event) => {
    event.preventDefault();
    message.textContent = "";
    try {
      storeToken(id.value ? await exchange(id.value, secret.value) : tokenField.value.trim());
      await get("places");
    } catch (failure) {
      storeToken(null);
      message.textContent = failure.message;
      return;
    }
    signIn.remove();
    signIn = null;
    start();
  };
  signIn = h(
    "div",
    { class: "sign", role: "dialog", "aria-modal": "true", "aria-labelledby": "sign-title" },
    h(
      "form",
      { onsubmit: submit },
      h("h1", { id: "sign-title" }, "Sign in"),
      h("p", { class: "muted" }, "This server requires authentication. The token stays in this tab until you close it."),
      h("label", {}, "Token", tokenField),
      h("details", {}, h("summary", {}, "With a client id and secret"), h("label", {}, "Client id", id), h("label", {}, "Secret", secret)),
      message,
      h("button", { class: "primary", type: "submit" }, "Sign in"),
      h("p", { class: "muted small-text" }, "An administrator creates a token: ", h("code", {}, "lancehouse principal token create NAME --label console")),
    ),
  );
  document.body.append(signIn);
  tokenField.focus();
}

function signOut() {
  storeToken(null);
  location.hash = "";
  location.reload();
}

// Theme

const THEMES = ["auto", "light", "dark"];
const THEME_ICONS = { auto: "auto", light: "sun", dark: "moon" };

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("lancehouse.theme", theme);
  const button = byId("theme");
  fill(button, icon(THEME_ICONS[theme]));
  button.title = `Theme: ${theme === "auto" ? "as the system has it" : theme}`;
  button.setAttribute("aria-label", button.title);
  document.dispatchEvent(new Event("theme"));
}

function nextTheme() {
  const current = localStorage.getItem("lancehouse.theme") || "auto";
  setTheme(THEMES[(THEMES.indexOf(current) + 1) % THEMES.length]);
}

// Keys

const KEYS = [
  ["/", "search"],
  ["↑ ↓", "move in the tree and in search results"],
  ["→ ←", "open and close a branch of the tree"],
  ["Enter", "open the selected entry"],
  ["t", "to the tree"],
  ["f", "to the filter of the rows"],
  ["1 … 9", "the tabs of a table"],
  ["d", "light, dark, or as the system has it"],
  ["Esc", "close, or leave a field"],
  ["?", "this help"],
];

function help() {
  const dialog = h(
    "dialog",
    { class: "help", "aria-labelledby": "help-title" },
    h("h2", { id: "help-title" }, "Keys"),
    h("dl", {}, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("p", { class: "muted" }, "The console only reads. Every view has an address of its own: copy it to show somebody what you see."),
    h("form", { method: "dialog" }, h("button", { class: "primary", autofocus: true }, "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function showDrawer(isOpen) {
  document.body.classList.toggle("drawer", isOpen);
  byId("menu").setAttribute("aria-expanded", String(isOpen));
}

function onKey(event) {
  if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || signIn) return;
  const isField = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (event.key === "Escape") {
    if (page?.escape?.()) return;
    if (isField) event.target.blur();
    showDrawer(false);
    return;
  }
  if (isField || document.querySelector("dialog[open]")) return;
  const actions = { "/": () => search.focus(), "?": help, t: toTree, d: nextTheme, f: () => page?.filter?.() };
  if (event.key in actions) actions[event.key]();
  else if (!/^[1-9]$/.test(event.key) || !page?.tab?.(Number(event.key) - 1)) return;
  event.preventDefault();
}

function toTree() {
  showDrawer(true);
  tree.focus();
}

onUnauthorized(showSignIn);
fill(byId("menu"), icon("menu"));
byId("menu").addEventListener("click", () => showDrawer(!document.body.classList.contains("drawer")));
byId("veil").addEventListener("click", () => showDrawer(false));
byId("theme").addEventListener("click", nextTheme);
byId("help").addEventListener("click", help);
byId("leave").addEventListener("click", signOut);
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", route);
setTheme(localStorage.getItem("lancehouse.theme") || "auto");
start();
