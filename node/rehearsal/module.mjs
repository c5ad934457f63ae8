// The ES module that a pre-warmed process loads (lib/rehearsal.js).
export {};
