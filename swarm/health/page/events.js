// What happened, the newest first.

/** @import {Swarm, SwarmEvent} from "./types.js" */

import { age, since } from "./ages.js";
import { element, hide, Keyed, kind, one, write } from "./dom.js";
import { proofLink } from "./proofs.js";
import { moment } from "./units.js";

const SHOWN = 12;
const GRAVE = new Set(["unusable", "outage", "ejected", "struck", "accused"]);
const GOOD = new Set(["usable", "joined", "back", "healed"]);

class EventView {
  constructor() {
    /** @type {number|null} */
    this._number = null;
    this.time = age("ago");
    this.kind = element("span");
    this.text = element("bdi", "text");
    this.proof = element("span");
    this.root = element("li", "", this.time, this.kind, element("span", "", this.text, " ", this.proof));
  }

  /** @param {SwarmEvent} event */
  update(event) {
    if (this._number === event.number) return; // events do not change
    this._number = event.number;
    since(this.time, event.at);
    this.time.setAttribute("aria-label", moment(event.at));
    kind(this.kind, `kind ${GRAVE.has(event.kind) ? "grave" : GOOD.has(event.kind) ? "good" : ""}`.trim());
    write(this.kind, event.kind);
    write(this.text, event.text);
    if (event.proof) this.proof.append(proofLink(event.proof));
  }
}

export class Events {
  constructor() {
    this._none = element("p", "note", "Nothing has happened since this page began to watch.");
    const list = element("ol", "events");
    this._list = new Keyed(list, () => new EventView());
    this._more = element("button", "small");
    this._more.type = "button";
    this._all = false;
    this._more.addEventListener("click", () => {
      this._all = !this._all;
      this._draw();
    });
    /** @type {SwarmEvent[]} */
    this._events = [];
    one("events").append(this._none, list, this._more);
  }

  /** @param {Swarm} swarm */
  show(swarm) {
    if (swarm.events === this._events) return;
    this._events = swarm.events;
    this._draw();
  }

  _draw() {
    const newest = [...this._events].reverse();
    this._list.show(this._all ? newest : newest.slice(0, SHOWN), (event) => String(event.number));
    hide(this._none, newest.length > 0);
    hide(this._more, newest.length <= SHOWN);
    write(this._more, this._all ? `Only the last ${SHOWN} events` : `All ${newest.length} events`);
  }
}
