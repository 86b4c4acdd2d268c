// What the gateway tells of an answer and of the swarm, in words.

import { element } from "./dom.js";

/** @param {[number, number]} stretch layers, the end not included */
function layers([start, end]) {
  return end - start === 1 ? `layer ${start}` : `layers ${start} to ${end - 1}`;
}

/**
 * Why no answer can be had now; empty: one can.
 * @param {{status: string, missing_layers?: [number, number][]}} health
 */
export function missing(health) {
  if (health.missing_layers?.length) return `nobody serves ${health.missing_layers.map(layers).join(", ")} now`;
  return health.status === "ok" ? "" : health.status;
}

/** @param {number} n @param {string} word */
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/**
 * The line under an answer: speed, and who computed it. Names are their owners' choice, so each stands by itself.
 * @param {{reason: string, swarm: any, tokens: number}} answer
 * @returns {(Node|string)[]}
 */
export function ended({ reason, swarm, tokens }) {
  const [answer] = swarm.answers;
  const { signers, problems } = answer.verification;
  /** @type {(Node|string)[]} */
  const line = [`${plural(tokens, "token")}, ${answer.tokens_per_s.toFixed(1)} tokens/s, `];
  answer.chain.forEach((/** @type {any} */ stage, /** @type {number} */ i) => {
    if (i) line.push(" → ");
    line.push(element("bdi", "", stage.public_name || stage.peer.slice(-8)), `[${stage.span.join(":")}]`);
  });
  if (answer.heals.length) line.push(`, healed ${answer.heals.length === 1 ? "once" : `${answer.heals.length} times`}`);
  if (!answer.exact) line.push(", not exact");
  if (signers.length) line.push(`, receipts signed by ${plural(signers.length, "server")}`);
  if (problems.length) {
    const told = problems.map((/** @type {any} */ one) => one.what).join("; ");
    line.push("; ", element("b", "wrong", `⚠ receipts: ${told}`));
  }
  if (reason === "length") line.unshift("ended at the most tokens allowed, ask it to go on; ");
  return line;
}
