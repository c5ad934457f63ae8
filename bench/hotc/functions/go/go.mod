module hotc

go 1.21
