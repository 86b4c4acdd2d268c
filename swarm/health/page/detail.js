// All that is known of one server, under its row.

/** @import {Link, Model, Server} from "./types.js" */

import { age, since } from "./ages.js";
import { copyButton } from "./copy.js";
import { element, hide, value, write } from "./dom.js";
import { proofLink } from "./proofs.js";
import { bytes, count, megabits, milliseconds, percent, rate, seconds, span, tokens } from "./units.js";

/** @typedef {[text: string, value: (server: Server) => string|null, why: string]} Fact */

/** @type {Fact[]} */
const FACTS = [
  ["Region", (s) => s.region || null, "it does not say"],
  [
    "Holds besides",
    (s) => [s.embeddings && "embeddings", s.head && "head"].filter(Boolean).join(", ") || "nothing",
    "",
  ],
  ["Moving to", (s) => (s.intent ? `layers ${span(...s.intent)}` : "nowhere"), ""],
  ["Memory", (s) => bytes(s.memory_bytes), ""],
  ["KV cache", (s) => `${tokens(s.kv_free_tokens) ?? "?"} free of ${tokens(s.kv_tokens)}`, ""],
  ["Fixed cost of a step", (s) => milliseconds(s.fixed_s), "no live metrics"],
  ["Prefill, measured", (s) => rate(s.prefill_tokens_per_s), "no live metrics"],
  [
    "Forward p50, p99",
    (s) => pair(s.stats?.forward_p50_s, s.stats?.forward_p99_s),
    "no forward in the last 60 s, or not told",
  ],
  ["Step p50, p99", (s) => pair(s.stats?.step_p50_s, s.stats?.step_p99_s), "no step in the last 60 s, or not told"],
  ["Decodes, last 60 s", (s) => rate(s.stats?.decode_tokens_per_s), "not told"],
  ["Prefills, last 60 s", (s) => rate(s.stats?.prefill_tokens_per_s), "not told"],
  ["Samples, last 60 s", (s) => rate(s.stats?.answers_per_s), "not told"],
  ["Engine busy", (s) => percent(s.stats?.busy_share), "not told"],
  ["Sessions since start", (s) => count(s.stats?.sessions_total), "not told"],
  ["Refused since start", (s) => count(s.stats?.refused_total), "not told"],
  ["Heals since start", (s) => count(s.stats?.heals_total), "not told"],
  ["Receipts since start", (s) => count(s.stats?.receipts_total), "not told"],
  ["Accused by others", (s) => (s.standing.accused ? "yes (hearsay: this machine does not judge by it)" : "no"), ""],
];

/** @param {number|null|undefined} a @param {number|null|undefined} b */
function pair(a, b) {
  const first = milliseconds(a);
  return first === null ? null : `${first}, ${milliseconds(b) ?? "–"}`;
}

export class Detail {
  /** @param {string} id */
  constructor(id) {
    this._peer = element("code", "peer");
    this._list = element("dl");
    this._facts = FACTS.map(([text, of, why]) => {
      const dd = element("dd");
      this._list.append(element("div", "", element("dt", "", text), dd));
      return { dd, of, why };
    });
    this._up = age();
    this._list.append(element("div", "", element("dt", "", "Running for"), element("dd", "", this._up)));
    this._links = element("p");
    this._proofs = element("p", "", "Proofs checked here: ");
    const peer = element("p", "", "Peer ", this._peer, " ", copyButton(this._peer, "the peer id"));
    this.root = element("td", "detail", peer, this._list, this._links, this._proofs);
    this.root.setAttribute("role", "cell");
    this.root.id = id;
  }

  /** @param {Server} server @param {Model} model */
  update(server, model) {
    write(this._peer, server.peer);
    for (const { dd, of, why } of this._facts) value(dd, of(server), why);
    since(this._up, server.started_at);
    const names = new Map(model.servers.map((one) => [one.peer, one.name || `…${one.short}`]));
    write(
      this._links,
      linksText(
        model.links.filter((link) => link.source === server.peer),
        names,
      ),
    );
    const proofs = server.standing.proofs.join(" ");
    hide(this._proofs, !proofs);
    if (this._proofs.dataset.all !== proofs) {
      this._proofs.dataset.all = proofs;
      this._proofs.replaceChildren(
        "Proofs checked here: ",
        ...server.standing.proofs.flatMap((one) => [proofLink(one), " "]),
      );
    }
  }
}

/** @param {Link[]} links @param {Map<string, string>} names */
function linksText(links, names) {
  if (!links.length) return "Links to others: none known.";
  const texts = links.map((link) => {
    const extra = [
      link.goodput_mbps !== null && megabits(link.goodput_mbps),
      link.noop_age_s !== null && `no-op ${seconds(link.noop_age_s)} ago`,
    ];
    const rtt = `${link.estimated ? "about " : ""}${milliseconds(link.rtt_s)}`;
    return `${names.get(link.target) ?? link.target.slice(-8)} ${[rtt, ...extra.filter(Boolean)].join(", ")}`;
  });
  return `Links to others: ${texts.join("; ")}.`;
}
