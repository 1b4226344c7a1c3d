// Elements and texts. Names are other people's: they get into the page as text only, never as markup.

export const $ = (id) => document.getElementById(id);

export function make(tag, text, attributes) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  return element;
}

export function nest(tag, attributes, ...children) {
  const element = make(tag, undefined, attributes);
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Put these into a box in this order. What is where it belongs is not moved: it may have the focus. */
export function arrange(box, wanted) {
  const kept = new Set(wanted);
  for (const element of [...box.children]) if (!kept.has(element)) element.remove();
  let next = box.firstElementChild;
  for (const element of wanted) {
    if (element === next) next = next.nextElementSibling;
    else box.insertBefore(element, next);
  }
}

export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const grouped = new Intl.NumberFormat("en");
export const number = (value) => grouped.format(value);
export const many = (value, one, several) => `${number(value)} ${value === 1 ? one : several || one + "s"}`;
export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

export function age(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const since = (timestamp) => {
  const at = Date.parse(timestamp);
  return Number.isNaN(at) ? "" : age((Date.now() - at) / 1000);
};

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const timeOfDay = (seconds) => clock.format(new Date(seconds * 1000));

const UNITS = { "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50 };

/** A quantity in bytes; 0 where it is none. */
export function bytes(quantity) {
  const found = /^([0-9.]+)([A-Za-z]*)$/.exec(quantity || "");
  return found && UNITS[found[2]] ? Number(found[1]) * UNITS[found[2]] : 0;
}

/** The same for people: three figures at most. */
export function memory(quantity) {
  const size = bytes(quantity);
  if (!size) return quantity;
  const [unit, of] = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20]].find(([, least]) => size >= least) || ["B", 1];
  const value = size / of;
  return `${value >= 100 || unit === "B" ? number(Math.round(value)) : String(Math.round(value * 10) / 10)} ${unit}`;
}

let pending = 0;
export function say(text) {
  // Those who do not see the page are told once things have settled.
  clearTimeout(pending);
  pending = setTimeout(() => put($("said"), text), 700);
}
