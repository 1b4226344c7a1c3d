// What waits, and all devices, claims and nodes as tables.
import { make, many, nest, number, put, say, since } from "./dom.js";
import { askPlan, drawPlan, plans } from "./plan.js";
import { address, change, objectAddress } from "./route.js";
import { compareNames, deviceFilter, textFilter } from "./store.js";
import { drawHead, drawLink, drawText, parseSort, sortRows, Table, told } from "./table.js";

const noLabel = () => "";

function header(title) {
  const count = make("p", "", { class: "muted" });
  const root = nest("div", { class: "title" }, make("h1", title, { tabindex: "-1" }), count);
  return { root, count };
}

const STATE_MARK = { unhealthy: "✕", shared: "◩", allocated: "■", blocked: "▨", free: "□", waits: "…" };

function drawState(cell, state) {
  const text = `${STATE_MARK[state] || ""} ${state}`;
  if (cell.textContent === text) return;
  cell.replaceChildren(nest("span", { class: `state-${state} pill` }, make("span", STATE_MARK[state] || "", { "aria-hidden": "true" }), ` ${state}`));
}

/** A view with one long table. */
class List {
  constructor(store, { name, title, columns, id, fallback, nothing, what }) {
    Object.assign(this, { store, title, columns, fallback, nothing, what });
    this.head = header(title);
    this.table = new Table({ caption: title, columns, id, name, sorted: (sort) => change({ sort }) });
    this.root = nest("div", {}, this.head.root, this.table.root);
  }

  start() {
    this.table.start();
  }

  stop() {
    this.table.stop();
    clearTimeout(this.timer);
  }

  route(params) {
    this.params = params;
    this.update();
  }

  changed() {
    // Sorting many rows for each message would hold up scrolling.
    if (!this.timer) this.timer = setTimeout(() => this.update(), this.table.rows.length > 2000 ? 1000 : 150);
  }

  update() {
    clearTimeout(this.timer);
    this.timer = 0;
    const { rows, total } = this.rows(this.params.q || "");
    const sort = parseSort(this.params.sort, this.columns, this.fallback);
    const text = told(rows.length, total, this.what);
    put(this.head.count, text);
    if (this.params.q) say(text);
    const nothing = !this.store.complete ? "Loading …" : total ? "Nothing matches the filter." : this.nothing;
    this.table.show(sortRows(rows, this.columns, sort, compareNames), sort, nothing);
  }
}

export class Devices extends List {
  constructor(store) {
    super(store, {
      name: "devices", title: "Devices", fallback: "node", id: (d) => d.id, what: "devices",
      nothing: "No devices are published.",
      columns: [
        { id: "name", title: "Device", key: (d) => d.name, draw: (d, cell) => drawLink(cell, d.name, objectAddress("device", d.id)) },
        { id: "node", title: "Node", key: (d) => d.node, draw: (d, cell) => drawLink(cell, d.node, objectAddress("node", d.node)) },
        { id: "state", title: "State", key: (d) => d.state, draw: (d, cell) => drawState(cell, d.state) },
        { id: "model", title: "Model", key: (d) => d.model, draw: (d, cell) => drawText(cell, d.model) },
        { id: "memory", title: "Memory", number: true, draw: (d, cell) => drawText(cell, d.memory || "–") },
        { id: "activity", title: "Runs", key: (d) => d.activity, draw: (d, cell) => drawText(cell, d.activity || "–") },
        { id: "health", title: "Health", key: (d) => d.severity, draw: (d, cell) => drawText(cell, d.problems.join("; ") || d.severity || "–") },
        {
          id: "holder", title: "Held by", key: (d) => (d.holder ? d.holder.claim : ""),
          draw: (d, cell) => {
            const others = d.holders.length - 1;
            if (d.holder) drawLink(cell, d.holder.claim + (others ? ` and ${number(others)} more` : ""), objectAddress("claim", d.holder.claim));
            else cell.replaceChildren();
          },
        },
      ],
    });
  }

  rows(query) {
    const filter = deviceFilter(query, noLabel);
    const all = [...this.store.devices()];
    return { rows: filter ? all.filter(filter) : all, total: all.length };
  }
}

const modelsOf = (claim) => [...new Set(claim.devices.map((d) => d.model))].sort().join(", ");

export class Claims extends List {
  constructor(store) {
    super(store, {
      name: "claims", title: "Claims", fallback: "name", id: (c) => c.name, what: "claims",
      nothing: "There are no claims with devices of this driver.",
      columns: [
        { id: "name", title: "Claim", key: (c) => c.name, draw: (c, cell) => drawLink(cell, c.name, objectAddress("claim", c.name)) },
        { id: "state", title: "State", key: (c) => c.state, draw: (c, cell) => drawState(cell, c.state) },
        { id: "devices", title: "Devices", number: true, down: true, key: (c) => c.devices.length, draw: (c, cell) => drawText(cell, c.devices.length ? number(c.devices.length) : "–") },
        { id: "model", title: "Model, or why it waits", key: (c) => modelsOf(c) || c.reason, draw: (c, cell) => drawText(cell, modelsOf(c) || c.reason || "–") },
        { id: "node", title: "Nodes", key: (c) => [...c.nodes][0] || "", draw: (c, cell) => drawText(cell, [...c.nodes].slice(0, 3).join(", ") + (c.nodes.size > 3 ? ` and ${c.nodes.size - 3} more` : "") || "–") },
        { id: "pods", title: "Pods", key: (c) => c.pods[0] || "", draw: (c, cell) => drawText(cell, c.pods.slice(0, 3).join(", ") + (c.pods.length > 3 ? ` and ${c.pods.length - 3} more` : "") || "–") },
      ],
    });
  }

  rows(query) {
    const all = [...this.store.claims().values()];
    for (const w of this.store.waiting) {
      all.push({ name: w.claim, pods: w.pods, devices: [], nodes: new Set(), state: "waits", reason: w.reason });
    }
    const filter = textFilter(query, {
      text: (c) => [c.name, c.state, ...c.pods, ...c.nodes, modelsOf(c), c.reason].join("\n"),
      ns: (c) => c.name.split("/")[0], claim: (c) => c.name, state: (c) => c.state, pod: (c) => c.pods.join("\n"),
      node: (c) => [...c.nodes].join("\n"), model: (c) => c.devices.map((d) => d.model).join("\n"),
    });
    return { rows: filter ? all.filter(filter) : all, total: all.length };
  }
}

export class Nodes extends List {
  constructor(store) {
    super(store, {
      name: "nodes", title: "Nodes", fallback: "name", id: (n) => n.name, what: "nodes with devices",
      nothing: "No devices are published.",
      columns: [
        { id: "name", title: "Node", key: (n) => n.name, draw: (n, cell) => drawLink(cell, n.name, objectAddress("node", n.name)) },
        { id: "model", title: "Models", key: (n) => n.models, draw: (n, cell) => drawText(cell, n.models) },
        { id: "devices", title: "Devices", number: true, down: true, key: (n) => n.total, draw: (n, cell) => drawText(cell, number(n.total)) },
        { id: "used", title: "Allocated", number: true, down: true, key: (n) => n.used, draw: (n, cell) => drawText(cell, number(n.used)) },
        { id: "free", title: "Free", number: true, down: true, key: (n) => n.free, draw: (n, cell) => drawText(cell, number(n.free)) },
        { id: "sick", title: "Unhealthy", number: true, down: true, key: (n) => n.sick, draw: (n, cell) => drawText(cell, n.sick ? number(n.sick) : "–") },
        { id: "health", title: "Condition", key: (n) => n.trouble, draw: (n, cell) => drawText(cell, n.trouble || "ready") },
      ],
    });
  }

  rows(query) {
    const filter = deviceFilter(query, noLabel);
    const nodes = this.store.ordered();
    const matching = filter ? nodes.filter((n) => n.devices.some(filter)) : nodes;
    return { rows: matching.map((n) => nodeRow(n, this.store)), total: nodes.length };
  }
}

export function nodeRow(node, store) {
  const states = {};
  const models = new Set();
  for (const device of node.devices) {
    states[device.state] = (states[device.state] || 0) + 1;
    models.add(device.model);
  }
  const trouble = [store.troubles.get(node.name), ...node.notes].filter(Boolean).join("; ");
  return {
    name: node.name, total: node.devices.length, models: [...models].sort().join(", "), trouble,
    used: (states.allocated || 0) + (states.shared || 0), free: states.free || 0, sick: states.unhealthy || 0,
  };
}

/** The node in one sentence: what screen readers say in place of its tile. */
export function sentence(node, store) {
  const row = nodeRow(node, store);
  const parts = [`${row.name}: ${many(row.total, "device")} (${row.models})`, `${row.used} allocated`, `${row.free} free`];
  if (row.sick) parts.push(`${row.sick} unhealthy`);
  if (row.trouble) parts.push(row.trouble);
  return parts.join(", ");
}

// --- what waits ----------------------------------------------------------------------------------------------

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
    this.timer = setInterval(() => this.update(), 10000);
  }

  stop() {
    clearInterval(this.timer);
  }

  route(params) {
    this.params = params;
    this.update();
  }

  changed() {
    this.update();
  }

  update() {
    const all = waitingPods(this.store.waiting);
    const filter = textFilter(this.params.q || "", {
      text: (w) => [w.pod, ...w.claims, ...w.pods, w.reason].join("\n"), ns: (w) => w.claim.split("/")[0],
      claim: (w) => w.claims.join("\n"), pod: (w) => w.pods.join("\n"), state: () => "waits",
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
    const rest = total - this.store.waiting.length;
    put(this.head.count, many(total, "claim waits", "claims wait"));
    if (this.params.q) say(told(rows.length, all.length, "waiting pods"));
    put(this.more, rest > 0 ? `and ${number(rest)} more claims, of lower priority or younger` : "");
    this.table.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    put(this.empty, !this.store.complete ? "Loading …" : all.length ? "Nothing matches the filter." : "Nothing waits for devices.");
    this.drawRows(sortRows(rows, WAITING, sort, compareNames));
  }

  drawRows(rows) {
    const lines = [];
    const seen = new Set();
    for (const row of rows) {
      seen.add(row.key);
      lines.push(...this.lines(row));
    }
    for (const [key, made] of this.made) {
      if (seen.has(key)) continue;
      this.made.delete(key);
      made.line.remove();
      made.plan.remove();
    }
    // What stands where it belongs is left alone: it may have the focus.
    let next = this.body.firstElementChild;
    for (const line of lines) {
      if (line === next) next = next.nextElementSibling;
      else this.body.insertBefore(line, next);
    }
    while (next) {
      const gone = next;
      next = next.nextElementSibling;
      gone.remove();
    }
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
    drawText(cells.reason, row.reason + (row.claims.length > 1 ? ` (and ${many(row.claims.length - 1, "more claim")})` : ""));
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


