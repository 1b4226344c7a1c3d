// What is shown is in the address (its hash), so that a link shows the same: #/view/part?name=value

export const KINDS = ["device", "node", "claim", "pod"];
export const VIEWS = ["fleet", "waiting", "devices", "claims", "nodes"];
const LONGEST = 512;

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function parse() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decoded);
  const view = VIEWS.includes(parts[0]) || KINDS.includes(parts[0]) ? parts[0] : "fleet";
  const params = {};
  for (const [name, value] of new URLSearchParams(query || "")) params[name] = value.slice(0, LONGEST);
  return { view, name: KINDS.includes(view) ? parts.slice(1).join("/") : "", params };
}

export function address(view, name, params) {
  const path = [view, ...(name ? name.split("/") : [])].map(encodeURIComponent).join("/");
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params || {})) if (value) query.set(key, value);
  const text = query.toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export const objectAddress = (kind, name) => address(kind, name, {});

export function change(params) {
  // In place: who types a filter does not want to go back letter by letter.
  const now = parse();
  const hash = address(now.view, now.name, { ...now.params, ...params });
  history.replaceState(null, "", hash);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
