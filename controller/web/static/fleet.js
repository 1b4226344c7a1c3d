// The fleet at a glance: sums with their trend, the heat map with its layers, models.
import { make, many, nest, number, percent, put, say, since, svg } from "./dom.js";
import { autoSize, groupNodes, HeatMap } from "./heatmap.js";
import { LAYERS, readColors, swatch, view } from "./layers.js";
import { sentence } from "./lists.js";
import { address, change, objectAddress } from "./route.js";
import { compareNames, deviceFilter, STATES } from "./store.js";
import { ask } from "./stream.js";
import { told } from "./table.js";

const LABELS_AGAIN = 60000;
const LABELS_OF_NEW = 12000;      // the controller gives the same answer for 10 seconds
const TREND_AGAIN = 60000;
// Labels by which fleets are looked at, the likeliest first.
const USUAL = [/rack/i, /(^|[./-])(block|row|pod|unit|domain|clique|fabric)s?$/i, /topology\.kubernetes\.io\/zone$/,
  /zone$/i, /instance-type$/, /region$/i];

function spark(values, title) {
  if (values.length < 2) return null;
  // A small change of a large number stays small: the picture spans a fifth of the number at least.
  const high = Math.max(...values), low = Math.min(...values);
  const span = Math.max(1, high - low, high / 5), base = (high + low - span) / 2;
  const points = values.map((v, i) => `${(100 * i) / (values.length - 1)},${21 - (18 * (v - base)) / span}`).join(" ");
  return svg("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", class: "spark", role: "img", "aria-label": title },
    svg("polyline", { points: `0,24 ${points} 100,24`, class: "area" }), svg("polyline", { points, class: "line" }));
}

// A bucket in the address. "~" stands for the one without a name.
const token = (key) => encodeURIComponent(key) || "~";

const quoted = (value) => (/\s/.test(value) ? `"${value.replaceAll('"', "")}"` : value);

// Problems that are drawn.
const MOST_PROBLEMS = 8;

function problemItem({ subject, message, action, since: at, claims }) {
  const [kind, ...names] = subject.split("/");
  const name = names.join("/");
  const to = kind === "device" ? objectAddress("node", names[0]) : objectAddress(kind, name);
  const held = kind === "device" && claims.length ? `; held by ${claims.slice(0, 3).join(", ")}${claims.length > 3 ? " …" : ""}` : "";
  return nest("li", {},
    nest("span", {}, make("a", kind === "pod" ? `pod ${name}` : name, { href: to }), `: ${message}${held} `,
      at ? make("time", "", { datetime: at, title: at, "data-since": at, class: "muted" }) : null),
    make("span", action, { class: "muted" }));
}

function option(select, value, text) {
  select.append(make("option", text, { value }));
}

export class Fleet {
  constructor(store) {
    this.store = store;
    this.title = "Fleet";
    this.keys = [];
    this.wanted = "none";         // the label that is asked for
    this.labels = null;           // the value of the chosen label on each node
    this.trend = [];
    this.params = {};
    this.colors = readColors();
    this.map = new HeatMap({
      open: (kind, name) => { location.hash = address(kind, name, {}); },
      describe: (node) => (this.labelOf(node.name) ? `${this.labelOf(node.name)}, ` : "") + sentence(node, store),
    });
    this.problems = nest("section", { class: "card problems", "aria-labelledby": "problems-title", hidden: true },
      make("h2", "", { id: "problems-title" }), make("ul"));
    this.cards = make("div", undefined, { class: "kpis" });
    this.legend = make("div", undefined, { class: "legend", role: "group", "aria-label": "Legend: show only these devices" });
    this.controls = this.makeControls();
    this.models = nest("section", { class: "card models", "aria-labelledby": "models-title" }, make("h2", "Models", { id: "models-title" }));
    this.empty = make("p", "", { class: "state", hidden: true });
    this.mapTitle = make("h2", "Heat map of nodes");
    this.root = nest("div", {},
      make("h1", "Fleet", { tabindex: "-1", class: "hidden" }), this.problems, this.cards,
      nest("section", { class: "card map-card", "aria-label": "Heat map" },
        nest("div", { class: "map-top" }, this.mapTitle, this.controls), this.legend, this.empty, this.map.root,
        nest("p", { class: "muted" }, "The same as a table: ", make("a", "all nodes", { href: "#/nodes" }), ", ",
          make("a", "all devices", { href: "#/devices" }), ".")),
      this.models);
  }

  makeControls() {
    const select = (id, title, set) => {
      const element = make("select", undefined, { id });
      element.addEventListener("change", () => set(element.value));
      return [nest("label", { class: "field" }, make("span", title), element), element];
    };
    const [layer, layers] = select("layer", "Colour by", (value) => change({ layer: value, only: "" }));
    for (const [id, { title }] of Object.entries(LAYERS)) option(layers, id, title);
    const [group, groups] = select("group", "Group by", (value) => change({ group: value }));
    const [size, sizes] = select("size", "Size", (value) => change({ size: value }));
    for (const [id, title] of [["", "Automatic"], ["s", "Small"], ["m", "Medium"], ["l", "With names"]]) option(sizes, id, title);
    Object.assign(this, { layers, groups, sizes });
    return nest("div", { class: "controls" }, layer, group, size);
  }

  start() {
    this.map.start();
    this.loadLabels();
    this.loadTrend();
    this.timers = [setInterval(() => this.loadLabels(), LABELS_AGAIN), setInterval(() => this.loadTrend(), TREND_AGAIN)];
  }

  stop() {
    this.timers.forEach(clearInterval);
    clearTimeout(this.again);
    this.map.stop();
    this.stopped = true;
  }

  labelOf(node) {
    return (this.labels && this.labels[node]) || "";
  }

  /** The label to group by: the one in the address, or a usual one that makes a sensible number of groups. */
  group() {
    const { group } = this.params;
    if (group === "none" || group === "model") return group;
    if (group) return group;
    const nodes = this.store.nodes.size;
    const fits = (k) => k.values > 1 && k.values <= Math.max(2, nodes / 2) && k.nodes >= nodes / 2;
    for (const pattern of USUAL) {
      const found = this.keys.find((k) => pattern.test(k.key) && fits(k));
      if (found) return found.key;
    }
    return "none";
  }

  /** @param {number} nodes how many there were when it was decided to ask, if the answer surely knows them. */
  async loadLabels(nodes) {
    this.wanted = this.group();
    try {
      this.keys = await ask("fleet/labels");
      const group = this.wanted = this.group();
      this.labels = group === "none" || group === "model" ? null : await ask(`fleet/labels?key=${encodeURIComponent(group)}`);
      this.labelled = group;
      if (nodes !== undefined) this.labelledNodes = nodes;
    } catch {
      return;                     // asked again; what is known stays
    }
    if (!this.stopped) this.update(null);
  }

  /** Which label nodes are grouped by depends on how many there are; new ones have labels that are not known here. */
  followLabels() {
    if (this.group() !== this.wanted) this.loadLabels();
    const nodes = this.store.nodes.size;
    if (nodes === this.labelledNodes || this.again) return;
    this.again = setTimeout(() => {
      this.again = 0;
      this.loadLabels(nodes);
    }, LABELS_OF_NEW);
  }

  async loadTrend() {
    try {
      this.trend = await ask("fleet/trend");
    } catch {
      return;
    }
    if (!this.stopped) this.drawCards();
  }

  route(params) {
    this.params = params;
    this.update(null);
  }

  recolored() {
    this.colors = readColors();
    this.update(null);
  }

  changed() {
    this.update(this.store.takeDirty());
  }

  /** What the legend narrows the map to; null: it shows everything. */
  only() {
    return this.params.only === undefined ? null : new Set(this.params.only.split(","));
  }

  matches(layer) {
    const filter = deviceFilter(this.params.q || "", (node) => this.labelOf(node));
    const only = this.only();
    if (!filter && !only) return null;
    const shown = layer.buckets.map((bucket) => !only || only.has(token(bucket.key)));
    return (device) => shown[layer.of(device)] && (!filter || filter(device));
  }

  update(dirty) {
    if (!this.root.isConnected) return;
    this.followLabels();
    const layer = view(this.params.layer, this.store);
    const matches = this.matches(layer);
    const all = this.store.ordered();
    const nodes = matches ? all.filter((node) => node.devices.some(matches)) : all;
    const size = this.params.size in { s: 1, m: 1, l: 1 } ? this.params.size : autoSize(all.length);
    const shape = JSON.stringify([size, this.group(), this.labelled, all.length, matches && nodes.map((n) => n.name)]);
    const paint = { layer, colors: this.colors, matches };
    if (dirty === null || shape !== this.shape) this.map.show({ ...paint, groups: this.grouped(all, nodes), size });
    else this.map.refresh(paint, this.counts === JSON.stringify(layer.buckets.map((b) => b.key)) ? dirty : null);
    this.shape = shape;
    this.counts = JSON.stringify(layer.buckets.map((b) => b.key));
    this.drawControls();
    this.drawLegend(layer);
    this.drawProblems();
    this.drawCards();
    this.drawModels();
    this.empty.hidden = nodes.length > 0;
    this.map.root.hidden = nodes.length === 0;
    put(this.empty, !this.store.complete ? "Loading …" : all.length ? "Nothing matches the filter."
      : "No devices are published. The node agents may not run yet, or found none.");
    if (matches) this.sayMatches(matches, nodes);
    else put(this.mapTitle, "Heat map of nodes");
  }

  sayMatches(matches, nodes) {
    const shown = nodes.reduce((sum, node) => sum + node.devices.filter(matches).length, 0);
    const total = this.store.ordered().reduce((sum, node) => sum + node.devices.length, 0);
    const text = `${told(shown, total, "devices match")}, on ${many(nodes.length, "node")}`;
    put(this.mapTitle, `Heat map: ${text}`);
    say(text);
  }

  /** Groups of all nodes; of each, those that are shown. */
  grouped(all, nodes) {
    const shown = new Set(nodes);
    const groups = this.groupsOf(all).map((group) => ({ ...group, total: group.nodes.length, nodes: group.nodes.filter((n) => shown.has(n)) }));
    return groups.filter((group) => group.nodes.length);
  }

  groupsOf(nodes) {
    if (!nodes.length) return [];
    const group = this.group();
    const unknown = group !== "model" && group !== this.labelled;
    if (group === "none" || unknown) return groupNodes(nodes, null, "");
    if (group === "model") return groupNodes(nodes, (n) => [...new Set(n.devices.map((d) => d.model))].sort(compareNames).join(", "), "no model");
    return groupNodes(nodes, (n) => this.labelOf(n.name), `without ${group}`);
  }

  drawControls() {
    this.layers.value = this.params.layer in LAYERS ? this.params.layer : "state";
    this.sizes.value = this.params.size || "";
    const group = this.group();
    const keys = this.keys.filter((k) => k.values > 1 && k.nodes > 1).map((k) => [k.key, `${k.key} (${k.values})`]);
    const options = [["none", "Nothing"], ["model", "Model"], ...keys];
    if (!options.some(([key]) => key === group)) options.push([group, group]);
    const told = JSON.stringify(options);
    if (told !== this.options) {
      this.options = told;
      this.groups.replaceChildren();
      for (const [key, text] of options) option(this.groups, key, text);
    }
    this.groups.value = group;
  }

  drawLegend(layer) {
    const only = this.only();
    const shown = layer.buckets.filter((b) => b.count || layer.id === "state");
    const told = JSON.stringify([layer.id, shown.map((b) => b.key), this.colors]);
    if (told !== this.legendTold) {
      this.legendTold = told;
      const focused = this.legend.contains(document.activeElement) ? document.activeElement.dataset.bucket : null;
      this.legend.replaceChildren(...shown.map((bucket) => {
        const button = nest("button", { type: "button", "data-bucket": bucket.key },
          swatch(bucket, this.colors, 16), make("span", bucket.label, { class: "label" }), make("span", "", { class: "n" }));
        button.addEventListener("click", () => this.toggle(token(bucket.key)));
        return button;
      }));
      if (focused !== null) [...this.legend.children].find((b) => b.dataset.bucket === focused)?.focus({ preventScroll: true });
    }
    shown.forEach((bucket, k) => {
      const button = this.legend.children[k];
      put(button.lastElementChild, number(bucket.count));
      button.setAttribute("aria-pressed", String(!only || only.has(token(bucket.key))));
      button.classList.toggle("off", Boolean(only) && !only.has(token(bucket.key)));
    });
  }

  /** Show this one alone; with a second one both; with the last one gone all. */
  toggle(bucket) {
    const only = this.only() || new Set();
    if (!only.delete(bucket)) only.add(bucket);
    change({ only: [...only].sort().join(",") });
  }

  drawProblems() {
    const told = JSON.stringify([this.store.problemsTotal, this.store.problems]);
    if (told !== this.problemsTold) {
      this.problemsTold = told;
      const [title, list] = this.problems.children;
      const focused = [...list.querySelectorAll("a")].indexOf(document.activeElement);
      const shown = this.store.problems.slice(0, MOST_PROBLEMS), more = this.store.problemsTotal - shown.length;
      put(title, many(this.store.problemsTotal, "problem"));
      list.replaceChildren(...shown.map((problem) => problemItem(problem)),
        ...(more > 0 ? [make("li", `${many(more, "more problem")}: dra-driver status -o json lists all`, { class: "muted" })] : []));
      if (focused >= 0) list.querySelectorAll("a")[focused]?.focus({ preventScroll: true });
      this.problems.hidden = !this.store.problemsTotal;
    }
    for (const time of this.problems.querySelectorAll("[data-since]")) put(time, `for ${since(time.dataset.since)}`);
  }

  drawCards() {
    const sums = Object.fromEntries(STATES.map((state) => [state, 0]));
    let total = 0, busy = 0, reported = 0;
    for (const device of this.store.devices()) {
      total += 1;
      sums[device.state] += 1;
      if (device.activity) reported += 1;
      if (device.activity === "busy") busy += 1;
    }
    const used = sums.allocated + sums.shared;
    const history = (of) => this.trend.map(of);
    const [sick, shared, allocated] = [0, 1, 2].map((i) => (s) => s.states[i]);
    const cards = [
      ["Devices", number(total), `on ${number(this.store.nodes.size)} of ${many(this.store.nodeCount, "node")}`, "#/devices", history((s) => s.states.reduce((a, b) => a + b, 0))],
      ["Allocated", percent(used, total), `${number(used)} devices, ${number(sums.free)} free`, address("devices", "", { q: "state:allocated" }), history((s) => shared(s) + allocated(s))],
      ["Busy", reported ? percent(busy, reported) : "–", reported ? `${number(busy)} of ${number(reported)} that report it` : "not reported by nodes", address("fleet", "", { layer: "activity" }), history((s) => s.busy)],
      ["Unhealthy", number(sums.unhealthy), this.store.troubles.size ? `${many(this.store.troubles.size, "node takes", "nodes take")} no pods` : "all nodes take pods", address("devices", "", { q: "state:unhealthy" }), history(sick)],
      ["Waiting", number(this.store.waitingTotal), this.store.waitingTotal === 1 ? "claim" : "claims", "#/waiting", history((s) => s.waiting)],
    ];
    const told = JSON.stringify(cards);
    if (told === this.cardsTold) return;
    this.cardsTold = told;
    const focused = this.cards.contains(document.activeElement) ? [...this.cards.children].indexOf(document.activeElement) : -1;
    this.cards.replaceChildren(...cards.map(([title, value, text, href, values]) => nest("a", {
      class: `kpi${title === "Unhealthy" && sums.unhealthy ? " bad" : ""}`, href,
    }, make("span", title, { class: "kpi-title" }), make("span", this.store.at ? value : "…", { class: "kpi-value" }),
    make("span", this.store.at ? text : "", { class: "kpi-text" }), spark(values, `${title}: the last ${many(values.length, "minute")}`))));
    if (focused >= 0) this.cards.children[focused].focus({ preventScroll: true });
  }

  drawModels() {
    const models = new Map();
    for (const device of this.store.devices()) {
      const key = `${device.model}\u0000${device.type}`;
      if (!models.has(key)) models.set(key, { model: device.model, type: device.type, total: 0 });
      const row = models.get(key);
      row.total += 1;
      row[device.state] = (row[device.state] || 0) + 1;
    }
    const rows = [...models.values()].sort((a, b) => b.total - a.total || compareNames(a.model, b.model));
    const told = JSON.stringify(rows);
    if (told === this.modelsTold) return;
    this.modelsTold = told;
    const head = nest("tr", {}, make("th", "Model", { scope: "col" }), make("th", "Type", { scope: "col" }),
      make("th", "Devices", { scope: "col", class: "number" }),
      ...[...STATES].reverse().map((state) => make("th", state[0].toUpperCase() + state.slice(1), { scope: "col", class: "number" })));
    const body = make("tbody");
    for (const row of rows.slice(0, 100)) {
      const q = `model:${quoted(row.model)}${row.type ? ` type:${quoted(row.type)}` : ""}`;
      body.append(nest("tr", {},
        nest("td", { "data-title": "Model" }, make("a", row.model, { href: address("devices", "", { q }) })),
        make("td", row.type, { "data-title": "Type" }),
        make("td", number(row.total), { class: "number", "data-title": "Devices" }),
        ...[...STATES].reverse().map((state) => make("td", number(row[state] || 0), {
          class: `number${row[state] ? "" : " zero"}`, "data-title": state[0].toUpperCase() + state.slice(1),
        }))));
    }
    this.models.hidden = !rows.length;
    const focused = this.models.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    this.models.replaceChildren(this.models.firstElementChild,
      nest("table", { class: "plain" }, make("caption", "Devices by model", { class: "hidden" }), nest("thead", {}, head), body));
    if (focused) this.models.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}
