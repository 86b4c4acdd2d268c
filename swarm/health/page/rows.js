// A server's row: made once, its cells changed only where the server did; opened it shows all that is known.

/** @import {Model, Server} from "./types.js" */
/** @import {Context, Update} from "./columns.js" */

import { COLUMNS } from "./columns.js";
import { Detail } from "./detail.js";
import { attribute, element, kind } from "./dom.js";

let made = 0;

export class Row {
  constructor() {
    this.root = element("tr");
    this.root.setAttribute("role", "row");
    /** @type {Update[]} */
    this._updates = [];
    for (const column of COLUMNS) {
      const name = column.key === "name";
      const cell = element(name ? "th" : "td", `${column.kind ?? ""} ${column.key}`.trim());
      cell.setAttribute("role", name ? "rowheader" : "cell");
      cell.dataset.label = column.label;
      this._updates.push(column.fill(cell));
      this.root.append(cell);
    }
    this._button = /** @type {HTMLButtonElement} */ (this.root.querySelector("button"));
    this._button.addEventListener("click", () => this._toggle());
    /** @type {Detail|null} */
    this._detail = null;
    /** @type {Server|null} */
    this.server = null;
    this.text = "";
    /** @type {Context|null} */
    this._context = null;
    /** @type {Model|null} */
    this._model = null;
  }

  /** @param {{server: Server, model: Model, context: Context}} data */
  update({ server, model, context }) {
    this._model = model;
    const around = this._around(server, context);
    if (server === this.server && !around) return;
    if (server !== this.server) this.text = `${server.name}\n${server.peer}\n${server.condition}`.toLowerCase();
    this.server = server;
    for (const update of this._updates) update(server, context);
    const grey = server.condition === "silent" || server.condition === "ejected" || server.reached === false;
    kind(this.root, `${grey ? "grey " : ""}${this._detail ? "open" : ""}`.trim());
    this._detail?.update(server, model);
  }

  // Whether something besides the server itself is new to its row.
  _around(/** @type {Server} */ server, /** @type {Context} */ context) {
    if (context === this._context) return false;
    const now = context.outgoing.get(server.peer);
    const before = this._context?.outgoing.get(server.peer);
    const same = now?.goodput_mbps === before?.goodput_mbps && now?.noop_age_s === before?.noop_age_s;
    const layers = this._context?.layers;
    this._context = context;
    return !same || context.layers !== layers;
  }

  _toggle() {
    if (this._detail) {
      this._detail.root.remove();
      this._detail = null;
      this._button.removeAttribute("aria-controls");
    } else if (this.server && this._model) {
      this._detail = new Detail(`detail-${++made}`);
      this._detail.update(this.server, this._model);
      this.root.append(this._detail.root);
      this._button.setAttribute("aria-controls", this._detail.root.id);
    }
    this.root.classList.toggle("open", this._detail !== null);
    attribute(this._button, "aria-expanded", String(this._detail !== null));
  }
}
