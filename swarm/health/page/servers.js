// The table of servers: sorted by any column, filtered, and as quick with 500 as with 3.

/** @import {Link, Model, Server} from "./types.js" */
/** @import {Column, Context} from "./columns.js" */

import { announce } from "./announce.js";
import { COLUMNS, outgoing } from "./columns.js";
import { arrange, attribute, element, framed, hide, one, write } from "./dom.js";
import { Row } from "./rows.js";
import { plural } from "./units.js";

const TYPED_MS = 700;

/** What each column is, for those who cannot point at its heading. */
function meanings() {
  const list = element("dl", "meanings");
  for (const { label, about } of COLUMNS) list.append(element("dt", "", label), element("dd", "", about));
  return element("details", "", element("summary", "", "What the columns mean"), list);
}

const WORDS =
  "τ: how long one layer takes in a decode step. KV: what a server remembers of each token of a session. No-op age: time since the last sign of life on its links in use. p50: half were faster. A dash: not known, or not told any more.";

/** A way past a table with a stop of the Tab key in each of hundreds of rows; seen when it has the focus. */
function past() {
  const button = element("button", "small unseen", "Skip the table of servers");
  button.type = "button";
  button.addEventListener("click", () => {
    one("chains-title").tabIndex = -1;
    one("chains-title").focus();
  });
  return button;
}

export class Servers {
  constructor() {
    /** @type {Map<string, Row>} */
    this._rows = new Map();
    /** @type {{column: Column, down: boolean}} */
    this._order = { column: COLUMNS[1], down: false };
    /** @type {Context} */
    this._context = { layers: 1, outgoing: new Map() };
    /** @type {Model|null} */
    this._model = null;
    /** @type {Link[]|null} */
    this._links = null;
    this._input = element("input");
    this._select = element("select");
    this._turn = element("button", "small");
    /** @type {HTMLElement[]} */
    this._heads = [];
    this._count = element("p", "note count");
    this._timer = 0;
    this._none = element("p", "note", "No server matches the filter.");
    this._body = element("tbody");
    this._body.setAttribute("role", "rowgroup");
    this._table = this._makeTable();
    one("servers").append(
      element("div", "tools", ...this._makeFilter(), this._makeSorter(), this._count),
      element("p", "note", WORDS),
      past(),
      framed(this._table, "Table of servers"),
      this._none,
      meanings(),
    );
    this._markOrder();
  }

  /** @param {Model} model */
  show(model) {
    if (model.model !== this._model?.model) this._rows.clear();
    if (model.links !== this._links || model.layers !== this._context.layers) {
      this._links = model.links;
      this._context = { layers: model.layers, outgoing: outgoing(model.links) };
    }
    this._model = model;
    const peers = new Set();
    for (const server of model.servers) {
      peers.add(server.peer);
      let row = this._rows.get(server.peer);
      if (!row) this._rows.set(server.peer, (row = new Row()));
      row.update({ server, model, context: this._context });
    }
    for (const peer of this._rows.keys()) if (!peers.has(peer)) this._rows.delete(peer);
    this._place();
  }

  // Which rows are there, and in which order: the filter's and the order's.
  _place() {
    const wanted = this._input.value.trim().toLowerCase().split(/\s+/);
    const shown = [...this._rows.values()].filter((row) => wanted.every((word) => row.text.includes(word)));
    const focused = /** @type {HTMLElement|null} */ (document.activeElement);
    arrange(this._body, sorted(shown, this._order.column, this._order.down, this._context));
    if (focused !== document.activeElement && this._body.contains(focused)) focused?.focus({ preventScroll: true });
    attribute(this._table, "aria-rowcount", String(shown.length + 1));
    hide(this._none, shown.length > 0 || !this._rows.size);
    const all = plural(this._rows.size, "server");
    write(this._count, shown.length === this._rows.size ? all : `${shown.length} of ${all}`);
  }

  _makeFilter() {
    const label = element("label", "", "Filter");
    label.htmlFor = "filter";
    this._input.id = "filter";
    this._input.type = "search";
    this._input.placeholder = "name, peer or state";
    this._input.autocomplete = "off";
    this._input.addEventListener("input", () => {
      this._place();
      this._sayCount();
    });
    return [label, this._input];
  }

  // The count is told to who filters and listens, once the typing pauses; that servers come and go is not.
  _sayCount() {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => announce(this._count.textContent ?? ""), TYPED_MS);
  }

  // On a phone the rows are cards without a heading row: there one sorts by this.
  _makeSorter() {
    const label = element("label", "", "Sort by");
    label.htmlFor = "sort";
    this._select.id = "sort";
    for (const column of COLUMNS) {
      const option = element("option", "", column.label);
      option.value = column.key;
      this._select.append(option);
    }
    this._select.addEventListener("change", () => {
      const column = COLUMNS.find((column) => column.key === this._select.value);
      if (column) this._sortBy(column, false);
    });
    this._turn.type = "button";
    this._turn.addEventListener("click", () => this._sortBy(this._order.column, !this._order.down));
    return element("span", "narrow", label, " ", this._select, " ", this._turn);
  }

  _makeTable() {
    const row = element("tr");
    row.setAttribute("role", "row");
    this._heads = COLUMNS.map((column) => {
      const button = element("button", "", column.label);
      button.type = "button";
      button.title = column.about;
      button.addEventListener("click", () => {
        this._sortBy(column, this._order.column === column && !this._order.down);
      });
      const head = element("th", `${column.kind ?? ""} ${column.key}`.trim(), button);
      head.scope = "col";
      head.setAttribute("role", "columnheader");
      row.append(head);
      return head;
    });
    const head = element("thead", "", row);
    head.setAttribute("role", "rowgroup");
    const table = element("table", "servers", element("caption", "unseen", "Servers of the model"), head, this._body);
    table.setAttribute("role", "table");
    return table;
  }

  /** @param {Column} column @param {boolean} down */
  _sortBy(column, down) {
    this._order = { column, down };
    this._markOrder();
    this._place();
  }

  _markOrder() {
    const { column, down } = this._order;
    COLUMNS.forEach((each, i) => {
      if (each === column) attribute(this._heads[i], "aria-sort", down ? "descending" : "ascending");
      else this._heads[i].removeAttribute("aria-sort");
    });
    this._select.value = column.key;
    write(this._turn, down ? "↓ falling" : "↑ rising");
    attribute(this._turn, "aria-label", down ? "Falling: turn the order" : "Rising: turn the order");
  }
}

/**
 * By a column's key, what is unknown last either way; ties by layers and peer, so that nothing jumps.
 * @param {Row[]} rows @param {Column} column @param {boolean} down @param {Context} context
 */
function sorted(rows, column, down, context) {
  const keyed = rows.map((row) => {
    const server = /** @type {Server} */ (row.server);
    return { row, server, key: column.sort(server, context) ?? null };
  });
  const sign = down ? -1 : 1;
  keyed.sort((a, b) => {
    if (a.key === null || b.key === null) {
      if (a.key !== b.key) return a.key === null ? 1 : -1;
    } else if (a.key !== b.key) {
      return a.key < b.key ? -sign : sign;
    }
    return a.server.start - b.server.start || a.server.end - b.server.end || (a.server.peer < b.server.peer ? -1 : 1);
  });
  return keyed.map(({ row }) => row.root);
}
