// The page of one device, node, claim or pod: facts, tables, what happened to it in the last hours.
import { age, arrange, make, many, memory, nest, put, since, svg, timeOfDay } from "./dom.js";
import { askPlan, drawPlan, plans } from "./plan.js";
import { objectAddress } from "./route.js";
import { ask } from "./stream.js";

const AGAIN = 5000;
const HOURS = 6;
const TITLES = { device: "Device", node: "Node", claim: "Claim", pod: "Pod" };
const GLYPHS = {
  allocated: "●", freed: "○", admin: "◌", health: "✚", activity: "∿", waits: "…", phase: "▸", node: "▣", created: "+", deleted: "×",
};
const TIMES = new Set(["Since", "Created", "Allocated", "Being deleted since"]);

const shortName = (kind, name) => (kind === "device" ? name.split("/").pop() : name);

function draw(outer, value, title, of) {
  const cell = make("span", undefined, { class: "value" });
  outer.append(cell);
  fill(cell, value, title, of);
  return outer;
}

function link(value, of) {
  const parts = [make("a", shortName(value.kind, value.name), { href: objectAddress(value.kind, value.name) })];
  const pool = value.kind === "device" ? value.name.split("/")[1] : of;
  if (pool !== of) parts.push(make("span", ` of ${pool}`, { class: "muted" }));
  return parts;
}

function fill(cell, value, title, of) {
  if (Array.isArray(value)) {
    value.forEach((part, i) => cell.append(i ? ", " : "", ...(typeof part === "string" ? [part] : link(part, of))));
    if (!value.length) cell.append("–");
  } else if (typeof value !== "string") cell.append(...link(value, of));
  else if (TIMES.has(title) && since(value)) {
    cell.append(nest("time", { datetime: value, title: value, "data-since": value }, `${since(value)} ago`));
  } else if (title === "Memory" && value) {
    cell.append(memory(value));
    cell.title = value;
  } else cell.append(value || "–");
}

function drawSection(section, of) {
  const head = make("tr");
  for (const title of section.columns) head.append(make("th", title, { scope: "col" }));
  const body = make("tbody");
  for (const row of section.rows) {
    const line = make("tr");
    row.forEach((value, i) => {
      const cell = make("td", undefined, { "data-title": section.columns[i] });
      if (!value.length && typeof value !== "object" || Array.isArray(value) && !value.length) cell.classList.add("nothing");
      line.append(draw(cell, value, section.columns[i], of));
    });
    body.append(line);
  }
  const part = nest("section", { class: "card" }, make("h2", section.title),
    nest("table", { class: "plain" }, make("caption", section.title, { class: "hidden" }), nest("thead", {}, head), body));
  if (section.more) part.append(make("p", `and ${section.more} more`, { class: "muted" }));
  return part;
}

const MOST_ENTRIES = 64;          // that the controller keeps of one object

/** From when to when somebody held the device, counted backwards from those who hold it now: shares overlap. */
export function heldSpans(page) {
  const marks = page.history.filter((e) => e.kind === "allocated" || e.kind === "freed");
  const holders = page.sections.find((s) => s.title === "Who holds it");
  const rows = holders ? holders.rows.filter((row) => row.at(-1) !== "admin access") : [];
  let count = new Set(rows.map(([claim]) => claim.name)).size;
  let end = page.now;
  const spans = [];
  for (const mark of [...marks].reverse()) {
    const before = Math.max(0, count + (mark.kind === "freed" ? 1 : -1));
    if (count > 0 && before === 0) spans.push([mark.at, end]);
    if (count === 0 && before > 0) end = mark.at;
    count = before;
  }
  // What was before the oldest entry is known only where none has been forgotten.
  const whole = page.history.length < MOST_ENTRIES;
  const from = Math.max(page.since, page.now - HOURS * 3600, whole || !page.history.length ? 0 : page.history[0].at);
  if (count > 0) spans.push([from, end]);
  const claims = new Set([...rows.map(([claim]) => claim.name), ...marks.map((e) => e.text.split(" ").pop())]);
  return { from, claims: claims.size, spans: spans.map(([a, b]) => [Math.max(a, from), b]).reverse() };
}

function drawStrip(page) {
  const { from, spans, claims } = heldSpans(page);
  const span = Math.max(1, page.now - from);
  const at = (time) => (100 * (Math.max(time, from) - from)) / span;
  const picture = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "strip", "aria-hidden": "true" },
    svg("rect", { x: 0, y: 0, width: 100, height: 10, class: "track" }));
  let seconds = 0;
  for (const [begin, end] of spans) {
    picture.append(svg("rect", { x: at(begin), y: 0, width: Math.max(0.3, at(end) - at(begin)), height: 10, class: "held" }));
    seconds += end - begin;
  }
  for (const mark of page.history.filter((e) => e.kind === "health")) {
    picture.append(svg("rect", { x: Math.min(99.4, at(mark.at)), y: 0, width: 0.6, height: 10, class: "sick" }));
  }
  const share = Math.min(100, Math.round((100 * seconds) / span));
  const text = claims ? `Held ${share} % of the last ${age(span)}, by ${many(claims, "claim")}` : `Not held in the last ${age(span)}`;
  return nest("figure", { class: "use" }, picture, make("figcaption", text));
}

/** An entry's text, the object that it ends with as a link. */
function entryText(entry) {
  const text = make("span", undefined, { class: "text" });
  const [, before, kind, name] = /^(.*\b(claim|node) )(\S+)$/.exec(entry.text) || [];
  if (name && ["allocated", "freed", "admin", "node"].includes(entry.kind)) text.append(before, make("a", name, { href: objectAddress(kind, name) }));
  else text.append(entry.text);
  return text;
}

function drawHistory(page) {
  const list = make("ol", undefined, { class: "history" });
  for (const entry of [...page.history].reverse()) {
    list.append(nest("li", { class: `h-${entry.kind}` },
      make("span", GLYPHS[entry.kind] || "·", { class: "glyph", "aria-hidden": "true" }),
      entryText(entry),
      make("time", `${timeOfDay(entry.at)} · ${age(page.now - entry.at)} ago`, { datetime: new Date(entry.at * 1000).toISOString() })));
  }
  const whole = page.now - page.since >= HOURS * 3600;
  const remembered = whole ? `This replica remembers ${HOURS} hours.` : `This replica remembers ${age(page.now - page.since)}, since it started.`;
  const part = nest("section", { class: "card past" }, make("h2", "History"));
  if (page.kind === "device" && page.found) part.append(drawStrip(page));
  part.append(page.history.length ? list : make("p", "Nothing has changed.", { class: "muted" }));
  part.append(make("p", remembered, { class: "muted" }));
  return part;
}

function drawFacts(page) {
  const list = make("dl", undefined, { class: "facts" });
  for (const [name, value] of page.facts) list.append(make("dt", name), draw(make("dd"), value, name));
  return nest("section", { class: "card" }, make("h2", "Now"), list);
}

export class Detail {
  constructor(kind, name) {
    this.kind = kind;
    this.name = name;
    this.title = `${TITLES[kind]} ${shortName(kind, name)}`;
    this.parts = new Map();
    this.column = make("div", undefined, { class: "column" });
    this.body = make("div", undefined, { class: "cards" });
    this.planBox = make("div", undefined, { class: "plan", "aria-live": "polite" });
    this.root = nest("div", { class: "detail" },
      nest("div", { class: "title" },
        nest("h1", { tabindex: "-1" }, make("span", TITLES[kind], { class: "kind" }), " ", shortName(kind, name)),
        kind === "device" ? make("p", name, { class: "muted" }) : null),
      this.body);
    this.planCard = nest("section", { class: "card", hidden: true }, make("h2", "What would make it fit"), this.planBox);
  }

  start() {
    this.body.append(make("p", "Loading …", { class: "state" }));
    this.timer = setInterval(() => {
      if (!document.hidden) this.load();
    }, AGAIN);
    this.load();
  }

  stop() {
    clearInterval(this.timer);
    this.stopped = true;
  }

  changed() {}

  async load() {
    let page, problem;
    try {
      page = await ask(`fleet/object?${this.kind}=${encodeURIComponent(this.name)}`);
    } catch (error) {
      // What was read stays to be read while the connection is away, which the banner says.
      if (error.status !== 404 && this.parts.size) return;
      problem = error.status === 404 ? `There is no ${this.kind} of this name, and nothing is remembered of one.` : error.message;
    }
    if (this.stopped) return;
    if (problem) {
      this.parts.clear();
      const text = this.body.children.length === 1 ? this.body.firstElementChild.textContent : "";
      if (text !== problem) this.body.replaceChildren(make("p", problem, { class: "state" }));
    } else this.draw(page);
  }

  /** The part of this name as it was, unless what it shows has changed: what is read, or has the focus, stays. */
  part(name, shows, make_) {
    const told = JSON.stringify(shows);
    const known = this.parts.get(name);
    if (known && known.told === told) return known.element;
    const element = make_();
    const focused = known && known.element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    if (focused) this.refocus = [element, focused];
    this.parts.set(name, { told, element });
    return element;
  }

  draw(page) {
    const minute = Math.floor(page.now / 60);
    const main = [page.found ? this.part("facts", page.facts, () => drawFacts(page))
      : this.part("facts", null, () => make("p", `This ${this.kind} is not there any more.`, { class: "note" }))];
    const waits = this.kind === "pod" && page.found && !page.facts.some(([name]) => name === "Node");
    if (waits) {
      this.planCard.hidden = false;
      if (!this.planBox.firstChild) this.drawPlan();
      main.push(this.planCard);
    }
    const of = this.kind === "node" ? this.name : undefined;
    main.push(...page.sections.map((section) => this.part(`section ${section.title}`, section, () => drawSection(section, of))));
    const holders = page.sections.find((section) => section.title === "Who holds it");
    const past = this.part("history", [page.history, minute, page.found, holders], () => drawHistory(page));
    arrange(this.column, main);
    arrange(this.body, [this.column, past]);
    for (const time of this.body.querySelectorAll("[data-since]")) put(time, `${since(time.dataset.since)} ago`);
    if (this.refocus) this.refocus[0].querySelector(`a[href="${CSS.escape(this.refocus[1])}"]`)?.focus({ preventScroll: true });
    this.refocus = null;
  }

  drawPlan() {
    if (plans.has(this.name)) {
      drawPlan(this.planBox, this.name, () => this.drawPlan());
      return;
    }
    const button = make("button", "Work out a plan", { type: "button" });
    button.addEventListener("click", () => askPlan(this.name, () => this.drawPlan()));
    put(this.planBox, "");
    this.planBox.append(button);
  }
}
