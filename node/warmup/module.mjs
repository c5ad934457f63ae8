// The ES module that the warm-up of a pre-warmed process loads (lib/warmup.js).
export {};
