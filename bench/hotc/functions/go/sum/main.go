// The program of HotC's Fig. 4b: sums 0 to 10 million.
package main

import (
	"encoding/json"
	"strconv"

	"hotc/contract"
)

func main() {
	contract.Serve(func(event []byte) []byte {
		var wanted struct{ To int64 }
		if err := json.Unmarshal(event, &wanted); err != nil {
			return []byte("null")
		}
		var total int64
		for number := int64(0); number <= wanted.To; number++ {
			total += number
		}
		return strconv.AppendInt(nil, total, 10)
	})
}
