// "Host this next": the layers that need help most, each with the command to copy.

/** @import {Advice as Entry, Model} from "./types.js" */

import { element, hide, Keyed, one, write } from "./dom.js";
import { copyButton } from "./copy.js";
import { layers, span } from "./units.js";

const SHOWN = 3;
const NONE = "No layer needs help now. More servers still make it faster and harder to break.";
const NOBODY = "All of it: the first server that starts with this model shows its layers here.";

class Piece {
  constructor() {
    this.reason = element("p");
    this.command = element("code");
    const block = element("pre", "", this.command);
    block.tabIndex = 0;
    this.button = copyButton(this.command, "the command");
    this.root = element("li", "", this.reason, element("div", "command", block, this.button));
    this.block = block;
  }

  /** @param {Entry} entry */
  update(entry) {
    write(this.reason, entry.reason);
    write(this.command, entry.command);
    this.block.setAttribute("aria-label", `Command to host ${layers(entry.start, entry.end)}`);
  }
}

export class Advice {
  constructor() {
    this._list = new Keyed(one("advice"), () => new Piece());
  }

  /** @param {Model} model */
  show(model) {
    const all = model.advice.slice(0, SHOWN);
    this._list.show(all, (entry) => span(entry.start, entry.end));
    hide(one("advice-none"), all.length > 0);
    write(one("advice-none"), model.layers ? NONE : NOBODY);
  }
}
