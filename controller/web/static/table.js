// Tables that can be sorted, and of which only the rows in view exist: 40,000 devices scroll like ten.
import { arrange, make, nest, number, put } from "./dom.js";

const NOTHING = "–";
const MOST_NAMES = 3;
const AHEAD = 12;                 // rows beyond what is in view

export function parseSort(text, columns, fallback) {
  const wanted = text || fallback;
  const descending = wanted.startsWith("-");
  const id = descending ? wanted.slice(1) : wanted;
  return columns.some((c) => c.id === id && c.key) ? { id, descending } : parseSort(fallback, columns, fallback);
}

export function sortRows(rows, columns, sort, compare) {
  const { key } = columns.find((c) => c.id === sort.id);
  const keyed = rows.map((row) => [key(row), row]);
  const sign = sort.descending ? -1 : 1;
  keyed.sort(([a], [b]) => sign * (typeof a === "number" && typeof b === "number" ? a - b : compare(String(a), String(b))));
  return keyed.map(([, row]) => row);
}

/** The head of a table, whose titles sort it. */
export function drawHead(columns, sort, sorted) {
  const line = make("tr", undefined, { "aria-rowindex": "1" });
  for (const column of columns) {
    const active = column.id === sort.id;
    const cell = make("th", undefined, {
      scope: "col", class: `c-${column.id}${column.number ? " number" : ""}`,
      "aria-sort": active ? (sort.descending ? "descending" : "ascending") : undefined,
    });
    if (column.key) {
      const button = nest("button", { type: "button", class: "sort" }, column.title,
        make("span", active ? (sort.descending ? "↓" : "↑") : "", { "aria-hidden": "true" }));
      button.addEventListener("click", () => {
        const descending = active ? !sort.descending : Boolean(column.down);
        sorted(`${descending ? "-" : ""}${column.id}`);
      });
      cell.append(button);
    } else cell.append(column.title);
    line.append(cell);
  }
  return line;
}

export class Table {
  /**
   * @param {object} options caption; columns with id, title, draw(row, cell) and key(row) if they sort; id(row);
   *   sorted(text): called when another order is asked for.
   */
  constructor({ caption, columns, id, sorted, name }) {
    Object.assign(this, { columns, id, sorted });
    this.rows = [];
    this.made = new Map();
    this.range = [0, 0];
    this.head = make("thead");
    this.body = make("tbody");
    this.above = nest("tr", { class: "spacer", "aria-hidden": "true" }, make("td"));
    this.below = this.above.cloneNode(true);
    this.table = nest("table", { class: `grid list-${name}` }, make("caption", caption, { class: "hidden" }), this.head, this.body);
    this.empty = make("p", "", { class: "state", hidden: true });
    this.root = nest("div", { class: "list" }, this.table, this.empty);
    this.body.append(this.above, this.below);
    this.frame = 0;
    this.onScroll = () => {
      if (!this.frame) this.frame = requestAnimationFrame(() => this.draw(false));
    };
    this.body.addEventListener("keydown", (event) => this.key(event));
  }

  start() {
    window.addEventListener("scroll", this.onScroll, { passive: true });
    window.addEventListener("resize", this.onScroll, { passive: true });
  }

  stop() {
    window.removeEventListener("scroll", this.onScroll);
    window.removeEventListener("resize", this.onScroll);
    cancelAnimationFrame(this.frame);
  }

  show(rows, sort, nothing) {
    this.rows = rows;
    const before = `${sort.id}${sort.descending}`;
    if (before !== this.sort) {
      this.sort = before;
      const focused = this.head.contains(document.activeElement);
      this.head.replaceChildren(drawHead(this.columns, sort, this.sorted));
      if (focused) this.head.querySelector("[aria-sort] button")?.focus();
    }
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.table.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    put(this.empty, nothing);
    this.draw(true);
  }

  height() {
    if (!this.kept || this.keptFor !== window.innerWidth) {
      this.kept = parseFloat(getComputedStyle(this.root).getPropertyValue("--row")) || 40;
      this.keptFor = window.innerWidth;
    }
    return this.kept;
  }

  draw(all) {
    this.frame = 0;
    if (!this.root.isConnected) return;
    const height = this.height();
    const top = -this.body.getBoundingClientRect().top;
    const count = Math.ceil(window.innerHeight / height);
    const first = Math.max(0, Math.min(this.rows.length - count, Math.floor(top / height)) - AHEAD);
    const last = Math.min(this.rows.length, first + count + 2 * AHEAD);
    // Rows are made anew only when what is ahead runs out.
    const [from, to] = this.range;
    const covered = Math.abs(first - from) < AHEAD / 2 && Math.abs(last - to) < AHEAD / 2;
    if (!all && covered) return;
    this.range = [first, last];
    const kept = new Map();
    for (let i = first; i < last; i += 1) {
      const row = this.rows[i];
      const id = this.id(row);
      const element = this.made.get(id) || this.make();
      kept.set(id, element);
      element.line.setAttribute("aria-rowindex", String(i + 2));
      if (all || element.row !== row) {
        this.columns.forEach((column, c) => column.draw(row, element.cells[c]));
        element.row = row;
      }
    }
    arrange(this.body, [this.above, ...[...kept.values()].map(({ line }) => line), this.below]);
    this.made = kept;
    this.above.firstChild.style.height = `${first * height}px`;
    this.below.firstChild.style.height = `${(this.rows.length - last) * height}px`;
    this.above.hidden = first === 0;
    this.below.hidden = last === this.rows.length;
  }

  make() {
    const line = make("tr", undefined, { class: "row" });
    const cells = this.columns.map((column) => {
      const cell = make("td", undefined, { class: `c-${column.id}${column.number ? " number" : ""}` });
      line.append(cell);
      return cell;
    });
    return { line, cells, row: null };
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const line = step && event.target.closest("tr.row");
    if (!line) return;
    event.preventDefault();
    const next = step > 0 ? line.nextElementSibling : line.previousElementSibling;
    const link = next && next.querySelector("a, button");
    if (!link) return;
    link.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }
}

/** A cell with a link, made once and then changed. */
export function drawLink(cell, text, href) {
  let link = cell.firstElementChild;
  if (!link) {
    link = make("a");
    cell.append(link);
  }
  put(link, text);
  link.title = text;
  if (link.getAttribute("href") !== href) link.setAttribute("href", href);
}

export function drawText(cell, text, title = text) {
  put(cell, text);
  if (cell.title !== title) cell.title = title;
  cell.classList.toggle("nothing", text === NOTHING);
}

/** A cell with names, most of them as links: [text, href]. */
export function drawLinks(cell, names) {
  const told = JSON.stringify(names);
  if (cell.told === told) return;
  cell.told = told;
  cell.title = names.map(([text]) => text).join(", ");
  cell.classList.toggle("nothing", !names.length);
  const parts = names.slice(0, MOST_NAMES).flatMap(([text, href], i) => [i ? ", " : "", href ? make("a", text, { href }) : text]);
  if (names.length > MOST_NAMES) parts.push(` and ${number(names.length - MOST_NAMES)} more`);
  cell.replaceChildren(...(parts.length ? parts : [NOTHING]));
}

export const told = (shown, total, what) => (shown === total ? `${number(total)} ${what}` : `${number(shown)} of ${number(total)} ${what}`);
