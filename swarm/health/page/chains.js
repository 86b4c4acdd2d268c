// Live chains as waterfalls: where the time between two tokens goes.

/** @import {Chain, Model, Server, Stage} from "./types.js" */

import { age, now, since } from "./ages.js";
import { attribute, element, hide, Keyed, kind, one, title, write } from "./dom.js";
import { duration, milliseconds, plural, rate, seconds, span } from "./units.js";

const SHOWN = 8;
/** Servers are asked every 2 s while they work; their metrics live 10 s, so those tell of later than a step so old. */
const QUIET_S = 15;
const PARTS = /** @type {const} */ (["wait", "compute", "send"]);
const LEGEND = [
  ["wait", "waits in the queue"],
  ["compute", "computes"],
  ["send", "sends to the next"],
  ["elsewhere", "network and client: what is left"],
];

/** @typedef {{stage: Stage, name: string, before_s: number, whole_s: number}} Step */

class StageView {
  constructor() {
    this.name = element("bdi");
    this.span = element("span", "short");
    this.bars = PARTS.map((part) => element("span", `part ${part}`));
    this.track = element("div", "track", ...this.bars);
    this.track.setAttribute("aria-hidden", "true");
    this.text = element("span", "times");
    this.age = age("ago");
    this.root = element(
      "li",
      "stage",
      element("span", "who", this.name, " ", this.span),
      this.track,
      element("span", "told", this.text, " · ", this.age),
    );
  }

  /** @param {Step} step */
  update({ stage, name, before_s, whole_s }) {
    write(this.name, name);
    title(this.name, name);
    write(this.span, span(stage.start, stage.end));
    const times = [stage.wait_s, stage.compute_s, stage.send_s];
    let at_s = before_s;
    times.forEach((time_s, i) => {
      place(this.bars[i], at_s, time_s ?? 0, whole_s);
      at_s += time_s ?? 0;
    });
    const known = PARTS.map((part, i) => `${part} ${milliseconds(times[i]) ?? "–"}`);
    write(this.text, times.every((time_s) => time_s === null) ? "no decode step in the last 60 s" : known.join(" · "));
    since(this.age, stage.figures_at);
  }
}

/** @param {HTMLElement} bar @param {number} at_s @param {number} long_s @param {number} whole_s */
function place(bar, at_s, long_s, whole_s) {
  const share = (/** @type {number} */ x) => `${((100 * x) / whole_s).toFixed(2)}%`;
  hide(bar, !long_s);
  bar.style.left = whole_s ? share(at_s) : "0";
  bar.style.width = whole_s ? share(long_s) : "0";
}

/** @param {Chain} chain whether it had a step just now */
function fresh(chain) {
  return chain.stages.some((stage) => now() - stage.figures_at < QUIET_S);
}

/**
 * Why a chain has no new steps, as far as its servers tell: without any session open one of them has closed this one.
 * @param {Chain} chain @param {Map<string, Server>} servers by peer
 */
function restText(chain, servers) {
  if (fresh(chain)) return "";
  const closed = chain.stages.some(({ peer }) => servers.get(peer)?.sessions === 0);
  return closed ? "over: its servers have closed it" : "no step lately: it waits for its client, or is over";
}

/** @param {Chain} chain its place in the order: what runs and is whole comes first */
function worth(chain) {
  return 2 * Number(fresh(chain)) + Number(chain.complete);
}

/** @param {string} peer @param {Server|undefined} server */
const named = (peer, server) => (server ? server.name || `…${server.short}` : peer.slice(-8));

class ChainView {
  constructor() {
    this.title = element("h4");
    this.note = element("p", "note");
    this.list = element("ol");
    this.stages = new Keyed(this.list, () => new StageView());
    this.rest = element("span", "part elsewhere");
    this.track = element("div", "track", this.rest);
    this.track.setAttribute("aria-hidden", "true");
    this.elsewhere = element("span", "told");
    this.last = element("p", "stage", element("span", "who", "network and client"), this.track, this.elsewhere);
    this.root = element("article", "chain", this.title, this.note, this.list, this.last);
  }

  /** @param {{chain: Chain, servers: Map<string, Server>}} data */
  update({ chain, servers }) {
    const spent_s = chain.stages.map((stage) => (stage.wait_s ?? 0) + (stage.compute_s ?? 0) + (stage.send_s ?? 0));
    const sum_s = spent_s.reduce((sum, time_s) => sum + time_s, 0);
    const whole_s = Math.max(chain.period_s ?? 0, sum_s + (chain.elsewhere_s ?? 0));
    const each = chain.period_s === null ? "" : `${seconds(chain.period_s)} a token`;
    const speed = rate(chain.tokens_per_s);
    const pace = speed === null ? (each ? `last ${each}` : "speed unknown") : each ? `${speed}, ${each}` : speed;
    write(this.title, `Chain ${chain.label.slice(0, 8)}: ${pace}`);
    title(this.title, `chain ${chain.label}`);
    const rest = restText(chain, servers);
    const parts = [
      rest || `open for ${duration(chain.open_s)}`,
      plural(chain.stages.length, "stage"),
      ...(chain.complete ? [] : ["not all of its stages are known here"]),
    ];
    write(this.note, parts.join("; "));
    kind(this.root, chain.complete ? "chain" : "chain partial");
    let before_s = 0;
    const steps = chain.stages.map((stage, i) => {
      const step = { stage, name: named(stage.peer, servers.get(stage.peer)), before_s, whole_s };
      before_s += spent_s[i];
      return step;
    });
    this.stages.show(steps, ({ stage }) => `${stage.stage} ${stage.peer}`);
    place(this.rest, before_s, chain.elsewhere_s ?? 0, whole_s);
    write(this.elsewhere, chain.elsewhere_s === null ? "unknown" : (milliseconds(chain.elsewhere_s) ?? ""));
  }
}

export class Chains {
  constructor() {
    this._none = element(
      "p",
      "note",
      "No chain is live: nobody generates right now, or the servers that work do not tell.",
    );
    this._legend = element("ul", "legend");
    for (const [part, text] of LEGEND) {
      const sample = element("span", `part ${part}`);
      sample.setAttribute("aria-hidden", "true");
      this._legend.append(element("li", "", sample, text));
    }
    this._place = element("div", "chains");
    this._more = element("button", "small");
    this._more.type = "button";
    this._all = false;
    this._more.addEventListener("click", () => {
      this._all = !this._all;
      if (this._model) this.show(this._model);
    });
    this._list = new Keyed(this._place, () => new ChainView());
    one("chains").append(this._none, this._legend, this._place, this._more);
  }

  /** @param {Model} model */
  show(model) {
    this._model = model;
    const servers = new Map(model.servers.map((server) => [server.peer, server]));
    const chains = [...model.chains].sort((a, b) => worth(b) - worth(a) || (a.label < b.label ? -1 : 1));
    const shown = this._all ? chains : chains.slice(0, SHOWN);
    this._list.show(
      shown.map((chain) => ({ chain, servers })),
      ({ chain }) => chain.label,
    );
    hide(this._none, model.chains.length > 0);
    hide(this._legend, !model.chains.length);
    hide(this._more, model.chains.length <= SHOWN);
    write(this._more, this._all ? `Only ${SHOWN} chains` : `All ${model.chains.length} chains`);
    attribute(this._more, "aria-expanded", String(this._all));
  }
}
