// Memory that a handler fills to hand it to other functions. The daemon makes it and says by which path it can be written; `sdk.js` has what
// else a function needs. When it is sealed, nobody can write to it any more.
'use strict';

const fs = require('node:fs');
const { Writable } = require('node:stream');

const { Closed } = require('./calls.js');
const { BufferInUse, InvokeError, OVER, Refused } = require('./invoke_errors.js');

/** @typedef {import('./calls.js').Calls} Calls */

const WRITE_LEN = 8 << 20; // of bytes that are copied, so many are written at once, and told
const TOLD_LEN_MIN = 256 << 10; // the daemon counts in such steps
const TOLD_MAX = 128; // so often per buffer: after 200 messages at once, the daemon takes one per millisecond
const BLOCK_LEN = 512; // of fstat(2)
const SIZE_MAX = Number.MAX_SAFE_INTEGER;

/** The file of a buffer. It is closed when nothing writes any more: the kernel may give its number to another file. */
class File {
  /** Streams that may write. */
  streams = 0;
  /** Writes that are not finished. */
  writing = 0;
  #isClosing = false;

  /**
   * @param {Calls} calls
   * @param {number} number of the buffer
   * @param {string} path
   */
  constructor(calls, number, path) {
    this.calls = calls;
    this.number = number;
    this.fd = fs.openSync(path, 'r+');
    calls.files.add(this);
  }

  /** As soon as nothing writes. */
  close() {
    this.#isClosing = true;
    if (this.writing === 0 && this.calls.files.delete(this)) {
      fs.closeSync(this.fd);
    }
  }

  /**
   * @template T
   * @param {() => Promise<T>} action
   */
  async whileOpen(action) {
    this.writing += 1;
    try {
      return await action();
    } finally {
      this.writing -= 1;
      if (this.#isClosing) {
        this.close();
      }
    }
  }

  get isClosing() {
    return this.#isClosing;
  }
}

/** Closes the files of buffers that nobody refers to any more, and says so with the next request. */
const forgotten = new FinalizationRegistry((/** @type {File} */ file) => {
  // It may run in the middle of anything, so it sends nothing itself.
  file.close();
  file.calls.dropped.push(file.number);
});

/** Memory to fill and then hand to other functions. Made by `buffer(size)`. Handing it over ends writing. */
class HandedBuffer {
  #calls;
  #path;
  /** @type {Promise<void> | null} */
  #sealing = null;
  #isReleased = false;
  #file;

  /**
   * @param {Calls} calls
   * @param {number} size
   * @param {number} number
   * @param {string} path
   */
  constructor(calls, size, number, path) {
    this.size = size;
    this.#calls = calls;
    this.#path = path;
    this.#file = new File(calls, number, path);
    forgotten.register(this, this.#file, this);
  }

  /**
   * Asks for one.
   * @param {Calls} calls
   * @param {number} size
   */
  static async make(calls, size) {
    if (!Number.isInteger(size) || size < 0 || size > SIZE_MAX) {
      throw new RangeError(`a buffer of ${String(size)} bytes cannot be made: give a whole number from 0 to ${SIZE_MAX}`);
    }
    const { id, meta } = await asked(calls, { op: 'buffer', len: size });
    try {
      return new HandedBuffer(calls, size, id, /** @type {string} */ (meta.path));
    } catch (error) {
      calls.tell({ op: 'release', buffer: id });
      throw new Refused('Unavailable', `the memory cannot be opened: ${/** @type {Error} */ (error).message}`);
    }
  }

  /**
   * The number by which a call names a buffer.
   * @param {HandedBuffer} buffer
   * @param {Calls} calls
   */
  static number(buffer, calls) {
    if (buffer.#calls !== calls) {
      throw new Error('the buffer is of another invocation: it ended with it');
    }
    if (buffer.#isReleased) {
      throw new Error('the buffer was released');
    }
    return buffer.#file.number;
  }

  /** A path by which other programs of the function can write to it, until it is handed over. They cannot change its length. */
  get path() {
    this.#open();
    return this.#path;
  }

  /**
   * Copies bytes into it. They must not be changed until it is done.
   * @param {NodeJS.ArrayBufferView | ArrayBufferLike} data
   * @param {number} [at]
   */
  async write(data, at = 0) {
    await this.#write(bytesOf(data), at, () => {});
  }

  /**
   * A stream that writes to it, from `at` on.
   * @param {number} [at]
   * @returns {Writable}
   */
  stream(at = 0) {
    this.#open();
    this.#file.streams += 1;
    let position = at;
    let isOpen = true;
    const finish = () => {
      this.#file.streams -= isOpen ? 1 : 0;
      isOpen = false;
    };
    return new Writable({
      write: (chunk, _, done) => {
        const begin = position;
        position += chunk.length;
        this.#write(chunk, begin, () => {}).then(() => done(), done);
      },
      final: (done) => {
        finish();
        done();
      },
      destroy: (error, done) => {
        finish();
        done(error);
      },
    });
  }

  /** Ends writing. `invoke` and `map` do it by themselves. */
  async seal() {
    if (this.#isReleased) {
      throw new Error('the buffer was released');
    }
    if (this.#sealing === null && this.#file.writing + this.#file.streams > 0) {
      throw new BufferInUse('something still writes to the buffer: wait for it before the buffer is handed over');
    }
    this.#sealing ??= this.#seal();
    await this.#sealing;
  }

  async #seal() {
    try {
      await this.#file.whileOpen(async () => {
        await this.#fillHoles();
        await asked(this.#calls, { op: 'seal', buffer: this.#file.number });
      });
      this.#file.close();
    } catch (error) {
      this.#sealing = null; // it can be tried again
      throw error;
    }
  }

  /** Gives the memory back. Functions that have got it keep it until their invocations end. */
  release() {
    if (!this.#isReleased) {
      this.#isReleased = true;
      forgotten.unregister(this);
      this.#file.close();
      this.#calls.tell({ op: 'release', buffer: this.#file.number });
    }
  }

  /**
   * Copies all of it, and seals it. What is copied may already go to another node.
   * @param {HandedBuffer} buffer
   * @param {Buffer} data
   */
  static async fill(buffer, data) {
    await buffer.#write(data, 0, (there) => buffer.#tell(there));
    await buffer.seal();
  }

  /**
   * Fills it with parts that have its size together, and seals it.
   * @param {HandedBuffer} buffer
   * @param {AsyncIterable<unknown> | Iterable<unknown>} parts
   */
  static async fillWith(buffer, parts) {
    const step = Math.max(TOLD_LEN_MIN, buffer.size / TOLD_MAX);
    let at = 0;
    let told = 0;
    for await (const part of parts) {
      const bytes = typeof part === 'string' ? Buffer.from(part) : bytesOf(part);
      if (at + bytes.length > buffer.size) {
        throw new RangeError(`data has more than the ${buffer.size} bytes of size`);
      }
      await buffer.#write(bytes, at, () => {});
      at += bytes.length;
      if (at - told >= step) {
        buffer.#tell(at);
        told = at;
      }
    }
    if (at < buffer.size) {
      throw new RangeError(`data has ${at} bytes, and size says ${buffer.size}`);
    }
    await buffer.seal();
  }

  /** @param {number} there */
  #tell(there) {
    this.#calls.tell({ op: 'filled', buffer: this.#file.number, len: there });
  }

  /**
   * @param {Buffer} data
   * @param {number} at
   * @param {(there: number) => void} onPart
   */
  async #write(data, at, onPart) {
    this.#open();
    if (!Number.isInteger(at) || at < 0 || at + data.length > this.size) {
      throw new RangeError(`${data.length} bytes at ${String(at)} do not fit into a buffer of ${this.size}`);
    }
    await this.#file.whileOpen(async () => {
      let done = 0;
      while (done < data.length) {
        if (this.#file.isClosing) {
          throw new Error('the buffer was released');
        }
        done += await written(this.#file.fd, data, done, at + done);
        if (done < data.length) {
          onPart(done);
        }
      }
    });
  }

  /** Makes the pages that nobody has written: zeros. The kernel shows only how many there are, so all are written again. */
  async #fillHoles() {
    const { fd } = this.#file;
    if (fs.fstatSync(fd).blocks * BLOCK_LEN >= this.size) {
      return;
    }
    const part = Buffer.alloc(Math.min(this.size, 1 << 20));
    for (let at = 0; at < this.size; at += part.length) {
      const len = fs.readSync(fd, part, 0, Math.min(part.length, this.size - at), at);
      await written(fd, part.subarray(0, len), 0, at);
    }
  }

  #open() {
    if (this.#sealing !== null || this.#file.isClosing) {
      throw new Error('the buffer was handed over or released: nothing can be written any more');
    }
  }
}

/**
 * @param {number} fd
 * @param {Buffer} data
 * @param {number} from
 * @param {number} at
 * @returns {Promise<number>}
 */
function written(fd, data, from, at) {
  const len = Math.min(WRITE_LEN, data.length - from);
  return new Promise((resolve, reject) => {
    fs.write(fd, data, from, len, at, (error, count) => (error ? reject(error) : resolve(count)));
  });
}

/**
 * The bytes of an object, without a copy.
 * @param {unknown} data
 * @returns {Buffer}
 */
function bytesOf(data) {
  if (ArrayBuffer.isView(data)) {
    return Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  }
  if (data instanceof ArrayBuffer || data instanceof SharedArrayBuffer) {
    return Buffer.from(data);
  }
  throw new TypeError(`bytes are a Buffer, a Uint8Array or an ArrayBuffer, and not ${data === null ? 'null' : typeof data}`);
}

/**
 * The answer to a request that is not refused.
 * @param {Calls} calls
 * @param {Record<string, unknown>} ask
 */
async function asked(calls, ask) {
  let answer;
  try {
    answer = await calls.request(ask);
  } catch (error) {
    throw error instanceof Closed ? new InvokeError(OVER) : error;
  }
  if (answer.meta.end === 'refused') {
    throw new Refused(answer.meta.reason, answer.meta.problem);
  }
  return answer;
}

module.exports = { HandedBuffer, bytesOf };
