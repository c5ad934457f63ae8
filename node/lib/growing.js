// Inputs that still arrive: a file that is read as far as it is filled, and a pipe on which the daemon says how far that is
// (PROTOCOL.md, "Inputs that still arrive"). Loaded only if there is one.
//
// A stream waits for no more than it is asked for. Everything else is the whole input: `whole()` waits for it without stopping the event
// loop, and a Buffer or a path, which must be there at once, waits with everything stopped.
'use strict';

const fs = require('node:fs');
const net = require('node:net');
const { Readable } = require('node:stream');

const { Input, InputError } = require('./input.js');

const MESSAGE_LEN = 9;
const WHOLE = 1;
const FAILED = 2;
const READ_LEN = 64 * 1024;
const ENDED = 'it was still on its way when the invocation ended';

/** An input that did not arrive as a whole. */
class BrokenInput extends InputError {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = 'BrokenInput';
  }
}

/**
 * One that waits for bytes.
 * @typedef {{count: number, of: unknown, resolve: (there: number) => void, reject: (error: Error) => void}} Waiter
 */

/** An input that still arrives. */
class Growing extends Input {
  #there = 0;
  #isWhole = false;
  /** Why no more will come. @type {string | null} */
  #problem = null;
  #progress = '';
  /** Hears from the daemon. @type {net.Socket | null} */
  #socket = null;
  /** A part of a message. */
  #unread = Buffer.alloc(0);
  /** @type {Waiter[]} */
  #waiters = [];

  /**
   * From now on, this pipe says how much is there.
   * @param {string} path
   */
  follow(path) {
    this.#progress = path;
  }

  /** Its length. If the store has not announced it: waits for the whole. @override */
  get size() {
    return super.size ?? this.#wholeNow();
  }

  /** Waits for the whole. @override */
  get path() {
    this.#wholeNow();
    return super.path;
  }

  /** Its bytes. Waits for the whole. @override */
  buffer() {
    this.#wholeNow();
    return super.buffer();
  }

  /** @override */
  async arrived() {
    await this.wait();
  }

  /** Its bytes, when all are there. @override */
  async whole() {
    await this.wait();
    return super.buffer();
  }

  /**
   * A stream of its bytes from `start` to before `end`, each as soon as it is there.
   * @param {number} [start]
   * @param {number} [end]
   * @override
   */
  stream(start = 0, end = Infinity) {
    return this.track(new GrowingStream(this, fs.openSync(super.path, 'r'), start, end));
  }

  /**
   * Waits until so many bytes are there, or all. How many are there.
   * @param {number} [count]
   * @param {unknown} [of] who waits, for `leave`
   * @returns {Promise<number>}
   */
  wait(count = Infinity, of = null) {
    if (this.#isWhole || this.#there >= count) {
      return Promise.resolve(this.#there);
    }
    if (this.#problem !== null) {
      return Promise.reject(this.#broken());
    }
    return new Promise((resolve, reject) => {
      this.#waiters.push({ count, of, resolve, reject });
      this.#listen();
    });
  }

  /**
   * This one does not wait any more.
   * @param {unknown} of
   */
  leave(of) {
    this.#waiters = this.#waiters.filter((waiter) => waiter.of !== of);
    this.#tell();
  }

  /** Its invocation has ended. @override */
  end() {
    super.end();
    this.#socket?.destroy();
    this.#over(ENDED);
  }

  #listen() {
    if (this.#socket !== null) {
      this.#socket.ref();
      return;
    }
    let fd;
    try {
      fd = fs.openSync(this.#progress, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK);
    } catch (error) {
      this.#over(String(error));
      return;
    }
    const socket = new net.Socket({ fd, readable: true, writable: false });
    socket.on('data', (chunk) => this.#hear(chunk));
    socket.on('error', (error) => this.#over(String(error)));
    socket.on('end', () => this.#over(ENDED));
    this.#socket = socket;
  }

  /** Waits for the whole, and stops everything else meanwhile. Its length. */
  #wholeNow() {
    if (!this.#isWhole && this.#problem === null) {
      const fd = fs.openSync(this.#progress, 'r');
      const chunk = Buffer.allocUnsafe(READ_LEN);
      try {
        while (!this.#isWhole && this.#problem === null) {
          const len = fs.readSync(fd, chunk);
          if (len === 0) {
            this.#over(ENDED);
          } else {
            this.#hear(chunk.subarray(0, len));
          }
        }
      } finally {
        fs.closeSync(fd);
      }
    }
    if (!this.#isWhole) {
      throw this.#broken();
    }
    return this.#there;
  }

  /** @param {Buffer} news */
  #hear(news) {
    this.#unread = Buffer.concat([this.#unread, news]);
    while (this.#unread.length >= MESSAGE_LEN) {
      const kind = this.#unread[0];
      const value = Number(this.#unread.readBigUInt64LE(1));
      if (kind === FAILED) {
        const text = this.#unread.subarray(MESSAGE_LEN);
        if (text.length >= value) {
          this.#over(text.toString('utf8', 0, value));
        }
        return;
      }
      this.#there = Math.max(this.#there, value);
      this.#isWhole = kind === WHOLE;
      this.#unread = this.#unread.subarray(MESSAGE_LEN);
    }
    this.#tell();
  }

  /**
   * No more will come.
   * @param {string} problem
   */
  #over(problem) {
    if (!this.#isWhole) {
      this.#problem ??= problem;
    }
    this.#tell();
  }

  #tell() {
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const waiter of waiters) {
      if (this.#isWhole || this.#there >= waiter.count) {
        waiter.resolve(this.#there);
      } else if (this.#problem !== null) {
        waiter.reject(this.#broken());
      } else {
        this.#waiters.push(waiter);
      }
    }
    if (this.#waiters.length === 0) {
      this.#socket?.unref(); // what nobody waits for does not keep the event loop alive
    }
  }

  #broken() {
    return new BrokenInput(`input '${this.name}': ${this.#problem}`);
  }
}

/** Reads an input as far as it is there. */
class GrowingStream extends Readable {
  #input;
  #fd;
  #at;
  #end;
  #isReading = false;
  /** Closes the file when a read that runs has ended. @type {(() => void) | null} */
  #close = null;

  /**
   * @param {Growing} input
   * @param {number} fd its file, which is the stream's
   * @param {number} start
   * @param {number} end
   */
  constructor(input, fd, start, end) {
    super({ highWaterMark: READ_LEN });
    this.#input = input;
    this.#fd = fd;
    this.#at = start;
    this.#end = end;
  }

  /**
   * @param {number} size
   * @override
   */
  _read(size) {
    if (this.#at >= this.#end) {
      this.push(null);
      return;
    }
    this.#input.wait(this.#at + 1, this).then(
      (there) => this.#readAt(Math.min(size, Math.min(there, this.#end) - this.#at)),
      (error) => this.destroy(error),
    );
  }

  /** @param {number} count */
  #readAt(count) {
    if (this.destroyed) {
      return;
    }
    if (count <= 0) {
      this.push(null);
      return;
    }
    this.#isReading = true;
    fs.read(this.#fd, Buffer.allocUnsafe(count), 0, count, this.#at, (error, len, bytes) => {
      this.#isReading = false;
      if (this.#close !== null) {
        this.#close();
      } else if (error) {
        this.destroy(error);
      } else {
        this.#at += len;
        this.push(len === 0 ? null : bytes.subarray(0, len));
      }
    });
  }

  /**
   * @param {Error | null} error
   * @param {(error?: Error | null) => void} done
   * @override
   */
  _destroy(error, done) {
    this.#input.leave(this);
    const close = () => fs.close(this.#fd, (problem) => done(error ?? problem));
    if (this.#isReading) {
      this.#close = close;
    } else {
      close();
    }
  }
}

module.exports = { BrokenInput, Growing };
