package main

import "fmt"

// QR codes of versions 1 to 5, error correction level L, byte mode, mask 0 (ISO/IEC 18004): one block each, and no version
// information. A scanner accepts any mask, so the best one is not chosen.

// Codewords of data and of error correction, by version (Table 9), and where the alignment pattern is (Annex E).
var sizes = [...]struct{ data, correction, alignment int }{
	{19, 7, 0}, {34, 10, 18}, {55, 15, 22}, {80, 20, 26}, {108, 26, 30},
}

// Level L and mask 0 with their correction bits (Table C.1).
const format = 0x77c4

// The code as text, a row each: # is dark.
func encode(text []byte) ([]string, error) {
	for at, size := range sizes {
		// 4 bits of mode, 8 of length.
		if len(text)+2 <= size.data {
			code := newGrid(at + 1)
			code.place(append(pad(text, size.data), correction(pad(text, size.data), size.correction)...))
			return code.rows(), nil
		}
	}
	last := sizes[len(sizes)-1].data - 2
	return nil, fmt.Errorf("the URL has %d bytes, at most %d fit", len(text), last)
}

// Mode, length and text, shifted by half a byte, then the padding of section 7.4.10.
func pad(text []byte, length int) []byte {
	data := make([]byte, 0, length)
	nibbles := []byte{4, byte(len(text)) >> 4, byte(len(text)) & 15}
	for _, letter := range text {
		nibbles = append(nibbles, letter>>4, letter&15)
	}
	nibbles = append(nibbles, 0)
	for at := 0; at+1 < len(nibbles); at += 2 {
		data = append(data, nibbles[at]<<4|nibbles[at+1])
	}
	for filler := byte(0xec); len(data) < length; filler ^= 0xec ^ 0x11 {
		data = append(data, filler)
	}
	return data
}

// Multiplication in GF(256) modulo x^8 + x^4 + x^3 + x^2 + 1.
func multiply(a, b byte) byte {
	var product byte
	for ; b > 0; b >>= 1 {
		if b&1 == 1 {
			product ^= a
		}
		carry := a >> 7
		a = a<<1 ^ carry*0x1d
	}
	return product
}

// The remainder of the data by the generator of that degree (Reed-Solomon).
func correction(data []byte, degree int) []byte {
	generator := make([]byte, degree)
	generator[degree-1] = 1
	root := byte(1)
	for range generator {
		for at := range generator {
			generator[at] = multiply(generator[at], root)
			if at+1 < degree {
				generator[at] ^= generator[at+1]
			}
		}
		root = multiply(root, 2)
	}
	remainder := make([]byte, degree)
	for _, value := range data {
		factor := value ^ remainder[0]
		copy(remainder, remainder[1:])
		remainder[degree-1] = 0
		for at := range remainder {
			remainder[at] ^= multiply(generator[at], factor)
		}
	}
	return remainder
}

type grid struct {
	width int
	dark  [][]bool
	// Finder, timing, alignment and format: no data there.
	taken [][]bool
}

func newGrid(version int) *grid {
	width := 17 + 4*version
	code := &grid{width: width, dark: make([][]bool, width), taken: make([][]bool, width)}
	for row := range code.dark {
		code.dark[row], code.taken[row] = make([]bool, width), make([]bool, width)
	}
	for at := 0; at < width; at++ {
		code.set(6, at, at%2 == 0)
		code.set(at, 6, at%2 == 0)
	}
	for _, corner := range [][2]int{{3, 3}, {3, width - 4}, {width - 4, 3}} {
		code.square(corner[0], corner[1], 4, func(ring int) bool { return ring != 2 && ring != 4 })
	}
	if middle := sizes[version-1].alignment; middle > 0 {
		code.square(middle, middle, 2, func(ring int) bool { return ring != 1 })
	}
	code.setFormat()
	return code
}

// Rings around a centre, clipped to the code.
func (code *grid) square(row, column, radius int, dark func(ring int) bool) {
	for down := -radius; down <= radius; down++ {
		for right := -radius; right <= radius; right++ {
			if r, c := row+down, column+right; r >= 0 && c >= 0 && r < code.width && c < code.width {
				code.set(r, c, dark(max(abs(down), abs(right))))
			}
		}
	}
}

// The format's 15 bits, twice (Fig. 25), and the module that is always dark.
func (code *grid) setFormat() {
	last := code.width - 1
	for bit := 0; bit < 15; bit++ {
		dark := format>>bit&1 == 1
		switch {
		case bit < 6:
			code.set(bit, 8, dark)
		case bit < 8:
			code.set(bit+1, 8, dark)
		case bit == 8:
			code.set(8, 7, dark)
		default:
			code.set(8, 14-bit, dark)
		}
		if bit < 8 {
			code.set(8, last-bit, dark)
		} else {
			code.set(last-14+bit, 8, dark)
		}
	}
	code.set(last-7, 8, true)
}

func (code *grid) set(row, column int, dark bool) {
	code.dark[row][column], code.taken[row][column] = dark, true
}

// The codewords' bits in pairs of columns from the right, up and down in turn, under mask 0.
func (code *grid) place(codewords []byte) {
	bit := 0
	upward := true
	for right := code.width - 1; right > 0; right -= 2 {
		if right == 6 { // the timing pattern's
			right--
		}
		for step := 0; step < code.width; step++ {
			row := step
			if upward {
				row = code.width - 1 - step
			}
			for column := right; column > right-2; column-- {
				if code.taken[row][column] {
					continue
				}
				dark := bit < 8*len(codewords) && codewords[bit/8]>>(7-bit%8)&1 == 1
				code.dark[row][column] = dark != ((row+column)%2 == 0)
				bit++
			}
		}
		upward = !upward
	}
}

func (code *grid) rows() []string {
	rows := make([]string, code.width)
	for at, row := range code.dark {
		line := make([]byte, code.width)
		for column, dark := range row {
			line[column] = ' '
			if dark {
				line[column] = '#'
			}
		}
		rows[at] = string(line)
	}
	return rows
}

func abs(value int) int {
	if value < 0 {
		return -value
	}
	return value
}
