// The ES module that a generic process loads (lib/rehearsal.js).
export {};
