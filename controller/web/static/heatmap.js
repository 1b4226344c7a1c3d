// The nodes as tiles with a cell for each device, drawn on strips of canvas that scroll with the page: scrolling
// itself draws nothing but the strips that come into view. By keyboard and for screen readers it is a list box
// of nodes, of which the active one is in words.
import { make, memory, nest } from "./dom.js";
import { drawMark } from "./layers.js";
import { compareNames } from "./store.js";
import { told } from "./table.js";

const STRIP = 512;                // height of a strip
const AHEAD = 512;                // drawn beyond what is in view
const HEAD = 38;                  // height of a group's title
const GAP = 6;
const SIZES = { s: { cell: 8, names: false }, m: { cell: 13, names: false }, l: { cell: 20, names: true } };
const MOST_CELLS = 64;            // of one tile; a node with more devices shows the first of them
const NAME = 18;
const NAMED = 112;                // width of a tile with its name, at least

export const autoSize = (nodes) => (nodes <= 60 ? "l" : nodes <= 600 ? "m" : "s");

/** Where everything is: groups with rows of tiles, top to bottom. */
function layOut(groups, width, size, deviceCount) {
  const { cell, names } = SIZES[size];
  const rows = [];
  const heads = [];
  const place = new Map();
  let y = 0;
  for (const group of groups) {
    if (group.label !== null) {
      heads.push({ y, group });
      y += HEAD;
    }
    const most = Math.min(MOST_CELLS, Math.max(1, ...group.nodes.map(deviceCount)));
    const across = most <= 4 ? most : most <= 8 ? 4 : Math.min(16, Math.ceil(Math.sqrt(most * 2)));
    const down = Math.ceil(most / across);
    const gap = cell > 8 ? 2 : 1;
    const least = Math.max(names ? NAMED : 0, across * (cell + gap) - gap + 8);
    const height = down * (cell + gap) - gap + 8 + (names ? NAME : 0);
    const perRow = Math.max(1, Math.floor((width + GAP) / (least + GAP)));
    // What is left of the width belongs to the names.
    const tile = names ? Math.floor((width + GAP) / perRow) - GAP : least;
    for (let first = 0; first < group.nodes.length; first += perRow) {
      const nodes = group.nodes.slice(first, first + perRow);
      const row = { y, height, tile, across, gap, nodes };
      nodes.forEach((node, column) => place.set(node.name, { row: rows.length, column }));
      rows.push(row);
      y += height + GAP;
    }
    y += 10;
  }
  return { rows, heads, place, height: y, cell, names, width };
}

function firstAt(items, y, end) {
  let low = 0, high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (end(items[middle]) <= y) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class HeatMap {
  /**
   * @param {object} hooks open(kind, name): show the page of a node or device; describe(node): the node in words.
   */
  constructor(hooks) {
    this.hooks = hooks;
    this.strips = new Map();
    this.free = [];
    this.headElements = new Map();
    this.active = null;
    this.frame = 0;
    this.stale = new Set();
    this.inner = make("div", undefined, { class: "map-inner" });
    this.option = make("div", "", { class: "hidden", role: "option", id: "map-option", "aria-selected": "false" });
    this.box = make("div", undefined, {
      class: "map", role: "listbox", tabindex: "0", id: "map", "aria-activedescendant": "map-option",
      "aria-label": "Nodes. Arrow keys move, Enter opens a node, N and P go to the next and previous group.",
    });
    this.ring = make("div", undefined, { class: "map-ring", hidden: true });
    this.tip = make("div", undefined, { class: "tip", hidden: true, "aria-hidden": "true" });
    this.heads = make("div", undefined, { class: "map-heads" });
    this.box.append(this.option, this.inner, this.ring);
    this.root = nest("div", { class: "map-root" }, this.heads, this.box, this.tip);
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("focus", () => this.activate(this.active || this.firstInView(), false));
    this.box.addEventListener("blur", () => { this.ring.hidden = true; });
    this.box.addEventListener("click", (event) => this.click(event));
    this.box.addEventListener("pointermove", (event) => this.hover(event));
    this.box.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.onScroll = () => {
      this.tip.hidden = true;
      this.schedule();
    };
    this.watcher = new ResizeObserver(() => this.resized());
  }

  start() {
    window.addEventListener("scroll", this.onScroll, { passive: true });
    this.watcher.observe(this.root);
  }

  stop() {
    window.removeEventListener("scroll", this.onScroll);
    this.watcher.disconnect();
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }

  /** Show these groups in these colours; everything is laid out and drawn again. */
  show({ groups, layer, colors, matches, size }) {
    this.groups = groups;
    this.size = size;
    this.paint = { layer, colors, matches };
    this.order = groups.flatMap((group) => group.nodes);
    this.byName = new Map(this.order.map((node, i) => [node.name, i]));
    this.relay();
  }

  /** The devices of these nodes are others: draw them again. */
  refresh({ layer, colors, matches }, dirty) {
    this.paint = { layer, colors, matches };
    this.sprites = null;
    if (!dirty) for (const index of this.strips.keys()) this.stale.add(index);
    else for (const name of dirty) this.stain(name);
    this.schedule();
    this.words();
  }

  stain(name) {
    const place = this.layout && this.layout.place.get(name);
    if (!place) return;
    const row = this.layout.rows[place.row];
    const last = Math.floor((row.y + row.height) / STRIP);
    for (let i = Math.floor(row.y / STRIP); i <= last; i += 1) this.stale.add(i);
  }

  resized() {
    if (this.groups && this.layout && Math.abs(this.root.clientWidth - this.layout.width) >= 1) this.relay();
  }

  relay() {
    const width = this.root.clientWidth;
    if (!width) return;
    this.layout = layOut(this.groups, width, this.size, (node) => node.devices.length);
    this.box.style.height = `${this.layout.height}px`;
    this.sprites = null;
    for (const index of [...this.strips.keys()]) this.drop(index);
    for (const head of this.headElements.values()) head.remove();
    this.headElements.clear();
    this.stale.clear();
    this.paintNow();
    this.words();
    if (document.activeElement === this.box) this.placeRing();
  }

  schedule() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.paintNow());
  }

  paintNow() {
    this.frame = 0;
    if (!this.layout || !this.root.isConnected) return;
    const top = -this.box.getBoundingClientRect().top;
    const from = Math.max(0, Math.floor((top - AHEAD) / STRIP));
    const to = Math.min(Math.ceil(this.layout.height / STRIP) - 1, Math.floor((top + window.innerHeight + AHEAD) / STRIP));
    for (const index of [...this.strips.keys()]) if (index < from || index > to) this.drop(index);
    for (let index = from; index <= to; index += 1) {
      if (!this.strips.has(index)) this.drawStrip(index, this.take(index));
      else if (this.stale.has(index)) this.drawStrip(index, this.strips.get(index));
    }
    this.stale.clear();
    this.placeHeads(top - AHEAD, top + window.innerHeight + AHEAD);
  }

  take(index) {
    const canvas = this.free.pop() || make("canvas", undefined, { "aria-hidden": "true" });
    canvas.style.top = `${index * STRIP}px`;
    this.strips.set(index, canvas);
    this.inner.append(canvas);
    return canvas;
  }

  drop(index) {
    const canvas = this.strips.get(index);
    canvas.remove();
    this.strips.delete(index);
    if (this.free.length < 6) this.free.push(canvas);
  }

  sprite(bucket, ratio) {
    const size = this.layout.cell;
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = Math.ceil(size * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    drawMark(context, 0, 0, size, bucket, this.paint.colors);
    return canvas;
  }

  drawStrip(index, canvas) {
    const ratio = window.devicePixelRatio || 1;
    const { rows, width, height } = this.layout;
    const tall = Math.min(STRIP, height - index * STRIP);
    const pixels = [Math.round(width * ratio), Math.round(tall * ratio)];
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${tall}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, tall);
    context.translate(0, -index * STRIP);
    if (!this.sprites) this.sprites = this.paint.layer.buckets.map((bucket) => this.sprite(bucket, ratio));
    const end = index * STRIP + tall;
    for (let i = firstAt(rows, index * STRIP, (row) => row.y + row.height); i < rows.length && rows[i].y < end; i += 1) {
      this.drawRow(context, rows[i]);
    }
  }

  drawRow(context, row) {
    const { cell, names } = this.layout;
    const { layer, colors, matches } = this.paint;
    row.nodes.forEach((node, column) => {
      const x = column * (row.tile + GAP);
      context.globalAlpha = 1;
      context.fillStyle = colors.tile;
      context.beginPath();
      context.roundRect(x, row.y, row.tile, row.height, 3);
      context.fill();
      let any = !matches;
      node.devices.slice(0, MOST_CELLS).forEach((device, i) => {
        const shown = !matches || matches(device);
        any = any || shown;
        context.globalAlpha = shown ? 1 : 0.16;
        const cx = x + 4 + (i % row.across) * (cell + row.gap);
        const cy = row.y + 4 + (names ? NAME : 0) + Math.floor(i / row.across) * (cell + row.gap);
        context.drawImage(this.sprites[layer.of(device)], cx, cy, cell, cell);
      });
      if (names) {
        context.globalAlpha = any ? 1 : 0.45;
        context.fillStyle = colors.text;
        context.font = "12px system-ui, sans-serif";
        context.textAlign = "left";
        context.textBaseline = "middle";
        context.fillText(this.short(context, node.name, row.tile - 8), x + 5, row.y + 4 + NAME / 2 - 1);
      }
    });
  }

  short(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    const room = Math.max(1, Math.floor((text.length * width) / context.measureText(text).width) - 2);
    return `${text.slice(0, room)}…`;
  }

  placeHeads(from, to) {
    const { heads } = this.layout;
    const wanted = new Set();
    for (let i = firstAt(heads, from, (head) => head.y + HEAD); i < heads.length && heads[i].y < to; i += 1) wanted.add(heads[i]);
    for (const [head, element] of this.headElements) {
      if (!wanted.has(head)) {
        element.remove();
        this.headElements.delete(head);
      }
    }
    for (const head of wanted) {
      if (this.headElements.has(head)) continue;
      const element = nest("div", { class: "map-head" },
        make("h3", head.group.label), make("span", told(head.group.nodes.length, head.group.total, head.group.total === 1 ? "node" : "nodes")));
      element.style.top = `${head.y}px`;
      this.headElements.set(head, element);
      this.heads.append(element);
    }
  }

  // --- pointer ---------------------------------------------------------------------------------------------

  at(event) {
    if (!this.layout) return null;
    const box = this.box.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const { rows, cell, names } = this.layout;
    const row = rows[firstAt(rows, y, (r) => r.y + r.height)];
    if (!row || y < row.y) return null;
    const column = Math.floor(x / (row.tile + GAP));
    const node = row.nodes[column];
    const dx = x - column * (row.tile + GAP);
    if (!node || dx > row.tile) return null;
    const across = Math.floor((dx - 4) / (cell + row.gap));
    const down = Math.floor((y - row.y - 4 - (names ? NAME : 0)) / (cell + row.gap));
    const inside = across >= 0 && down >= 0 && across < row.across;
    const index = down * row.across + across;
    return { node, device: inside && index < MOST_CELLS ? node.devices[index] || null : null };
  }

  click(event) {
    const found = this.at(event);
    if (!found) return;
    this.active = found.node;
    if (found.device) this.hooks.open("device", found.device.id);
    else this.hooks.open("node", found.node.name);
  }

  hover(event) {
    const found = event.pointerType === "touch" ? null : this.at(event);
    this.tip.hidden = !found;
    this.box.classList.toggle("pointing", Boolean(found));
    if (!found) return;
    const { node, device } = found;
    const lines = device
      ? [device.name, `${device.model} · ${device.memory ? memory(device.memory) : "memory not known"} · ${device.state}`,
        ...device.holders.map((h) => `${h.claim}${h.pods.length ? ` · ${h.pods.join(", ")}` : ""}`), ...device.problems]
      : [this.hooks.describe(node)];
    const [first, ...rest] = [node.name, ...lines];
    this.tip.replaceChildren(make("strong", first), ...rest.slice(0, 8).map((line) => make("span", line)));
    const box = this.root.getBoundingClientRect();
    const left = event.clientX - box.left, width = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(left + 14, box.width - width))}px`;
    const below = event.clientY + this.tip.offsetHeight + 24 < window.innerHeight;
    this.tip.style.top = `${event.clientY - box.top + (below ? 16 : -this.tip.offsetHeight - 10)}px`;
  }

  // --- keyboard --------------------------------------------------------------------------------------------

  firstInView() {
    if (!this.layout || !this.layout.rows.length) return null;
    const { rows } = this.layout;
    const top = Math.max(0, 80 - this.box.getBoundingClientRect().top);
    return rows[Math.min(rows.length - 1, firstAt(rows, top, (row) => row.y + row.height))].nodes[0];
  }

  words() {
    const index = this.active ? this.byName.get(this.active.name) : undefined;
    const node = index === undefined ? this.order && this.order[0] : this.order[index];
    this.active = index === undefined ? null : node;
    this.option.textContent = node ? this.hooks.describe(node) : "No node";
    this.option.setAttribute("aria-setsize", String(this.order ? this.order.length : 0));
    this.option.setAttribute("aria-posinset", String(node ? this.byName.get(node.name) + 1 : 0));
    this.option.setAttribute("aria-selected", String(index !== undefined));
  }

  activate(node, scroll) {
    if (!node) return;
    this.active = node;
    this.words();
    this.placeRing();
    if (!scroll) return;
    const box = this.ring.getBoundingClientRect();
    const top = 120, bottom = window.innerHeight - 80;
    if (box.top < top) window.scrollBy(0, box.top - top);
    else if (box.bottom > bottom) window.scrollBy(0, box.bottom - bottom);
  }

  placeRing() {
    const place = this.active && this.layout.place.get(this.active.name);
    this.ring.hidden = !place;
    if (!place) return;
    const row = this.layout.rows[place.row];
    Object.assign(this.ring.style, {
      left: `${place.column * (row.tile + GAP) - 3}px`, top: `${row.y - 3}px`,
      width: `${row.tile + 6}px`, height: `${row.height + 6}px`,
    });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.layout || !this.layout.rows.length) return;
    const node = this.active || this.firstInView();
    const { row, column } = this.layout.place.get(node.name);
    const { rows } = this.layout;
    const vertical = (step) => {
      const next = rows[Math.max(0, Math.min(rows.length - 1, row + step))];
      return next.nodes[Math.min(column, next.nodes.length - 1)];
    };
    const beside = (step) => this.order[Math.max(0, Math.min(this.order.length - 1, this.byName.get(node.name) + step))];
    const group = (step) => {
      const now = this.groups.findIndex((g) => g.nodes.includes(node));
      return this.groups[Math.max(0, Math.min(this.groups.length - 1, now + step))].nodes[0];
    };
    const moves = {
      ArrowRight: () => beside(1), ArrowLeft: () => beside(-1), ArrowDown: () => vertical(1), ArrowUp: () => vertical(-1),
      PageDown: () => vertical(10), PageUp: () => vertical(-10), Home: () => this.order[0],
      End: () => this.order[this.order.length - 1], n: () => group(1), p: () => group(-1),
    };
    if (event.key === "Enter" || event.key === " ") this.hooks.open("node", node.name);
    else if (moves[event.key]) this.activate(moves[event.key](), true);
    else return;
    event.preventDefault();
  }
}

/** Nodes in groups by a label: those without it last. */
export function groupNodes(nodes, labelOf, none) {
  if (!labelOf) return [{ label: null, nodes }];
  const groups = new Map();
  for (const node of nodes) {
    const value = labelOf(node);
    if (!groups.has(value)) groups.set(value, []);
    groups.get(value).push(node);
  }
  const order = [...groups].sort((a, b) => Number(!a[0]) - Number(!b[0]) || compareNames(a[0], b[0]));
  return order.map(([value, members]) => ({ label: value || none, nodes: members }));
}
