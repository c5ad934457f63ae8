// HotC's web function: a URL becomes a QR code.
package main

import (
	"encoding/json"

	"hotc/contract"
)

func main() {
	contract.Serve(func(event []byte) []byte {
		var wanted struct{ URL string }
		if err := json.Unmarshal(event, &wanted); err != nil {
			return answer(map[string]string{"error": err.Error()})
		}
		rows, err := encode([]byte(wanted.URL))
		if err != nil {
			return answer(map[string]string{"error": err.Error()})
		}
		return answer(map[string][]string{"rows": rows})
	})
}

func answer(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		return []byte("null")
	}
	return append(text, '\n')
}
