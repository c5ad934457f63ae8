// Types of the module `pilotlight` of functions in Node.js (docs/data.md, docs/initscripts.md). The worker provides the module itself: nothing
// has to be installed. Copy this file into your code, or name it in `include` of tsconfig.json.

declare module "pilotlight" {
  import type { Socket } from "node:net";
  import type { Readable, Writable } from "node:stream";

  type Bytes = NodeJS.ArrayBufferView | ArrayBufferLike;

  /** Memory to fill and then hand to other functions. Handing it over ends writing. */
  interface HandedBuffer {
    readonly size: number;
    /** A path by which other programs of the function can write to it, until it is handed over. */
    readonly path: string;
    /** Copies bytes into it. They must not be changed until it is done. */
    write(data: Bytes, at?: number): Promise<void>;
    /** A stream that writes to it, from `at` on. */
    stream(at?: number): Writable;
    /** Ends writing. `invoke` and `map` do it by themselves. */
    seal(): Promise<void>;
    /** Gives the memory back. Functions that have got it keep it until their invocations end. */
    release(): void;
  }

  /** An input of the invocation, to be handed on without a copy. */
  interface HandedInput {
    readonly name: string;
  }

  type Part = string | Bytes;
  type Handing =
    | { data?: Bytes | HandedBuffer | HandedInput | null; size?: undefined }
    | { data: Part | Iterable<Part> | AsyncIterable<Part>; size: number };

  /** Invokes a function and gives what its handler returned. Rejects with Refused or FunctionError if there is no answer. */
  export function invoke<T = any>(name: string, options?: Handing & { payload?: unknown }): Promise<T>;
  /** Invokes a function once for each payload, up to 16 at a time. Gives the results in order. */
  export function map<T = any>(
    name: string,
    payloads: Iterable<unknown> | AsyncIterable<unknown>,
    options?: Handing & { returnErrors?: false },
  ): Promise<T[]>;
  export function map<T = any>(
    name: string,
    payloads: Iterable<unknown> | AsyncIterable<unknown>,
    options: Handing & { returnErrors: boolean },
  ): Promise<Array<T | InvokeError>>;
  /** Memory of `size` bytes, zero at first. */
  export function buffer(size: number): Promise<HandedBuffer>;
  /** An input of this invocation, as `data` for other functions. It is not read here. */
  export function input(name: string): HandedInput;

  /** A function could not be invoked, or failed. */
  export class InvokeError extends Error {}
  /** The daemon did not do what was asked for. */
  export class Refused extends InvokeError {
    readonly reason:
      | "Forbidden" | "NotFound" | "TooDeep" | "Throttled" | "NotSupported" | "Invalid" | "TooLarge" | "NoRoom" | "StillMapped"
      | "Unavailable";
    readonly problem: string;
  }
  /** The function raised, timed out or crashed. */
  export class FunctionError extends InvokeError {
    readonly functionName: string;
    readonly errorType: string;
    readonly errorMessage: string;
    readonly stackTrace: string[];
  }
  /** Some items of `map` failed. */
  export class MapError extends InvokeError {
    readonly results: unknown[];
    readonly errors: Map<number, InvokeError>;
  }
  /** Something still writes to a buffer that is handed over. */
  export class BufferInUse extends InvokeError {}

  type Id = number | bigint;
  /** What the function's initscripts have sent. */
  export const init: {
    readonly NoConnection: new (message: string) => Error;
    readonly NoMessage: new (message: string) => Error;
    readonly NotSent: new (message: string) => Error;
    recvMsg(id: Id): Buffer;
    recv_msg(id: Id): Buffer;
    path(id: Id): string;
    stream(id: Id): Readable;
    getConn(id: Id, address: string): Socket;
    get_conn(id: Id, address: string): Socket;
    messages(): Id[];
    idOf(...args: string[]): bigint;
    readonly promises: {
      recvMsg(id: Id): Promise<Buffer>;
      path(id: Id): Promise<string>;
      stream(id: Id): Promise<Readable>;
      getConn(id: Id, address: string): Promise<Socket>;
      sendMsg(id: Id, data: string | Uint8Array): Promise<void>;
    };
  };
}
