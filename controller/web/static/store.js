// What the controller has told: pools with their devices, by node; what waits; nodes in trouble.

import { bytes } from "./dom.js";

export const STATES = ["unhealthy", "shared", "allocated", "blocked", "free"];

class Device {
  constructor(pool, raw) {
    this.name = raw.name;
    this.id = `${pool.driver}/${pool.pool}/${raw.name}`;
    this.node = pool.node;
    this.driver = pool.driver;
    this.model = raw.model;
    this.type = raw.type;
    this.memory = raw.memory;
    this.state = raw.state;
    this.holders = raw.holders;
    this.problems = raw.problems;
    this.severity = raw.severity;
    this.activity = raw.activity;
    this.words = "";
  }

  get holder() {
    return this.holders.find((h) => !h.admin);
  }

  get namespace() {
    const holder = this.holder;
    return holder ? holder.claim.split("/")[0] : "";
  }

  /** The part of its memory that is given away, from 0 to 1; null where that is not known. */
  get given() {
    const taking = this.holders.filter((h) => !h.admin);
    if (!taking.length) return 0;
    if (taking.some((h) => !h.shared)) return 1;
    const total = bytes(this.memory);
    if (!total || !taking.some((h) => h.share.memory)) return null;
    return Math.min(1, taking.reduce((sum, h) => sum + bytes(h.share.memory), 0) / total);
  }

  get text() {
    if (!this.words) {
      const words = [this.node, this.name, this.model, this.type, this.state, this.driver];
      for (const h of this.holders) words.push(h.claim, ...h.pods);
      this.words = words.join("\n").toLowerCase();
    }
    return this.words;
  }
}

class NodeState {
  constructor(name) {
    this.name = name;
    this.pools = new Map();
    this.list = null;
  }

  get devices() {
    if (!this.list) this.list = [...this.pools.keys()].sort().flatMap((key) => this.pools.get(key).devices);
    return this.list;
  }

  get notes() {
    return [...this.pools.values()].flatMap((pool) => pool.notes);
  }
}

const byName = new Intl.Collator("en", { numeric: true });
export const compareNames = byName.compare;

const TOLD = ["pools", "nodes", "waiting", "waitingTotal", "nodeCount", "troubles", "problems", "problemsTotal", "sorted", "dirty", "claimsKept", "standby", "at"];

export class Store extends EventTarget {
  constructor() {
    super();
    this.clear();
    this.complete = false;
    this.standby = "";
    this.at = 0;
    this.next = null;             // what is told anew after the connection was lost, until it is complete
  }

  clear() {
    this.pools = new Map();
    this.nodes = new Map();
    this.waiting = [];
    this.waitingTotal = 0;
    this.nodeCount = 0;
    this.troubles = new Map();
    this.problems = [];
    this.problemsTotal = 0;
    this.sorted = null;
    this.dirty = null;            // null: everything
    this.claimsKept = null;
  }

  apply(change) {
    // What is shown stays until there is all of what takes its place: whoever reads does not lose the place.
    if (change.first) this.next = this.complete ? new Store() : null;
    if (this.next) {
      this.next.apply({ ...change, first: false });
      if (!change.complete) return;
      for (const name of TOLD) this[name] = this.next[name];
      this.next = null;
      this.dispatchEvent(new Event("change"));
      return;
    }
    if (change.first) this.clear();
    this.standby = change.standby;
    for (const pool of change.pools) this.putPool(pool);
    for (const [driver, pool] of change.gone) this.removePool(`${driver}/${pool}`);
    if (change.pools.length || change.gone.length) this.claimsKept = null;
    if (change.waiting) this.waiting = change.waiting;
    if (change.problems) {
      this.problems = change.problems;
      this.problemsTotal = change.problemsTotal;
    }
    if (change.complete || change.waiting) {
      this.waitingTotal = change.waitingTotal;
      this.nodeCount = change.nodes;
    }
    if (change.troubles) {
      this.troubles = new Map(change.troubles);
      this.dirty = null;
    }
    this.at = Date.now();
    if (change.complete) this.complete = true;
    if (this.complete || this.pools.size % 1000 === 0) this.dispatchEvent(new Event("change"));
  }

  /** Names of nodes that changed since the last call; null: all of them. */
  takeDirty() {
    const dirty = this.dirty;
    this.dirty = new Set();
    return dirty;
  }

  removePool(key) {
    const old = this.pools.get(key);
    if (!old) return;
    this.pools.delete(key);
    const node = this.nodes.get(old.node);
    node.pools.delete(key);
    node.list = null;
    if (!node.pools.size) {
      this.nodes.delete(old.node);
      this.sorted = null;
      this.dirty = null;
    } else if (this.dirty) this.dirty.add(old.node);
  }

  putPool(raw) {
    const key = `${raw.driver}/${raw.pool}`;
    const old = this.pools.get(key);
    if (old && old.node !== raw.node) this.removePool(key);
    const pool = { node: raw.node, notes: raw.notes, devices: raw.devices.map((d) => new Device(raw, d)) };
    this.pools.set(key, pool);
    let node = this.nodes.get(raw.node);
    if (!node) {
      node = new NodeState(raw.node);
      this.nodes.set(raw.node, node);
      this.sorted = null;
      this.dirty = null;
    }
    const before = node.pools.get(key);
    if (before && before.devices.length !== pool.devices.length) this.dirty = null;
    node.pools.set(key, pool);
    node.list = null;
    if (this.dirty) this.dirty.add(raw.node);
  }

  /** All nodes that have devices, in order of their names. */
  ordered() {
    if (!this.sorted) this.sorted = [...this.nodes.values()].sort((a, b) => byName.compare(a.name, b.name));
    return this.sorted;
  }

  *devices() {
    for (const node of this.ordered()) yield* node.devices;
  }

  /** Claims: those that hold devices, and those that wait as far as they were told. */
  claims() {
    if (this.claimsKept) return this.claimsKept;
    const found = new Map();
    for (const device of this.devices()) {
      for (const holder of device.holders) {
        let claim = found.get(holder.claim);
        if (!claim) {
          claim = { name: holder.claim, pods: holder.pods, devices: [], nodes: new Set(), state: "allocated", reason: "" };
          found.set(holder.claim, claim);
        }
        if (holder.shared) claim.state = "shared";
        claim.devices.push(device);
        claim.nodes.add(device.node);
      }
    }
    this.claimsKept = found;
    return found;
  }
}

const FIELDS = {
  node: (d) => d.node, device: (d) => d.name, model: (d) => d.model, type: (d) => d.type,
  // A device of which parts are allocated is allocated, too.
  state: (d) => (d.state === "shared" ? "shared allocated" : d.state),
  ns: (d) => d.holders.map((h) => h.claim.split("/")[0]).join("\n"),
  claim: (d) => d.holders.map((h) => h.claim).join("\n"),
  pod: (d) => d.holders.flatMap((h) => h.pods).join("\n"),
  health: (d) => d.severity || "healthy", activity: (d) => d.activity || "unknown", driver: (d) => d.driver,
};

/** The words of a filter, each with the field that it looks at; "…" holds several together. */
function parts(query) {
  const words = query.toLowerCase().match(/(?:[a-z]+:)?"[^"]*"|\S+/g) || [];
  return words.map((quoted) => {
    const word = quoted.replaceAll('"', "");
    const [, name, value] = /^([a-z]+):(.*)$/.exec(word) || [];
    return { word, name, value };
  }).filter(({ word }) => word);
}

/** A filter of devices: all words must be there; name:value looks at one field. null: everything matches. */
export function deviceFilter(query, labelOf) {
  const words = parts(query);
  if (!words.length) return null;
  const tests = words.map(({ word, name, value }) => {
    if (name && FIELDS[name]) return (d) => FIELDS[name](d).toLowerCase().includes(value);
    if (name === "group") return (d) => labelOf(d.node).toLowerCase().includes(value);
    return (d) => d.text.includes(word) || labelOf(d.node).toLowerCase().includes(word);
  });
  return (device) => tests.every((test) => test(device));
}

/** The same for rows that are plain texts. */
export function textFilter(query, fields) {
  const words = parts(query);
  if (!words.length) return null;
  return (row) => words.every(({ word, name, value }) => {
    if (name && fields[name]) return fields[name](row).toLowerCase().includes(value);
    return fields.text(row).toLowerCase().includes(word);
  });
}
