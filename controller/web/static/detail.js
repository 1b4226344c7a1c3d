// The page of one device, node, claim or pod: facts, tables, what happened to it in the last hours.
import { age, make, many, nest, put, since, svg, timeOfDay } from "./dom.js";
import { askPlan, drawPlan, plans } from "./plan.js";
import { objectAddress } from "./route.js";
import { ask } from "./stream.js";

const AGAIN = 5000;
const HOURS = 6;
const TITLES = { device: "Device", node: "Node", claim: "Claim", pod: "Pod" };
const GLYPHS = {
  allocated: "●", freed: "○", health: "✚", activity: "∿", waits: "…", phase: "▸", node: "▣", created: "＋", deleted: "×",
};
const TIMES = new Set(["Since", "Created", "Allocated", "Being deleted since"]);

const shortName = (kind, name) => (kind === "device" ? name.split("/").pop() : name);

function draw(outer, value, title, of) {
  const cell = make("span", undefined, { class: "value" });
  outer.append(cell);
  fill(cell, value, title, of);
  return outer;
}

function fill(cell, value, title, of) {
  if (typeof value === "string") {
    cell.append(TIMES.has(title) && since(value) ? `${since(value)} ago` : value || "–");
    if (TIMES.has(title)) cell.title = value;
    return;
  }
  cell.append(make("a", shortName(value.kind, value.name), { href: objectAddress(value.kind, value.name) }));
  const pool = value.kind === "device" ? value.name.split("/")[1] : of;
  if (pool !== of) cell.append(make("span", ` of ${pool}`, { class: "muted" }));
}

function drawSection(section, of) {
  const head = make("tr");
  for (const title of section.columns) head.append(make("th", title, { scope: "col" }));
  const body = make("tbody");
  for (const row of section.rows) {
    const line = make("tr");
    row.forEach((value, i) => {
      const cell = make("td", undefined, { "data-title": section.columns[i] });
      if (value === "") cell.classList.add("nothing");
      line.append(draw(cell, value, section.columns[i], of));
    });
    body.append(line);
  }
  const part = nest("section", { class: "card" }, make("h2", section.title),
    nest("table", { class: "plain" }, make("caption", section.title, { class: "hidden" }), nest("thead", {}, head), body));
  if (section.more) part.append(make("p", `and ${section.more} more`, { class: "muted" }));
  return part;
}

/** When the device was held, over the time that is remembered. */
function drawStrip(page) {
  const from = Math.max(page.since, page.now - HOURS * 3600);
  const span = Math.max(60, page.now - from);
  const at = (time) => (100 * (Math.max(time, from) - from)) / span;
  const marks = page.history.filter((e) => e.kind === "allocated" || e.kind === "freed");
  const state = Object.fromEntries(page.facts).State;
  let held = marks.length ? marks[0].kind === "freed" : state === "allocated" || state === "shared";
  let begin = 0, count = held ? 1 : 0, seconds = 0;
  const picture = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "strip", "aria-hidden": "true" },
    svg("rect", { x: 0, y: 0, width: 100, height: 10, class: "track" }));
  const fill = (end) => {
    picture.append(svg("rect", { x: begin, y: 0, width: Math.max(0.3, end - begin), height: 10, class: "held" }));
    seconds += ((end - begin) / 100) * span;
  };
  for (const mark of marks) {
    const allocated = mark.kind === "allocated";
    if (allocated === held) continue;
    if (held) fill(at(mark.at));
    else {
      begin = at(mark.at);
      count += 1;
    }
    held = allocated;
  }
  if (held) fill(100);
  for (const mark of page.history.filter((e) => e.kind === "health")) {
    picture.append(svg("rect", { x: Math.min(99.4, at(mark.at)), y: 0, width: 0.6, height: 10, class: "sick" }));
  }
  const text = `Held ${Math.round((100 * seconds) / span)} % of the last ${age(span)}, by ${many(count, "claim")}`;
  return nest("figure", { class: "use" }, picture, make("figcaption", text));
}

function drawHistory(page) {
  const list = make("ol", undefined, { class: "history" });
  for (const entry of [...page.history].reverse()) {
    list.append(nest("li", { class: `h-${entry.kind}` },
      make("span", GLYPHS[entry.kind] || "·", { class: "glyph", "aria-hidden": "true" }),
      make("span", entry.text, { class: "text" }),
      make("time", `${timeOfDay(entry.at)} · ${age(page.now - entry.at)} ago`, { datetime: new Date(entry.at * 1000).toISOString() })));
  }
  const remembered = `This replica remembers ${age(Math.min(HOURS * 3600, page.now - page.since))}.`;
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
    this.told = "";
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
      problem = error.status === 404 ? `There is no ${this.kind} of this name, and nothing is remembered of one.` : error.message;
    }
    if (this.stopped) return;
    const told = JSON.stringify(problem || { ...page, now: Math.floor(page.now / 60) });
    if (told === this.told) return;
    this.told = told;
    // What is read, or has the focus, stays where it is.
    const focused = this.body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    if (problem) this.body.replaceChildren(make("p", problem, { class: "state" }));
    else this.draw(page);
    if (focused) this.body.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }

  draw(page) {
    const main = nest("div", { class: "column" });
    if (!page.found) main.append(make("p", `This ${this.kind} is not there any more.`, { class: "note" }));
    else main.append(drawFacts(page));
    const waits = this.kind === "pod" && page.found && !page.facts.some(([name]) => name === "Node");
    if (waits) {
      this.planCard.hidden = false;
      if (!this.planBox.firstChild) this.drawPlan();
      main.append(this.planCard);
    }
    main.append(...page.sections.map((section) => drawSection(section, this.kind === "node" ? this.name : undefined)));
    this.body.replaceChildren(main, drawHistory(page));
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
