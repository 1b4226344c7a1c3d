// The connection to the controller. EventSource sends no token, so the stream is read by fetch.

let token = "";                   // in memory only: it is gone with the page
export const hasToken = () => token !== "";
export function setToken(value) {
  token = value.trim();
}

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export async function ask(path) {
  let response;
  try {
    response = await fetch(path, { headers: headers(), cache: "no-store" });
  } catch {
    throw new Refused(0, "the controller cannot be reached");
  }
  if (response.ok) return response.json();
  const text = await response.text();
  let told = "";
  try {
    told = JSON.parse(text).error;
  } catch {
    told = text.trim().slice(0, 500);
  }
  throw new Refused(response.status, told || `the controller answers ${response.status}`);
}

async function read(response, handle) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      let end = rest.indexOf("\n\n");
      let begin = 0;
      while (end >= 0) {
        const message = rest.slice(begin, end);
        const kind = /^event: (.*)$/m.exec(message);
        const data = /^data: (.*)$/m.exec(message);
        if (kind && data) handle(kind[1], JSON.parse(data[1]));
        begin = end + 2;
        end = rest.indexOf("\n\n", begin);
      }
      rest = rest.slice(begin);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const SILENT = 45000;             // the controller writes every 15 seconds

export async function follow(handle, tell) {
  let failures = 0;
  for (;;) {
    let why = { state: "lost", text: "" };
    const stop = new AbortController();
    let timer = setTimeout(() => stop.abort(), SILENT);
    try {
      const response = await fetch("fleet/events", { headers: headers(), cache: "no-store", signal: stop.signal });
      if (response.status === 401 || response.status === 403) {
        tell({ state: "refused", text: (await response.text()).trim().slice(0, 500), status: response.status });
        clearTimeout(timer);
        return;
      }
      if (!response.ok) throw new Error(String(response.status));
      await read(response, (kind, data) => {
        clearTimeout(timer);
        timer = setTimeout(() => stop.abort(), SILENT);
        if (kind === "standby") why = { state: "loading", text: data.text };
        else if (kind === "busy") why = { state: "busy", text: "" };
        else {
          failures = 0;
          handle(data);
        }
      });
    } catch {
      // The network, or the controller: both are tried again.
    }
    clearTimeout(timer);
    failures += 1;
    tell(why);
    await new Promise((resolve) => setTimeout(resolve, Math.min(15000, 1000 * failures)));
  }
}
