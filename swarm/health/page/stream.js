// The live stream: a state, then patches; reconnects by itself, and says how it stands.

/** @import {Patch, Swarm} from "./types.js" */

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;
/** A connection that says nothing for so long is taken for dead: a lost network does not close it. */
const SILENT_MS = 45000;

/**
 * @typedef {object} Listener
 * @property {(state: Swarm) => void} state
 * @property {(patch: Patch) => boolean} patch false: it did not fit, and a whole state is needed
 * @property {(live: boolean) => void} live
 */

export class Stream {
  /** @param {string} url @param {Listener} listener */
  constructor(url, listener) {
    this._url = url;
    this._listener = listener;
    this._wait_ms = FIRST_WAIT_MS;
    this._timer = 0;
    /** @type {EventSource|null} */
    this._source = null;
  }

  open() {
    this.close();
    const source = new EventSource(this._url);
    this._source = source;
    this._watch();
    source.addEventListener("state", (event) => {
      this._wait_ms = FIRST_WAIT_MS;
      this._watch();
      this._listener.state(JSON.parse(event.data));
      this._listener.live(true);
    });
    source.addEventListener("patch", (event) => {
      this._watch();
      if (!this._listener.patch(JSON.parse(event.data))) this._again();
    });
    source.addEventListener("ping", () => this._watch());
    source.addEventListener("error", () => this._again());
  }

  /** Does not wait any longer where it waits to try again. */
  hurry() {
    if (!this._source) this.open();
  }

  close() {
    clearTimeout(this._timer);
    this._source?.close();
    this._source = null;
  }

  _watch() {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._again(), SILENT_MS);
  }

  _again() {
    this.close();
    this._listener.live(false);
    this._timer = setTimeout(() => this.open(), this._wait_ms * (0.75 + Math.random() / 2));
    this._wait_ms = Math.min(this._wait_ms * 2, LONGEST_WAIT_MS);
  }
}
