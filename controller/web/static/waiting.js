// What waits: pods by priority, with the reason and a plan. Of thousands the most urgent ones are here; a filter
// looks through all of them, which the controller does.
import { arrange, make, many, nest, number, put, say, since } from "./dom.js";
import { header } from "./lists.js";
import { askPlan, drawPlan, plans } from "./plan.js";
import { address, change, objectAddress } from "./route.js";
import { compareNames, textFilter } from "./store.js";
import { ask } from "./stream.js";
import { drawHead, drawLink, drawText, parseSort, sortRows, told } from "./table.js";

const SEARCH_AGAIN = 5000;

const WAITING = [
  { id: "pod", title: "Pod", key: (w) => w.pod },
  { id: "priority", title: "Priority", number: true, down: true, key: (w) => w.priority },
  { id: "age", title: "Waits", number: true, down: true, key: (w) => -Date.parse(w.since) || 0 },
  { id: "claims", title: "Claims", key: (w) => w.claims[0] },
  { id: "reason", title: "Why", key: (w) => w.reason },
  { id: "plan", title: "What would help" },
];

/** Waiting claims by the pod that uses them; claims that no pod uses stand for themselves. */
function waitingPods(waiting) {
  const found = new Map();
  for (const claim of waiting) {
    const namespace = claim.claim.split("/")[0];
    const pod = claim.pods.length ? `${namespace}/${claim.pods[0]}` : "";
    const key = pod || ` ${claim.claim}`;
    const row = found.get(key);
    if (row) row.claims.push(claim.claim);
    else found.set(key, { ...claim, key, pod, claims: [claim.claim], others: Math.max(0, claim.pods.length - 1) });
  }
  return [...found.values()];
}

export class Waiting {
  constructor(store) {
    this.store = store;
    this.title = "Waiting";
    this.made = new Map();
    this.number = 0;
    this.head = header("Waiting for devices");
    this.thead = make("thead");
    this.body = make("tbody");
    this.table = nest("table", { class: "grid list-waiting" }, make("caption", "Pods and claims that wait", { class: "hidden" }), this.thead, this.body);
    this.empty = make("p", "", { class: "state", hidden: true });
    const input = make("input", undefined, { id: "other-pod", placeholder: "namespace/name", autocomplete: "off", spellcheck: "false" });
    this.other = nest("form", { class: "other", id: "other" },
      make("label", "Another pod", { for: "other-pod" }), input, make("button", "Open"));
    this.other.addEventListener("submit", (event) => {
      event.preventDefault();
      const name = input.value.trim();
      if (/^[^/]+\/[^/]+$/.test(name)) location.hash = address("pod", name, {});
    });
    this.more = make("p", "", { class: "muted" });
    this.root = nest("div", {}, this.head.root, nest("div", { class: "list" }, this.table, this.empty), this.more, this.other);
  }

  start() {
    this.timers = [setInterval(() => this.update(), 10000), setInterval(() => this.search(), SEARCH_AGAIN)];
  }

  stop() {
    this.timers.forEach(clearInterval);
    this.stopped = true;
  }

  route(params) {
    if (this.params?.q !== params.q) this.found = null;
    this.params = params;
    this.asked = false;
    this.search();
    this.update();
  }

  changed() {
    this.update();
    if (this.store.complete && !this.asked) this.search();
  }

  /** Ask for what matches among all claims, where not all of them are here. */
  async search() {
    const { q } = this.params || {};
    this.asked = Boolean(q) && this.store.waitingTotal > this.store.waiting.length;
    if (!this.asked || document.hidden) {
      this.found = this.asked ? this.found : null;
      return;
    }
    let found;
    try {
      found = await ask(`fleet/waiting?q=${encodeURIComponent(q)}`);
    } catch (error) {
      found = { problem: error.message };
    }
    if (this.stopped || this.params.q !== q) return;
    this.found = found;
    this.update();
  }

  update() {
    const { found } = this;
    const searched = Boolean(found && found.waiting);
    const all = waitingPods(searched ? found.waiting : this.store.waiting);
    const filter = searched ? null : textFilter(this.params.q || "", {
      text: (w) => [w.pod, ...w.claims, ...w.pods, w.reason].join("\n"), ns: (w) => w.claim.split("/")[0],
      claim: (w) => w.claims.join("\n"), pod: (w) => [w.pod, ...w.pods].join("\n"), state: () => "waits",
    });
    const rows = filter ? all.filter(filter) : all;
    const sort = parseSort(this.params.sort, WAITING, "-priority");
    const key = `${sort.id}${sort.descending}`;
    if (key !== this.sort) {
      const focused = this.thead.contains(document.activeElement);
      this.thead.replaceChildren(drawHead(WAITING, sort, (text) => change({ sort: text })));
      if (focused) this.thead.querySelector("[aria-sort] button")?.focus();
      this.sort = key;
    }
    const total = this.store.waitingTotal;
    const shown = searched ? found.total : rows.reduce((sum, row) => sum + row.claims.length, 0);
    const text = this.params.q ? `${told(shown, total, "claims that wait")} match` : many(total, "claim waits", "claims wait");
    put(this.head.count, text);
    if (this.params.q) say(text);
    put(this.more, this.rest(searched));
    this.table.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    const looking = this.asked && !found;
    put(this.empty, !this.store.complete ? "Loading …" : !total ? "Nothing waits for devices." : looking ? "Looking …" : "Nothing matches the filter.");
    this.drawRows(sortRows(rows, WAITING, sort, compareNames));
  }

  /** What is not in the table. */
  rest(searched) {
    const { found, store } = this;
    if (searched) return found.total > found.waiting.length ? `and ${number(found.total - found.waiting.length)} more that match, of lower priority or younger` : "";
    const rest = store.waitingTotal - store.waiting.length;
    if (rest <= 0) return "";
    if (!this.params.q) return `and ${number(rest)} more claims, of lower priority or younger: the filter finds them`;
    if (found && found.problem) return `${number(rest)} more claims, of lower priority or younger, were not looked through: ${found.problem}`;
    return `Looking through ${number(rest)} more claims …`;
  }

  drawRows(rows) {
    const lines = [];
    const seen = new Set();
    for (const row of rows) {
      seen.add(row.key);
      lines.push(...this.lines(row));
    }
    for (const key of [...this.made.keys()]) if (!seen.has(key)) this.made.delete(key);
    arrange(this.body, lines);
  }

  lines(row) {
    let made = this.made.get(row.key);
    if (!made) {
      made = this.make();
      this.made.set(row.key, made);
    }
    made.pod = row.pod;
    const { cells } = made;
    if (row.pod) drawLink(cells.pod, row.pod, objectAddress("pod", row.pod));
    else drawText(cells.pod, "no pod uses it");
    drawText(cells.priority, row.pod ? number(row.priority) : "–");
    drawText(cells.age, since(row.since) || "–");
    drawLink(cells.claims, row.claims[0], objectAddress("claim", row.claims[0]));
    const more = [row.claims.length > 1 ? many(row.claims.length - 1, "more claim") : "",
      row.others ? `${many(row.others, "other pod uses", "other pods use")} the claim` : ""].filter(Boolean).join("; ");
    drawText(cells.reason, row.reason + (more ? ` (${more})` : ""));
    made.button.hidden = !row.pod;
    made.button.setAttribute("aria-label", `Plan: what would make ${row.pod} fit?`);
    made.button.setAttribute("aria-expanded", String(plans.has(row.pod)));
    return row.pod && plans.has(row.pod) ? [made.line, made.plan] : [made.line];
  }

  make() {
    const id = `plan-${(this.number += 1)}`;
    const cells = {};
    const line = make("tr", undefined, { class: "row" });
    for (const column of WAITING) {
      cells[column.id] = make("td", undefined, { class: `c-${column.id}${column.number ? " number" : ""}` });
      line.append(cells[column.id]);
    }
    const button = make("button", "Plan", { type: "button", class: "small ask", "aria-controls": id });
    cells.plan.append(button);
    const cell = make("td", undefined, { id, colspan: String(WAITING.length), "aria-live": "polite" });
    const made = { line, cells, button, pod: "", plan: nest("tr", { class: "plan" }, cell) };
    const again = () => {
      this.update();
      if (plans.has(made.pod)) drawPlan(cell, made.pod, again);
    };
    button.addEventListener("click", () => {
      if (plans.delete(made.pod)) this.update();
      else askPlan(made.pod, again);
    });
    // A plan that was asked for before is drawn again.
    queueMicrotask(() => {
      if (plans.has(made.pod)) drawPlan(cell, made.pod, again);
    });
    return made;
  }
}
