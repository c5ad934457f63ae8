// The exceptions of calls of other functions. Their names and texts are those of the Python module.
'use strict';

/** A function could not be invoked, or failed. */
class InvokeError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = new.target.name;
  }
}

/** The daemon did not do what was asked for. `reason` is one word, such as Forbidden, NotFound, Throttled or NoRoom. */
class Refused extends InvokeError {
  /**
   * @param {string} reason
   * @param {string} problem
   */
  constructor(reason, problem) {
    super(`${reason}: ${problem}`);
    this.reason = reason;
    this.problem = problem;
  }
}

/** The function raised, timed out or crashed. The attributes are those of Lambda's error. */
class FunctionError extends InvokeError {
  /**
   * @param {string} name
   * @param {any} error
   */
  constructor(name, error) {
    const { errorType = 'Unknown', errorMessage = '', stackTrace, trace } = error ?? {};
    super(`function '${name}' failed: ${errorType}: ${errorMessage}`);
    this.functionName = name;
    this.errorType = String(errorType);
    this.errorMessage = String(errorMessage);
    /** @type {string[]} */
    this.stackTrace = stackTrace ?? trace ?? [];
  }
}

/** Some items of `map` failed. `results` has the result of each item, or its exception, in order; `errors` the exceptions by index. */
class MapError extends InvokeError {
  /**
   * @param {string} name
   * @param {unknown[]} results
   */
  constructor(name, results) {
    const failed = /** @type {Array<[number, InvokeError]>} */ ([...results.entries()].filter(([, one]) => one instanceof InvokeError));
    const [index, first] = failed[0];
    super(`${failed.length} of ${results.length} calls of '${name}' failed; number ${index}: ${first.message}`);
    this.results = results;
    this.errors = new Map(failed);
  }
}

/** Something still writes to a buffer that is handed over. */
class BufferInUse extends InvokeError {}

const OVER = 'the invocation is over, and its calls ended with it';

module.exports = { BufferInUse, FunctionError, InvokeError, MapError, OVER, Refused };
