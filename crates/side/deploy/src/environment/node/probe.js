// Prints what a Node.js is, as one line of JSON.
console.log(
  JSON.stringify({
    version: process.versions.node,
    abi: process.versions.modules,
    platform: process.platform + "-" + process.arch,
    executable: require("fs").realpathSync(process.execPath),
  }),
);
