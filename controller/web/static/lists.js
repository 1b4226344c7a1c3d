// All devices, claims and nodes as tables.
import { bytes, make, many, memory, nest, number, put, say } from "./dom.js";
import { address, change, objectAddress } from "./route.js";
import { compareNames, deviceFilter, textFilter } from "./store.js";
import { drawLink, drawLinks, drawText, parseSort, sortRows, Table, told } from "./table.js";

const noLabel = () => "";

export function header(title) {
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
    this.more = make("p", "", { class: "muted more" });
    this.root = nest("div", {}, this.head.root, this.table.root, this.more);
  }

  /** What the table lacks. */
  rest() {
    return [];
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
    const rest = JSON.stringify([this.rest().length, this.store.waitingTotal, this.params.q]);
    if (rest !== this.restTold) this.more.replaceChildren(...this.rest());
    this.restTold = rest;
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
        { id: "model", title: "Model", key: (d) => d.model, draw: (d, cell) => drawText(cell, d.type && d.type !== "gpu" ? `${d.model} · ${d.type}` : d.model) },
        { id: "memory", title: "Memory", number: true, down: true, key: (d) => bytes(d.memory), draw: (d, cell) => drawText(cell, d.memory ? memory(d.memory) : "–", d.memory) },
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

// A claim may be reserved for a PodGroup ("podgroup:NAME"), which has no page.
const podAddress = (claim, pod) => (pod.includes(":") ? "" : objectAddress("pod", `${claim.split("/")[0]}/${pod}`));

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
        { id: "node", title: "Nodes", key: (c) => [...c.nodes][0] || "", draw: (c, cell) => drawLinks(cell, [...c.nodes].map((n) => [n, objectAddress("node", n)])) },
        { id: "pods", title: "Pods", key: (c) => c.pods[0] || "", draw: (c, cell) => drawLinks(cell, c.pods.map((p) => [p, podAddress(c.name, p)])) },
      ],
    });
  }

  rest() {
    const rest = this.store.waitingTotal - this.store.waiting.length;
    return rest > 0 ? [`and ${number(rest)} more claims that wait, of lower priority or younger: `, make("a", "look for them", { href: address("waiting", "", { q: this.params.q }) })] : [];
  }

  rows(query) {
    const all = [...this.store.claims().values()];
    for (const w of this.store.waiting) {
      all.push({ name: w.claim, pods: w.pods, devices: [], nodes: new Set(), state: "waits", reason: w.reason });
    }
    const filter = textFilter(query, {
      text: (c) => [c.name, c.state, ...c.pods, ...c.nodes, modelsOf(c), c.reason].join("\n"),
      ns: (c) => c.name.split("/")[0], claim: (c) => c.name, state: (c) => (c.state === "shared" ? "shared allocated" : c.state), pod: (c) => c.pods.join("\n"),
      node: (c) => [...c.nodes].join("\n"), model: (c) => c.devices.map((d) => d.model).join("\n"),
    });
    const rest = Math.max(0, this.store.waitingTotal - this.store.waiting.length);
    return { rows: filter ? all.filter(filter) : all, total: all.length + rest };
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
        { id: "health", title: "Condition", key: (n) => n.trouble, draw: (n, cell) => {
          drawText(cell, n.trouble || "ready");
          cell.classList.toggle("trouble", Boolean(n.trouble));
        } },
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
