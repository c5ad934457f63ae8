// The times that SeBS's functions report, microseconds.
'use strict';

exports.clock = () => {
  let began = performance.now();
  return () => {
    const before = began;
    began = performance.now();
    return (began - before) * 1e3;
  };
};
