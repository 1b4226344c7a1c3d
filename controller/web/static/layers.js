// What the colours and marks of devices mean. Each has a mark of its own, too: colour never says it alone.
import { compareNames } from "./store.js";

const MOST_KINDS = 8;             // kinds that have a colour of their own; all others share one
const LETTERS = "ABCDEFGHIJ";

const STATE = [
  ["unhealthy", "Unhealthy", "bad", "cross"],
  ["shared", "Shared", "shared", "half"],
  ["allocated", "Allocated", "used", "solid"],
  ["blocked", "Blocked by partitions", "quiet", "hatch"],
  ["free", "Free", "empty", "hollow"],
];
const ACTIVITY = [
  ["wild", "Busy without a claim", "bad", "cross"],
  ["busy", "Allocated and busy", "good", "solid"],
  ["lazy", "Allocated, nothing runs", "warn", "dot"],
  ["idle", "Free and idle", "empty", "hollow"],
  ["unknown", "Not reported", "quiet", "hatch"],
];
const MEMORY = [
  ["full", "All given away", "level5", "level5"],
  ["75", "More than 75 %", "level4", "level4"],
  ["50", "More than 50 %", "level3", "level3"],
  ["25", "More than 25 %", "level2", "level2"],
  ["0", "Up to 25 %", "level1", "level1"],
  ["none", "None", "empty", "hollow"],
  ["unknown", "Not known", "quiet", "hatch"],
];
const HEALTH = [
  ["failed", "Failed", "bad", "cross"],
  ["degraded", "Degraded", "warn", "half"],
  ["tainted", "Tainted", "shared", "hatch"],
  ["node", "Node takes no pods", "quiet", "hatch"],
  ["info", "Noted, harmless", "used", "dot"],
  ["healthy", "Nothing known to be wrong", "empty", "hollow"],
];

const fixed = (rows) => rows.map(([key, label, color, mark]) => ({ key, label, color, mark, letter: "" }));

function activityOf(device) {
  if (!device.activity) return "unknown";
  const held = device.holders.some((h) => !h.admin);
  if (device.activity === "busy") return held ? "busy" : "wild";
  return held ? "lazy" : "idle";
}

function memoryOf(device) {
  const given = device.given;
  if (given === null) return "unknown";
  if (given >= 1) return "full";
  if (given <= 0) return "none";
  return given > 0.75 ? "75" : given > 0.5 ? "50" : given > 0.25 ? "25" : "0";
}

function kinds(store, of, none) {
  const counts = new Map();
  for (const device of store.devices()) {
    const key = of(device);
    if (key) counts.set(key, (counts.get(key) || 0) + 1);
  }
  const largest = [...counts].sort((a, b) => b[1] - a[1] || compareNames(a[0], b[0])).slice(0, MOST_KINDS);
  const buckets = largest.map(([key]) => key).sort(compareNames).map((key, i) => ({
    key, label: key, color: `kind${i + 1}`, mark: "solid", letter: LETTERS[i],
  }));
  if (counts.size > MOST_KINDS) {
    buckets.push({ key: "\u0000other", label: `${counts.size - MOST_KINDS} others`, color: "quiet", mark: "hatch", letter: "" });
  }
  if (none) buckets.push({ key: "", label: none, color: "empty", mark: "hollow", letter: "" });
  return buckets;
}

export const LAYERS = {
  state: { title: "Allocation", buckets: () => fixed(STATE), of: (d) => d.state },
  model: { title: "Model", buckets: (store) => kinds(store, (d) => d.model, ""), of: (d) => d.model },
  activity: { title: "Utilisation", buckets: () => fixed(ACTIVITY), of: activityOf },
  memory: { title: "Memory given away", buckets: () => fixed(MEMORY), of: memoryOf },
  health: {
    title: "Health", buckets: () => fixed(HEALTH),
    of: (d, store) => d.severity || (store.troubles.has(d.node) ? "node" : "healthy"),
  },
  holder: { title: "Who holds it", buckets: (store) => kinds(store, (d) => d.namespace, "Nobody"), of: (d) => d.namespace },
};

/** The layer as the fleet is now: buckets with counts, and which bucket a device is in. */
export function view(id, store) {
  const layer = LAYERS[id] || LAYERS.state;
  const buckets = layer.buckets(store);
  const index = new Map(buckets.map((bucket, i) => [bucket.key, i]));
  const other = index.get("\u0000other");
  const of = (device) => {
    const found = index.get(layer.of(device, store));
    return found !== undefined ? found : other !== undefined ? other : buckets.length - 1;
  };
  for (const bucket of buckets) bucket.count = 0;
  for (const device of store.devices()) buckets[of(device)].count += 1;
  return { id: LAYERS[id] ? id : "state", title: layer.title, buckets, of };
}

/** Draw the mark of a bucket into a square of a canvas. */
export function drawMark(context, x, y, size, bucket, colors) {
  const color = colors[bucket.color];
  const line = Math.max(1, size / 9);
  const inner = size - line;
  const path = new Path2D();
  const radius = size > 10 ? size / 6 : 1;
  path.roundRect(x + line / 2, y + line / 2, inner, inner, radius);
  context.lineWidth = line;
  context.strokeStyle = color;
  context.fillStyle = color;
  const mark = bucket.mark;
  if (mark === "solid" || mark === "cross") {
    context.fill(path);
    context.stroke(path);
  } else {
    context.fillStyle = colors.ground;
    context.fill(path);
    context.stroke(path);
    context.fillStyle = color;
  }
  context.save();
  context.clip(path);
  context.beginPath();
  if (mark === "cross") {
    context.strokeStyle = colors.ground;
    context.lineWidth = Math.max(1.2, size / 7);
    context.moveTo(x + size * 0.25, y + size * 0.25);
    context.lineTo(x + size * 0.75, y + size * 0.75);
    context.moveTo(x + size * 0.75, y + size * 0.25);
    context.lineTo(x + size * 0.25, y + size * 0.75);
    context.stroke();
  } else if (mark === "half") {
    context.moveTo(x, y);
    context.lineTo(x, y + size);
    context.lineTo(x + size, y + size);
    context.fill();
  } else if (mark === "hatch") {
    context.moveTo(x, y + size);
    context.lineTo(x + size, y);
    context.stroke();
  } else if (mark === "dot") {
    context.arc(x + size / 2, y + size / 2, size / 5, 0, 2 * Math.PI);
    context.fill();
  } else if (mark.startsWith("level")) {
    const height = (size * Number(mark.slice(5))) / 5;
    context.fillRect(x, y + size - height, size, height);
  }
  context.restore();
  if (bucket.letter && size >= 12) {
    context.fillStyle = colors.ground;
    context.font = `600 ${Math.round(size * 0.62)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(bucket.letter, x + size / 2, y + size / 2 + size * 0.04);
  }
}

const NAMES = ["ground", "bad", "good", "warn", "used", "shared", "quiet", "empty", "text", "muted", "line", "tile",
  ...Array.from({ length: MOST_KINDS }, (_, i) => `kind${i + 1}`), ...[1, 2, 3, 4, 5].map((i) => `level${i}`)];

/** The colours of the style sheet, as they are now. */
export function readColors() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** A small picture of a bucket's mark, for a legend. */
export function swatch(bucket, colors, size = 14) {
  const ratio = window.devicePixelRatio || 1;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size * ratio;
  canvas.className = "swatch";
  canvas.setAttribute("aria-hidden", "true");
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  drawMark(context, 0, 0, size, bucket, colors);
  return canvas;
}
