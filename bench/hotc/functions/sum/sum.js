// The program of HotC's Fig. 4b: sums 0 to 10 million. A function (`handler`), and a program that gets its event on standard input.
"use strict";

exports.handler = async (event) => {
  let total = 0;
  for (let number = 0; number <= event.to; number++) {
    total += number;
  }
  return total;
};

if (require.main === module) {
  const event = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
  exports.handler(event).then((total) => console.log(total));
}
