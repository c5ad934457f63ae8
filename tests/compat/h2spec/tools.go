//go:build tools

// Package tools names the program that go.mod and go.sum pin.
package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
