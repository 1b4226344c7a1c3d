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

let pending = 0;
export function say(text) {
  // Those who do not see the page are told once things have settled.
  clearTimeout(pending);
  pending = setTimeout(() => put($("said"), text), 700);
}
