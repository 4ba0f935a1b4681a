// Elements from data. Text goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  set(element, props || {});
  add(element, children);
  return element;
}

function set(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "css") for (const [property, setting] of Object.entries(value)) element.style.setProperty(property, setting);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
}

export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  for (const child of children.flat()) if (child) element.append(child);
  return element;
}

const ICONS = {
  warehouse: "M2 14V6l6-4 6 4v8M5 14V9h6v5M5 11.5h6",
  backend: "M5 12.5a3 3 0 1 1 .6-5.9A4 4 0 0 1 13.3 8 2.3 2.3 0 0 1 13 12.5z",
  namespace: "M2 12.5v-9h4.2l1.6 2H14v7z",
  lance: "M2.5 3h11v10h-11zM2.5 6.3h11M6 6.3V13M2.5 9.7h11",
  iceberg: "M8 2.2 12.2 8H3.8zM2.5 10h11M4.5 12h7M6.5 14h3",
  view: "M1.5 8S4 3.8 8 3.8 14.5 8 14.5 8 12 12.2 8 12.2 1.5 8 1.5 8zM8 9.8a1.8 1.8 0 1 0 0-3.6 1.8 1.8 0 0 0 0 3.6z",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.3 10.3 14 14",
  chevron: "M6 3.5 10.5 8 6 12.5",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  close: "M4 4l8 8M12 4l-8 8",
  sun: "M8 10.8a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6zM8 1.5v1.4M8 13.1v1.4M1.5 8h1.4M13.1 8h1.4M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1",
  moon: "M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1z",
  auto: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11z",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z",
  tag: "M2.5 7.8V2.5h5.3l5.7 5.7-5.3 5.3zM5.3 5.3h.01",
  branch: "M4.5 5.5v5M4.5 5.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM4.5 13.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM11.5 7a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM11.5 7c0 2.5-3 2-5.6 3.8",
  person: "M8 8a2.6 2.6 0 1 0 0-5.2A2.6 2.6 0 0 0 8 8zM3 13.5c.5-2.4 2.4-3.7 5-3.7s4.500 1.300 5 3.700",
  near: "M8 8h.01M8 13.500a5.500 5.500 0 1 0 0-11 5.500 5.500 0 0 0 0 11zM8 10.600a2.600 2.600 0 1 0 0-5.200 2.600 2.600 0 0 0 0 5.200z",
  warn: "M8 2.500 14.300 13.500H1.700zM8 6.500v3.300M8 11.700h.01",
};

export function icon(name, label) {
  return svg(
    "svg",
    { viewBox: "0 0 16 16", class: `icon icon-${name}`, ...(label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" }) },
    svg("path", { d: ICONS[name] || ICONS.lance }),
  );
}

// How an error is shown everywhere: its message, and what to do next if that is known.
export function problem(error, retry) {
  return h(
    "div",
    { class: "problem", role: "alert" },
    icon("warn"),
    h("p", {}, error.message || String(error), error.hint ? h("span", { class: "hint" }, ` ${error.hint}`) : null),
    retry ? h("button", { class: "small", onclick: retry }, "Try again") : null,
  );
}

export function empty(title, ...more) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), more.length ? h("p", {}, more) : null);
}

export function skeleton(lines = 6) {
  const bars = Array.from({ length: lines }, (_, at) => h("div", { class: "bar", css: { width: `${92 - ((at * 23) % 55)}%` } }));
  return h("div", { class: "skeleton", "aria-busy": "true", "aria-label": "Loading" }, bars);
}

let timer;
export function say(text) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.classList.add("on");
  clearTimeout(timer);
  timer = setTimeout(() => box.classList.remove("on"), 2200);
}

export function copyButton(text, label = "Copy") {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("The browser does not allow copying here");
    }
  };
  return h("button", { class: "ghost copy", type: "button", title: label, "aria-label": label, onclick: copy }, icon("copy"));
}
