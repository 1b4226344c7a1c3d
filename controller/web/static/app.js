// Begins: the connection, which view is shown, the filter, the colours, keys.
import { Detail } from "./detail.js";
import { $, age, make, many, nest, number, put } from "./dom.js";
import { Fleet } from "./fleet.js";
import { Claims, Devices, Nodes } from "./lists.js";
import { address, change, KINDS, objectAddress, parse } from "./route.js";
import { Store } from "./store.js";
import { ask, follow, hasToken, setToken } from "./stream.js";
import { Waiting } from "./waiting.js";

const store = new Store();
const MADE = { fleet: Fleet, waiting: Waiting, devices: Devices, claims: Claims, nodes: Nodes };
const TEXTS = { connecting: "Connecting", live: "Live", lost: "Not connected", loading: "Loading", busy: "Too many readers", refused: "No permission" };
let shown = null;                 // the view, with the address that it was made for
let shownFor = "";
let connection = { state: "connecting", text: "" };

// --- views ---------------------------------------------------------------------------------------------------

function route() {
  const { view, name, params } = parse();
  const key = `${view}/${name}`;
  const input = $("q");
  if (key !== shownFor) {
    const first = shownFor === "";
    if (shown) shown.stop();
    shown = KINDS.includes(view) ? new Detail(view, name) : new MADE[view](store);
    shownFor = key;
    document.title = `${shown.title} · dra-driver`;
    for (const link of $("views").children) {
      const current = link.dataset.view === view || link.dataset.view === `${view}s`;
      if (current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    $("main").replaceChildren(shown.root);
    if (!first) window.scrollTo(0, 0);
    // Who types a filter goes on typing, though the view changes beneath.
    if (!first && document.activeElement !== input) shown.root.querySelector("h1").focus({ preventScroll: true });
    shown.start();
    drawConnection();
  }
  if (shown.route) shown.route(params);
  for (const link of $("views").children) link.href = address(link.dataset.view, "", { q: params.q });
  if (document.activeElement !== input) input.value = params.q || "";
}

function exact(query) {
  const name = query.trim();
  if (store.nodes.has(name)) return objectAddress("node", name);
  if (store.claims().has(name) || store.waiting.some((w) => w.claim === name)) return objectAddress("claim", name);
  const [namespace, pod] = name.split("/", 2);
  const uses = (claim, pods) => claim.startsWith(`${namespace}/`) && pods.includes(pod);
  for (const claim of store.claims().values()) if (uses(claim.name, claim.pods)) return objectAddress("pod", name);
  return store.waiting.some((w) => uses(w.claim, w.pods)) ? objectAddress("pod", name) : "";
}

/** The same, asked for: not everything that waits is here. */
async function known(query) {
  const name = query.trim();
  if (!name || /[\s:"]/.test(name)) return "";
  for (const kind of name.includes("/") ? ["pod", "claim"] : ["node"]) {
    try {
      await ask(`fleet/object?${kind}=${encodeURIComponent(name)}`);
      return objectAddress(kind, name);
    } catch {
      // There is none of this kind.
    }
  }
  return "";
}

let typing = 0;
$("q").addEventListener("input", (event) => {
  clearTimeout(typing);
  const q = event.target.value;
  typing = setTimeout(() => {
    if (KINDS.includes(parse().view)) location.hash = address("devices", "", { q });
    else change({ q });
  }, 150);
});
$("search").addEventListener("submit", async (event) => {
  event.preventDefault();
  const query = $("q").value;
  const target = exact(query) || await known(query);
  if (target && $("q").value === query) {
    clearTimeout(typing);
    $("q").blur();
    location.hash = target;
  }
});

// --- the connection ------------------------------------------------------------------------------------------

function drawConnection() {
  const { state, text } = connection;
  $("connection").dataset.state = state;
  put($("connection").lastElementChild, TEXTS[state]);
  const banner = $("banner");
  if (state === "refused") {
    banner.hidden = true;
    if (!document.getElementById("token")) drawRefused(text);
    return;
  }
  let told = "";
  if (state === "lost") told = store.at ? `Not connected: what you see is ${age((Date.now() - store.at) / 1000)} old. Trying again …` : "The controller cannot be reached. Trying again …";
  else if (state === "busy") told = "As many readers as this replica takes are connected. Trying again …";
  else if (state === "loading") told = `${text}. This one is not ready to show the fleet yet.`;
  else if (store.standby) told = `${capital(store.standby)}. It shows what is written on the objects; plans are worked out by the leader only.`;
  banner.hidden = !told;
  banner.dataset.state = state;
  put(banner, told);
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function drawRefused(text) {
  const input = make("input", undefined, { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const form = nest("form", { class: "card refused" }, make("h1", "No permission", { tabindex: "-1" }), make("p", text),
    make("p", "Send the token of an account that RBAC lets get these pages (ClusterRole dra-driver-page-reader). It stays in the memory of this tab, and is sent as it is: use it only where the connection is encrypted, or your own."),
    make("label", "Token", { for: "token" }), input, make("button", "Show the fleet"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(input.value);
    if (!hasToken()) return;
    tell({ state: "connecting", text: "" });
    shownFor = "";
    route();
    connect();
  });
  if (shown) shown.stop();
  $("main").replaceChildren(form);
  input.focus();
}

function tell(now) {
  connection = now;
  drawConnection();
}

function connect() {
  follow((data) => {
    if (connection.state !== "live") tell({ state: "live", text: "" });
    store.apply(data);
  }, tell);
}

store.addEventListener("change", () => {
  drawConnection();
  const count = $("waiting-count");
  count.hidden = !store.waitingTotal;
  put(count, number(store.waitingTotal));
  count.setAttribute("aria-label", many(store.waitingTotal, "claim waits", "claims wait"));
  if (shown.changed) shown.changed();
});
setInterval(() => { if (connection.state === "lost") drawConnection(); }, 5000);

// --- colours and keys ----------------------------------------------------------------------------------------

const THEMES = ["", "light", "dark"];
const THEME_NAMES = { "": "as the system", light: "light", dark: "dark" };

function drawTheme() {
  const theme = document.documentElement.dataset.theme || "";
  $("theme").setAttribute("aria-label", `Colours: ${THEME_NAMES[theme]}`);
  $("theme").title = `Colours: ${THEME_NAMES[theme]}`;
  if (shown && shown.recolored) shown.recolored();
}

$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || "";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("theme", next);
  } catch {
    // It is kept for this page then.
  }
  drawTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTheme);

document.addEventListener("keydown", (event) => {
  const typingNow = event.target.closest("input, select, textarea");
  if (event.key === "/" && !typingNow && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $("q").focus();
    $("q").select();
  } else if (event.key === "Escape" && event.target === $("q") && $("q").value) {
    $("q").value = "";
    $("q").dispatchEvent(new Event("input"));
  } else if (event.key === "Escape" && !typingNow && KINDS.includes(parse().view)) {
    if (history.length > 1) history.back();
    else location.hash = "#/fleet";
  }
});
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
  $("main").scrollIntoView();
});

window.addEventListener("hashchange", route);
route();
drawTheme();
connect();
