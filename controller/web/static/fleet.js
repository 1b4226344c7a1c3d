"use strict";
// Draws what /fleet/events tells. Text gets into the page as text only (textContent), never as markup.

const STATES = ["unhealthy", "shared", "allocated", "blocked", "free"];
const GLYPH = { unhealthy: "!", shared: "½", allocated: "●", blocked: "–", free: "" };
const pools = new Map();          // "driver pool" → pool
const nodes = new Map();          // node → Map of its pools
const elements = new Map();       // node → element
const shown = new Set(STATES);    // states that are not dimmed
const dirty = new Set();          // nodes to draw again
const rows = new Map();           // waiting claim → its lines in the table
let asked = "", planNumber = 0;   // a pod that is asked about by its name; for identifiers
let waiting = [], waitingTotal = 0, nodeCount = 0, chosen = null, frame = 0, needle = "";

const $ = (id) => document.getElementById(id);

function make(tag, text, attributes) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  return element;
}

// --- state ---------------------------------------------------------------------------------------------------

function forget() {
  for (const node of nodes.keys()) dirty.add(node);
  pools.clear();
  nodes.clear();
}

function removePool(key) {
  const old = pools.get(key);
  if (!old) return;
  pools.delete(key);
  const mine = nodes.get(old.node);
  mine.delete(key);
  if (!mine.size) nodes.delete(old.node);
  dirty.add(old.node);
}

function putPool(pool) {
  const key = pool.driver + " " + pool.pool;
  removePool(key);
  pools.set(key, pool);
  if (!nodes.has(pool.node)) nodes.set(pool.node, new Map());
  nodes.get(pool.node).set(key, pool);
  dirty.add(pool.node);
}

function apply(change) {
  if (change.first) forget();
  for (const pool of change.pools) putPool(pool);
  for (const [driver, pool] of change.gone) removePool(driver + " " + pool);
  if (change.waiting) {
    waiting = change.waiting;
    waitingTotal = change.waitingTotal;
    nodeCount = change.nodes;
  }
  if (change.complete || dirty.size > 500) draw();
}

// --- drawing -------------------------------------------------------------------------------------------------

function draw() {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; drawNow(); });
}

function drawNow() {
  const order = dirty.size ? [...nodes.keys()].sort() : null;
  for (const node of dirty) drawNode(node);
  dirty.clear();
  if (order) {
    const parent = $("nodes");
    let next = parent.firstElementChild;
    for (const node of order) {
      const element = elements.get(node);
      if (element === next) next = next.nextElementSibling;
      else parent.insertBefore(element, next);
    }
  }
  drawSummary();
  drawWaiting();
  drawDetail();
}

function matches(node, device) {
  if (!shown.has(device.state)) return false;
  if (!needle) return true;
  const words = [node, device.name, device.model, device.type];
  for (const holder of device.holders) words.push(holder.claim, ...holder.pods);
  return words.some((word) => word.toLowerCase().includes(needle));
}

function drawNode(node) {
  const mine = nodes.get(node);
  let element = elements.get(node);
  if (!mine) {
    if (element) element.remove();
    elements.delete(node);
    return;
  }
  if (!element) {
    element = make("article", undefined, { class: "node", "data-node": node });
    elements.set(node, element);
  }
  element.replaceChildren(make("h3", node));
  const devices = make("div", undefined, { class: "devices" });
  element.append(devices);
  for (const [key, pool] of [...mine].sort()) {
    for (const device of pool.devices) devices.append(cell(key, node, device));
    for (const note of pool.notes) element.append(make("p", note, { class: "note" }));
  }
}

function cell(key, node, device) {
  const label = `${device.name}, ${device.model}, ${device.memory || "memory unknown"}: ${device.state}`;
  const button = make("button", GLYPH[device.state], {
    type: "button", class: `device ${device.state}`, title: label, "aria-label": label,
    "data-pool": key, "data-device": device.name, "data-state": device.state,
  });
  if (!matches(node, device)) button.classList.add("dim");
  if (chosen && chosen.key === key && chosen.device === device.name) button.setAttribute("aria-current", "true");
  return button;
}

function drawSummary() {
  const sums = Object.fromEntries(STATES.map((state) => [state, 0]));
  const models = new Map();
  let total = 0;
  for (const pool of pools.values()) {
    for (const device of pool.devices) {
      total += 1;
      sums[device.state] += 1;
      const key = device.model + "\u0000" + device.type;
      if (!models.has(key)) models.set(key, { model: device.model, type: device.type, total: 0, states: {} });
      const row = models.get(key);
      row.total += 1;
      row.states[device.state] = (row.states[device.state] || 0) + 1;
    }
  }
  $("totals").textContent = `${total} devices on ${nodes.size} of ${nodeCount} nodes, ${waitingTotal} claims wait`;
  $("empty").hidden = total > 0;
  $("bar").replaceChildren(...STATES.filter((s) => sums[s]).map((state) => {
    const part = make("span", undefined, { class: state });
    part.style.width = `${(100 * sums[state]) / total}%`;
    return part;
  }));
  for (const button of $("legend").children) {
    button.lastElementChild.textContent = `${sums[button.dataset.state]} ${button.dataset.state}`;
    button.setAttribute("aria-pressed", String(shown.has(button.dataset.state)));
  }
  const head = make("tr");
  for (const title of ["Model", "Type"]) head.append(make("th", title));
  for (const title of ["Devices", ...STATES]) head.append(make("th", title, { class: "number" }));
  document.querySelector("#models thead").replaceChildren(head);
  document.querySelector("#models tbody").replaceChildren(...[...models.entries()].sort().map(([, row]) => {
    const line = make("tr");
    line.append(make("td", row.model), make("td", row.type), make("td", row.total, { class: "number" }));
    for (const state of STATES) line.append(make("td", row.states[state] || 0, { class: "number" }));
    return line;
  }));
}

function drawWaiting() {
  $("waiting").hidden = waitingTotal === 0 && !asked;
  const body = document.querySelector("#waiting tbody");
  const lines = [];
  const claims = new Set();
  for (const claim of waiting) {
    claims.add(claim.claim);
    lines.push(...waitingLines(claim));
  }
  for (const [name, row] of rows) {
    if (claims.has(name)) continue;
    rows.delete(name);
    plans.delete(row.pod);
    row.line.remove();
    row.plan.remove();
  }
  // What stands where it belongs is left alone: it may have the focus.
  let next = body.firstElementChild;
  for (const line of lines) {
    if (line === next) next = next.nextElementSibling;
    else body.insertBefore(line, next);
  }
  while (next) {
    const gone = next;
    next = next.nextElementSibling;
    gone.remove();
  }
  const rest = waitingTotal - waiting.length;
  document.querySelector("#waiting .more").textContent = rest > 0 ? `and ${rest} more` : "";
  $("other").hidden = rest <= 0 && !asked;
}

function waitingLines(claim) {
  let row = rows.get(claim.claim);
  if (!row) {
    row = waitingRow(claim.claim);
    rows.set(claim.claim, row);
  }
  const pod = claim.pods.length ? `${claim.claim.split("/")[0]}/${claim.pods[0]}` : "";
  if (pod !== row.pod) {
    plans.delete(row.pod);
    row.pod = pod;
  }
  put(row.pods, claim.pods.join(", ") || "–");
  put(row.reason, claim.reason);
  row.button.hidden = !pod;
  row.button.setAttribute("aria-label", `What would make ${pod} fit?`);
  row.button.setAttribute("aria-expanded", String(plans.has(pod)));
  return plans.has(pod) ? [row.line, row.plan] : [row.line];
}

function waitingRow(claim) {
  const id = `plan-${(planNumber += 1)}`;
  const row = { pod: "", line: make("tr"), plan: make("tr", undefined, { class: "plan" }) };
  row.pods = make("td");
  row.reason = make("td");
  row.button = make("button", "Plan", { type: "button", class: "ask", "aria-controls": id });
  row.button.addEventListener("click", () => {
    if (plans.delete(row.pod)) drawWaiting();
    else askPlan(row.pod, () => redrawPlan(row, cell));
  });
  const last = make("td");
  last.append(row.button);
  row.line.append(make("td", claim), row.pods, row.reason, last);
  const cell = make("td", undefined, { id, colspan: "4", "aria-live": "polite" });
  row.plan.append(cell);
  return row;
}

function redrawPlan(row, cell) {
  drawWaiting();
  if (plans.has(row.pod)) drawPlan(cell, row.pod, () => redrawPlan(row, cell));
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function drawDetail() {
  const panel = $("detail");
  const pool = chosen && pools.get(chosen.key);
  const device = pool && pool.devices.find((d) => d.name === chosen.device);
  panel.hidden = !device;
  if (!device) return;
  const list = make("dl");
  const line = (name, value) => { if (value) list.append(make("dt", name), make("dd", value)); };
  line("node", pool.node);
  line("driver", pool.driver);
  line("model", device.model);
  line("type", device.type);
  line("memory", device.memory);
  line("state", device.state);
  for (const problem of device.problems) line("problem", problem);
  for (const holder of device.holders) {
    const share = Object.entries(holder.share).map(([name, amount]) => `${amount} ${name}`).join(", ");
    const what = [holder.admin ? "admin access" : "", share].filter(Boolean).join(", ");
    line("claim", `${holder.claim} (${holder.request})${what ? `: ${what}` : ""}`);
    line("pods", holder.pods.join(", "));
  }
  const close = make("button", "close", { type: "button" });
  close.addEventListener("click", () => choose(null));
  panel.replaceChildren(close, make("h3", device.name), list);
}

function choose(target) {
  const before = chosen;
  chosen = target;
  for (const one of [before, chosen]) {
    const pool = one && pools.get(one.key);
    if (pool) dirty.add(pool.node);
  }
  drawNow();
  if (chosen) {
    const cells = document.querySelectorAll(".device[aria-current]");
    if (cells.length) cells[0].focus();
  }
}

// --- events --------------------------------------------------------------------------------------------------

function tell(text, bad) {
  $("connection").textContent = text;
  $("connection").classList.toggle("bad", Boolean(bad));
}

function connect() {
  const source = new EventSource("fleet/events");
  const again = (text) => {
    source.close();
    tell(text, true);
    setTimeout(connect, 2000);
  };
  source.addEventListener("change", (event) => {
    tell("live");
    apply(JSON.parse(event.data));
  });
  source.addEventListener("standby", (event) => again(`${JSON.parse(event.data).text}; looking for it …`));
  source.addEventListener("busy", () => again("too many readers; trying again …"));
  source.onerror = () => again("not connected, what you see is old; trying again …");
}

for (const state of STATES) {
  const button = make("button", undefined, { type: "button", "data-state": state, "aria-pressed": "true" });
  button.append(make("i", undefined, { class: state }), make("span", state));
  button.addEventListener("click", () => {
    if (!shown.delete(state)) shown.add(state);
    for (const node of nodes.keys()) dirty.add(node);
    draw();
  });
  $("legend").append(button);
}
$("filter").addEventListener("input", (event) => {
  needle = event.target.value.trim().toLowerCase();
  for (const node of nodes.keys()) dirty.add(node);
  draw();
});
$("nodes").addEventListener("click", (event) => {
  const button = event.target.closest(".device");
  if (button) choose({ key: button.dataset.pool, device: button.dataset.device });
});
$("other").addEventListener("submit", (event) => {
  event.preventDefault();
  plans.delete(asked);
  asked = $("other-pod").value.trim();
  const again = () => { if (plans.has(asked)) drawPlan($("other-plan"), asked, again); };
  if (asked) askPlan(asked, again);
  else $("other-plan").replaceChildren();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && chosen) choose(null); });
connect();
