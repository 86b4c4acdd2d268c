// The columns of the table of servers: what each shows, sorts by, and says where nothing is known.

/** @import {Link, Server} from "./types.js" */

import { ago, conditionCell, nameCell, number, plain, spanCell } from "./cells.js";
import { count, megabits, milliseconds, percent, rate, seconds, tokens } from "./units.js";

/**
 * @typedef {object} Context what a cell needs besides its server
 * @property {number} layers of the model
 * @property {Map<string, Outgoing>} outgoing by peer
 */
/** @typedef {{goodput_mbps: number|null, noop_age_s: number|null}} Outgoing the worst of a server's measured links */
/** @typedef {(server: Server, context: Context) => void} Update */
/**
 * @typedef {object} Column
 * @property {string} key
 * @property {string} label
 * @property {string} about
 * @property {(server: Server, context: Context) => string|number|null|undefined} sort
 * @property {(cell: HTMLElement) => Update} fill makes the cell's content once
 * @property {string} [kind] a class of all its cells
 */

const quiet = (/** @type {Server} */ server) =>
  server.condition === "silent" ? "it is silent: what it told last is not shown" : "it has not told yet";
const untold = (/** @type {Server} */ server) =>
  ({
    off: "it answers no questions (--no-stats)",
    unreachable: "this page cannot reach it",
    busy: "it was too busy to answer",
    invalid: "what it answered is no answer",
  })[server.stats_note] ?? "not asked yet";
const yes = (/** @type {boolean} */ is) => (is ? "yes" : "no");

/** @param {Server} server */
function reachText(server) {
  if (server.reached === null) return server.reach || null;
  const mark = server.reached ? "✓" : "✕";
  return `${mark} ${server.reach || (server.reached ? "reached" : "not reached")}`;
}

/** @type {Column[]} */
export const COLUMNS = [
  {
    key: "name",
    label: "Server",
    about: "public name and short peer id",
    sort: (s) => s.name.toLowerCase() || null,
    fill: nameCell,
    kind: "who",
  },
  {
    key: "layers",
    label: "Layers",
    about: "the layers that it holds, of those of the model",
    sort: (s) => s.start * 1e4 + s.end,
    fill: spanCell,
    kind: "layers",
  },
  {
    key: "state",
    label: "State",
    about: "as this page sees it, and for how long",
    sort: (s) => s.condition,
    fill: conditionCell,
    kind: "state",
  },
  number("tau", "τ per layer", "how long one of its layers takes in a decode step", (s) => s.tau_s, milliseconds, quiet),
  number("queue", "Queue", "steps that wait", (s) => s.queued_steps, count, quiet),
  number("sessions", "Sessions", "sessions that are open", (s) => s.sessions, count, quiet),
  number("kv", "KV free", "tokens that fit into its KV cache", (s) => s.kv_free_tokens, tokens, quiet),
  number(
    "uplink",
    "Uplink",
    "measured upload",
    (s) => s.uplink_mbps,
    megabits,
    (s) => (s.condition === "silent" ? quiet(s) : "never measured"),
  ),
  number(
    "rtt",
    "RTT",
    "round trip from this page's machine",
    (s) => s.rtt_s,
    milliseconds,
    "this page has not measured it",
  ),
  plain("reach", "Reach", "✓: this page reached it; how, by its own word", reachText, reachText, "not tried yet"),
  number(
    "goodput",
    "Goodput",
    "the slowest of its measured links to other servers",
    (s, { outgoing }) => outgoing.get(s.peer)?.goodput_mbps,
    megabits,
    "no link of it was measured",
  ),
  number(
    "noop",
    "No-op age",
    "time since the last sign of life (a no-op that came back) on its links in use, the oldest",
    (s, { outgoing }) => outgoing.get(s.peer)?.noop_age_s,
    seconds,
    "none of its links is in use",
  ),
  number(
    "busy",
    "Busy",
    "share of the last 60 s that its engine computed",
    (s) => s.stats?.busy_share,
    percent,
    untold,
  ),
  number(
    "speed",
    "Decodes",
    "tokens a second through its layers, last 60 s",
    (s) => s.stats?.decode_tokens_per_s,
    rate,
    untold,
  ),
  number(
    "step",
    "Step p50",
    "half of its decode steps were faster, from arrival to leaving",
    (s) => s.stats?.step_p50_s,
    milliseconds,
    (s) => (s.stats ? "no decode step in the last 60 s" : untold(s)),
  ),
  ago("figures", "Figures", "how old what it told of its last 60 s is", (s) => s.stats?.figures_at ?? null, untold),
  plain(
    "numerics",
    "Numerics",
    "data type, quantization, KV data type",
    (s) => s.numerics,
    (s) => s.numerics || null,
    "it does not say",
  ),
  plain(
    "version",
    "Version",
    "its software",
    (s) => s.software,
    (s) => s.software || null,
    "it does not say",
  ),
  ago(
    "seen",
    "Last seen",
    "when it was last heard of",
    (s) => s.seen_at,
    () => "",
  ),
  number(
    "audited",
    "Audited",
    "windows of its work that this machine audited",
    (s) => s.standing.audited_windows,
    count,
    "",
  ),
  number("strikes", "Strikes", "audits and challenges that it failed", (s) => s.standing.strikes, count, ""),
  plain(
    "checkable",
    "Checkable",
    "whether others can compute its layers again",
    (s) => yes(s.standing.spot_checkable),
    (s) => yes(s.standing.spot_checkable),
    "",
  ),
];

/**
 * The worst of each server's measured links.
 * @param {Link[]} links
 * @returns {Map<string, Outgoing>}
 */
export function outgoing(links) {
  /** @type {Map<string, Outgoing>} */
  const all = new Map();
  for (const link of links) {
    if (link.goodput_mbps === null && link.noop_age_s === null) continue;
    const worst = all.get(link.source) ?? { goodput_mbps: null, noop_age_s: null };
    all.set(link.source, {
      goodput_mbps: extreme(Math.min, worst.goodput_mbps, link.goodput_mbps),
      noop_age_s: extreme(Math.max, worst.noop_age_s, link.noop_age_s),
    });
  }
  return all;
}

/** @param {(...x: number[]) => number} pick @param {number|null} a @param {number|null} b */
function extreme(pick, a, b) {
  return a === null ? b : b === null ? a : pick(a, b);
}
