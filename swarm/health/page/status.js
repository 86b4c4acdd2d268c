// Whether what is shown is live, and what the page's machine itself cannot reach.

/** @import {Swarm} from "./types.js" */

import { now } from "./ages.js";
import { announce } from "./announce.js";
import { hide, kind, one, write } from "./dom.js";
import { duration, moment } from "./units.js";

/** A break or a problem shorter than this is not worth a word to someone who listens. */
const WORTH_SAYING_S = 5;
/** Its last answer is told every 30 s at least; older is a problem even where none is told. */
const DIRECTORY_OLD_S = 90;

export class Status {
  constructor() {
    this._live = false;
    this._said = "";
    /** @type {Swarm|null} */
    this._swarm = null;
    /** Whether the directory does not answer. */
    this._silent = false;
    this._broken_at_ms = performance.now();
    this._trouble_said = false;
    /** @type {number|null} */
    this._trouble_at_ms = null;
  }

  /** Whether what is shown was so, rather than is so. */
  get old() {
    return (this._swarm !== null && !this._live) || this._silent;
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
    hide(pill, false);
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
    this._silent = late || Boolean(observer.problem && (old_s === null || old_s > WORTH_SAYING_S));
    this._tellTrouble(late || Boolean(observer.problem));
    hide(one("problem"), !observer.problem && !late);
    write(
      one("problem"),
      observer.problem ? `${observer.problem} (the directory: ${when})` : `The directory is silent: ${when}.`,
    );
    const others = observer.models_left_out;
    const more = others ? `; ${others} more model${others > 1 ? "s are" : " is"} listed and not shown` : "";
    write(
      one("observer"),
      `watching since ${moment(observer.since_at)}, as …\u2060${observer.peer.slice(-8)}, ${observer.software}${more}`,
    );
  }

  /** @param {boolean} trouble */
  _tellTrouble(trouble) {
    if (!trouble) {
      if (this._trouble_said) announce("The problem is over");
      this._trouble_said = false;
      this._trouble_at_ms = null;
      return;
    }
    this._trouble_at_ms ??= performance.now();
    if (this._trouble_said || performance.now() - this._trouble_at_ms < 1000 * WORTH_SAYING_S) return;
    this._trouble_said = true;
    announce(`Problem: ${one("problem").textContent}`);
  }

  /** @param {string} text @param {string} said */
  _say(text, said) {
    this._said = said;
    announce(text);
  }
}
