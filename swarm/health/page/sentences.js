// One sentence per model, with a mark that needs no colour; with several models each is a link to its figures.

/** @import {Model} from "./types.js" */

import { attribute, element, Keyed, kind, one, write } from "./dom.js";

/** @param {Model} model @returns {string} the part of the URL after # */
export function address(model) {
  return `model/${encodeURIComponent(model.model)}`;
}

class Sentence {
  constructor() {
    this.name = element("bdi");
    this.sign = element("span");
    this.mark = element("span", "", this.sign, " ", this.name);
    this.text = element("span", "sentence");
    this.link = element("a", "", this.mark, " ", this.text);
    this.root = element("li", "", this.link);
  }

  /** @param {{model: Model, shown: boolean, only: boolean}} data */
  update({ model, shown, only }) {
    kind(this.root, shown && !only ? "shown" : "");
    kind(this.mark, `mark ${model.usable ? "good" : "bad"}`);
    write(this.sign, model.usable ? "✓" : "✕");
    write(this.name, model.name);
    write(this.text, model.sentence);
    attribute(this.link, "href", `#${address(model)}`);
    if (shown && !only) attribute(this.link, "aria-current", "true");
    else this.link.removeAttribute("aria-current");
  }
}

export class Sentences {
  constructor() {
    this._list = new Keyed(one("models"), () => new Sentence());
  }

  /** @param {Model[]} models @param {Model|null} shown */
  show(models, shown) {
    const only = models.length === 1;
    const broken = models.filter((model) => !model.usable).length;
    kind(one("models-title"), models.length > 1 ? "" : "unseen");
    write(
      one("models-title"),
      models.length > 1 ? `${models.length} models, ${broken || "none"} not usable` : "Models",
    );
    this._list.show(
      models.map((model) => ({ model, shown: model === shown, only })),
      ({ model }) => model.model,
    );
  }
}
