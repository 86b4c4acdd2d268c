// Whether what is shown is live, and what the page's machine itself cannot reach.

/** @import {Swarm} from "./types.js" */

import { now } from "./ages.js";
import { announce } from "./announce.js";
import { hide, kind, one, write } from "./dom.js";
import { duration, moment } from "./units.js";

/** A break shorter than this is not worth a word to someone who listens. */
const WORTH_SAYING_S = 5;
/** Its last answer is told every 30 s at least; older is a problem even where none is told. */
const DIRECTORY_OLD_S = 90;

export class Status {
  constructor() {
    this._live = false;
    this._said = "";
    /** @type {Swarm|null} */
    this._swarm = null;
    this._broken_at_ms = performance.now();
  }

  /** @param {boolean} live */
  live(live) {
    if (this._live && !live) this._broken_at_ms = performance.now();
    this._live = live;
    this.tick();
  }

  /** @param {Swarm} swarm */
  show(swarm) {
    this._swarm = swarm;
    this.tick();
  }

  tick() {
    const broken_s = (performance.now() - this._broken_at_ms) / 1000;
    const pill = one("status");
    if (this._live) {
      kind(pill, "pill good");
      write(pill, "● live");
      if (this._said) this._say("The page is live again", "");
    } else if (this._swarm) {
      kind(pill, "pill bad");
      write(pill, `◌ reconnecting; what you see is ${duration(broken_s)} old`);
      if (!this._said && broken_s > WORTH_SAYING_S) this._say("The connection is lost; what is shown gets old", "lost");
    } else {
      kind(pill, "pill");
      write(pill, broken_s > WORTH_SAYING_S ? "◌ no connection yet; trying again" : "connecting…");
    }
    document.body.classList.toggle("stale", !this._live && this._swarm !== null);
    this._observer();
  }

  _observer() {
    if (!this._swarm) return;
    const { observer } = this._swarm;
    const old_s = observer.directory_at === null ? null : now() - observer.directory_at;
    const late = this._live && old_s !== null && old_s > DIRECTORY_OLD_S;
    const when = observer.directory_at === null ? "it has not answered yet" : `it last answered ${duration(old_s)} ago`;
    hide(one("problem"), !observer.problem && !late);
    write(
      one("problem"),
      observer.problem ? `${observer.problem} (the directory: ${when})` : `The directory is silent: ${when}.`,
    );
    write(
      one("observer"),
      `watching since ${moment(observer.since_at)}, as …\u2060${observer.peer.slice(-8)}, ${observer.software}`,
    );
  }

  /** @param {string} text @param {string} said */
  _say(text, said) {
    this._said = said;
    announce(text);
  }
}
