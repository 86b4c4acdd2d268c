// The swarm as the page knows it. Pure: a state or a patch goes in, a new state comes out; what did not change is the
// same object as before, so that views see by identity what they need not touch.

/** @import {Link, Model, ModelPatch, Patch, Server, Swarm} from "./types.js" */

const MAX_EVENTS = 100;

/**
 * The state after a patch.
 * @param {Swarm|null} old
 * @param {Patch} patch
 * @returns {Swarm|null} null where the patch is for another revision: a whole state is needed then
 */
export function applied(old, patch) {
  if (!old || patch.base !== old.revision) return null;
  const models = new Map(old.models.map((model) => [model.model, model]));
  for (const one of patch.models) models.set(one.model.model, whole(models.get(one.model.model), one));
  for (const name of patch.removed) models.delete(name);
  return {
    ...old,
    at: patch.at,
    revision: patch.revision,
    observer: patch.observer,
    models: [...models.values()],
    events: patch.events.length ? [...old.events, ...patch.events].slice(-MAX_EVENTS) : old.events,
  };
}

/**
 * @param {Model|undefined} old
 * @param {ModelPatch} patch
 * @returns {Model}
 */
function whole(old, patch) {
  if (!old) return patch.model;
  const gone = new Set(patch.gone);
  const linksGone = new Set((patch.links_gone || []).map(([source, target]) => `${source} ${target}`));
  return {
    ...patch.model,
    servers: merged(old.servers, patch.model.servers, (server) => server.peer, gone),
    links: merged(old.links, patch.model.links, ends, linksGone),
  };
}

/**
 * @template T
 * @param {T[]} old
 * @param {T[]} changed
 * @param {(one: T) => string} key
 * @param {Set<string>} gone
 * @returns {T[]} the old array itself where nothing changed
 */
function merged(old, changed, key, gone) {
  if (!changed.length && !gone.size) return old;
  const all = new Map(old.map((one) => [key(one), one]));
  for (const one of changed) all.set(key(one), one);
  for (const name of gone) all.delete(name);
  return [...all.values()];
}

/**
 * @param {Link} link
 * @returns {string}
 */
export function ends(link) {
  return `${link.source} ${link.target}`;
}
