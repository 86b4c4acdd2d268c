// What the page reads, as swarm/health/state.py tells it. Times ending in _at are wall seconds since 1970; null is unknown.

/**
 * @typedef {object} Stage one server's part of a live chain: means of its decode steps, in seconds
 * @property {string} peer
 * @property {number} stage
 * @property {number} start first layer
 * @property {number} end layer after the last
 * @property {number|null} wait_s
 * @property {number|null} compute_s
 * @property {number|null} send_s
 * @property {number} figures_at
 */
/**
 * @typedef {object} Chain
 * @property {string} label 16 hex digits, random
 * @property {number|null} tokens_per_s
 * @property {number|null} period_s between two tokens
 * @property {number|null} elsewhere_s the network and the client
 * @property {boolean} complete whether the stages tile the layers
 * @property {number} open_s
 * @property {Stage[]} stages
 */
/**
 * @typedef {object} Link
 * @property {string} source
 * @property {string} target
 * @property {number} rtt_s
 * @property {boolean} estimated from network coordinates, never measured
 * @property {number|null} goodput_mbps Mbit/s
 * @property {number|null} noop_age_s
 */
/**
 * @typedef {object} Stats a server's last 60 s, by its own word
 * @property {number} figures_at
 * @property {number} uptime_s
 * @property {number} busy_share 0 to 1
 * @property {number} decode_tokens_per_s
 * @property {number} prefill_tokens_per_s
 * @property {number} answers_per_s
 * @property {number|null} forward_p50_s
 * @property {number|null} forward_p99_s
 * @property {number|null} step_p50_s
 * @property {number|null} step_p99_s
 * @property {number} sessions_total
 * @property {number} refused_total
 * @property {number} heals_total
 * @property {number} receipts_total
 */
/**
 * @typedef {object} Standing what the page's own machine knows of a server's honesty
 * @property {number} audited_windows
 * @property {number} strikes
 * @property {boolean} ejected
 * @property {boolean} accused
 * @property {boolean} spot_checkable
 * @property {string[]} proofs digests, hex
 */
/**
 * @typedef {object} Server
 * @property {string} peer
 * @property {string} short
 * @property {string} name
 * @property {string} region
 * @property {"serving"|"joining"|"draining"|"silent"|"ejected"} condition
 * @property {number} since_at
 * @property {number} seen_at
 * @property {boolean|null} reached
 * @property {number} start
 * @property {number} end
 * @property {[number, number]|null} intent
 * @property {boolean} head
 * @property {boolean} embeddings
 * @property {string} numerics
 * @property {string} software
 * @property {number} started_at
 * @property {string} reach
 * @property {number} memory_bytes
 * @property {number} kv_tokens
 * @property {number|null} kv_free_tokens
 * @property {number|null} tau_s a layer of a decode step, in seconds
 * @property {number|null} fixed_s a decode step's fixed cost
 * @property {number|null} prefill_tokens_per_s
 * @property {number|null} sessions
 * @property {number|null} queued_steps
 * @property {number|null} uplink_mbps Mbit/s
 * @property {number|null} rtt_s from the page's machine
 * @property {Stats|null} stats
 * @property {string} stats_note
 * @property {Standing} standing
 */
/** @typedef {{start: number, end: number, reason: string, command: string}} Advice */
/** @typedef {{start: number, end: number, replicas: number, silent: number}} Stretch */
/**
 * @typedef {object} Model
 * @property {string} model its whole id
 * @property {string} name
 * @property {number} layers
 * @property {number} since_at
 * @property {boolean} usable
 * @property {string} sentence
 * @property {[number, number][]} missing
 * @property {Stretch[]} coverage
 * @property {number|null} tokens_per_s
 * @property {[number, number]|null} tokens_per_s_range
 * @property {number|null} served_tokens_per_s
 * @property {number} sessions
 * @property {number|null} knee_sessions
 * @property {number|null} fullness sessions by the knee
 * @property {number} rebalances_per_hour
 * @property {number|null} step_p50_s
 * @property {number|null} step_p99_s
 * @property {Server[]} servers
 * @property {Link[]} links
 * @property {Chain[]} chains
 * @property {Advice[]} advice
 */
/** @typedef {{number: number, at: number, kind: string, model: string, peer: string, text: string, proof: string}} SwarmEvent */
/**
 * @typedef {object} Observer who looks
 * @property {string} peer
 * @property {string} software
 * @property {number} since_at
 * @property {number} models_left_out models that it knows and does not show
 * @property {number|null} directory_at
 * @property {string} problem
 */
/** @typedef {{at: number, revision: number, observer: Observer, models: Model[], events: SwarmEvent[]}} Swarm */
/** @typedef {{model: Model, gone: string[], links_gone: [string, string][]}} ModelPatch */
/**
 * @typedef {object} Patch
 * @property {number} at
 * @property {number} base the revision that it changes
 * @property {number} revision
 * @property {Observer} observer
 * @property {ModelPatch[]} models
 * @property {string[]} removed
 * @property {SwarmEvent[]} events
 */
/**
 * @typedef {object} History columns of one length, oldest first
 * @property {string} model
 * @property {number} step_s
 * @property {number[]} at
 * @property {(number|null)[]} tokens_per_s predicted for a new session
 * @property {(number|null)[]} served_tokens_per_s to all sessions
 * @property {(number|null)[]} covered_share
 * @property {(number|null)[]} servers
 * @property {(number|null)[]} step_p50_s
 * @property {(number|null)[]} step_p99_s
 */

export {};
