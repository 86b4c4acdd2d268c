// What goes over the wire: requests to the gateway, the events of an answer, and in words what went wrong.

/** A stream that says nothing for so long is dead: the gateway gives a sign of life every 15 s. */
const SILENT_MS = 45000;

/** What the gateway, or the way to it, refused. Its message is for the reader. */
export class Problem extends Error {
  /** @param {string} message @param {number} [status] 0: no answer came @param {string} [code] the gateway's own word */
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/**
 * @param {string} path below the page @param {string} key of the API, or empty
 * @param {RequestInit} [options]
 * @returns {Promise<Response>} one of success; everything else is thrown as a `Problem`
 */
export async function asked(path, key, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Problem("the gateway cannot be reached: it has ended, or the network is away");
  }
  if (!response.ok) throw await refused(response);
  return response;
}

/** @param {Response} response */
async function refused(response) {
  try {
    const { message, code } = (await response.json()).error;
    const later = response.headers.get("Retry-After");
    const hint = code === "context_length_exceeded" ? "; a new chat begins with an empty one" : "";
    return new Problem(`${message}${hint}${later ? ` (try again in ${later} s)` : ""}`, response.status, code);
  } catch {
    return new Problem(`the gateway answered ${response.status}`, response.status);
  }
}

/**
 * The data of each server-sent event, up to the end that says it is one.
 * @param {Response} response
 * @returns {AsyncGenerator<any>}
 */
export async function* events(response) {
  const reader = /** @type {ReadableStream<BufferSource>} */ (response.body)
    .pipeThrough(new TextDecoderStream())
    .getReader();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await within(reader.read());
      if (done) throw new Problem("cut short: the connection ended");
      const parts = (held + value).split("\n\n");
      held = /** @type {string} */ (parts.pop());
      for (const part of parts) {
        if (!part.startsWith("data: ")) continue;
        const data = part.slice(6);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Problem(`cut short: ${event.error.message}`);
        yield event;
      }
    }
  } catch (error) {
    throw error instanceof Problem ? error : new Problem("cut short: the connection was lost");
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @template T @param {Promise<T>} reading @returns {Promise<T>} */
async function within(reading) {
  let timer = 0;
  const silence = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Problem("cut short: the connection went silent")), SILENT_MS);
  });
  try {
    return await Promise.race([reading, /** @type {Promise<never>} */ (silence)]);
  } finally {
    clearTimeout(timer);
  }
}
