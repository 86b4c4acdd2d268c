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
  const servers = patch.model.servers.map((server) => /** @type {Change<Server>} */ ([server.peer, "", server]));
  const links = patch.model.links.map((link) => /** @type {Change<Link>} */ ([link.source, link.target, link]));
  for (const peer of patch.gone) servers.push([peer, "", null]);
  for (const [source, target] of patch.links_gone ?? []) links.push([source, target, null]);
  return {
    ...patch.model,
    servers: merged(
      old.servers,
      servers,
      ({ peer }) => peer,
      () => "",
    ),
    links: merged(
      old.links,
      links,
      ({ source }) => source,
      ({ target }) => target,
    ),
  };
}

/**
 * What an entry with a key of two parts becomes; null: it is gone.
 * @template T
 * @typedef {[first: string, second: string, entry: T|null]} Change
 */

/**
 * @template T
 * @param {T[]} old
 * @param {Change<T>[]} changes
 * @param {(one: T) => string} first
 * @param {(one: T) => string} second
 * @returns {T[]} the old array itself where nothing changed
 */
function merged(old, changes, first, second) {
  if (!changes.length) return old;
  /** @type {Map<string, Map<string, T|null>>} */
  const by = new Map();
  for (const [one, two, entry] of changes) {
    const inner = by.get(one) ?? new Map();
    by.set(one, inner.set(two, entry));
  }
  const all = [];
  for (const one of old) {
    const inner = by.get(first(one));
    const entry = inner?.get(second(one));
    if (entry === undefined) all.push(one);
    else if (entry) all.push(entry);
    inner?.delete(second(one));
  }
  for (const inner of by.values()) for (const entry of inner.values()) if (entry) all.push(entry);
  return all;
}
