// What would make a waiting pod fit: asked of /fleet/plan when a reader wants to know it, drawn below the pod.
// Names are other people's: they get into the page as text only (textContent), never as markup.
import { make, many } from "./dom.js";
import { ask } from "./stream.js";

const MOST_LINES = 12;
export const plans = new Map();   // "namespace/pod" → what was answered; { loading: true } until then

export async function askPlan(pod, again) {
  plans.set(pod, { loading: true });
  again();
  let answer;
  try {
    answer = await ask(`fleet/plan?pod=${encodeURIComponent(pod)}`);
  } catch (error) {
    answer = { error: error.message };
  }
  if (plans.has(pod)) plans.set(pod, answer);
  again();
}

function planTable(titles, lines) {
  const table = make("table"), head = make("tr"), body = make("tbody");
  for (const title of titles) head.append(make("th", title, { scope: "col" }));
  for (const cells of lines.slice(0, MOST_LINES)) {
    const line = make("tr");
    for (const cell of cells) line.append(make("td", cell));
    body.append(line);
  }
  table.append(make("thead"), body);
  table.tHead.append(head);
  const frame = make("div", undefined, { class: "scroll", tabindex: "0", role: "group", "aria-label": titles.join(", ") });
  frame.append(table);
  const rest = lines.length - MOST_LINES;
  if (rest > 0) frame.append(make("p", `and ${rest} more (as data: all)`));
  return frame;
}

function planNodes(placement) {
  const names = [...new Set(placement.map((entry) => entry.node))].sort();
  return names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more nodes` : "");
}

function devicesOf(entry) {
  return entry.devices.map((d) => d.device.split("/").pop()).join(", ");
}

const proofOf = (answer) => (answer.proven ? "the fewest" : "that fewer are not enough is not proven");

function freeParts(free) {
  const proof = free.proven ? "the fewest" : `at least ${free.atLeast} are needed; that fewer are not enough is not proven`;
  return [
    `${free.number} (${proof}), then it fits on ${planNodes(free.placement)}`,
    planTable(["Holder", "Priority", "Claims", "Devices"],
      free.holders.map((h) => [h.name, h.priority, h.claims.join(", "), h.devices])),
  ];
}

function moveParts(move) {
  return [
    `${move.number} (${proofOf(move)}), then it fits on ${planNodes(move.placement)}`,
    planTable(["Holder", "Priority", "Claims", "To node"],
      move.holders.map((h) => [h.name, h.priority, h.claims.join(", "), planNodes(h.to)])),
  ];
}

function relaxLine(part) {
  return [part.part, part.change, part.excludedDevices === null ? "–" : part.excludedDevices];
}

/** What would help, then what would not: whoever is called at night reads the first lines. */
function planList(plan) {
  const list = make("dl");
  const entry = (title, ...parts) => {
    const value = make("dd");
    value.append(...parts);
    list.append(make("dt", title), value);
  };
  if (plan.fits || plan.error) {
    if (plan.largestClaim) entry("Largest such claim that fits now", many(plan.largestClaim.now, "device"));
    return list;
  }
  if (plan.free.helps) entry("Free holders", ...freeParts(plan.free));
  if (plan.move.helps) entry("Move holders", ...moveParts(plan.move));
  for (const nodes of plan.addNodes.filter((n) => n.helps)) {
    entry(`More nodes like ${nodes.like}`, `${nodes.number}${nodes.proven ? "" : ` (${proofOf(nodes)})`}`);
  }
  const relaxed = plan.relax.filter((part) => part.fits);
  if (relaxed.length) {
    entry("Relax one part of the request",
      planTable(["Part", "Change", "Devices excluded by it alone"], relaxed.map(relaxLine)));
  }
  if (plan.largestClaim) entry("Largest such claim that fits now", plan.largestClaim.now ? many(plan.largestClaim.now, "device") : "none");
  const others = [["freeing holders", plan.free], ["moving holders", plan.move], ...plan.addNodes.map((n) => [`more nodes like ${n.like}`, n]),
    ...plan.relax.filter((part) => !part.fits).map((part) => [`without ${part.part}`, { helps: part.proven ? false : null }])];
  const named = (helps) => others.filter(([, answer]) => answer.helps === helps).map(([what]) => what).join("; ");
  if (named(false)) entry("Does not help", named(false));
  if (named(null)) entry("Not found to help (not proven that it does not)", named(null));
  if (plan.never) entry("Never", `no change of these kinds makes it fit. With every holder gone: ${plan.never}`);
  if (plan.unfinished.length) entry("Not finished in time", [...new Set(plan.unfinished)].join(", "));
  return list;
}

function planSummary(plan) {
  const of = plan.workload + (plan.pods > 1 ? ` (${plan.pods} pods)` : "");
  if (plan.error) return `${of} cannot be allocated: ${plan.reason}`;
  if (!plan.fits) return `${of} does not fit now${plan.certain ? "" : " (not proven)"}: ${plan.reason}`;
  return `${of} fits now on ${planNodes(plan.placement)}`;
}

export function drawPlan(cell, pod, again) {
  const answer = plans.get(pod);
  const foot = make("p", undefined, { class: "foot" });
  const parts = [];
  if (answer.loading) {
    parts.push(make("p", "working it out …"));
  } else if (answer.error) {
    parts.push(make("p", answer.error, { class: "bad" }));
  } else {
    const plan = answer.plan;
    parts.push(make("p", planSummary(plan)));
    if (plan.placement) {
      parts.push(planTable(["Claim", "Node", "Devices"], plan.placement.map((e) => [e.claim, e.node, devicesOf(e)])));
    }
    if (!plan.error) parts.push(planList(plan));
    for (const note of plan.notes) parts.push(make("p", note));
    foot.append(`worked out in ${answer.seconds} s${answer.age >= 1 ? `, ${Math.round(answer.age)} s ago` : ""} `);
  }
  if (!answer.loading) {
    const button = make("button", "Ask again", { type: "button", class: "small" });
    button.addEventListener("click", () => askPlan(pod, again));
    foot.append(button, " ", make("a", "as data", { href: `fleet/plan?pod=${encodeURIComponent(pod)}` }));
    parts.push(foot);
  }
  cell.setAttribute("aria-busy", String(Boolean(answer.loading)));
  const focused = cell.contains(document.activeElement);
  cell.replaceChildren(...parts);
  if (!focused) return;
  // Who asked again by keyboard goes on from here.
  cell.tabIndex = -1;
  (foot.querySelector("button") || cell).focus({ preventScroll: true });
}
